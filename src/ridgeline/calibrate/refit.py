"""Refits everything that public rows can tell, in parallel, resuming where a killed run stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.calibrate.least_squares import FEWEST, fit_values, held_errors, named_values, residual_bands
from ridgeline.cost.families.gemm import CASTS
from ridgeline.cost.families.registry import mechanism
from ridgeline.cost.formats import form
from ridgeline.cost.mechanism import Array, Mechanism, device_vector, form_sizes
from ridgeline.cost.readers import READERS
from ridgeline.cost.samples import HELD_OUT, INTERVAL, Sample, block_numbers, family_tables, samples
from ridgeline.errors import DomainError
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.fits import KEYS, RECORD, TIMED, Fit
from ridgeline.facts.mechanisms import kernel_traits
from ridgeline.facts.opdata import INSTALL, OpTable, read, root, same_library

_STEPS = ("computescale_perf", "scale_matrix_perf")  # the largest magnitude of all elements; then scaling by it
_WHOLE = ("torch_flow",)  # kernels whose times are those of the whole layer, with the cast of 16-bit inputs before it
_FORM = "fp8"
_MILLISECOND = 1e-3


def cast_values(sample: Sample) -> dict[str, float]:
    """Start, time of a row and of an element of the cast inside a sample's products [s]; {} where none is measured.

    Fitted to the sum of both steps of dynamic scaling on the same device, library and version.
    """
    if sample.family != "gemm" or sample.form != _FORM or sample.kernel not in _WHOLE:
        return {}
    found = [same_library(name, sample.accelerator, sample.engine, sample.version) for name in _STEPS]
    steps = [table for table in found if table is not None]
    return _fitted(*steps) if len(steps) == len(_STEPS) else {}


@cache
def _fitted(first: OpTable, second: OpTable) -> dict[str, float]:
    begun, scaled = ({(m, k): time for m, k, time in _rows(table)} for table in (first, second))
    both = [(m, k, time + scaled[m, k]) for (m, k), time in begun.items() if (m, k) in scaled]
    if not both:
        return {}
    table = np.array(both)
    what = form(_FORM)
    sizes = np.column_stack([table[:, 0], table[:, 1], np.full(len(table), what.input_bytes)])
    device = device_vector(accelerator(first.accelerator), what.matrix)
    free = [True] * len(CASTS.parameters)
    values = fit_values(CASTS, sizes, device, table[:, 2] * _MILLISECOND, starts=[CASTS.start], free=free)
    return {parameter.name: float(value) for parameter, value in zip(CASTS.parameters, values, strict=True)}


def _rows(table: OpTable) -> list[tuple[float, float, float]]:
    """m, k and milliseconds of each row."""
    found = read(table, ("m", "k", "latency"))
    return [(float(m), float(k), float(t)) for m, k, t in zip(found["m"], found["k"], found["latency"], strict=True)]


WORST = 0.5  # median error of the interval's shapes, from which a fit answers nothing
_HOST_QUANTILES = (0.02, 0.3)  # of the times: where a host that issues slowly would show as a floor
_FIGURES = 5


@dataclass(frozen=True, kw_only=True)
class FitTable:
    """A sample as the mechanism takes it."""

    sizes: Array
    device: Array


def table_of(sample: Sample, model: Mechanism) -> FitTable:
    """The sizes of a sample, with those that its format decides, and its device's datasheet."""
    what = form(sample.form)
    traits = kernel_traits(sample.family, sample.accelerator, sample.engine, sample.kernel, sample.form)
    sizes, _ = model.columns({**form_sizes(model, what), **traits, **sample.sizes})
    return FitTable(sizes=sizes, device=device_vector(accelerator(sample.accelerator), what.matrix))


