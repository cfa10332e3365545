"""Rows of a training batch: a sequence each with padding, or several packed together."""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np

from ridgeline.seams.rollout import Floats, SequencePacking
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class PackedSequences(SequencePacking):
    """Packs sequences into rows of about `tokens` tokens, none shorter than the longest sequence, without padding.

    Attention does not cross sequences. All rows are taken to be equally full, as a balanced division of a batch over
    ranks makes them nearly. Without `tokens` a row is as long as the longest sequence of the batch. With `sequences`
    a row holds that many, however long: micro-batches of a fixed number of sequences whose padding is removed.
    """

    key: ClassVar[str] = "packed-sequences"
    source: ClassVar[tuple[str, ...]] = ("bert-packing",)
    tokens: int | None = param(None, "token", "tokens of a row", low=1, high=10**8, whole=True)
    sequences: int | None = param(None, "sequence", "sequences of a row", low=1, high=10**6, whole=True)

    def rows(self, lengths: Floats, multiple: int) -> tuple[int, int, float]:
        """As many rows as the tokens or sequences fill, each with an equal part of them."""
        total, longest = float(lengths.sum()), float(lengths.max())
        filled = len(lengths) / self.sequences if self.sequences else total / max(longest, self.tokens or 0)
        count = multiple * ceil(max(1.0, filled) / multiple)
        return count, max(1, ceil(total / count)), 0.0


@dataclass(frozen=True, kw_only=True)
class PaddedSequences(SequencePacking):
    """Gives each sequence a row, padded to the longest of the batch, or to `tokens` where that is longer.

    Programs that pad to the limits of prompt and response have rows of the sum of both.
    """

    key: ClassVar[str] = "padded-sequences"
    source: ClassVar[tuple[str, ...]] = ("bert-packing",)
    tokens: int | None = param(None, "token", "tokens of a row at least", low=1, high=10**8, whole=True)

    def rows(self, lengths: Floats, multiple: int) -> tuple[int, int, float]:
        """A row a sequence; what a multiple lacks is filled with padding."""
        count, longest = multiple * ceil(len(lengths) / multiple), max(ceil(float(np.max(lengths))), self.tokens or 0)
        return count, longest, 1.0 - float(lengths.sum()) / (count * longest)
