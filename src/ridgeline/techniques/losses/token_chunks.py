"""The head and the loss a few tokens at a time in fp32, their logits made again in backward.

Shape letters: T tokens of a micro-batch on a rank, C tokens of a chunk, V vocabulary, D hidden.
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

CHUNK_COPIES = 5
"""fp32 tensors of C V in the part of backward that makes a chunk again [1]: its logits, log-probabilities,
probabilities, their product, and one of the chunk before; beside them one fp32 copy of the head."""
HEAD_BYTES = 2 * FP32_BYTES + 2
"""Of a weight of the head in the product that makes its gradient [byte]: the copy in fp32, the gradient in fp32 and its
cast to the weight's 16 bits. Both as PyTorch 2.13 held them of such a head (tests/memory/test_reserved.py)."""


@dataclass(frozen=True, kw_only=True)
class TokenChunks(CrossEntropy):
    """Cross entropy under activation checkpointing, C tokens at a time, by an fp32 copy of the head (TRL, chunked_nll).

    Nothing of tokens x vocabulary is held from forward to backward; the gradient of the head's weight is there from
    the first chunk's backward on.
    """

    key: ClassVar[str] = "token-chunks"
    quality: ClassVar[Fact | None] = EXACT
    source: ClassVar[tuple[str, ...]] = ("trl",)
    early_gradient: ClassVar[bool] = True
    tokens: int = param(256, "1", "tokens of a chunk", low=1, high=1_000_000)

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: `fused` holds less and multiplies by the head once less."""
        return ()

    def held_bytes(self, logits: Logits) -> ArrayLike:
        """A chunk made again, or the head's gradient; beside it hidden states in order, and their gradient [byte]."""
        head = logits.vocab * logits.share * logits.hidden
        chunk = np.minimum(self.tokens, logits.tokens) * logits.vocab * logits.share * FP32_BYTES
        again = FP32_BYTES * head + CHUNK_COPIES * chunk
        held = np.maximum(again, HEAD_BYTES * head + chunk) if logits.trains_head else again
        return np.where(logits.tokens > 0, held + 2.0 * logits.tokens * logits.hidden * logits.element_bytes, 0.0)

    def backward_bytes(self, logits: Logits) -> ArrayLike:
        """As much: the head's backward makes its chunks [byte]."""
        return self.held_bytes(logits)

    def logits_again(self) -> float:
        """Once [1]."""
        return 1.0
