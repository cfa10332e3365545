"""What to rent: counts of machines of each kind that serve a load at the least price.

minimise  sum_o price_o m_o
subject to  sum_o x_bo = 1                                        every bucket b is served
            sum_b x_bo rate_b / most_bo <= n_o                    no option o is overloaded
            sum_{o of a} devices_o m_o <= limit_a                 no more of accelerator a than there is
            P(every option has its n_o machines up of m_o) >= target

x_bo is the share of bucket b that option o serves. Shares are continuous (`slices=None`), or multiples of 1/slices as
in Melange (Griggs et al. 2024), whose program is the case with equal slices, no limits and no failures. Slices of a
bucket are alike, so they are counted instead of named: one whole variable of 0..slices takes the place of as many of
0..1, and no solution is met twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.errors import NoPlanError
from ridgeline.programs import INFINITE, Draft, Floats, Solution, Whole, gap
from ridgeline.search.rent_problem import Option, Problem, good_mix, up_probability

__all__ = ["Binding", "Option", "Problem", "Rent", "Rented", "mix_text", "nearest_limits", "rent"]

SPARE_TAIL = 1e-3  # of what may fail: spares beyond it cannot change whether a target is met by more than this share


@dataclass(frozen=True, kw_only=True)
class Rented:
    """Instances of one option: rented, needed up, and the load on them in full instances [1]."""

    option: str
    rented: int
    needed: int
    load: float
    cost_usd_per_hour: float


@dataclass(frozen=True, kw_only=True)
class Binding:
    """A limit that is used up, and what one device more would save by the relaxation [USD/h]."""

    accelerator: str
    used: int
    limit: int
    price_usd_per_hour: float


@dataclass(frozen=True, kw_only=True)
class Rent:
    """What to rent, its price and how far it can be from the cheapest.

    `shares` (B, O) covers every bucket of the problem in row-major order; rows of empty buckets are 0.
    `relaxation_usd_per_hour` is the price if fractions of machines could be had; `bound_usd_per_hour` the proven
    bound for whole ones. `headroom` is the factor by which the load may grow, at the same mix, on the same machines.
    `bucket_usd_per_hour` is what each bucket costs by the relaxation.
    `availability` is the probability that every option has the machines up that it needs.
    """

    rented: tuple[Rented, ...]
    shares: Floats
    cost_usd_per_hour: float
    bound_usd_per_hour: float
    relaxation_usd_per_hour: float
    availability: float
    headroom: float
    bucket_usd_per_hour: Floats
    binding: tuple[Binding, ...]
    elapsed_s: float

    @property
    def gap(self) -> float:
        """How far the price can be from the least one, as a share of it [1]."""
        return gap(self.cost_usd_per_hour, self.bound_usd_per_hour)

    @property
    def counts(self) -> dict[str, int]:
        """Instances rented of each option that is rented [1]."""
        return {one.option: one.rented for one in self.rented if one.rented}


def mix_text(counts: Mapping[str, int]) -> str:
    """A mix in words."""
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """Ways to rent an option: machines needed up, rented, log of the probability that they are up."""

    needed: Whole
    rented: Whole
    log_up: Floats


@dataclass(kw_only=True)
class _Written:
    """The program of a problem, and where its variables and rows are."""

    draft: Draft
    shares: Whole
    counts: list[Whole]
    steps: list[_Steps | None]
    served: Whole
    limits: dict[str, int]


def rent(problem: Problem, *, time_limit_s: float = 30.0, gap: float = 0.0) -> Rent:
    """The cheapest counts that serve the load, with bound, shares and what binds [USD/h].

    Raises
    ------
    NoPlanError
        A bucket that no option serves, or limits too low; the text names the nearest limits that suffice.

    Domain: rates are stationary; an option serves a mix at the mean of its loads, as Melange assumes.
    Source: melange. Evidence: derived.
    """
    blind = np.flatnonzero(~np.isfinite(problem.load).any(axis=1))
    if blind.size:
        place = int(np.flatnonzero(np.asarray(problem.rates_per_s).ravel() > 0)[blind[0]])
        raise NoPlanError(
            f"bucket {place} ({problem.rate[blind[0]]:g} requests/s): none of {len(problem.options)} options serves it "
            f"(so with {blind.size} buckets); add an option that serves it or loosen the SLO"
        )
    written = _program(problem)
    answer = written.draft.solve(time_limit_s=time_limit_s, gap=gap, start=_start(problem, written))
    if answer is None:
        wanted = nearest_limits(problem, time_limit_s=time_limit_s)
        changes = [f"{name} from {problem.limits[name]} to {wanted[name]} devices" for name in sorted(wanted)]
        raise NoPlanError("the load does not fit the limits; nearest change: raise " + ", ".join(changes))
    relaxed = written.draft.solve(relaxed=True)
    assert relaxed is not None  # it has the program's own solutions
    return _told(problem, written, answer, relaxed)


def nearest_limits(problem: Problem, *, time_limit_s: float = 30.0) -> dict[str, int]:
    """The fewest devices more that make the problem feasible, as new limits by accelerator [device].

    Raises `NoPlanError` where no number of devices does.
    """
    written = _program(problem, elastic=True)
    answer = written.draft.solve(time_limit_s=time_limit_s)
    if answer is None:
        raise NoPlanError("no number of devices serves this load at the target; lower the availability target")
    more = {name: round(answer.values[column]) for name, column in written.limits.items()}
    return {name: problem.limits[name] + extra for name, extra in more.items() if extra}


def _program(problem: Problem, *, elastic: bool = False) -> _Written:
    """The program of a problem; elastic: limits may be exceeded, and the excess is what is minimised."""
    draft, load = Draft(), problem.load
    can = np.isfinite(load)
    parts = problem.slices or 1
    shares = draft.variable(load.shape, high=np.where(can, INFINITE, 0.0), whole=problem.slices is not None)
    served = draft.row((shares, 1.0 / parts), low=1.0, high=1.0)
    prices = [0.0 if elastic else option.price_usd_per_hour for option in problem.options]
    counts: list[Whole] = []
    steps = [_steps(problem, place, elastic) for place in range(len(problem.options))]
    for place, ways in enumerate(steps):
        if ways is None:
            count = draft.variable(1, cost=prices[place], whole=True)
            capacity: ArrayLike = -1.0
        else:
            count = draft.variable(ways.rented.size, cost=prices[place] * ways.rented, high=1.0, whole=True)
            capacity = -ways.needed.astype(float)
            draft.row((count, 1.0), high=1.0)
        weights = np.where(can[:, place], load[:, place], 0.0) / parts
        draft.row((shares[:, place], weights), (count, capacity), high=0.0)
        counts.append(count)
    limits = {name: _limit(problem, draft, counts, steps, name, elastic) for name in sorted(problem.limits)}
    risky = [(count, ways.log_up) for count, ways in zip(counts, steps, strict=True) if ways is not None]
    if problem.availability_target and risky:
        share = -math.log(problem.availability_target)  # of what may fail, so that the row is of order 1
        draft.row(*((count, -log_up / share) for count, log_up in risky), high=1.0)
    return _Written(draft=draft, shares=shares, counts=counts, steps=steps, served=served, limits=limits)


def _limit(
    problem: Problem, draft: Draft, counts: list[Whole], steps: list[_Steps | None], name: str, elastic: bool
) -> int:
    """Adds the row of an accelerator's limit; the row's index, or that of the excess when elastic."""
    terms: list[tuple[ArrayLike, ArrayLike]] = []
    for option, count, ways in zip(problem.options, counts, steps, strict=True):
        if option.accelerator == name:
            terms.append((count, option.devices * (ways.rented if ways is not None else np.ones(1))))
    if elastic:
        excess = draft.variable(1, cost=1.0, whole=True)
        draft.row(*terms, (excess, -1.0), high=problem.limits[name])
        return int(excess[0])
    return int(draft.row(*terms, high=problem.limits[name])[0]) if terms else -1


def _steps(problem: Problem, place: int, elastic: bool) -> _Steps | None:
    """Ways to rent an option that may fail; None where a count says it all."""
    option, target = problem.options[place], problem.availability_target
    if target is None or option.availability == 1.0:
        return None
    column = problem.load[:, place]
    whole = float(column[np.isfinite(column)].sum())
    limit = math.inf
    if not elastic and option.accelerator in problem.limits:
        limit = problem.limits[option.accelerator] // option.devices
    alone = sum(target is not None and one.availability < 1.0 for one in problem.options) == 1
    ways: list[tuple[int, int, float]] = []
    needed = 1
    while needed <= limit and needed - 1 < whole:
        rented = needed
        while rented <= limit:
            up = up_probability(rented, needed, option.availability)
            if up >= target:
                ways.append((needed, rented, math.log(up)))
                if alone or 1.0 - up <= SPARE_TAIL * (1.0 - target):
                    break
            rented += 1
        needed += 1
    table = np.array(ways, dtype=np.float64).reshape(-1, 3)
    return _Steps(needed=table[:, 0].astype(np.int64), rented=table[:, 1].astype(np.int64), log_up=table[:, 2])


def _start(problem: Problem, written: _Written) -> Floats | None:
    """Values of a good mix where options are rented in steps; None where counts alone are easy."""
    if problem.slices is not None or all(ways is None for ways in written.steps):
        return None
    mix = good_mix(problem)
    if mix is None:
        return None
    known = np.zeros(written.draft.variables)
    known[written.shares] = mix.shares
    for place, (count, ways) in enumerate(zip(written.counts, written.steps, strict=True)):
        if ways is None:
            known[count] = mix.rented[place]
        elif mix.rented[place]:
            known[count[(ways.needed == mix.needed[place]) & (ways.rented == mix.rented[place])]] = 1.0
    return known


def _told(problem: Problem, written: _Written, answer: Solution, relaxed: Solution) -> Rent:
    """The answer of the solver in the words of the problem; continuous shares are evened out over what is rented."""
    needed, rented = [], []
    for count, ways in zip(written.counts, written.steps, strict=True):
        taken = np.rint(answer.values[count])
        needed.append(round(float(taken @ (np.ones(1) if ways is None else ways.needed))))
        rented.append(round(float(taken @ (np.ones(1) if ways is None else ways.rented))))
    load = np.where(np.isfinite(problem.load), problem.load, 0.0)
    capacity = np.array(needed, dtype=float)
    shares = answer.values[written.shares] / (problem.slices or 1)
    if problem.slices is None:
        shares = _even(problem, capacity, shares)
    carried = (shares * load).sum(axis=0)
    fullest = float(np.divide(carried, capacity, out=np.zeros_like(carried), where=capacity > 0).max())
    costs = [option.price_usd_per_hour * count for option, count in zip(problem.options, rented, strict=True)]
    assert relaxed.prices is not None
    used = np.asarray(problem.rates_per_s, dtype=np.float64).ravel() > 0
    every = np.zeros((used.size, len(problem.options)))
    every[used] = shares
    bucket_prices = np.zeros(used.size)
    bucket_prices[used] = relaxed.prices[written.served]
    return Rent(
        rented=tuple(
            Rented(option=option.name, rented=count, needed=up, load=float(on), cost_usd_per_hour=cost)
            for option, count, up, on, cost in zip(problem.options, rented, needed, carried, costs, strict=True)
        ),
        shares=every,
        cost_usd_per_hour=math.fsum(costs),
        bound_usd_per_hour=min(max(answer.bound, relaxed.objective), math.fsum(costs)),
        relaxation_usd_per_hour=relaxed.objective,
        availability=math.prod(
            up_probability(count, up, option.availability)
            for option, count, up in zip(problem.options, rented, needed, strict=True)
        ),
        headroom=1.0 / fullest,
        bucket_usd_per_hour=bucket_prices,
        binding=_binding(problem, written, rented, relaxed.prices),
        elapsed_s=answer.elapsed_s + relaxed.elapsed_s,
    )


def _even(problem: Problem, capacity: Floats, shares: Floats) -> Floats:
    """Shares that leave the fullest option as empty as can be, on the same machines (B, O) [1]."""
    draft, load = Draft(), problem.load
    can = np.isfinite(load) & (capacity > 0)
    new = draft.variable(load.shape, high=np.where(can, 1.0, 0.0))
    fullest = draft.variable(1, cost=1.0)
    draft.row((new, 1.0), low=1.0, high=1.0)
    for place in np.flatnonzero(capacity > 0):
        draft.row((new[:, place], np.where(can[:, place], load[:, place], 0.0)), (fullest, -capacity[place]), high=0.0)
    answer = draft.solve()
    return shares if answer is None else np.clip(answer.values[new], 0.0, 1.0) + 0.0


def _binding(problem: Problem, written: _Written, rented: list[int], prices: Floats) -> tuple[Binding, ...]:
    """Limits with less left than the smallest option of that accelerator takes."""
    found = []
    for name, row in written.limits.items():
        mine = [
            (one.devices, count) for one, count in zip(problem.options, rented, strict=True) if one.accelerator == name
        ]
        used = sum(devices * count for devices, count in mine)
        if mine and problem.limits[name] - used < min(devices for devices, _ in mine):
            price = max(0.0, -float(prices[row]))
            found.append(Binding(accelerator=name, used=used, limit=problem.limits[name], price_usd_per_hour=price))
    return tuple(found)
