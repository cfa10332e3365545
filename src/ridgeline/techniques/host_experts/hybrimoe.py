"""A schedule of each layer's experts on processors, link and device, a cache by score, and prefetch in its gaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ridgeline.seams.host_experts import HostedLayer, HostedSeconds, HostExperts
from ridgeline.seams.technique import param

if TYPE_CHECKING:
    from ridgeline.seams.host_experts import Array


@dataclass(frozen=True, kw_only=True)
class HybriMoE(HostExperts):
    """Experts of a layer are shared out so that processors, link and device end as early as possible.

    The processors take the experts of fewest rows, the link brings those of most, and the device computes what it holds
    and what arrived (the simulated schedule of the paper). The cache keeps experts of the highest routing scores: its
    hits are the uses of the most popular ones, popularity falling as rank^-skew. While the rest of a layer runs, the
    link brings experts of the next, right with the probability `foreseen`. Rows are the expected ones of each rank of
    popularity; nothing is drawn.
    """

    key: ClassVar[str] = "hybrimoe"
    tags: ClassVar[tuple[str, ...]] = ("expert-offloading",)
    source: ClassVar[tuple[str, ...]] = ("zhong2025hybrimoe",)
    skew: float = param(0.5, "1", "power by which the popularity of experts falls with their rank", high=4.0)
    foreseen: float = param(0.8, "1", "probability that a prefetched expert is taken in the next layer", high=1.0)

    def layer(self, one: HostedLayer) -> HostedSeconds:
        """The least of max(host, link + last product, device) over how many experts the link brings [s]."""

        import numpy as np

        rows = [self._layer(one, place) for place in range(len(one.tokens))]
        device, host, link, total = (np.array(column) for column in zip(*rows, strict=True))
        return HostedSeconds(device=device, host=host, link=link, total=total)

    def _layer(self, one: HostedLayer, place: int) -> tuple[float, float, float, float]:
        """Device, processors, link and end of the layer over the T of one place [s]."""

        import numpy as np

        taken, rows = taken_by_rank(one, float(one.tokens[place]), self.skew)
        held = round(self.share * one.experts)
        each = float(one.device_s[place] / max(one.touched[place], 1e-30))
        weight = taken[held:].copy()  # of experts away, most rows first
        ahead = float(one.other_s[place]) / one.fetch_s * self.foreseen
        arrived = 0.0
        for rank in range(len(weight)):  # prefetched: the most popular of those away
            brought = min(weight[rank], ahead - arrived)
            weight[rank] -= brought
            arrived += brought
        here = float(taken[:held].sum()) + arrived
        host_each = one.host_s(rows[held:])
        links = np.concatenate([[0.0], np.cumsum(weight)]) * one.fetch_s
        hosts = np.concatenate([np.cumsum((weight * host_each)[::-1])[::-1], [0.0]])
        start = np.where(hosts > 0.0, one.start_s[place], 0.0)
        devices = (here + links / one.fetch_s) * each
        ends = np.maximum(hosts + start, np.maximum(links + np.where(links > 0.0, each, 0.0), devices))
        best = int(np.argmin(ends))
        return float(devices[best]), float(hosts[best]), float(links[best]), float(ends[best])


def taken_by_rank(one: HostedLayer, tokens: float, skew: float) -> tuple[Array, Array]:
    """Probability that some token takes the expert of each rank of popularity, and its rows if so, (E,) each [1].

    1 - (1 - p_r)^T with p_r = min(1, k r^-skew / sum r^-skew): tokens choose on their own.
    """

    import numpy as np

    popular = np.arange(1.0, one.experts + 1.0) ** -skew
    chance = np.minimum(1.0, one.top_k * popular / popular.sum())
    taken = 1.0 - (1.0 - chance) ** tokens
    return taken, tokens * chance / np.maximum(taken, 1e-30)
