"""Every change tried alone, then stacked: the best one first, bounds before simulations.

A stack that does not fit in memory is led by what is too much of it; once it fits, by the objective. What a bound
shows to be no better is not simulated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Generic

from ridgeline.advise.cases import AdviceCase, Change, S, TrialOutcome
from ridgeline.errors import RidgelineError

LEAST_GAIN = 0.005  # definition: of the objective, below which a change is of no use
_MOST_STEPS = 12  # of a stack
_SLOWER = 0.03  # of the objective, by a bound: a change that loses so much in a stack is not tried on longer ones
_NAMED = 10  # changes that are explained to their parts


@dataclass(frozen=True, kw_only=True)
class Trial(Generic[S]):
    """A change on a choice: what came of it, only `bounded` where a bound said enough."""

    change: Change[S]
    state: S
    outcome: TrialOutcome
    bounded: bool = False


@dataclass
class Stacker(Generic[S]):
    """Tries the changes of a case; counts what it tried and simulated."""

    case: AdviceCase[S]
    tried: int = 0
    simulated: int = 0
    refused: dict[str, str] = field(default_factory=dict)  # techniques, by how they are written
    illegal: dict[str, str] = field(default_factory=dict)  # levers
    slower: set[str] = field(default_factory=set)  # changes that a stack does not try again, as they are written
    promising: set[str] | None = None  # keys and slots that a stack tries; None: all

    def bounded(self, state: S, changes: Iterable[Change[S]], *, told: bool = False) -> list[Trial[S]]:
        """Changes that go with a choice and change it, each with its bound."""
        found: list[Trial[S]] = []
        seen: list[S] = [state]
        for change in changes:
            why = change.refused
            if not why:
                try:
                    put = change.put(state)
                    if put in seen:
                        continue
                    found.append(Trial(change=change, state=put, outcome=self.case.bound(put), bounded=True))
                    seen.append(put)
                    self.tried += 1
                except RidgelineError as error:
                    why = str(error)
            if why and told:
                self._refuse(change, why)
        return found

    def _refuse(self, change: Change[S], why: str) -> None:
        (self.refused if change.key else self.illegal).setdefault(change.words, phrase(why))

    def simulated_one(self, one: Trial[S]) -> Trial[S] | None:
        """A change with its outcome; None where it cannot be run after all."""
        try:
            outcome = self.case.outcome(one.state)
        except RidgelineError as error:
            self._refuse(one.change, str(error))
            return None
        self.simulated += 1
        return replace(one, outcome=outcome, bounded=False)

    def alone(self, base: TrialOutcome) -> list[Trial[S]]:
        """Every change alone on the baseline, the best first; bounds stand for those that cannot be better."""
        found: list[Trial[S]] = []
        for one in self.bounded(self.case.base, self.case.changes(self.case.base), told=True):
            if base.fits and one.outcome.fits and one.outcome.value < base.value:
                one = replace(one, outcome=replace(one.outcome, value=max(one.outcome.value, self._closer(one.state))))
            worth = one.outcome.score < base.score
            done = self.simulated_one(one) if worth else one
            if done is not None:
                found.append(done)
        return sorted(found, key=lambda one: (one.outcome.score, one.change.words))

    def best_step(self, state: S, now: TrialOutcome) -> Trial[S] | None:
        """The change that helps most beside those of a choice; None where none helps by `LEAST_GAIN`.

        Changes that compute the same numbers go first; then those whose cost in accuracy somebody measured.
        """
        rows = self.bounded(state, (one for one in self.case.changes(state) if not one.refused and self._hopeful(one)))
        if now.fits:
            self.slower |= {one.change.words for one in rows if one.outcome.value > now.value * (1.0 + _SLOWER)}
        rows.sort(key=lambda one: (one.outcome.score, one.change.words))
        for exact in (True, False):
            found = self._best(now, [one for one in rows if one.change.measured and one.change.exact is exact])
            if found is not None:
                return found
        return None

    def _hopeful(self, change: Change[S]) -> bool:
        """Whether a change is worth a replay in a stack: where bounds say nothing, one that helped alone."""
        known = self.promising is None or (change.key or change.slot) in self.promising
        return known and change.words not in self.slower

    def _best(self, now: TrialOutcome, rows: Iterable[Trial[S]]) -> Trial[S] | None:
        best: Trial[S] | None = None
        least = better_than(now)
        for one in rows:
            if one.outcome.score >= least:
                break
            if now.fits and self._closer(one.state) >= least[1]:
                continue
            done = self.simulated_one(one)
            if done is not None and done.outcome.score < least:
                best, least = done, done.outcome.score
        return best

    def _closer(self, state: S) -> float:
        try:
            return self.case.closer(state)
        except RidgelineError:
            return 0.0

    def stack(self, base: TrialOutcome) -> list[Trial[S]]:
        """The steps of the best stack found, in order; those that turn out to be of no use are left out."""
        steps: list[Trial[S]] = []
        state, now = self.case.base, base
        for _ in range(_MOST_STEPS):
            found = self.best_step(state, now)
            if found is None and (pair := self.best_pair(state, now)) is not None:
                steps, state, now = [*steps, *pair], pair[-1].state, pair[-1].outcome
                continue
            if found is None:
                break
            kept = [one for one in steps if one.change.slot != found.change.slot]
            again = found if len(kept) == len(steps) else self._together(kept, found)
            if again is None or again.outcome.score >= now.score:
                break
            steps, state, now = [*kept, again], again.state, again.outcome
        return self.pruned(steps, now)

    def best_pair(self, state: S, now: TrialOutcome) -> tuple[Trial[S], Trial[S]] | None:
        """Two changes that help only together: an exact one, and one that is refused without it; None where none do.

        Where bounds say nothing each pair would be a replay, and none is tried.
        """
        if self.case.bounds_nothing:
            return None
        offered = list(self.case.changes(state))
        shut = {one.words for one in offered if one.refused}
        rows: list[tuple[Trial[S], Trial[S]]] = []
        for first in self.bounded(state, (one for one in offered if not one.refused and one.exact)):
            opened = (one for one in self.case.changes(first.state) if one.words in shut and not one.refused)
            useful = (one for one in opened if one.measured and one.slot != first.change.slot)
            rows += [(first, second) for second in self.bounded(first.state, useful)]
        rows.sort(key=lambda pair: (pair[1].outcome.score, pair[0].change.words, pair[1].change.words))
        best = self._best(now, [second for _, second in rows])
        if best is None:
            return None
        opener = next(
            first for first, second in rows if (second.state, second.change.words) == (best.state, best.change.words)
        )
        done = self._put(opener, state)
        return None if done is None else (done, best)

    def _together(self, steps: list[Trial[S]], last: Trial[S]) -> Trial[S] | None:
        """A step put on others anew, where one of its slot was taken out; None where it does not go with them."""
        state = self.case.base
        try:
            for one in steps:
                state = one.change.put(state)
        except RidgelineError:
            return None
        return self._put(last, state)

    def pruned(self, steps: list[Trial[S]], whole: TrialOutcome) -> list[Trial[S]]:
        """The steps without those that the stack is as good without, each with what it comes to at its place."""
        kept = list(steps)
        for one in steps[:-1]:
            rest = [each for each in kept if each is not one]
            again = self.outcome_of(rest)
            if again is None:
                continue
            if again.excess_bytes <= max(0.0, whole.excess_bytes) and again.value <= whole.value * (1 + LEAST_GAIN / 2):
                kept = rest
        return self.ordered(kept)

    def outcome_of(self, steps: list[Trial[S]]) -> TrialOutcome | None:
        """What steps come to together; None where they do not go without another."""
        try:
            state = self.case.base
            for one in steps:
                state = one.change.put(state)
            self.simulated += 1
            return self.case.outcome(state)
        except RidgelineError:
            return None

    def ordered(self, steps: list[Trial[S]]) -> list[Trial[S]]:
        """The steps on the baseline anew, at each place the one that helps most there; exact ones first.

        Steps that cannot be run before others stand after them.
        """
        left, state, found = list(steps), self.case.base, list[Trial[S]]()
        while left:
            rows = [(done, one) for one in left if (done := self._put(one, state)) is not None]
            if not rows:
                return steps
            best, one = min(rows, key=lambda row: (not row[0].change.exact, row[0].outcome.score, row[0].change.words))
            found.append(best)
            state, left = best.state, [each for each in left if each is not one]
        return found

    def _put(self, one: Trial[S], state: S) -> Trial[S] | None:
        try:
            put = one.change.put(state)
            self.simulated += 1
            return replace(one, state=put, outcome=self.case.outcome(put))
        except RidgelineError:
            return None


def better_than(now: TrialOutcome) -> tuple[float, float]:
    """The score that a step must be below: less that does not fit, or an objective better by `LEAST_GAIN`."""
    excess, value = now.score
    return (excess * (1.0 - LEAST_GAIN), inf) if excess > 0.0 else (0.0, value * (1.0 - LEAST_GAIN))


def phrase(text: str) -> str:
    """A refusal as a phrase: without the table that it is of, and what to do instead."""
    for head in ("plan: ", "deployment: ", "workload: ", "sampling: "):
        text = text.removeprefix(head)
    return text.split("; nearest")[0].split("; leave")[0].rstrip(".")


def explained_first(found: list[Trial[S]]) -> Iterable[Trial[S]]:
    """The best ones, which are explained to their parts."""
    return itertools.islice(found, _NAMED)
