"""A load in buckets, the options to rent for it, and a good mix to begin from: what `rent.rent` is asked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.errors import InputError
from ridgeline.programs import INFINITE, Draft, Floats, Whole


def up_probability(rented: int, needed: int, availability: float) -> float:
    """Probability that at least `needed` of `rented` independent machines are up [1].

    >>> round(up_probability(3, 2, 0.9), 6)  # 0.9^3 + 3 x 0.9^2 x 0.1
    0.972
    """
    down = 1.0 - availability
    return math.fsum(
        math.comb(rented, lost) * down**lost * availability ** (rented - lost) for lost in range(rented - needed + 1)
    )


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
    full = np.array([option.availability for option in problem.options])
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
        rented[place] = needed[place] = math.ceil(load[place] - 1e-9)
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


@dataclass(frozen=True, kw_only=True)
class Option:
    """Something to rent: a machine, or several that serve as one.

    `most_per_s` is the rate [1/s] that one instance serves under the SLO if it serves that bucket alone; 0 where it
    cannot. `availability` is the probability that one is up.
    """

    name: str
    accelerator: str
    price_usd_per_hour: float
    most_per_s: ArrayLike
    devices: int = 1
    availability: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A load in buckets and what may be rented for it.

    `rates_per_s` holds the requests of each bucket [1/s], in any shape; `limits` the devices that can be had of an
    accelerator (absent: any number); `availability_target` the probability with which every option must have the
    machines up that its load needs.
    """

    options: tuple[Option, ...]
    rates_per_s: ArrayLike
    slices: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    availability_target: float | None = None

    def __post_init__(self) -> None:
        rates = np.asarray(self.rates_per_s, dtype=np.float64)
        if not self.options or not np.isfinite(rates).all() or (rates < 0).any() or not rates.any():
            raise InputError("a load needs an option and rates of at least 0 requests/s, one of them above 0")
        if self.slices is not None and self.slices < 1:
            raise InputError(f"{self.slices} slices per bucket; at least 1, or None for any share", field="slices")
        if self.availability_target is not None and not 0.0 <= self.availability_target < 1.0:
            raise InputError(
                f"a target of {self.availability_target:g}; at least 0, below 1", field="availability_target"
            )
        for option in self.options:
            _checked(option, rates.size)

    @cached_property
    def rate(self) -> Floats:
        """Requests of each bucket that has any, (B) [1/s]."""
        rates: Floats = np.asarray(self.rates_per_s, dtype=np.float64).ravel()
        return rates[rates > 0]

    @cached_property
    def load(self) -> Floats:
        """Instances that an option needs for a whole bucket, (B, O); infinite where it cannot serve it [1]."""
        used = np.asarray(self.rates_per_s, dtype=np.float64).ravel() > 0
        most = np.stack([np.asarray(option.most_per_s, dtype=np.float64).ravel()[used] for option in self.options], 1)
        load: Floats = np.full(most.shape, INFINITE)
        np.divide(self.rate[:, None], most, out=load, where=most > 0)
        return load


def _checked(option: Option, buckets: int) -> None:
    """Refuses an option that cannot be used, by its field."""
    most = np.asarray(option.most_per_s, dtype=np.float64)
    wrong = {
        "price_usd_per_hour": (option.price_usd_per_hour, option.price_usd_per_hour > 0, "above 0 USD/h"),
        "devices": (option.devices, option.devices >= 1, "at least 1"),
        "availability": (option.availability, 0.0 < option.availability <= 1.0, "above 0, at most 1"),
        "most_per_s": (most.size, most.size == buckets, f"one rate for each of {buckets} buckets"),
    }
    for name, (value, fine, wanted) in wrong.items():
        if not fine:
            raise InputError(f"option '{option.name}' has {value}; needs {wanted}", field=name)
    if not np.isfinite(most).all() or (most < 0).any():
        raise InputError(f"option '{option.name}' has a rate below 0 or not finite", field="most_per_s")
