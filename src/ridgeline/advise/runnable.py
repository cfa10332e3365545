"""Which programs run a stack, and the best part of it that one program runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from ridgeline.advise.cases import AdviceCase, S, TrialOutcome
from ridgeline.advise.stacks import Stacker, Trial, better_than
from ridgeline.errors import RidgelineError

NOWHERE = "no program that is known here has all of it"


def programs_text(case: AdviceCase[S], stack: Sequence[Trial[S]]) -> str:
    """Programs that run the whole stack; '' where nothing is known of any of it."""
    known = any(one.change.key or case.lists(one.change) for one in stack)
    return ", ".join(_programs(case, stack)) or (NOWHERE if known else "")


def _programs(case: AdviceCase[S], stack: Sequence[Trial[S]]) -> list[str]:
    """Programs that run the choice after all steps; of techniques that no program's file tells of, those they name."""
    found = list(case.programs(stack[-1].state)) if stack else []
    for one in stack:
        if one.change.key and not case.lists(one.change):
            found = [each for each in found if each in one.change.export]
    return found


def runnable_part(stacker: Stacker[S], stack: Sequence[Trial[S]], base: TrialOutcome) -> list[Trial[S]]:
    """The steps of a stack that one program runs and that bring most; none where no program's part helps."""
    case = stacker.case
    named = {name for one in stack for name in (*_programs(case, [one]), *one.change.export)}
    best: list[Trial[S]] = []
    least, seen = better_than(base), set[frozenset[str]]()
    for program in sorted(named | set(case.programs(case.base))):
        for first in range(len(stack)):  # what a program refuses beside one step it may run beside another
            kept = _kept(case, [*stack[first:], *stack[:first]], program)
            words = frozenset(one.change.words for one in kept)
            if not kept or words in seen:
                continue
            seen.add(words)
            whole = stacker.outcome_of(kept)
            if whole is None or whole.score >= least:
                continue
            found = stacker.pruned(kept, whole)
            if isfinite(found[-1].outcome.value) and found[-1].outcome.score < least:
                best, least = found, found[-1].outcome.score
    return best


def _kept(case: AdviceCase[S], stack: Sequence[Trial[S]], program: str) -> list[Trial[S]]:
    """The steps that a program runs on those before them."""
    kept: list[Trial[S]] = []
    for one in stack:
        try:
            state = one.change.put(kept[-1].state if kept else case.base)
        except RidgelineError:
            continue
        tried = [*kept, Trial(change=one.change, state=state, outcome=one.outcome)]
        if program in _programs(case, tried):
            kept = tried
    return kept
