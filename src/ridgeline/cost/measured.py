"""The measured rung: kernels of a table, interpolated in the logarithm between their grid points, never beyond.

What is interpolated is the ratio of measured to fitted time where there is a fit, so that between grid points the
mechanism's steps stay, and the time itself on grids dense enough to show them; on a grid point the answer is the
measurement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from ridgeline.compiled import kernel, run
from ridgeline.cost.answer import Cost, Question, Rung
from ridgeline.cost.families.registry import mechanism
from ridgeline.cost.fit_choice import find_fits
from ridgeline.cost.fitted import from_fits, narrowness
from ridgeline.cost.formats import Form, form
from ridgeline.cost.mechanism import Array
from ridgeline.cost.readers import READERS
from ridgeline.cost.samples import Sample, family_tables, hidden_folds, samples
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.engine_kernels import nearest_version
from ridgeline.facts.fits import BANDS_S, own_fits, preferred_engine
from ridgeline.facts.opdata import OpTable
from ridgeline.facts.records import Accelerator, Evidence
from ridgeline.facts.transfer import EXCHANGES, rung_interval
from ridgeline.lower.work import Number

_SAME = 1e-9  # relative difference of sizes that must be met exactly
_LEAST = 1e-9  # size below which no logarithm is taken
_CACHED = 32  # tables kept
_GRIDS = 4096  # grids kept, one for each combination of exact sizes


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Values on a grid of sizes, NaN where nothing was measured; `axes` are sorted sizes in the logarithm."""

    names: tuple[str, ...]
    axes: tuple[Array, ...]
    values: Array

    def at(self, points: Array) -> Array:
        """Multilinear interpolation at points (D, N), a row for each axis; NaN outside or beside a gap."""
        found = np.empty(points.shape[1])
        run(_between, len(found), *self._flat, points, found)
        return found

    @cached_property
    def _flat(self) -> tuple[Array, NDArray[np.int64], Array]:
        """All axes one after another, their lengths, and the values in one row."""
        lengths = np.array([len(axis) for axis in self.axes], dtype=np.int64)
        return np.concatenate(self.axes), lengths, self.values.ravel()


@kernel
def _between(axes: Array, lengths: NDArray[np.int64], values: Array, points: Array, out: Array) -> None:
    """Fills `out` (N,) with values between the corners around `points` (D, N); the axes follow one another."""
    dimensions, count = points.shape
    lower, share = np.empty(dimensions, dtype=np.int64), np.empty(dimensions)
    for i in range(count):
        inside, first = True, 0
        for d in range(dimensions):
            axis = axes[first : first + lengths[d]]
            first += lengths[d]
            point = math.log(max(points[d, i], _LEAST)) if points[d, i] == points[d, i] else np.nan
            inside = inside and axis[0] - _SAME <= point <= axis[-1] + _SAME
            place = int(np.searchsorted(axis, point, side="right")) - 1
            index = min(max(place, 0), max(len(axis) - 2, 0))
            width = axis[index + 1] - axis[index] if len(axis) > 1 else 1.0
            within = min(max((point - axis[index]) / width, 0.0), 1.0)
            lower[d] = index
            share[d] = 0.0 if within < _SAME else 1.0 if within > 1.0 - _SAME else within
        total = 0.0 if inside else np.nan
        for corner in range(1 << dimensions):
            weight, cell = 1.0, 0
            for d in range(dimensions):
                up = (corner >> (dimensions - 1 - d)) & 1
                weight *= share[d] if up else 1.0 - share[d]
                cell = cell * lengths[d] + min(lower[d] + up, lengths[d] - 1)
            if inside and weight > 0.0:
                total += weight * values[cell]
        out[i] = total


def measured(question: Question, part: Accelerator) -> Cost | None:
    """The answer of the nearest tables of the device and engine; None where none holds all of the sizes.

    Nor where the question is of another kernel than the format's, a product that finds its inputs cast, or of several
    products where one was timed.
    """
    alone = np.all(np.asarray(question.sizes.get("count", 1.0)) == 1.0) or "count" in READERS[question.family].smooth
    if not alone or np.any(np.asarray(question.sizes.get("cast", _cast(question))) != _cast(question)):
        return None
    for table in find_tables(question, part):
        seconds = interpolated(question, part, table)
        if not np.isnan(seconds).any():
            return _answer(question, part, table, seconds)
    return None


