"""Scores answered rows: errors, bias, shares, interval coverage, never pooled across metrics; confusion of 'fits'."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.facts.records import Evidence
from ridgeline.validate.rows import Row

Answer = Mapping[str, Any]

FITS_WORDS = ("fits", "OOM")
Found = TypeVar("Found")


class Memo(Generic[Found]):
    """What was made for each key, Ridgeline's own errors among it; of more than `most` the oldest are let go."""

    def __init__(self, most: float = float("inf")) -> None:
        self._most = most
        self._made: OrderedDict[Any, Found | RidgelineError] = OrderedDict()

    def of(self, key: Any, make: Callable[[], Found]) -> Found:
        """What `make` gave for a key the first time, or the error that it raised."""
        if key not in self._made:
            try:
                self._made[key] = make()
            except RidgelineError as error:
                self._made[key] = error
            while len(self._made) > self._most:
                self._made.popitem(last=False)
        found = self._made[key]
        if isinstance(found, RidgelineError):
            raise found
        return found


def absolute_percentage_error(predicted: float, measured: float) -> float:
    """|predicted - measured| / |measured|, a share: 0.1 is 10 % [1].

    >>> absolute_percentage_error(90.0, 100.0)
    0.1
    """
    return abs(predicted - measured) / abs(measured)


def scored(
    row: Row, predicted: float, low: float | None, high: float | None, *, evidence: Evidence, **more: Any
) -> dict[str, Any]:
    """The keys of a row's answer that a prediction fills, in the row's unit; `more` are those that a kind adds."""
    measured = row.positive()
    ape = absolute_percentage_error(predicted, measured)
    found = {"status": "scored", "measured": measured, "predicted": predicted, "low": low, "high": high, "ape": ape}
    return found | {"evidence": evidence.label} | more


def statistics(answers: Iterable[Answer]) -> dict[str, Any]:
    """Counts and errors of rows of one metric; error fields are None when no row is scored.

    `median_ape`, `mean_ape`, `p90_ape` [1] (linear interpolation between ranks); `bias` is the mean
    of (predicted - measured) / measured [1]; `within_10`, `within_25` the shares of rows with at
    most that error [1]; `coverage` the share of intervals that hold the measured value and
    `median_width` the median of (high - low) / predicted, over rows that have an interval [1].
    """
    rows = list(answers)
    counts = Counter(row["status"] for row in rows)
    scored = [row for row in rows if row["status"] == "scored" and row["ape"] is not None]
    errors = np.array([row["ape"] for row in scored], dtype=float)
    signed = np.array([row["predicted"] / row["measured"] - 1.0 for row in scored], dtype=float)
    ranged = [row for row in scored if row["low"] is not None and row["high"] is not None]
    inside = [row["low"] <= row["measured"] <= row["high"] for row in ranged]
    widths = [(row["high"] - row["low"]) / row["predicted"] for row in ranged if row["predicted"] > 0]
    some = len(scored) > 0
    return {
        "scored": counts["scored"],
        "refused": counts["refused"],
        "skipped": counts["skipped"],
        "median_ape": float(np.median(errors)) if some else None,
        "mean_ape": float(errors.mean()) if some else None,
        "p90_ape": float(np.percentile(errors, 90)) if some else None,
        "bias": float(signed.mean()) if some else None,
        "within_10": float((errors <= 0.10).mean()) if some else None,
        "within_25": float((errors <= 0.25).mean()) if some else None,
        "coverage": float(np.mean(inside)) if inside else None,
        "median_width": float(np.median(widths)) if widths else None,
    }


def confusion(answers: Iterable[Answer]) -> dict[str, int]:
    """How often 'fits' and 'OOM' were measured and predicted, e.g. {'fits as fits': 3, 'fits as OOM': 1, ...} [1]."""
    table = {f"{measured} as {predicted}": 0 for measured in FITS_WORDS for predicted in FITS_WORDS}
    for row in answers:
        if row["status"] == "scored" and row["measured"] in FITS_WORDS:
            table[f"{row['measured']} as {row['predicted']}"] += 1
    return table


def summarise(answers: Sequence[Answer], *, kind: str) -> dict[str, Any]:
    """The summary of a check: totals, then by metric, and within each metric by device, engine and source."""
    by_metric = _grouped(answers, _metric)
    counts = Counter(row["status"] for row in answers)
    return {
        "kind": kind,
        "rows": len(answers),
        "scored": counts["scored"],
        "refused": counts["refused"],
        "skipped": counts["skipped"],
        "language_models": _language(answers),
        "metrics": {metric: _metric_summary(rows) for metric, rows in by_metric.items()},
        "fits": confusion(answers),
        "refusals": _reasons(answers, "refused"),
        "skips": _reasons(answers, "skipped"),
    }


def _language(answers: Sequence[Answer]) -> dict[str, Any]:
    """Rows of language models that are not skipped by rule, those scored, and their share [1]."""
    rows = [row for row in answers if row.get("language_model") and row["status"] != "skipped"]
    scored = sum(row["status"] == "scored" for row in rows)
    return {"rows": len(rows), "scored": scored, "scored_share": scored / len(rows) if rows else None}


def _metric(row: Answer) -> str:
    return f"{row['metric']} ({row['scenario']})" if row.get("scenario") else row["metric"] or "not stated"


def _metric_summary(rows: Sequence[Answer]) -> dict[str, Any]:
    found = statistics(rows)
    for field in ("device", "engine", "source", "evidence", "rung"):
        groups = _grouped(rows, lambda row, field=field: row.get(field) or "not stated")  # type: ignore[misc]
        found[f"by_{field}"] = {name: statistics(group) for name, group in groups.items()}
    return found


def _grouped(rows: Iterable[Answer], key: Callable[[Answer], str]) -> dict[str, list[Answer]]:
    groups: dict[str, list[Answer]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(sorted(groups.items()))


def _reasons(answers: Iterable[Answer], status: str) -> dict[str, int]:
    """Reasons and how often each was given, most frequent first."""
    found = Counter(row["reason"] for row in answers if row["status"] == status)
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
