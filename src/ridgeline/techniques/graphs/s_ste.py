"""S-STE: pre-training with weights that a continuous function makes 2:4 sparse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.facts.records import SPARSE, Fact
from ridgeline.graph.ops import LinearOp, ProductFormats
from ridgeline.seams.product_formats import FormatRewrite, packed_bytes
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import accuracy
from ridgeline.techniques.graphs.transposable_sparsity import HALF, PRUNED, WIDE, feeds


@dataclass(frozen=True, kw_only=True)
class SSte(FormatRewrite):
    """S-STE: forward and the gradient of weights of feed-forwards skip two of four numbers, that of inputs does not.

    Fills the seam of product formats. In each update the third largest magnitude of each four is taken from all of
    them, which leaves two, and a scale that is found once for a tensor makes up for it: weights are read in 32 bits,
    and written packed and, as their transpose is not 2:4, dense. The gradient of a weight multiplies with two of four
    of the incoming gradient, as in `transposable-sparsity`. No mask is kept, no weight decays by one, no step is dense.
    With `--precision fp8` all three products are in 8 bits.

    Checked: bytes by hand; the function and its scale on arrays (`ridgeline numerics soft-threshold`). Left out: time
    to launch kernels that pack.
    """

    key: ClassVar[str] = "s-ste"
    source: ClassVar[tuple[str, ...]] = ("s-ste-2024", "sparse-pretraining-code")
    claims: ClassVar[tuple[str, ...]] = ("2:4 products twice as fast as dense ones on Ampere and Hopper",)
    quality: ClassVar[Fact | None] = accuracy(
        "better than earlier 2:4 pre-training, comparable with full parameters, abstract", "s-ste-2024"
    )

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: it is another training run, not the same one faster."""
        return ()

    def formats(self, op: LinearOp) -> ProductFormats | None:
        """Sparse forward and for the gradient of weights, of feed-forwards."""
        if not feeds(op):
            return None
        packed = packed_bytes(HALF)
        return ProductFormats(
            forward=SPARSE, weights=SPARSE, beside_bytes=packed, update_bytes=WIDE + packed + HALF,
            gradient_bytes=PRUNED,
        )  # fmt: skip
