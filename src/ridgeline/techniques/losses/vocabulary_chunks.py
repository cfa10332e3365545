"""The head and the loss a part of the vocabulary at a time, its logits made again in backward.

Shape letters: T tokens of a micro-batch on a rank, V vocabulary, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.facts.records import Fact
from ridgeline.seams.loss import FP32_BYTES, CrossEntropy, Logits
from ridgeline.seams.technique import EXACT, param

if TYPE_CHECKING:
    from ridgeline.seams.setting import Setting

HALF_COPIES, FP32_COPIES = 2, 3
"""Tensors of a chunk in backward [1]: its logits and their gradient in 16 bits; logits, probabilities and gradient in
fp32 (prime-rl a9b5aa5, models/layers/lm_head.py, _ChunkedLogProbEntropyFn.backward)."""


@dataclass(frozen=True, kw_only=True)
class VocabularyChunks(CrossEntropy):
    """Log-sum-exp over chunks of the vocabulary; backward makes each chunk's logits again (prime-rl).

    Nothing of tokens x vocabulary is held from forward to backward. A chunk is written to memory, unlike in Cut
    Cross-Entropy, whose tiles stay on the chip.
    """

    key: ClassVar[str] = "vocabulary-chunks"
    quality: ClassVar[Fact | None] = EXACT
    source: ClassVar[tuple[str, ...]] = ("prime-rl",)
    entries: int = param(2048, "1", "entries of the vocabulary in a chunk", low=1, high=1_000_000)

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: `fused` holds as little and multiplies by the head once less."""
        return ()

    def held_bytes(self, logits: Logits) -> ArrayLike:
        """What one chunk holds in backward, and the gradient of the hidden states [byte]."""
        width = HALF_COPIES * logits.element_bytes + FP32_COPIES * FP32_BYTES
        chunk = np.minimum(self.entries, logits.vocab * logits.share)
        held = logits.tokens * (chunk * width + logits.hidden * logits.element_bytes)
        return np.minimum(held, logits.whole_bytes)

    def backward_bytes(self, logits: Logits) -> ArrayLike:
        """As much: the head's backward makes its chunks [byte]."""
        return self.held_bytes(logits)

    def logits_again(self) -> float:
        """Once [1]."""
        return 1.0
