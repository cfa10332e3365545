"""The seam of the loss: which logits are held, when the head's gradient is made, and what is computed again.

Shape letters: T tokens of a micro-batch on a rank, V vocabulary, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.seams.registry import names, technique
from ridgeline.seams.technique import Technique

if TYPE_CHECKING:
    from ridgeline.seams.setting import Setting

FP32_BYTES = 4.0
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Logits:
    """The logits of one micro-batch on a rank: numbers, or arrays over plans; no tokens beside the last stage.

    `share` [1] of the vocabulary is on the rank, 1 / tp; `element_bytes` is the width of activations. `waiting` more
    micro-batches have had their forward, not their backward. Of each logit the program holds `copies` in that width and
    `fp32_copies` at the worst moment of the loss; `eager` says that its casts write to memory, `trains_head`
    that the head's weight has a gradient.
    """

    tokens: Array
    vocab: int
    share: Array
    hidden: int
    element_bytes: float
    waiting: Array
    copies: float
    fp32_copies: float
    eager: bool
    trains_head: bool = True

    @property
    def count(self) -> Array:
        """Logits of one micro-batch on the rank [1]: T V / tp."""
        return self.tokens * self.vocab * self.share

    @property
    def spike_bytes(self) -> float:
        """What the program holds of a logit at the worst moment of its loss [byte]."""
        return self.copies * self.element_bytes + self.fp32_copies * FP32_BYTES

    @property
    def whole_bytes(self) -> Array:
        """Bytes at the worst moment where all are made at once [byte]; one fp32 tensor of each waiting micro-batch."""
        return self.count * (self.spike_bytes + self.waiting * min(1.0, self.fp32_copies) * FP32_BYTES)


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(Technique):
    """How the cross entropy of the logits is computed.

    `early_gradient` says that the gradient of the head's weight is
    there from the loss on.
    """

    family: ClassVar[str] = "losses"
    early_gradient: ClassVar[bool] = False

    def held_bytes(self, logits: Logits) -> ArrayLike:
        """Bytes held at the worst moment of the loss, for the waiting micro-batches too [byte]."""
        raise NotImplementedError

    def backward_bytes(self, logits: Logits) -> ArrayLike:
        """Bytes that the head's backward reads or makes beside its weight's gradient [byte]: the logits' gradient."""
        return logits.count * logits.element_bytes

    def gradient_copies(self) -> float:
        """Gradients of the head's weight that its backward holds beside the one that it leaves [1]."""
        return 0.0

    def logits_again(self) -> float:
        """Times that backward multiplies hidden states and head once more [1]."""
        return 0.0


def cross_entropy(name: str) -> CrossEntropy:
    """The loss that a plan names; raises `UnknownNameError` for a name of none."""
    return cast(CrossEntropy, technique("losses", name))


def tried_losses(setting: Setting) -> tuple[str, ...]:
    """Losses that are worth trying in a setting."""
    return tuple(text for name in names("losses") for text in cross_entropy(name).axes(setting))