def _cast(question: Question) -> float:
    """Whether the measured products of a format cast their inputs first [1]."""
    return float(form(question.form).cast)


def _answer(question: Question, part: Accelerator, table: OpTable, seconds: Array) -> Cost:
    base = _base(question, part)
    low, high = table_interval(question.family, seconds)
    return Cost(
        seconds=seconds,
        low_s=low,
        high_s=high,
        compute_s=0.0 if base is None else base.compute_s,
        memory_s=0.0 if base is None else base.memory_s,
        rung=Rung.TABLE,
        library=f"{table.engine} {table.version}",
        source=table.place,
        evidence=Evidence.MEASURED,
    )


def table_interval(family: str, seconds: Array) -> tuple[Array, Array]:
    """Ends of the 80 % interval of interpolated times [s], from blocks that were hidden."""
    low, high = rung_interval(family, Rung.TABLE.value).ends
    band = BANDS_S.searchsorted(seconds, side="right")
    return seconds * low[band], seconds * high[band]


def interpolated(question: Question, part: Accelerator, table: OpTable, *, hidden_fold: int | None = None) -> Array:
    """Times between the measured kernels of a table [s]; NaN outside its sizes and beside gaps.

    With `hidden_fold`, rows of that fold are not used: it is how the rung itself is judged.
    """
    reader = READERS[question.family]
    names = (*reader.smooth, *reader.exact)
    sizes = [_size(name, question) for name in names]
    shape, flat = _columns(sizes)
    smooth, exact = flat[: len(reader.smooth)], flat[len(reader.smooth) :]
    alike = exact.T[:1] if flat.shape[1] == 1 else np.unique(exact, axis=1).T
    ratio = np.full(flat.shape[1], np.nan)
    for fixed in alike:
        mask = slice(None) if len(alike) == 1 else (exact == fixed[:, None]).all(axis=0)
        grid = _grid(question, table, tuple(map(float, fixed)), part, hidden_fold)
        if grid is not None:
            ratio[mask] = grid.at(np.ascontiguousarray(smooth[:, mask]))
    base = _base(question, part)
    found: Array = np.exp(ratio.reshape(shape)) * (1.0 if base is None else np.asarray(base.seconds))
    return found


def _columns(sizes: Sequence[Number]) -> tuple[tuple[int, ...], Array]:
    """The shape that sizes broadcast to, and all of them in rows (S, N)."""
    if all(isinstance(size, int | float) for size in sizes):
        return (), np.array(sizes, dtype=float)[:, None]
    columns = np.broadcast_arrays(*(np.asarray(size, dtype=float) for size in sizes))
    return columns[0].shape, np.stack([column.ravel() for column in columns])


def _size(name: str, question: Question) -> Number:
    if name in question.sizes:
        return question.sizes[name]
    return mechanism(question.family).defaults.get(name, np.nan)


def _base(question: Question, part: Accelerator) -> Cost | None:
    """The fitted answer that ratios are taken to; None where times are interpolated, or nothing is fitted."""
    if READERS[question.family].dense:
        return None
    fits = find_fits(question, part, Rung.FITTED)
    return from_fits(question, part, fits, Rung.FITTED) if fits else None


def find_tables(question: Question, part: Accelerator) -> tuple[OpTable, ...]:
    """The tables of a device and engine in the nearest version; without an engine, of the preferred one.

    Of exchanges whose version is not told, those of every version, newest first: older ones reach further.
    """
    if question.family not in READERS:
        return ()
    found = family_tables(question.family, part.name)
    engine = question.engine or preferred_engine({table.engine for table in found})
    of_engine = [table for table in found if table.engine == engine]
    if question.family in EXCHANGES and not question.version:
        return tuple(reversed(of_engine))
    version = nearest_version({table.version for table in of_engine}, question.version)
    return tuple(table for table in of_engine if table.version == version)


@lru_cache(maxsize=_CACHED)
def _rows(family: str, table: OpTable, what: Form) -> tuple[Sample, ...]:
    return tuple(samples(family, table, wanted=what))


def _grid(
    question: Question, table: OpTable, fixed: tuple[float, ...], part: Accelerator, hidden_fold: int | None
) -> Grid | None:
    what = form(question.form)
    found = _rows(question.family, table, what)
    sources = {sample.kernel.split(" ")[0] for sample in found} & set(question.kernel.split())
    return _made(question.family, table, what, frozenset(sources), question.hybrid, fixed, part.name, hidden_fold)


