"""Each expert of host memory where it is done sooner: computed by the processors, or brought to the device."""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ridgeline.seams.host_experts import Array


from ridgeline.seams.host_experts import HostedLayer, HostedSeconds, HostExperts

_MOST_ROWS = 8192  # rows of an expert up to which the choice is asked


@dataclass(frozen=True, kw_only=True)
class Fiddler(HostExperts):
    """Of each expert that tokens take and the device does not hold, the sooner of computing and fetching.

    An expert of s rows takes the processors max(bytes / read, FLOP s / rate) and the link bytes / link, so up to some
    rows it stays on the host (algorithm 1 of the paper). Rows of an expert are drawn as B(T, k / E): routing is taken
    as even. Processors, link and device work side by side within a layer, and nothing runs across layers.
    """

    key: ClassVar[str] = "fiddler"
    tags: ClassVar[tuple[str, ...]] = ("expert-offloading",)
    source: ClassVar[tuple[str, ...]] = ("fiddler",)

    def layer(self, one: HostedLayer) -> HostedSeconds:
        """max(host, fetch, device), each the expectation over the rows of E (1 - share) experts [s]."""

        import numpy as np

        away = one.experts * (1.0 - self.share)
        most = int(min(_MOST_ROWS, np.ceil(one.tokens.max())))
        rows = np.arange(1.0, most + 1.0)
        per_row = one.device_s / np.maximum(one.touched, 1e-30)  # of the device, for one expert more
        stays = one.host_s(rows)[None, :] <= one.fetch_s + per_row[:, None]
        chance = binomial(one.tokens, one.top_k / one.experts, rows)
        host = away * (chance * stays * one.host_s(rows)).sum(axis=1)
        computed = away * (chance * stays).sum(axis=1)
        fetched = away * one.touched / one.experts - computed
        link = np.maximum(fetched, 0.0) * one.fetch_s
        device = per_row * np.maximum(one.touched - computed, 0.0)
        start = np.where(computed > 1e-9, one.start_s, 0.0)
        total = start + np.maximum(host, np.maximum(link, device))
        return HostedSeconds(device=device, host=host, link=link, total=total)


def binomial(tokens: Array, chance: float, rows: Array) -> Array:
    """P(S = s) of S ~ B(T, p) for each T and each s of `rows`, zero beyond T, (T, s) [1]."""

    import numpy as np

    if chance >= 1.0:
        return np.asarray(rows[None, :] == np.round(tokens)[:, None], dtype=float)
    gamma = np.vectorize(lgamma)
    t, s = tokens[:, None], rows[None, :]
    inside = s <= t + 1e-9
    rest = np.where(inside, t - s, 0.0)
    log = gamma(tokens + 1.0)[:, None] - gamma(rows + 1.0)[None, :] - gamma(rest + 1.0)
    log = log + s * np.log(chance) + rest * np.log1p(-chance)
    return np.asarray(np.where(inside, np.exp(log), 0.0))
