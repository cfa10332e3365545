"""Lengths of the requests of published data sets: rows of `data/request_lengths.tsv`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ridgeline.facts import store
from ridgeline.facts.records import Evidence


@dataclass(frozen=True, kw_only=True)
class RequestLengths:
    """One side of a data set's requests: mean [token] and quantiles, `tokens[j]` [token] at the share `levels[j]` [1].

    Without quantiles all are as long as the mean.
    """

    dataset: str
    mean: float
    levels: tuple[float, ...]
    tokens: tuple[float, ...]
    source: str
    evidence: Evidence
    note: str

    @property
    def said(self) -> str:
        """Where the lengths come from, in words."""
        more = f"; {self.note}" if self.note else ""
        return f"{self.mean:.0f} tokens on average ({self.evidence.label}: {self.source}{more})"

    def at_mean(self, mean: float) -> tuple[float, ...]:
        """The quantiles of lengths with another mean: each in proportion [token].

        Between two of them a length is geometric in its share, so a stretch from a to b has mean (b - a) / ln(b / a).
        """
        return tuple(max(1.0, length * mean / quantile_mean(self.levels, self.tokens)) for length in self.tokens)


def quantile_mean(levels: Sequence[float], tokens: Sequence[float]) -> float:
    """Mean of a law whose quantiles are joined geometrically [token].

    >>> round(quantile_mean((0.0, 1.0), (1.0, 2.718281828)), 6)
    1.718282
    """
    low, high = np.asarray(tokens[:-1], dtype=np.float64), np.asarray(tokens[1:], dtype=np.float64)
    ratio = np.log(high / low)
    middle = np.where(ratio > 0, (high - low) / np.where(ratio > 0, ratio, 1.0), low)
    return float(np.sum(np.diff(levels) * middle) / (levels[-1] - levels[0]))


def request_lengths(model: str) -> Mapping[str, RequestLengths] | None:
    """Prompts and outputs that MLPerf Inference sends to a model; None where it has no data set for it."""
    found = {side: one for pattern, side, one in _table() if re.search(pattern, model, re.IGNORECASE)}
    return found or None


@cache
def _table() -> tuple[tuple[str, str, RequestLengths], ...]:
    return tuple((row["models"], row["side"], _lengths(row)) for row in store.read_tsv("request_lengths.tsv"))


def _lengths(row: Mapping[str, str]) -> RequestLengths:
    names = [name for name in row if re.fullmatch(r"q\d+", name) and row[name]]
    return RequestLengths(
        dataset=row["dataset"],
        mean=float(row["mean"]),
        levels=tuple(int(name[1:]) / 100.0 for name in names),
        tokens=tuple(float(row[name]) for name in names),
        source=row["source"],
        evidence=Evidence[row["evidence"].upper()],
        note=row["note"],
    )
