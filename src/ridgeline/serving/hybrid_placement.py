"""Where the weights of a model lie that is larger than its devices, and how often a use finds them there.

Shape letters: E experts, k experts that a token takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from ridgeline.errors import PlanError
from ridgeline.facts.cpus import cpu_constant


class OffloadMethod(Enum):
    """What happens to weights that no device holds."""

    COMPUTED = "experts computed on the host"
    FETCHED = "experts fetched over the host link"
    STREAMED = "layers streamed over the host link"
    LAYERS = "layers computed on the host"
    NEURONS = "rarely used neurons computed on the host"
    HOST = "everything computed on the host"
    DISK = "everything computed on the host, weights on disk"


class DeviceOrder(Enum):
    """Which experts the device holds."""

    UNIFORM = "the same number in every layer"
    FRONT = "all of the first layers"
    FREQUENT = "the most used ones"
    RECENT = "the last used ones"


@dataclass(frozen=True, kw_only=True)
class HostPlacement:
    """`share` of the experts, layers or neurons [1] that devices hold, None where memory decides; in which `order`.

    `skew` is the power by which experts' popularity falls with their rank, None the usual one. `resident_bytes` is what
    the host may keep in memory (None all), the rest being read from `storage`: 'nvme', 'sata', 'ufs', 'emmc' or 'card';
    weights that are streamed may come from there (`from_disk`). `layerwise` says that long prompts run on the device,
    one layer's weights copied at a time.
    """

    technique: OffloadMethod
    share: float | None = None
    order: DeviceOrder = DeviceOrder.UNIFORM
    skew: float | None = None
    resident_bytes: float | None = None
    storage: str = "nvme"
    from_disk: bool = False
    layerwise: bool = False

    def __post_init__(self) -> None:
        if self.share is not None and not 0.0 <= self.share <= 1.0:
            raise PlanError(f"placement: share = {self.share}, needs 0 <= share <= 1")
        if self.resident_bytes is not None and self.resident_bytes <= 0:
            raise PlanError(f"placement: resident_bytes = {self.resident_bytes}, needs more than 0")

    @property
    def popularity_skew(self) -> float:
        """Power by which the popularity of experts falls with their rank [1]."""
        return cpu_constant("experts.skew") if self.skew is None else self.skew


def popularity(experts: int, skew: float) -> np.ndarray:
    """Share of uses of each expert, the most used first [1]: rank^-skew over its sum."""
    weights = np.arange(1, experts + 1, dtype=float) ** -skew
    return np.asarray(weights / weights.sum())


def use_share(experts: int, share: float, order: DeviceOrder, skew: float) -> float:
    """Share of expert uses that meet an expert on the device [1].

    UNIFORM and FRONT meet by chance, FREQUENT the sum of the most popular, RECENT by Che's approximation of a cache
    that drops the expert not used for longest (Che et al. 2002, 10.1109/JSAC.2002.801752).
    """
    held = share * experts
    if order in (DeviceOrder.UNIFORM, DeviceOrder.FRONT) or held <= 0 or share >= 1:
        return min(max(share, 0.0), 1.0)
    uses = popularity(experts, skew)
    if order is DeviceOrder.FREQUENT:
        whole = int(held)
        return float(uses[:whole].sum() + (held - whole) * uses[min(whole, experts - 1)])
    return float((uses * (1.0 - np.exp(-uses * _characteristic(uses, held)))).sum())


def _characteristic(uses: np.ndarray, held: float) -> float:
    """Uses after which an expert has left the cache: sum of 1 - exp(-p t) over experts = held."""
    low, high = 0.0, 1.0
    while float((1.0 - np.exp(-uses * high)).sum()) < held and high < 1e12:
        high *= 2.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        if float((1.0 - np.exp(-uses * middle)).sum()) < held:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
