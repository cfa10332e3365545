"""Weights trained with the noise of a format that they will be stored in (pseudo-quantization training)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ridgeline.graph.model import Block, Graph
from ridgeline.graph.ops import LinearOp, Op, Region, WeightPasses
from ridgeline.seams.graph import GraphRewrite
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import accuracy, param

_SAMPLED_BYTES = 2.0  # of a sampled weight: bf16
_NOISE_BYTES = 0.5  # of its noise: 4 bits, eight of them in a word


@dataclass(frozen=True, kw_only=True)
class WeightSampling(GraphRewrite):
    """Gaussian weight sampling (GaussWS): each forward multiplies weights plus small rounded noise of their block.

    What it adds: every weight of a hidden product gets R max|w| 2^(1 - b), R a rounded normal number and the largest
    |w| that of its 32 x 32 block, and the sum is cast to bf16, so that training meets the error of b bits with 16-bit
    kernels. Forward writes the noise in 4 bits, reads it with the weight and writes the sum; backward reads the noise
    once more beside the gradient, for the gradient of each block's b. The sums, 2 bytes a weight, wait for backward.

    Checked: traffic and memory by hand; on arrays, `ridgeline numerics weight-sampling`. Left out: time to draw the
    noise where it is not hidden under memory, products after it that cannot start, the few numbers b themselves, and
    weights of experts that no token takes. Under recompute sums are held all the same.
    """

    key: ClassVar[str] = "weight-sampling"
    source: ClassVar[tuple[str, ...]] = ("gaussws-2025",)
    kinds: ClassVar[frozenset[str]] = frozenset({"training"})
    owns: ClassVar[frozenset[str]] = frozenset({"weights as multiplied"})
    commutes: ClassVar[frozenset[str]] = frozenset({"graphs"})
    quality = accuracy("loss of bf16 or lower, GPT2 and Llama2 of up to 1B parameters, abstract", "gaussws-2025")
    claims: ClassVar[tuple[str, ...]] = ("1.40 % of the tokens/s of Llama2 on an A100, 2 bytes a parameter",)

    gradient: bool = param(True, "1", "bits of each block are learned, for which backward reads the noise again")

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: it makes training slower, for the sake of weights in few bits afterwards."""
        return ()

    def refusal(self, graph: Graph) -> str:
        """Why it does not apply to a graph, in a phrase; '' where it does."""
        found = any(_sampled(op) for block in graph.blocks.values() for op in block.ops)
        return "" if found else "no layer has a trained weight that tokens are multiplied with"

    def rewrite(self, graph: Graph) -> Graph:
        """The graph whose hidden weights are sampled before they are multiplied."""
        return replace(graph, blocks={name: self._block(block) for name, block in graph.blocks.items()})

    def _block(self, block: Block) -> Block:
        back = _NOISE_BYTES if self.gradient else 0.0
        passes = WeightPasses(
            forward_bytes=2.0 * _NOISE_BYTES + _SAMPLED_BYTES, backward_bytes=back, held_bytes=_SAMPLED_BYTES, kernels=2
        )

        def sampled(op: Op) -> Op:
            return replace(op, made=passes) if isinstance(op, LinearOp) and _sampled(op) else op

        return replace(block, ops=tuple(map(sampled, block.ops)))


def _sampled(op: Op) -> bool:
    return isinstance(op, LinearOp) and op.params > 0 and not op.constant and op.region is not Region.VOCAB
