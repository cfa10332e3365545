"""GPUSQ-ViT: vision transformers whose weights are 2:4 sparse and in 8 or 4 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.facts.records import SPARSE, Fact
from ridgeline.graph.ops import ConvolutionOp, LinearOp, ProductFormats
from ridgeline.seams.product_formats import PLACE_BYTES, FormatRewrite
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import accuracy, param

_FORMATS = {8: ("int8", "int8"), 4: ("int4_act", "int4")}  # name of the format, and whose matrix rate it runs at
_PAIRS = 4  # bits up to which pairs are kept or left, so that a place stands for two


@dataclass(frozen=True, kw_only=True)
class GpusqVit(FormatRewrite):
    """GPUSQ-ViT: after pruning and quantization-aware distillation, products are of 2:4 sparse integers.

    Fills the seam of product formats, for a network that runs forward alone (`--optimizer forward-only`). Weights of
    products lie in `bits` with half of them left out, two bits telling the place of each kept one, or pair of 4 bits:
    5 or 2.5 bits of each. They are multiplied with integers as wide at the device's sparse integer rate. `ends` says
    whether the embedding of patches and the classifier are compressed as well; biases, norms and positions stay.

    Checked: bits by hand; pruned and rounded weights on arrays (`ridgeline numerics sparse-quantized`). Left out: the
    training before it; attention's core, which stays in 16 bits; kernels that fuse what is between products, which
    TensorRT has and passes over memory here have not.
    """

    key: ClassVar[str] = "gpusq-vit"
    source: ClassVar[tuple[str, ...]] = ("gpusq-vit-2023",)
    claims: ClassVar[tuple[str, ...]] = ("6.4 to 12.7 times smaller", "3.22 to 3.43 times the throughput on an A100")
    quality: ClassVar[Fact | None] = accuracy(
        "negligible loss on ImageNet, COCO and ADE20K, abstract", "gpusq-vit-2023"
    )
    bits: int = param(8, "bit", "bits of a kept weight and of what it meets: 8 or 4", low=4, high=8)
    ends: bool = param(True, "1", "patch embedding and classifier as well (assumed)")

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: it is another model, trained before it runs."""
        return ()

    @property
    def _named(self) -> tuple[str, str]:
        return _FORMATS[8 if self.bits > _PAIRS else 4]

    def rate(self, compute: str) -> str:
        """That of sparse integers of its bits."""
        return self._named[1] + SPARSE

    def formats(self, op: LinearOp) -> ProductFormats | None:
        """Sparse integers forward; what the workload's copy has more is not held."""
        if isinstance(op, ConvolutionOp) and not self.ends:
            return None
        width = 8 if self.bits > _PAIRS else 4
        held = width / 16 + (PLACE_BYTES if width > _PAIRS else PLACE_BYTES / 2)
        return ProductFormats(forward=self._named[0] + SPARSE, held_bytes=held)
