"""Fits of a machine's own rows: the mechanisms' values, judged on rows that each fit has not seen.

With some tens of rows, no part of them is set aside for good: five fits each leave a fifth out and judge it; the
sixth takes all and answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ridgeline.calibrate.here.kernels import Sizes
from ridgeline.calibrate.least_squares import fit_values, held_errors, named_values
from ridgeline.cost.families.registry import mechanism
from ridgeline.cost.formats import form as form_of
from ridgeline.cost.mechanism import Array, Mechanism, device_vector, form_sizes
from ridgeline.cost.own_host import features
from ridgeline.facts.fits import BANDS_S, CallFit, Fit
from ridgeline.facts.mechanisms import Parameter, constant, kernel_traits
from ridgeline.facts.profiles import BenchmarkRow
from ridgeline.facts.records import Accelerator

Index = NDArray[np.int64]
ENGINE = "torch"
_TILE_ROWS = 16.0  # the formula's smallest tile; kernels of few rows compute no more rows than there are
_FEW = ("gemv", "few")  # kernels of fewer rows than a tile
FEW_ROWS = (("gemv", 1.0, 1.0), ("few", 2.0, _TILE_ROWS - 1.0), ("some", _TILE_ROWS, 8 * _TILE_ROWS - 1.0))
"""Kernels of so many rows, at least and at most: below some hundred rows a product packs its operands in vain."""
FEWEST = 10  # rows of a fit; the prior holds what fewer do not tell
WORST = 0.5  # median error on rows left out, from which a fit answers nothing
FEWEST_OF_FEW = 7  # of products with few rows: little but the size of their weight differs
_FOLDS = 5
_FEWEST_OF_BAND = 12
_WIDER = 100.0  # a processor's threads start and meet more slowly than a GPU's blocks
_FIGURES = 6
_HOSTS = ("issue_s_",)  # answers take kernels alone; the host's part is in the start of these


@cache
def wide_mechanism(family: str, kernel: str = "") -> Mechanism:
    """A family's mechanism with bounds that processors fit in as well; its formula and usual values are the same."""
    model = mechanism(family)
    return replace(model, parameters=tuple(_wider(parameter, kernel) for parameter in model.parameters))


def _wider(parameter: Parameter, kernel: str) -> Parameter:
    if parameter.name in _HOSTS:
        return parameter
    if parameter.name == "matrix_share_" and kernel.endswith(_FEW):
        return replace(parameter, high=_TILE_ROWS * parameter.high)
    if parameter.unit == "s":
        return replace(parameter, high=parameter.high * _WIDER)
    if parameter.unit == "byte/s":
        return replace(parameter, low=parameter.low / _WIDER)
    return parameter


@dataclass(frozen=True, kw_only=True)
class MeasuredRows:
    """Rows of one family and format as its mechanism takes them."""

    family: str
    form: str
    kernel: str
    table: Array
    device: Array
    seconds: Array
    sizes: dict[str, Array]

    def __len__(self) -> int:
        return len(self.seconds)


def rows_of(
    family: str, form: str, rows: Sequence[BenchmarkRow], part: Accelerator, *, kernel: str = ""
) -> MeasuredRows:
    """The rows of a family as one table of sizes, with the traits of the kernel that ran them."""
    model, what = wide_mechanism(family, kernel), form_of(form)
    sizes = {name: np.array([row.sizes[name] for row in rows]) for name in rows[0].sizes}
    known = {name: column for name, column in sizes.items() if name in model.sizes}
    table, _ = model.columns({**_decided(model, form, kernel), **known})
    return MeasuredRows(
        family=family,
        form=form,
        kernel=kernel,
        table=table,
        device=device_vector(part, what.matrix),
        seconds=np.array([row.seconds for row in rows]),
        sizes=known,
    )


def _decided(model: Mechanism, form: str, kernel: str) -> dict[str, float]:
    """Sizes that the format and the kernel decide; what is measured here casts nothing."""
    traits = kernel_traits(model.family, "", ENGINE, kernel, form)
    return {**form_sizes(model, form_of(form)), **traits, **({"cast": 0.0} if "cast" in model.sizes else {})}


def values_of(rows: MeasuredRows, chosen: Index) -> Array:
    """The values that fit the chosen rows best."""
    model = wide_mechanism(rows.family, rows.kernel)
    starts = [_start(model, rows)]
    for index, parameter in enumerate(model.parameters):
        for value in parameter.grid[:2]:
            starts.append(starts[0].copy())
            starts[-1][index] = value
    free = [name not in _HOSTS and not name.startswith("cast_") for name in (p.name for p in model.parameters)]
    return fit_values(model, rows.table[chosen], rows.device, rows.seconds[chosen], starts=starts, free=free)


def _start(model: Mechanism, rows: MeasuredRows) -> Array:
    """The usual values, but the kernels' start at what the shortest of them took, and a host that issues at once."""
    start = model.start
    shortest = float(np.min(rows.seconds))
    for index, parameter in enumerate(model.parameters):
        if parameter.name == "start_s_":
            start[index] = np.clip(shortest / 2, parameter.low, parameter.high)
        elif parameter.name in _HOSTS:
            start[index] = parameter.low
    return start