@lru_cache(maxsize=_GRIDS)
def _made(
    family: str,
    table: OpTable,
    what: Form,
    sources: frozenset[str],
    hybrid: bool,
    fixed: tuple[float, ...],
    device: str,
    hidden_fold: int | None,
) -> Grid | None:
    reader, part = READERS[family], accelerator(device)
    kept = []
    for sample in _rows(family, table, what):
        if sources and sample.kernel.split(" ")[0] not in sources:
            continue
        mask = np.ones(len(sample), dtype=bool)
        for name, value in zip(reader.exact, fixed, strict=True):
            mask &= np.isclose(sample.sizes[name], value, rtol=_SAME, atol=0)
        chosen = sample.where(mask)
        if hidden_fold is not None and len(chosen):
            chosen = chosen.where(hidden_folds(family, chosen.sizes) != hidden_fold)
        if len(chosen):
            kept.append(chosen)
    if not kept:
        return None
    axes = tuple(_levels(np.concatenate([sample.sizes[name] for sample in kept])) for name in reader.smooth)
    values = np.full([len(axis) for axis in axes], np.nan)
    for sample in _widest_first(kept):
        found = _averaged(sample, axes, reader.smooth, _ratios(sample, part, " ".join(sources), hybrid=hybrid))
        values = np.where(np.isnan(found), values, found)
    logs = tuple(np.log(np.maximum(axis, 1e-9)) for axis in axes)
    return Grid(names=reader.smooth, axes=logs, values=_bridged(values, logs))


def _levels(values: Array) -> Array:
    """The different values, in order, as `np.unique` gives them, which first imports masked arrays."""
    ordered = np.sort(values)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]


def _widest_first(kept: Sequence[Sample]) -> list[Sample]:
    """Samples in the order in which a fit's kernels are left: a shape that several took is the narrowest's."""
    if len(kept) < 2:
        return list(kept)
    one = kept[0]
    known = own_fits(one.family, one.accelerator, engine=one.engine, version=one.version, form=one.form)
    ranks = {fit.kernel: rank for rank, fit in enumerate(sorted(known, key=narrowness))}
    return sorted(kept, key=lambda sample: ranks.get(sample.kernel, len(ranks)), reverse=True)


def _ratios(sample: Sample, part: Accelerator, kernel: str, *, hybrid: bool) -> Array:
    """Logarithm of measured time over the fitted one that answers for these sizes, or of the time itself."""
    base = _base(sample.question(kernel, hybrid=hybrid), part)
    found: Array = np.log(sample.seconds / (1.0 if base is None else np.asarray(base.seconds)))
    return found


def _averaged(sample: Sample, axes: Sequence[Array], names: Sequence[str], ratio: Array) -> Array:
    """Ratios on the grid, NaN where nothing was measured; rows that repeat a shape count alike."""
    total, count = (np.zeros([len(axis) for axis in axes]) for _ in range(2))
    where = tuple(np.searchsorted(axis, sample.sizes[name]) for axis, name in zip(axes, names, strict=True))
    np.add.at(total, where, ratio)
    np.add.at(count, where, 1)
    return np.where(count > 0, total / np.where(count > 0, count, 1), np.nan)


def _bridged(values: Array, axes: Sequence[Array]) -> Array:
    """The grid with gaps filled that have measured points on both sides: the mean over the axes that do."""
    total, count = np.zeros_like(values), np.zeros_like(values)
    for index, axis in enumerate(axes):
        lines = np.moveaxis(values, index, -1).reshape(-1, len(axis))
        filled, gaps = np.full_like(lines, np.nan), np.isnan(lines)
        for row in np.flatnonzero(gaps.any(axis=1) & (np.sum(~gaps, axis=1) > 1)):
            known = np.flatnonzero(~gaps[row])
            filled[row] = np.interp(axis, axis[known], lines[row, known], left=np.nan, right=np.nan)
        shape = np.moveaxis(values, index, -1).shape
        back = np.moveaxis(filled.reshape(shape), -1, index)
        found = ~np.isnan(back)
        total[found] += back[found]
        count[found] += 1
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(values), total / np.where(count > 0, count, np.nan), values)
