"""How much a benchmark trains until its quality target is reached, from `data/convergence.tsv`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from ridgeline.facts import store


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
