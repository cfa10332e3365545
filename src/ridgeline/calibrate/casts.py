"""The cast that a measured product holds: fitted to rows of its own, since totals cannot tell two starts apart."""

from __future__ import annotations

from functools import cache

import numpy as np

from ridgeline.calibrate.least_squares import fit_values
from ridgeline.cost.families.gemm import CASTS
from ridgeline.cost.formats import form
from ridgeline.cost.mechanism import device_vector
from ridgeline.cost.samples import Sample
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.opdata import OpTable, read, tables

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
    found = [_table(name, sample.accelerator, sample.engine, sample.version) for name in _STEPS]
    steps = [table for table in found if table is not None]
    return _fitted(*steps) if len(steps) == len(_STEPS) else {}


def _table(name: str, device: str, engine: str, version: str) -> OpTable | None:
    wanted = (device, engine, version)
    return next((t for t in tables(name) if (t.accelerator, t.engine, t.version) == wanted), None)


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
