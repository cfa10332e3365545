"""Facts about named benchmarks and published results: lengths, padding, machines, convergence, architectures, releases.

Each function reads one table of `data/` of the same subject.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ridgeline.facts import store
from ridgeline.facts.readings import tell_recipe
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
    found = {side: one for pattern, side, one in _lengths() if re.search(pattern, model, re.IGNORECASE)}
    return found or None


@cache
def _lengths() -> tuple[tuple[str, str, RequestLengths], ...]:
    rows = store.read_tsv("request_lengths.tsv")
    found = store.records(RequestLengths, rows, _quantiles)
    return tuple((row["models"], row["side"], one) for row, one in zip(rows, found, strict=True))


def _quantiles(row: store.TableRow) -> Mapping[str, tuple[float, ...]]:
    names = [name for name in row if re.fullmatch(r"q\d+", name) and row[name]]
    levels = tuple(int(name[1:]) / 100.0 for name in names)
    return {"levels": levels, "tokens": tuple(float(row[name]) for name in names)}


def kept_tokens(model: str, *, results: str, positions: int) -> int | None:
    """Positions of a sequence of `positions` that are computed on average [token]; None where padding is not dropped.

    `results` names where the results come from.
    """
    found = (int(row["tokens"]) for row in _padded(model, results) if int(row["positions"]) == positions)
    return next(found, None)


def predicted_share(model: str, *, results: str) -> float | None:
    """Share of the tokens whose logits the published code makes [1]; None where it makes those of all."""
    return next((float(row["predicted"]) for row in _padded(model, results)), None)


def _padded(model: str, results: str) -> list[store.TableRow]:
    rows = store.read_tsv("padding.tsv")
    found = [row for row in rows if re.search(row["model"], model, re.IGNORECASE) and re.search(row["runs"], results)]
    for row in found:
        tell_recipe(row["runs"], results, f"padding is dropped ({row['source']})")
    return found


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """Sequences of training until the target is reached [1]: mean, 10th and 90th percentile of reference runs.

    `evaluated` sequences pass forward alone on the way [1].
    """

    sequences: float
    low: float
    high: float
    evaluated: float
    source: str


def convergence(model: str, *, batch: float, mlperf_round: tuple[int, int]) -> Convergence | None:
    """Sequences that a benchmark of MLPerf Training takes at a global batch of `batch` sequences [1].

    Linear between the batches of the reference runs of the latest round up to `mlperf_round`; a smaller batch takes
    what the smallest of them does. None for a model without reference runs, or a batch beyond theirs.
    Source: MLCommons, reference convergence points. Evidence: measured.
    """
    rows = [row for row in store.read_tsv("convergence.tsv") if re.search(row["model"], model, re.IGNORECASE)]
    rows = [row for row in rows if _round(row["first_round"]) <= mlperf_round]
    if not rows:
        return None
    latest = max(_round(row["first_round"]) for row in rows)
    rows = [row for row in rows if _round(row["first_round"]) == latest]
    batches = [float(row["batch"]) for row in rows]
    if batch > max(batches):
        return None

    def at(name: str) -> float:
        return float(np.interp(batch, batches, [float(row[name]) for row in rows]))

    last = rows[-1]
    skipped = math.floor(float(last["eval_skipped"]) + float(last["eval_skipped_each"]) * batch)
    evaluations = max(0.0, at("sequences") / at("eval_every") - skipped)
    return Convergence(
        sequences=at("sequences"),
        low=at("low"),
        high=at("high"),
        evaluated=evaluations * float(last["eval_sequences"]),
        source=last["source"],
    )


def _round(text: str) -> tuple[int, int]:
    """(5, 0) of '5.0'."""
    first, second = text.split(".")
    return int(first), int(second)


def ran_on(where: str, accelerator: str) -> str | None:
    """The catalog's machine that a test ran on; None where its source does not tell.

    `where` is the path of the test's results, `accelerator` the device that they are of.
    """
    for row in store.read_tsv("test_machines.tsv"):
        if row["accelerator"] == accelerator and f"/{row['test']}/" in where:
            tell_recipe(re.escape(row["test"]), where, f"machine = {row['machine']} ({row['source']})")
            return row["machine"]
    return None


def release_at(engine: str, day: str) -> str | None:
    """The newest release of an engine on a day such as '2025-10-29', a month or a year; None before the first known."""
    rows = [row for row in store.read_tsv("engine_releases.tsv") if row["engine"] == engine and row["day"] <= day]
    return max(rows, key=lambda row: row["day"])["release"] if rows else None


def model_day(name: str) -> str | None:
    """The day on which the first models of a name's family were public, such as '2024-07-23'; None where none knows."""
    for row in store.read_tsv("model_days.tsv"):
        if re.search(row["pattern"], name, re.IGNORECASE):
            return row["day"]
    return None


def first_release(engine: str) -> str | None:
    """The first release of an engine that the table knows, None where it knows none."""
    rows = [row for row in store.read_tsv("engine_releases.tsv") if row["engine"] == engine]
    return min(rows, key=lambda row: row["day"])["release"] if rows else None


@dataclass(frozen=True, kw_only=True)
class PublishedDimensions:
    """Dimensions of a known architecture, as keyword arguments of `from_dims`; `source` says where."""

    dims: Mapping[str, object]
    source: str


def style(name: str) -> Mapping[str, object]:
    """How the layers of a style look, as keyword arguments of `from_dims`: 'llama', 'mpt', 'bert', 'megatron-bert'."""
    found: Mapping[str, object] = store.read_toml("dimensions.toml")["styles"][name]
    return found


def style_of(name: str) -> Mapping[str, object]:
    """How the layers of the family that a model's name belongs to look; those of `from_dims` itself, GPT's, if unknown.

    >>> style_of("Mistral 7B")["norm"], style_of("GPT-3")
    ('rms', {})
    """
    for family in store.read_toml("dimensions.toml")["family"]:
        if re.search(family["pattern"], name, re.IGNORECASE):
            return style(family["style"])
    return {}


def published_dimensions(name: str) -> PublishedDimensions | None:
    """The published dimensions of a plain model name, None when the table has none."""
    for model in store.read_toml("dimensions.toml")["model"]:
        if re.search(model["pattern"], name.strip(), re.IGNORECASE):
            shared = style(model["style"]) if "style" in model else {}
            return PublishedDimensions(dims={**shared, **model["dims"]}, source=model["source"])
    return None
