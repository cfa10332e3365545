"""A load in buckets and the options to rent for it: what `rent.rent` is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.errors import InputError
from ridgeline.search.programs import INFINITE, Floats


@dataclass(frozen=True, kw_only=True)
class Option:
    """Something to rent: a machine, or several that serve as one.

    `most_per_s` is the rate [1/s] that one instance serves under the SLO if it serves that bucket alone; 0 where it
    cannot. `rho_max` is the share of it that may be used: one number, or one per count of instances (1, 2, ...; the
    last holds for more), as `rent_utilisation.ceilings` gives. `availability` is the probability that one is up.
    """

    name: str
    accelerator: str
    price_usd_per_hour: float
    most_per_s: ArrayLike
    devices: int = 1
    rho_max: float | tuple[float, ...] = 1.0
    availability: float = 1.0

    def capacity(self, instances: int) -> float:
        """Load that so many instances may carry, in full instances [1]."""
        rho = (self.rho_max,) if isinstance(self.rho_max, int | float) else self.rho_max
        return instances * rho[min(instances, len(rho)) - 1] if instances else 0.0


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
    ceilings = (option.rho_max,) if isinstance(option.rho_max, int | float) else option.rho_max
    wrong = {
        "price_usd_per_hour": (option.price_usd_per_hour, option.price_usd_per_hour > 0, "above 0 USD/h"),
        "devices": (option.devices, option.devices >= 1, "at least 1"),
        "availability": (option.availability, 0.0 < option.availability <= 1.0, "above 0, at most 1"),
        "rho_max": (option.rho_max, bool(ceilings) and all(0 < one <= 1 for one in ceilings), "above 0, at most 1"),
        "most_per_s": (most.size, most.size == buckets, f"one rate for each of {buckets} buckets"),
    }
    for name, (value, fine, wanted) in wrong.items():
        if not fine:
            raise InputError(f"option '{option.name}' has {value}; needs {wanted}", field=name)
    if not np.isfinite(most).all() or (most < 0).any():
        raise InputError(f"option '{option.name}' has a rate below 0 or not finite", field="most_per_s")
