"""Dispatch of experts at the capacity of the fullest one, by products with a mask.

Letters: S tokens of a rank, E experts, C rows of an expert's buffer, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ridgeline.plan.deployment import Deployment
from ridgeline.seams.serving import Placement
from ridgeline.seams.technique import param

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_WIDE = 2.0  # 32-bit numbers in elements of 16 bits


@dataclass(frozen=True, kw_only=True)
class PaddedDispatch(Placement):
    """DeepSpeed-MoE's dispatch without dropped tokens: every expert computes as many rows as the fullest one has.

    Of S tokens of a rank, the fullest expert gets C, and each of E has a buffer of C rows from each rank. Rows go there
    and back by products with a mask of S x E C, which is made in 32 bits and cast (S x E C x D of each). A rank's
    experts run one after the other. C is S k p, p the share of the most popular expert (`fullest`), by default that of
    loads that fall as rank^-skew. The exchange is that of rows that are not padded: a lower bound.
    """

    key: ClassVar[str] = "padded-dispatch"
    tags: ClassVar[tuple[str, ...]] = ("expert-parallelism",)
    in_words: ClassVar[bool] = False
    source: ClassVar[tuple[str, ...]] = ("deepspeed-moe-code", "gshard-2020")
    fullest: float | None = param(
        None, "1", "share of a rank's rows that its most popular expert takes; when absent, by measured loads",
        low=1e-6, high=1.0,
    )  # fmt: skip

    def refusal(self, deployment: Deployment) -> str:
        """Replicas, and a known imbalance of ranks: all buffers are alike."""
        if self.redundant or self.imbalance is not None:
            return "pads every expert alike; leave out expert_redundant and expert_imbalance"
        return super().refusal(deployment)

    def buffer_rows(self, experts: int, top_k: int, tokens: Array, skew: float) -> Array:
        """Rows of an expert's buffer for S tokens of a rank [1]: ceil(S k p), at least those of even loads.

        >>> import numpy as np
        >>> PaddedDispatch(fullest=0.5).buffer_rows(8, 1, np.array([100.0]), 0.0).tolist()
        [50.0]
        """
        import numpy as np

        ranks = np.arange(1.0, experts + 1.0) ** -skew
        share = max(1.0 / experts, self.fullest or float(ranks[0] / ranks.sum()))
        return np.asarray(np.minimum(tokens, np.ceil(tokens * min(1.0, top_k * share))))

    def computed(self, piece: Any, prices: Any, rows: Array, sources: int) -> Any:
        """Two products with the mask, the mask, and E / R experts of R' C rows each, one after the other [s]."""
        import numpy as np

        from ridgeline.cost import questions
        from ridgeline.lower.pieces import ElementwisePiece, Product

        tokens = np.maximum(rows / sources, 1.0)
        slots = self.buffer_rows(piece.count, piece.top_k, tokens, prices.skew)
        buffers = piece.count * slots
        mask = ElementwisePiece(name="mask", elements=1.0, kernels=2.0 * piece.top_k + 2.0)
        made = prices.stream(mask, tokens * buffers * (2.0 * _WIDE * piece.top_k + _WIDE + 2.0))
        there, back = (
            prices.ask(questions.gemm(m, float(piece.hidden), k)) for m, k in ((buffers, tokens), (tokens, buffers))
        )
        own, each = piece.count // piece.ranks, slots * sources
        up = Product(name="up", n=piece.inner * (1.0 + piece.gated), k=float(piece.hidden))
        down = Product(name="down", n=float(piece.hidden), k=piece.inner)
        between = ElementwisePiece(name="between", elements=(2.0 + piece.gated) * piece.inner)
        expert = prices.product(up, each) + prices.product(down, each) + prices.stream(between, each)
        return made + there + back + expert.times(own)
