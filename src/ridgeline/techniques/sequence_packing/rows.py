"""Rows of a training batch: a sequence each with padding, or several packed together."""

from bisect import bisect_right, insort
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np

from ridgeline.seams.rollout import EVEN, Floats, RankDivision, SequencePacking
from ridgeline.seams.technique import param

_DRAWS = 16  # orders of a batch that are averaged


def fullest(lengths: Floats, ranks: int, each: int) -> float:
    """Tokens of the fullest of some ranks over their mean, each with `each` sequences as they come [1]."""
    size = ranks * each
    if size > len(lengths):
        return 1.0
    drawn = np.random.default_rng(0).permuted(np.tile(lengths, (_DRAWS, 1)), axis=1)
    held = drawn[:, : len(lengths) // size * size].reshape(-1, ranks, each).sum(axis=2)
    return float(held.max(axis=1).mean() / held.mean())


def filled_bins(lengths: Floats, room: float) -> list[float]:
    """Tokens of bins of `room` [token]; the longest sequences come first, each into the fullest that holds it."""
    bins: list[float] = []  # ascending
    for length in sorted(lengths.tolist(), reverse=True):
        place = bisect_right(bins, room - length)
        insort(bins, (bins.pop(place - 1) if place else 0.0) + length)
    return bins


@dataclass(frozen=True, kw_only=True)
class PackedSequences(SequencePacking):
    """Packs sequences into rows of about `tokens` tokens, none shorter than the longest sequence, without padding.

    Attention does not cross sequences. All rows are taken to be equally full, as a balanced division of a batch over
    ranks makes them nearly. Without `tokens` a row is as long as the longest sequence of the batch. With `sequences` a
    row holds that many as they come, however long: micro-batches of a fixed number of sequences whose padding is
    removed; ranks in lockstep wait for the fullest of each turn. `bins` are filled by the longest sequences first and
    leave room; a pipeline, whose stages exchange tensors of one shape, pads them to the fullest.
    """

    key: ClassVar[str] = "packed-sequences"
    source: ClassVar[tuple[str, ...]] = ("bert-packing",)
    tokens: int | None = param(None, "token", "tokens of a row", low=1, high=10**8, whole=True)
    sequences: int | None = param(None, "sequence", "sequences of a row", low=1, high=10**6, whole=True)
    bins: bool = param(False, "", "whether rows are bins that whole sequences fill, padded alike for a pipeline")

    def rows(self, lengths: Floats, multiple: int, over: RankDivision = EVEN) -> tuple[int, int, float]:
        """As many rows as the tokens or sequences fill, each with an equal part of them or as full as the fullest."""
        if self.bins:
            return self._bins(lengths, multiple, over)
        longest, total = float(lengths.max()), float(lengths.sum())
        filled = len(lengths) / self.sequences if self.sequences else total / max(longest, self.tokens or 0)
        count = multiple * ceil(max(1.0, filled) / multiple)
        waits = fullest(lengths, over.ranks, self.sequences) if self.sequences and over.lockstep else 1.0
        return count, max(1, ceil(total * waits / count)), 1.0 - 1.0 / waits

    def _bins(self, lengths: Floats, multiple: int, over: RankDivision) -> tuple[int, int, float]:
        """Bins of at most `tokens` or the longest sequence, padded to the fullest where stages pass them on."""
        held = filled_bins(lengths, max(float(lengths.max()), self.tokens or 0))
        count, total = multiple * ceil(len(held) / multiple), float(lengths.sum())
        tokens = ceil(max(held)) if over.pipeline else max(1, ceil(total / count))
        return count, tokens, 1.0 - total / (count * tokens) if over.pipeline else 0.0


@dataclass(frozen=True, kw_only=True)
class PaddedSequences(SequencePacking):
    """Gives each sequence a row, padded to the longest of the batch, or to `tokens` where that is longer.

    Programs that pad to the limits of prompt and response have rows of the sum of both.
    """

    key: ClassVar[str] = "padded-sequences"
    source: ClassVar[tuple[str, ...]] = ("bert-packing",)
    tokens: int | None = param(None, "token", "tokens of a row at least", low=1, high=10**8, whole=True)

    def rows(self, lengths: Floats, multiple: int, over: RankDivision = EVEN) -> tuple[int, int, float]:
        """A row a sequence; what a multiple lacks is filled with padding."""
        count, longest = multiple * ceil(len(lengths) / multiple), max(ceil(float(np.max(lengths))), self.tokens or 0)
        return count, longest, 1.0 - float(lengths.sum()) / (count * longest)
