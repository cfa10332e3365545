"""Cross entropy over logits made at once, in chunks, or in chunks with the head.

Shape letters: T tokens of a micro-batch on a rank, V vocabulary, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.facts.records import Fact
from ridgeline.seams.loss import Array, CrossEntropy, Logits
from ridgeline.seams.technique import EXACT, param

if TYPE_CHECKING:
    from ridgeline.seams.setting import Setting


@dataclass(frozen=True, kw_only=True)
class Whole(CrossEntropy):
    """All logits of a micro-batch at once."""

    key: ClassVar[str] = "whole"
    quality: ClassVar[Fact | None] = EXACT
    source: ClassVar[tuple[str, ...]] = ("pytorch",)

    def held_bytes(self, logits: Logits) -> ArrayLike:
        """Every copy of every logit that the program makes [byte]."""
        return logits.whole_bytes


@dataclass(frozen=True, kw_only=True)
class Chunked(CrossEntropy):
    """All logits in the width of activations, one chunk of them in fp32 (torchtune, CEWithChunkedOutputLoss).

    Gradients take the place of the logits. Compiled, a chunk is widened in registers. The head's backward makes a
    gradient a chunk and adds it to the others.
    """

    key: ClassVar[str] = "chunked"
    quality: ClassVar[Fact | None] = EXACT
    source: ClassVar[tuple[str, ...]] = ("torchtune",)
    chunks: int = param(8, "1", "chunks of a micro-batch's tokens", low=1, high=1_000_000)

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: `fused` holds less in the same time."""
        return ()

    def held_bytes(self, logits: Logits) -> ArrayLike:
        """The logits in 16 bits, and what else the program holds of them for one chunk [byte]."""
        width = logits.element_bytes
        chunk = logits.spike_bytes if logits.eager else width
        held = logits.count * ((1.0 + logits.waiting) * width + chunk / self.chunks)
        return np.minimum(held, logits.whole_bytes)

    def gradient_copies(self) -> float:
        """Gradients of the head's weight beside the one that is left [1]: a chunk's."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class HeadChunks(CrossEntropy):
    """The head, the loss and both backwards for one chunk of tokens after another (torchtitan, ChunkedCELoss).

    A chunk has the logits that a whole loss has of all tokens; of all tokens there is the hidden states' gradient.
    """

    key: ClassVar[str] = "head-chunks"
    quality: ClassVar[Fact | None] = EXACT
    source: ClassVar[tuple[str, ...]] = ("torchtitan",)
    early_gradient: ClassVar[bool] = True
    chunks: int = param(8, "1", "chunks of a micro-batch's tokens", low=1, high=1_000_000)

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: `fused` holds less in the same time."""
        return ()

    def held_bytes(self, logits: Logits) -> ArrayLike:
        """A chunk's logits as the program holds them, and the gradient of the hidden states [byte]."""
        gradient = logits.tokens * logits.hidden * logits.element_bytes
        return np.minimum(logits.count * logits.spike_bytes / self.chunks + gradient, logits.whole_bytes)

    def backward_bytes(self, logits: Logits) -> ArrayLike:
        """Nothing: the head's backward has run with the loss [byte]."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Fused(CrossEntropy):
    """The head with the loss, a chunk of tokens at a time (Liger Kernel 0.8.2, ops/fused_linear_cross_entropy.py).

    A chunk has ceil(T / ceil(V / D)) tokens, up to the next power of two. Its logits' gradient takes their place; the
    gradients of the hidden states and of the head's weight are there from the loss on.
    """

    key: ClassVar[str] = "fused"
    quality: ClassVar[Fact | None] = EXACT
    source: ClassVar[tuple[str, ...]] = ("liger-kernel-2024",)
    early_gradient: ClassVar[bool] = True

    def held_bytes(self, logits: Logits) -> ArrayLike:
        """A chunk's logits and the gradient of the hidden states [byte]."""
        tokens, hidden = logits.tokens, logits.hidden
        rows: Array = np.ceil(tokens / max(1.0, np.ceil(logits.vocab / max(1, hidden))))
        rows = np.minimum(2.0 ** np.ceil(np.log2(np.maximum(rows, 1.0))), tokens)
        held: Array = logits.element_bytes * (rows * logits.vocab + tokens * hidden * (1.0 + logits.waiting))
        return np.minimum(held, logits.whole_bytes)

    def backward_bytes(self, logits: Logits) -> ArrayLike:
        """Nothing: the head's backward has run with the loss [byte]."""
        return 0.0