def fit_sample(sample: Sample) -> Fit | None:
    """The fit of one device, library, format and kernel; None with too few rows, or if it holds for no others."""
    model = mechanism(sample.family)
    table = table_of(sample, model)
    inside = (sample.folds != HELD_OUT) & (sample.folds != INTERVAL)
    if inside.sum() < READERS[sample.family].fewest:
        return None
    seconds = sample.seconds
    known = cast_values(sample)
    values = fit_values(
        model, table.sizes[inside], table.device, seconds[inside],
        starts=_starts(model, seconds[inside], known), free=_free(model, table.sizes, known),
    )  # fmt: skip
    priced = model.price(table.sizes, table.device, values)[:, 0]
    held = sample.folds == HELD_OUT if (sample.folds == HELD_OUT).any() else inside
    apart = sample.folds == INTERVAL if (sample.folds == INTERVAL).sum() >= FEWEST else inside
    if np.median(np.abs(priced / seconds - 1)[apart]) > WORST:  # the fold that judges chooses nothing
        return None
    _, blocks = block_numbers(sample.family, sample.sizes)
    low, high = residual_bands(seconds[apart] / priced[apart], priced[apart], blocks[apart])
    return Fit(
        family=sample.family,
        device=sample.accelerator,
        engine=sample.engine,
        version=sample.version,
        form=sample.form,
        kernel=sample.kernel,
        values=named_values(model.parameters, values, _FIGURES),
        rows=int(inside.sum()),
        **held_errors(priced[held], seconds[held]),
        low=low,
        high=high,
        domain=_domain(sample),
        span={name: (float(column.min()), float(column.max())) for name, column in sample.sizes.items()},
        source=sample.source,
        date=date.today().isoformat(),
        timed_by=READERS[sample.family].models,
        timed=_timed(sample, sample.folds != HELD_OUT),
    )


def _timed(sample: Sample, mask: NDArray[np.bool_]) -> tuple[tuple[float, ...], ...]:
    """The models of some rows, as values of the sizes that tell them apart, where engines choose kernels by them."""
    names = READERS[sample.family].models
    if not names:
        return ()
    columns = np.stack([sample.sizes[name][mask] for name in names], axis=-1)
    return tuple(tuple(map(float, row)) for row in np.unique(columns, axis=0))


def _starts(model: Mechanism, seconds: Array, known: Mapping[str, float]) -> list[Array]:
    """The usual start, the host's issue time at the floor that the shortest kernels show, and each parameter's others.

    What is `known` starts, and stays, where it is.
    """
    home = np.array([known.get(parameter.name, parameter.start) for parameter in model.parameters])
    starts = [home]
    for index, parameter in enumerate(model.parameters):
        others: tuple[float, ...] = parameter.grid or parameter.others
        if parameter.name == "issue_s_":
            floors = np.quantile(seconds, _HOST_QUANTILES)
            others = tuple(float(np.clip(floor, parameter.low, 0.9 * parameter.high)) for floor in floors)
        for value in others:
            values = home.copy()
            values[index] = value
            starts.append(values)
    return starts


def _free(model: Mechanism, sizes: Array, known: Mapping[str, float]) -> list[bool]:
    """Which parameters the rows can tell: those of a cast only when there is one that no rows of its own told."""
    cast = not known and "cast" in model.sizes and bool(sizes[:, model.sizes.index("cast")].any())
    return [cast or not parameter.name.startswith("cast_") for parameter in model.parameters]


def _domain(sample: Sample) -> dict[str, tuple[float, float, float]]:
    """Least, greatest and common divisor of each size that a kernel was chosen for."""
    found = {}
    reader = READERS[sample.family]
    for name in (*reader.smooth, *reader.exact):
        column = sample.sizes[name]
        whole = np.gcd.reduce(column.astype(np.int64)) if np.all(column == np.floor(column)) else 1
        found[name] = (float(column.min()), float(column.max()), float(max(1, whole)))
    return found


