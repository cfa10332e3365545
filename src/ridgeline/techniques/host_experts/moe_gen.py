"""Modules in batches of their own: tokens gather in host memory until a module's weights are worth their fetch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ridgeline.seams.host_experts import HostedCache
from ridgeline.seams.serving_technique import Instance
from ridgeline.seams.technique import param
from ridgeline.techniques.host_experts.moe_lens import StreamedWeights

if TYPE_CHECKING:
    from ridgeline.seams.host_experts import Array

_PASSES = 4.0  # rows gathered, copied to the result, weighted and added up


@dataclass(frozen=True, kw_only=True)
class MoEGen(StreamedWeights):
    """Each module's weights are fetched once for all sequences of an iteration, which it takes in batches of its own.

    Hidden states wait in host memory between modules, so that an iteration has as many sequences as host memory holds
    caches of, of which at most `module_tokens` are on the device at once. The processors attend to a part of the
    cache, the rest crosses the link and the device attends: without `attended` the part with which the longest of
    processors, link and device is shortest at a full cache (the paper's omega). The device buffers one expert and one
    layer's attention while another of each is computed. Experts are modules of plain products, one after another, each
    in batches of at most `expert_rows` (its source's expert_prefill_batch_size_upper_bound; its other batches are
    constants by model, `token_budget` and `module_tokens` here). Prompts are computed before decode steps go on.

    Left out: start-up of its process, Python and waits between modules, keys and values on their way to the host (the
    other way of the link).
    """

    key: ClassVar[str] = "moe-gen"
    tags: ClassVar[tuple[str, ...]] = ("expert-offloading",)
    source: ClassVar[tuple[str, ...]] = ("moe-gen", "moe-gen-code")
    module_tokens: int = param(8192, "tokens", "tokens of a module's batch on the device", low=1, high=10_000_000)
    expert_rows: int = param(2048, "rows", "rows of an expert's batch on the device", low=1, high=10_000_000)
    processors_attend: float | None = param(
        None, "1", "share of caches to which the processors attend; when absent, the best one", high=1.0
    )

    def attended(self, full: HostedCache) -> float:
        """As stated, or with which the longest side is shortest [1]."""
        return best_share(full) if self.processors_attend is None else self.processors_attend

    def computed(self, piece: Any, prices: Any, rows: Array) -> Any:
        """Experts one after the other: three plain products of at most `expert_rows` rows each, and passes [s]."""
        import numpy as np

        from ridgeline.lower.pieces import ElementwisePiece, Product

        taken = piece.count * (1.0 - (1.0 - piece.top_k / piece.count) ** np.maximum(rows, 1.0))
        each = piece.top_k * np.maximum(rows, 1.0) / taken  # rows of an expert that is taken
        batch = np.minimum(each, self.expert_rows)
        hidden, inner = float(piece.hidden), float(piece.inner)
        up = Product(name="up", n=inner, k=hidden, count=1.0 + piece.gated)
        down = Product(name="down", n=hidden, k=inner)
        passes = ElementwisePiece(
            name="between", elements=(1.0 + 1.5 * piece.gated) * inner + _PASSES * hidden, kernels=2.0 + _PASSES
        )
        expert = prices.product(up, batch) + prices.product(down, batch) + prices.stream(passes, batch)
        return expert.times(taken * each / batch)

    def buffer_bytes(self, dense_bytes: float, experts_bytes: float, experts: int) -> float:
        """Two layers' attention and two experts [byte]."""
        return 2.0 * (dense_bytes + experts_bytes / experts)

    def resident_tokens(self, tokens: int) -> int:
        """At most a module's batch [token]."""
        return min(tokens, self.module_tokens)

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """Prompts before decode steps."""
        from ridgeline.serving.state import PREFILL_FIRST

        return {**self.sharing(instance), "scheduler": PREFILL_FIRST}


def best_share(full: HostedCache) -> float:
    """The share w that makes max(w H, W + (1 - w) L, (1 - w) D) least [1]: at an end, or where two of them meet.

    >>> best_share(HostedCache(weights_s=4.0, link_s=4.0, host_s=6.0, device_s=1.0))  # 4.8 s each, of 6 and of 8
    0.8
    """
    weights, link, host, device = full.weights_s, full.link_s, full.host_s, full.device_s
    meets = [0.0, 1.0, (weights + link) / max(host + link, 1e-30), device / max(host + device, 1e-30)]
    return min(
        (min(max(share, 0.0), 1.0) for share in meets),
        key=lambda share: (max(share * host, weights + (1.0 - share) * link, (1.0 - share) * device), share),
    )
