"""From a case to advice: what limits it, every change alone, the best stack, and what each costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from ridgeline.advise.cases import AdviceCase, Change, S, TrialOutcome
from ridgeline.advise.stacks import LEAST_GAIN, Stacker, Trial, better_than, explained_first
from ridgeline.errors import RidgelineError
from ridgeline.report.advice import Advice, Advised, AdvisedValue, LimitPart, RunnablePart, StackStep
from ridgeline.units import bytes_text, time_text

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


_TOLD = 0.002  # of the whole: a part that changes by less is not told
_FAR = 1e4  # times worse: a rate of nothing
_DERIVED = ("definition", "none")  # sources that are none of the list


@dataclass(frozen=True, kw_only=True)
class AdviceQuestion:
    """What is asked, in words: a title, the objective with its unit, what was written, what a replay used.

    `floor` is the least that the value can be at the same prices and why, `assumed` what was taken where nothing was
    said, `inverse` says that people are told 1 / value.
    """

    title: str
    objective: str
    unit: str
    baseline: str
    capacity_bytes: float
    load: str = ""
    floor: tuple[float, str] | None = None
    assumed: Sequence[str] = ()
    inverse: bool = False


def advise(case: AdviceCase[S], asked: AdviceQuestion, base: TrialOutcome) -> Advice:
    """Advice on a case whose baseline came to `base`."""
    runs = base.fits and isfinite(base.value)
    stacker: Stacker[S] = Stacker(case=case)
    alone = stacker.alone(base)
    refused, illegal = dict(stacker.refused), dict(stacker.illegal)
    useful = _best_of_slots(one for one in alone if not one.bounded and _helps(one.outcome, base))
    helps = [_advised(case, one, base, runs=runs) for one in explained_first(useful)]
    if case.bounds_nothing and runs:
        stacker.promising = {one.change.key or one.change.slot for one in useful}
    stack = stacker.stack(base)
    steps = _steps(case, stack, base, asked.inverse)
    last = case.explained(stack[-1].state) if stack else base
    value = None if not runs else _shown(base.value, asked.inverse)
    effort = programs_text(case, stack)
    return Advice(
        title=asked.title, objective=asked.objective, unit=asked.unit, baseline=asked.baseline, load=asked.load,
        value=value, memory_bytes=base.memory_bytes, excess_bytes=base.excess_bytes,
        capacity_bytes=asked.capacity_bytes, limits=limits(base), limit=limit_text(base),
        floor=None if asked.floor is None else _shown(asked.floor[0], asked.inverse),
        floor_why="" if asked.floor is None else asked.floor[1],
        helps=tuple(helps), idle=_idle(alone, base, {one.written for one in helps}), refused=refused,
        illegal=illegal, stack_effort=effort, part=_part(stacker, stack, base, asked) if effort == NOWHERE else None,
        stack=steps, stack_gain=gain(case, base, last) if runs and stack else None,
        stack_words=" ".join(one.change.words for one in stack),
        best=_shown(last.value, asked.inverse) if last.fits and isfinite(last.value) else None,
        tried=stacker.tried, simulated=stacker.simulated, assumed=tuple(asked.assumed),
    )  # fmt: skip


def _part(
    stacker: Stacker[S], stack: Sequence[Trial[S]], base: TrialOutcome, asked: AdviceQuestion
) -> RunnablePart | None:
    """What of a stack that runs nowhere one program runs, and how far that goes."""
    found = runnable_part(stacker, stack, base)
    if not found:
        return None
    case, last = stacker.case, found[-1].outcome
    return RunnablePart(
        programs=programs_text(case, found), words=" ".join(one.change.words for one in found),
        value=_shown(last.value, asked.inverse) if last.fits else None,
        gain=gain(case, base, case.explained(found[-1].state)) if base.fits and isfinite(base.value) else None,
    )  # fmt: skip


def _best_of_slots(found: Iterable[Trial[S]]) -> list[Trial[S]]:
    """The best lever of each slot, and every technique, in order."""
    kept: dict[str, Trial[S]] = {}
    for one in found:
        kept.setdefault(one.change.key or one.change.slot, one)
    return list(kept.values())


def _helps(after: TrialOutcome, base: TrialOutcome) -> bool:
    """Whether a change makes an unfit choice smaller, or a fit one better by `LEAST_GAIN`."""
    if base.excess_bytes > 0.0:
        return after.excess_bytes < base.excess_bytes * (1.0 - LEAST_GAIN)
    return after.fits and after.value < base.value * (1.0 - LEAST_GAIN)


def _shown(value: float, inverse: bool) -> float:
    return 1.0 / value if inverse else value


def gain(case: AdviceCase[S], before: TrialOutcome, after: TrialOutcome) -> AdvisedValue:
    """How many times better the objective becomes [1], with the interval of the difference."""
    low, high = case.range_of(before, after)
    return AdvisedValue(value=before.value / after.value, low=1.0 / max(high, 1e-30), high=1.0 / max(low, 1e-30))


def limits(found: TrialOutcome) -> tuple[LimitPart, ...]:
    """The parts of a time, the longest first."""
    whole = sum(found.parts.values())
    return tuple(
        LimitPart(part=name, kind=found.kinds.get(name, ""), seconds=seconds, share=seconds / whole)
        for name, seconds in sorted(found.parts.items(), key=lambda item: -item[1])
        if seconds > _TOLD * whole
    )


def limit_text(found: TrialOutcome) -> str:
    """The longest part, and the share of the time that it takes."""
    parts = limits(found)
    if not parts:
        return ""
    first = parts[0]
    return f"{first.part}{f' ({first.kind})' if first.kind and first.kind != first.part else ''}, {first.share:.0%}"


def _advised(case: AdviceCase[S], one: Trial[S], base: TrialOutcome, *, runs: bool) -> Advised:
    after = case.explained(one.state)
    return Advised(
        written=one.change.words, technique=one.change.key, what=one.change.what,
        gain=gain(case, base, after) if runs and after.fits else None,
        memory_bytes=after.memory_bytes, excess_bytes=after.excess_bytes, quality=quality_text(one.change),
        effort=effort_text(case, one), why=why_text(base, after), then=limit_text(after),
    )  # fmt: skip


def _steps(case: AdviceCase[S], stack: Sequence[Trial[S]], base: TrialOutcome, inverse: bool) -> tuple[StackStep, ...]:
    before, found = base, []
    for one in stack:
        after = case.explained(one.state)
        both = before.fits and after.fits and isfinite(before.value)
        found.append(
            StackStep(
                written=one.change.words, technique=one.change.key,
                value=_shown(after.value, inverse) if after.fits and isfinite(after.value) else None,
                gain=gain(case, before, after) if both else None, memory_bytes=after.memory_bytes,
                excess_bytes=after.excess_bytes, why=why_text(before, after), then=limit_text(after),
            )
        )  # fmt: skip
        before = after
    return tuple(found)


def _idle(alone: Sequence[Trial[S]], base: TrialOutcome, told: set[str]) -> dict[str, str]:
    """Changes that do not help alone, each with how much worse it makes things."""
    found: dict[str, str] = {}
    for one in alone:
        if one.change.words in told:
            continue
        found[one.change.words] = _idle_why(one, base)
    return found


def _idle_why(one: Trial[S], base: TrialOutcome) -> str:
    after = one.outcome
    if _helps(after, base):
        return "helps less than another value of the same word"
    if after.excess_bytes > max(0.0, base.excess_bytes):
        return "does not fit in memory"
    if base.excess_bytes > 0.0:
        return "takes as much memory"
    worse = after.value / base.value - 1.0 if 0.0 < base.value < inf else 0.0
    if worse < LEAST_GAIN:
        return f"changes less than {LEAST_GAIN:.1%}"
    if worse > _FAR:
        return "does not keep to the objective at any rate"
    return f"{'at least ' if one.bounded else ''}{worse:.1%} worse"


def why_text(before: TrialOutcome, after: TrialOutcome) -> str:
    """The part that gets shorter by most, in seconds before and after; what it saves of memory where it did not fit."""
    unfit = before.excess_bytes > 0.0
    was_by, now_by, told = (
        (before.held, after.held, bytes_text) if unfit else (before.parts, after.parts, time_text)
    )  # fmt: skip
    change = {name: now_by.get(name, 0.0) - amount for name, amount in was_by.items()}
    if not change:
        return ""
    name = min(change, key=lambda each: change[each])
    if change[name] >= -_TOLD * sum(was_by.values()):
        return ""
    return f"{name} {told(was_by[name])} -> {told(now_by.get(name, 0.0))}{' a device' if unfit else ''}"


def quality_text(change: Change[S]) -> str:
    """What a change costs in accuracy, and who measured it."""
    found = change.quality
    if found is None:
        return "not known here"
    if found.source in _DERIVED:
        return found.conditions
    number = f"{found.value:g} {found.unit}".strip() + ": " if isfinite(found.value) else ""
    return f"{number}{found.conditions} ({found.source})"


def effort_text(case: AdviceCase[S], one: Trial[S]) -> str:
    """Which programs have it, by their policy files and what the technique says."""
    named: Mapping[str, str] = one.change.export
    asked = case.programs(one.state) if not one.change.key or case.lists(one.change) else ()
    told = [f"{program} ({words})" for program, words in named.items()]
    told += [each for each in asked if each not in named]
    known = bool(one.change.key) or case.lists(one.change)
    return ", ".join(told) or ("no program that is known here" if known else "")