def judged(rows: MeasuredRows) -> tuple[Array, list[Array]]:
    """Times of each row by the fit that has not seen it [s], and the values of these fits."""
    model, folds = wide_mechanism(rows.family, rows.kernel), np.random.default_rng(0).permutation(len(rows)) % _FOLDS
    priced, found = np.empty(len(rows)), []
    for fold in range(_FOLDS):
        values = values_of(rows, np.flatnonzero(folds != fold))
        mask = folds == fold
        priced[mask] = model.price(rows.table[mask], rows.device, values)[:, 0]
        found.append(values)
    return priced, found


def fit_rows(
    rows: MeasuredRows,
    *,
    version: str,
    source: str,
    date: str,
    domain: Mapping[str, tuple[float, float, float]] | None = None,
) -> tuple[Fit | None, str]:
    """The fit of a family, format and kernel, or None and why not; `domain` bounds the sizes that it is for."""
    name = f"fit of {rows.family} {rows.form}"
    fewest = FEWEST_OF_FEW if rows.kernel.endswith((*_FEW, "some")) else FEWEST
    if len(rows) < fewest:
        return None, f"{name}: {len(rows)} rows, needs {fewest}; give a longer --budget"
    priced, _ = judged(rows)
    error = np.abs(priced / rows.seconds - 1)
    if np.median(error) > WORST:
        return None, f"{name}: median error {np.median(error):.0%} on rows left out, limit {WORST:.0%}"
    low, high = _bands(rows.seconds / priced, priced)
    model = wide_mechanism(rows.family, rows.kernel)
    values = values_of(rows, np.arange(len(rows)))
    found = Fit(
        family=rows.family,
        device="",
        engine=ENGINE,
        version=version,
        form=rows.form,
        kernel=rows.kernel,
        values=named_values(model.parameters, values, _FIGURES),
        rows=len(rows),
        **held_errors(priced, rows.seconds),
        low=low,
        high=high,
        domain=domain or {},
        span={name: (float(column.min()), float(column.max())) for name, column in rows.sizes.items()},
        source=source,
        date=date,
    )
    return found, ""


def _bands(ratios: Array, priced: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The 10 % and 90 % quantiles of measured / predicted by band of time, of all rows where a band has few."""
    low, high = [], []
    for a, b in pairwise((0.0, *BANDS_S, np.inf)):
        inside = (priced >= a) & (priced < b)
        chosen = ratios[inside] if inside.sum() >= _FEWEST_OF_BAND else ratios
        low.append(min(1.0, round(float(np.quantile(chosen, 0.1)), 4)))
        high.append(max(1.0, round(float(np.quantile(chosen, 0.9)), 4)))
    return tuple(low), tuple(high)


def least_certain(
    family: str,
    form: str,
    rows: Sequence[BenchmarkRow],
    part: Accelerator,
    candidates: Sequence[Sizes],
    *,
    kernel: str = "",
) -> Sizes | None:
    """The candidate whose predicted interval is widest: where fits that each lack some rows differ, or far from all.

    The interval's logarithm is that of the fits' range, and of the reach outside the sizes measured, as answers have
    it (`cost/fitted.py`). None with too few rows for fits, or without SciPy.
    """
    if len(rows) < FEWEST or not candidates or not has_scipy():
        return None
    known = rows_of(family, form, rows, part, kernel=kernel)
    _, committee = judged(known)
    model = wide_mechanism(family)
    columns = {name: np.array([one[name] for one in candidates]) for name in candidates[0]}
    table, _ = model.columns({**_decided(model, form, kernel), **columns})
    priced = np.array([np.log(model.price(table, known.device, values)[:, 0]) for values in committee])
    width = priced.max(axis=0) - priced.min(axis=0)
    for name, column in columns.items():
        least, most = known.sizes[name].min(), known.sizes[name].max()
        outside = np.maximum(0, np.log(column / most)) + np.maximum(0, np.log(least / column))
        width += 2 * math.log(constant("fit.reach")) * outside
    return candidates[int(np.argmax(width))]


def has_scipy() -> bool:
    """Whether fits can be made."""
    from importlib.util import find_spec

    return find_spec("scipy") is not None


KIND = "call"  # of rows
_EVALUATIONS = 200
_RANGE = 14.0  # logarithms around what a feature would take if it took all
_SOFT = 0.08  # relative errors beyond it count less and less, as in other fits


def call_fits(rows: Sequence[BenchmarkRow]) -> tuple[tuple[CallFit, ...], tuple[str, ...]]:
    """The fit of every call, format and number of ranks; and what has none, and why."""
    groups: dict[tuple[str, str, int], list[BenchmarkRow]] = {}
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


def _fit(call: str, form: str, ranks: int, rows: Sequence[BenchmarkRow]) -> CallFit | None:
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
    ratios = seconds / np.maximum(priced, 1e-9)
    return CallFit(
        call=call,
        form=form,
        ranks=ranks,
        values={name: float(f"{v:.6g}") for name, v in zip(names, solved(table, seconds), strict=True) if v > 0},
        rows=len(rows),
        **held_errors(priced, seconds),
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