def rows_of(found: Sequence[Fit], model: Mechanism) -> Iterator[str]:
    """The lines of a family's table, header first."""
    names = [parameter.name for parameter in model.parameters]
    more = (TIMED,) if any(fit.timed for fit in found) else ()
    units = ", ".join(f"{p.name} [{p.unit}] {p.meaning}" for p in model.parameters)
    yield f"# Fitted by `ridgeline fit` from named public rows. Parameters: {units}."
    yield "\t".join((*KEYS, *RECORD, *more, *names))
    for fit in found:
        record = (
            fit.rows, f"{fit.held_median:.4f}", f"{fit.held_p90:.4f}", f"{fit.held_bias:.4f}",
            " ".join(f"{v:g}" for v in fit.low), " ".join(f"{v:g}" for v in fit.high),
            " ".join(f"{n}={a:g}:{b:g}:{c:g}" for n, (a, b, c) in fit.domain.items()),
            " ".join(f"{n}={a:g}:{b:g}" for n, (a, b) in fit.span.items()),
            fit.source, fit.date,
        )  # fmt: skip
        keys = (getattr(fit, name) for name in KEYS)
        models = (":".join(f"{size:g}" for size in model) for model in fit.timed)
        timed = [" ".join((":".join(fit.timed_by), *models))] if more else []
        yield "\t".join(map(str, (*keys, *record, *timed, *(f"{fit.values[name]:.{_FIGURES}g}" for name in names))))


# Small least squares run ten times slower when every process wants every core for its linear algebra.
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
PROGRESS = "fits.partial.jsonl"
Done = Callable[[str, int, int], None]


def refit(
    folder: Path, *, families: Sequence[str] = (), processes: int = 2, done: Done = lambda place, at, total: None
) -> dict[str, int]:
    """Writes one table of fits per family to `folder`; returns the number of fits of each.

    `done(place, at, total)` hears of each table of measurements. A killed run leaves `fits.partial.jsonl`, from
    which the next one goes on. Raises `DomainError` when the public tables are not installed.
    """
    if root() is None:
        raise DomainError(f"the public operator tables are not installed: {INSTALL}")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = tuple(families) or tuple(READERS)
    progress = folder / PROGRESS
    finished = _finished(progress)
    jobs = [(family, table) for family in wanted for table in family_tables(family)]
    left = [job for job in jobs if _key(*job) not in finished]
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    workers = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    with progress.open("a", encoding="utf-8") as out, workers as pool:
        waiting = {pool.submit(fit_table, *job): job for job in left}
        for at, future in enumerate(as_completed(waiting), start=len(jobs) - len(left) + 1):
            key = _key(*waiting[future])
            finished[key] = future.result()
            out.write(json.dumps({"key": key, "fits": finished[key]}) + "\n")
            out.flush()
            done(key, at, len(jobs))
    counts = {}
    for family in wanted:
        found = [_restored(fit) for job in jobs if job[0] == family for fit in finished[_key(*job)]]
        counts[family] = len(found)
        _write(folder / f"{family}.tsv", rows_of(found, mechanism(family)))
    progress.unlink()
    return counts


def _key(family: str, table: OpTable) -> str:
    return f"{family} {table.place}"


def fit_table(family: str, table: OpTable) -> list[dict[str, Any]]:
    """Every fit of one table of measurements, as plain dictionaries."""
    found = (fit_sample(sample) for sample in samples(family, table))
    return [asdict(fit) for fit in found if fit is not None]


def _finished(progress: Path) -> dict[str, list[dict[str, Any]]]:
    """What an earlier run left; a line cut short by a kill is left out."""
    found = {}
    if progress.exists():
        for line in progress.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            found[entry["key"]] = entry["fits"]
    return found


def _restored(fields: dict[str, Any]) -> Fit:
    """A fit from its dictionary; JSON has no tuples."""
    sequences = {name: tuple(fields[name]) for name in ("low", "high", "timed_by")}
    ranges = {name: {key: tuple(value) for key, value in fields[name].items()} for name in ("domain", "span")}
    return Fit(**{**fields, **sequences, **ranges, "timed": tuple(map(tuple, fields["timed"]))})


def _write(path: Path, lines: Iterable[str] | Iterator[str]) -> None:
    """The lines to a file that appears whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.replace(path)
