"""Cut Cross-Entropy: logits that never leave the chip, made again for their gradient.

Shape letters: T tokens of a micro-batch on a rank, V vocabulary, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from numpy.typing import ArrayLike

from ridgeline.seams.loss import FP32_BYTES, CrossEntropy, Logits
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class CutCrossEntropy(CrossEntropy):
    """Cut Cross-Entropy: the log-sum-exp of blocks of logits on chip; backward makes the blocks again.

    Blocks whose softmax is below the precision of the gradient are skipped; how many depends on the model and the data.
    What skipping saves beyond making the blocks again is not counted, nor is the traffic of logits.
    """

    key: ClassVar[str] = "cut-cross-entropy"
    source: ClassVar[tuple[str, ...]] = (
        "https://arxiv.org/abs/2411.09009, algorithms 2 and 3, and github.com/apple/ml-cross-entropy,"
        " cut_cross_entropy/cce.py and cce_backward.py",
    )
    skipped: float = param(0.0, "1", "share of blocks of logits that backward skips", high=1.0)
    fp32: bool = param(False, "", "sum gradients in fp32")

    def held_bytes(self, logits: Logits) -> ArrayLike:
        """A log-sum-exp and the target's logit of each token, a mean of each entry of the vocabulary [byte]."""
        tokens = 2.0 * logits.tokens * (1.0 + logits.waiting)
        return FP32_BYTES * (tokens + (logits.tokens > 0) * logits.vocab * logits.share)

    def backward_bytes(self, logits: Logits) -> ArrayLike:
        """Gradient of the hidden states, and the order in which entries of the vocabulary are taken [byte]."""
        width = logits.element_bytes + (FP32_BYTES if self.fp32 else 0.0)
        order = (logits.tokens > 0) * logits.vocab * logits.share
        return logits.tokens * logits.hidden * width + 2.0 * FP32_BYTES * order

    def gradient_copies(self) -> float:
        """Gradients of the head's weight beside the one that is left [1]: one in fp32 is two in 16 bits."""
        return 2.0 if self.fp32 else 0.0

    def logits_again(self) -> float:
        """Once [1], less the two products of each block that is skipped."""
        return max(0.0, 1.0 - 2.0 * self.skipped)
