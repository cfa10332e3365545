"""Pre-training with 2:4 sparse feed-forwards whose masks are 2:4 both ways (transposable)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.facts.records import SPARSE, Fact
from ridgeline.graph.ops import GemmOp, GroupedGemmOp, LinearOp, OpRole, ProductFormats
from ridgeline.seams.product_formats import FormatRewrite, packed_bytes
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import accuracy, param

MASK, HALF, WIDE = 1.0, 2.0, 4.0  # bytes of an element of a mask, of 16 bits, of 32
_FEEDS = (OpRole.UP, OpRole.DOWN, OpRole.SHARED_UP, OpRole.SHARED_DOWN)
PRUNED = HALF + packed_bytes(HALF)  # of the incoming gradient: read, and half of it written with its places


def feeds(op: LinearOp) -> bool:
    """Whether a product is one of a feed-forward, of experts as well."""
    return isinstance(op, GroupedGemmOp) or (isinstance(op, GemmOp) and op.role in _FEEDS)


@dataclass(frozen=True, kw_only=True)
class TransposableSparsity(FormatRewrite):
    """2:4 pre-training: all three products of a feed-forward's weight skip two of four numbers.

    Fills the seam of product formats. Forward and the gradient of the input multiply with a weight whose mask is 2:4
    along rows and along columns; the gradient of the weight multiplies with an incoming gradient of which an unbiased
    estimate of least variance keeps two of four, read and packed in each backward. In each update weights are packed
    along both sides (each read in 32 bits with its mask) and masked decay is added to the gradients of those left out;
    every `interval` updates the best of 90 masks of each 4 x 4 block is found again. Both packed copies and the mask
    lie beside the weight.

    Checked: bytes by hand; the device's sparse rate over its dense one bounds the speed of a product; masks, flip rates
    and gradients on arrays (`ridgeline numerics transposable-mask`). Experts are pruned alike, which the
    authors did not try. Left out: the dense steps at the end of a run (a sixth of it), the faster kernel of gated
    activations, time to launch kernels that pack.
    """

    key: ClassVar[str] = "transposable-sparsity"
    source: ClassVar[tuple[str, ...]] = ("sparse-pretraining-2024", "sparse-pretraining-code")
    claims: ClassVar[tuple[str, ...]] = ("2:4 products twice as fast as dense ones",)
    quality: ClassVar[Fact | None] = accuracy(
        "converges as dense training on several tasks, with dense steps at the end, abstract", "sparse-pretraining-2024"
    )
    interval: int = param(40, "updates", "updates from one search of masks to the next", low=1, high=1_000_000)

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: it is another training run, not the same one faster."""
        return ()

    def formats(self, op: LinearOp) -> ProductFormats | None:
        """Sparse in all three passes, of feed-forwards."""
        if not feeds(op):
            return None
        packed = packed_bytes(HALF)
        packing, decay = 2.0 * (WIDE + MASK + packed), 2.0 * WIDE + WIDE + MASK
        search = (WIDE + MASK) / self.interval
        return ProductFormats(
            forward=SPARSE, inputs=SPARSE, weights=SPARSE, beside_bytes=2.0 * packed + MASK,
            update_bytes=packing + decay + search, gradient_bytes=PRUNED,
        )  # fmt: skip
