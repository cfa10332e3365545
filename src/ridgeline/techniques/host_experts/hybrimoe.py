"""A schedule of each layer's experts on processors, link and device, a cache by score, and prefetch in its gaps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ridgeline.errors import InputError
from ridgeline.facts.expert_loads import read_loads
from ridgeline.seams.host_experts import HostedLayer, HostedSeconds, HostExperts
from ridgeline.seams.technique import param

if TYPE_CHECKING:
    from ridgeline.seams.host_experts import Array


@dataclass(frozen=True, kw_only=True)
class PopularExperts(HostExperts):
    """The device holds the experts of each layer that most tokens take.

    How popular they are falls as rank^-skew, or is as the file `loads` says: then a layer takes the mean over its
    layers. Tokens choose on their own.
    """

    skew: float = param(0.5, "1", "power by which the popularity of experts falls with their rank", high=4.0)
    loads: str = param(
        "", "1", "CSV of layer, expert and load, as of score's expert-routes(rows=loads); when absent, the power law"
    )

    @cached_property
    def _loads(self) -> Array:
        return read_loads(self.loads, field="loads")

    def chances(self, one: HostedLayer) -> Array:
        """Probability that a token takes the expert of each rank of popularity, (L, E) [1]: min(1, k load / sum)."""
        import numpy as np

        loads = self._loads if self.loads else np.arange(1.0, one.experts + 1.0)[None] ** -self.skew
        if loads.shape[1] != one.experts or len(loads) > one.layers:
            has = f"{one.layers} layers of {one.experts} experts"
            why = f"holds loads of {len(loads)} layers of {loads.shape[1]} experts, the model has {has}"
            raise InputError(why, file=self.loads, field="loads")
        total = loads.sum(axis=1, keepdims=True)
        if not total.all():
            at = int(np.argmin(total))
            raise InputError(f"layer {at} (from 0, in order) has no load at all", file=self.loads, field="loads")
        chances: Array = np.minimum(1.0, one.top_k * -np.sort(-loads, axis=1) / total)
        return chances

    def layer(self, one: HostedLayer) -> HostedSeconds:
        """What a layer's experts take, the mean over layers of the file [s]."""
        import numpy as np

        each = [vars(self.ranked(one, chance)) for chance in self.chances(one)]
        return HostedSeconds(**{name: np.mean([found[name] for found in each], axis=0) for name in each[0]})

    def ranked(self, one: HostedLayer, chance: Array) -> HostedSeconds:
        """What a layer's experts take where a token takes that of each rank with probability `chance` (E,) [s]."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class HybriMoE(PopularExperts):
    """Experts of a layer are shared out so that processors, link and device end as early as possible.

    The processors take the experts of fewest rows, the link brings those of most, and the device computes what it holds
    and what arrived (the simulated schedule of the paper). The cache keeps experts of the highest routing scores: its
    hits are the uses of the most popular ones, popularity falling as rank^-skew or as `loads` of a trace of routing.
    While the rest of a layer runs, the link brings experts of the next, right with the probability `foreseen` (0
    prefetches none, as the command of the authors' README). Iterations of `device_tokens` and more are the device's
    alone, as those of more than one token are in their source: the link brings all experts that are away, beside what
    the device computes. Rows are the expected ones of each rank of popularity; nothing is drawn.
    """

    key: ClassVar[str] = "hybrimoe"
    tags: ClassVar[tuple[str, ...]] = ("expert-offloading",)
    source: ClassVar[tuple[str, ...]] = ("zhong2025hybrimoe", "hybrimoe-code")
    foreseen: float = param(0.8, "1", "probability that a prefetched expert is taken in the next layer", high=1.0)
    device_tokens: int | None = param(
        None, "tokens", "tokens of an iteration from which the device computes all experts; when absent, never", low=1,
        high=10_000_000,
    )  # fmt: skip

    def ranked(self, one: HostedLayer, chance: Array) -> HostedSeconds:
        """The least of max(host, link + last product, device) over how many experts the link brings [s]."""
        import numpy as np

        rows = [self._layer(one, chance, place) for place in range(len(one.tokens))]
        device, host, link, total = (np.array(column) for column in zip(*rows, strict=True))
        return HostedSeconds(device=device, host=host, link=link, total=total)

    def _layer(self, one: HostedLayer, chance: Array, place: int) -> tuple[float, float, float, float]:
        """Device, processors, link and end of the layer over the T of one place [s]."""

        import numpy as np

        taken, rows = taken_by_rank(chance, float(one.tokens[place]))
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
        alone = one.tokens[place] >= (self.device_tokens or np.inf)
        best = len(weight) if alone else int(np.argmin(ends))
        return float(devices[best]), float(hosts[best]), float(links[best]), float(ends[best])


def taken_by_rank(chance: Array, tokens: float) -> tuple[Array, Array]:
    """Probability that some of T tokens takes an expert that each takes with `chance` (E,), and its rows if so [1].

    1 - (1 - p)^T: tokens choose on their own.
    """
    import numpy as np

    taken = 1.0 - (1.0 - chance) ** tokens
    return taken, tokens * chance / np.maximum(taken, 1e-30)
