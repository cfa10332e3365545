"""A mix to begin from, where pools and spares make every further kind of machine cost something of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ridgeline.search.programs import Draft, Floats, Whole
from ridgeline.search.rent_problem import Problem
from ridgeline.search.rent_utilisation import up_probability


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Shares (B, O), machines needed up and rented (O), and their price [USD/h]."""

    shares: Floats
    needed: Whole
    rented: Whole
    cost_usd_per_hour: float


def good_mix(problem: Problem) -> Mix | None:
    """The cheapest of some mixes: that of the relaxation, then without its least used option, and so on.

    None where none keeps the limits.
    """
    open_, best = np.ones(len(problem.options), dtype=bool), None
    while open_.any():
        shares = _relaxed(problem, open_)
        if shares is None:
            return best
        load = (shares * np.where(np.isfinite(problem.load), problem.load, 0.0)).sum(axis=0)
        mix = _rounded(problem, shares, load)
        if mix is not None and (best is None or mix.cost_usd_per_hour < best.cost_usd_per_hour):
            best = mix
        spent = load * np.array([option.price_usd_per_hour for option in problem.options])
        open_ &= load > 1e-9
        open_[int(np.where(open_, spent, math.inf).argmin())] = False
    return best


def _relaxed(problem: Problem, open_: Floats) -> Floats | None:
    """Shares (B, O) of least price if fractions of machines could be had of the open options; None if none serve."""
    draft, can = Draft(), np.isfinite(problem.load) & open_
    load = np.where(can, problem.load, 0.0)
    full = np.array([option.capacity(1000) / 1000 * option.availability for option in problem.options])
    price = np.array([option.price_usd_per_hour for option in problem.options]) / full
    shares = draft.variable(load.shape, cost=load * price, high=np.where(can, math.inf, 0.0))
    draft.row((shares, 1.0), low=1.0, high=1.0)
    for name, limit in problem.limits.items():
        devices = np.array([option.devices * (option.accelerator == name) for option in problem.options])
        draft.row((shares.ravel(), (load / full * devices).ravel()), high=limit)
    answer = draft.solve()
    return None if answer is None else answer.values[shares]


def _rounded(problem: Problem, shares: Floats, load: Floats) -> Mix | None:
    """Whole machines for the loads, with spares that meet the target; None where a limit is broken."""
    used = max(1, int((load > 1e-9).sum()))
    each = (problem.availability_target or 0.0) ** (1.0 / used)
    needed, rented = np.zeros(load.size, dtype=np.int64), np.zeros(load.size, dtype=np.int64)
    for place in np.flatnonzero(load > 1e-9):
        option = problem.options[place]
        while option.capacity(int(needed[place])) < load[place] - 1e-9:
            needed[place] += 1
        rented[place] = needed[place]
        while (
            option.availability < 1.0
            and up_probability(int(rented[place]), int(needed[place]), option.availability) < each
        ):
            rented[place] += 1
    for name, limit in problem.limits.items():
        pairs = zip(problem.options, rented, strict=True)
        if sum(option.devices * int(count) for option, count in pairs if option.accelerator == name) > limit:
            return None
    costs = (option.price_usd_per_hour * int(count) for option, count in zip(problem.options, rented, strict=True))
    return Mix(shares=shares, needed=needed, rented=rented, cost_usd_per_hour=math.fsum(costs))
