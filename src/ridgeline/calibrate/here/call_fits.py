"""Fits of calls: seconds for each feature that explain the measured times, judged on rows left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.calibrate.here.fitting import has_scipy
from ridgeline.cost.calls import features
from ridgeline.cost.mechanism import Array
from ridgeline.facts.calls import CallFit
from ridgeline.facts.profiles import Measured

KIND = "call"  # of rows
_FOLDS = 5
_EVALUATIONS = 200
_RANGE = 14.0  # logarithms around what a feature would take if it took all
_SOFT = 0.08  # relative errors beyond it count less and less, as in other fits


def call_fits(rows: Sequence[Measured]) -> tuple[tuple[CallFit, ...], tuple[str, ...]]:
    """The fit of every call, format and number of ranks; and what has none, and why."""
    groups: dict[tuple[str, str, int], list[Measured]] = {}
    for row in rows:
        if row.kind == KIND:
            groups.setdefault((row.note, row.form, int(row.sizes["ranks"])), []).append(row)
    if groups and not has_scipy():
        return (), ("fits of calls: SciPy is not installed: pip install 'ridgeline[fit]'",)
    found, left_out = [], []
    for (call, form, ranks), some in groups.items():
        fit = _fit(call, form, ranks, some)
        if fit is None:
            left_out.append(f"fit of {call} {form} over {ranks} ranks: {len(some)} rows, needs more than its features")
        else:
            found.append(fit)
    return tuple(found), tuple(left_out)


def _fit(call: str, form: str, ranks: int, rows: Sequence[Measured]) -> CallFit | None:
    columns = [features(call, row.sizes) for row in rows]
    names = tuple(columns[0])
    table = np.array([[float(np.asarray(one[name])) for name in names] for one in columns])
    seconds = np.array([row.seconds for row in rows])
    if len(rows) <= len(names) and len(names) > 1:
        return None
    folds = np.random.default_rng(0).permutation(len(rows)) % _FOLDS
    priced = np.array(seconds)
    for fold in range(_FOLDS) if len(names) > 1 else ():
        mask = folds == fold
        priced[mask] = table[mask] @ solved(table[~mask], seconds[~mask])
    error = priced / seconds - 1
    ratios = seconds / np.maximum(priced, 1e-9)
    return CallFit(
        call=call,
        form=form,
        ranks=ranks,
        values={name: float(f"{v:.6g}") for name, v in zip(names, solved(table, seconds), strict=True) if v > 0},
        rows=len(rows),
        held_median=float(np.median(np.abs(error))),
        held_p90=float(np.quantile(np.abs(error), 0.9)),
        held_bias=float(np.median(error)),
        low=min(1.0, float(np.quantile(ratios, 0.1))),
        high=max(1.0, float(np.quantile(ratios, 0.9))),
    )


def solved(table: Array, seconds: Array) -> Array:
    """Seconds for each feature, all above 0, with the least squared logarithms of errors; large ones count less.

    Half and double count alike (soft L1). By errors relative to what was measured, one row that was timed too short
    would pull all predictions towards 0.
    """
    from scipy.optimize import least_squares

    used = table.any(axis=0)
    rows = table[:, used]
    alone = np.nanmedian(np.where(rows > 0, seconds[:, None] / np.where(rows > 0, rows, 1.0), np.nan), axis=0)
    start = np.log(alone / rows.shape[1])

    def parts(points: Array) -> Array:
        return np.asarray(rows * np.exp(points))

    def residuals(points: Array) -> Array:
        return np.asarray(np.log(parts(points).sum(axis=1) / seconds) / _SOFT)

    def slopes(points: Array) -> Array:
        each = parts(points)
        return np.asarray(each / each.sum(axis=1)[:, None] / _SOFT)

    bounds = (start - _RANGE, start + _RANGE)
    found = least_squares(residuals, start, jac=slopes, bounds=bounds, loss="soft_l1", max_nfev=_EVALUATIONS)
    values = np.zeros(table.shape[1])
    values[used] = np.exp(found.x)
    return values
