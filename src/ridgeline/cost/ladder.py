"""One question, three rungs: what an operator costs from a measured table, a fitted mechanism, or borrowed values.

The best rung that can answer does: the table inside what was measured, the fit of this device and library, the fits
of its relatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from ridgeline.cost.families.registry import mechanism
from ridgeline.cost.formats import Form, form
from ridgeline.cost.mechanism import Array, Mechanism, device_vector
from ridgeline.cost.samples import form_sizes
from ridgeline.errors import DomainError
from ridgeline.facts.fits import BANDS_S, Fit, borrowed_fits, own_fits
from ridgeline.facts.records import Accelerator, Evidence
from ridgeline.facts.traits import kernel_traits
from ridgeline.lower.work import Number


class Rung(Enum):
    """Where a price comes from, best first."""

    TABLE = "table"  # interpolated between measured kernels of this device and library
    FITTED = "fitted"  # the mechanism, with values fitted to this device and library
    BORROWED = "borrowed"  # the mechanism, with values of related devices

    @property
    def evidence(self) -> Evidence:
        """The rung of evidence that it rests on."""
        return Evidence.DERIVED if self is Rung.BORROWED else Evidence.MEASURED


ALL = tuple(Rung)
_REACH = 1.3  # interval factor for each factor of e outside the sizes measured


@dataclass(frozen=True, kw_only=True)
class Question:
    """An operator to price: sizes as its family's mechanism takes them, number format, and library if it matters."""

    family: str
    sizes: Mapping[str, Number]
    form: str = "bf16"
    engine: str = ""  # vllm, sglang, trtllm, nccl; '' any
    version: str = ""
    kernel: str = ""  # text that may name the kernel's source; '' whichever the engine takes
    issue_s: float = 0.0  # host time to issue it, where calls are not captured in a graph [s]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Time [s] with its 80 % interval and the parts that overlap in it; arrays in the shape of the sizes."""

    seconds: Number
    low_s: Number
    high_s: Number
    compute_s: Number
    memory_s: Number
    rung: Rung
    library: str
    source: str


def price(question: Question, part: Accelerator, *, rungs: Sequence[Rung] = ALL) -> Answer:
    """The price of an operator on a device, from the best of `rungs` that can answer [s].

    Raises `DomainError` when none can: a family, format or device that nobody measured, or sizes outside a domain.
    """
    if Rung.TABLE in rungs:
        from ridgeline.cost.measured import measured

        found = measured(question, part)
        if found is not None:
            return held_by_host(found, question.issue_s)
    for rung in (Rung.FITTED, Rung.BORROWED):
        if rung in rungs:
            fits = find_fits(question, part, rung)
            if fits:
                return held_by_host(from_fits(question, part, fits, rung), question.issue_s)
    asked = f" by {question.engine}" if question.engine else ""
    raise DomainError(
        f"{part.name}: no {question.family} in {question.form}{asked} was measured on it or its relatives;"
        " ask for another format, or take the datasheet's bound with --evidence datasheet"
    )


def held_by_host(answer: Answer, issue_s: float) -> Answer:
    """The answer when the host takes `issue_s` to issue each call [s]: the longer of both."""
    if issue_s <= 0:
        return answer
    seconds = np.maximum(answer.seconds, issue_s)
    grown = seconds / np.asarray(answer.seconds)
    return replace(answer, seconds=seconds, low_s=answer.low_s * grown, high_s=answer.high_s * grown)


def find_fits(question: Question, part: Accelerator, rung: Rung) -> tuple[Fit, ...]:
    """The fits of a rung: of the engine asked for, else of any; 16-bit formats stand for each other."""
    for engine in dict.fromkeys((question.engine, "")):
        for name in _like(form(question.form)):
            if rung is Rung.FITTED:
                found = own_fits(question.family, part.name, engine=engine, version=question.version, form=name)
            else:
                found = borrowed_fits(question.family, part, engine=engine, form=name)
            if found:
                return named_kernels(found, question.kernel)
    return ()


def named_kernels(found: tuple[Fit, ...], text: str) -> tuple[Fit, ...]:
    """The fits whose kernel's source the text names; all of them where it names none."""
    named = tuple(fit for fit in found if fit.kernel.split(" ")[0] in text.split())
    return named or found


def _like(what: Form) -> tuple[str, ...]:
    """The format itself, then one that runs alike."""
    alike = {"fp16": "bf16", "fp4": "nvfp4"}
    return (what.name, alike[what.name]) if what.name in alike else (what.name,)


def from_fits(question: Question, part: Accelerator, fits: Sequence[Fit], rung: Rung) -> Answer:
    """The mechanism with fitted values; each size takes the kernel whose domain it lies in, the narrowest first."""
    model = mechanism(question.family)
    what = form(question.form)
    device = device_vector(part, what.matrix)
    named = form_sizes(model, what)
    table, shape = model.columns({**named, **question.sizes})
    ordered = sorted(fits, key=_narrowness)
    left = np.ones(len(table), dtype=bool)
    priced = np.empty((len(table), 3))
    low, high = np.empty(len(table)), np.empty(len(table))
    for index, fit in enumerate(ordered):
        mask = left & (_admits(fit, model, table) if index + 1 < len(ordered) else left)
        if not mask.any():
            continue
        traits = kernel_traits(fit.family, fit.kernel_device, fit.engine, fit.kernel, fit.form)
        rows = table if not traits else model.columns({**named, **traits, **question.sizes})[0]
        values = fit.values if rung is Rung.FITTED else with_own_rates(fit.values, part, what.matrix)
        priced[mask] = model.price(np.ascontiguousarray(rows[mask]), device, model.vector(values))
        low[mask], high[mask] = interval_factors(fit, model, table[mask], priced[mask, 0])
        left &= ~mask
    columns = (priced[:, 0], priced[:, 1], priced[:, 2], low, high)
    seconds, compute_s, memory_s, least, most = (column.reshape(shape) for column in columns)
    return Answer(
        seconds=seconds,
        low_s=seconds * least,
        high_s=seconds * most,
        compute_s=compute_s,
        memory_s=memory_s,
        rung=rung,
        library=ordered[0].library,
        source=ordered[0].source,
    )


def with_own_rates(values: Mapping[str, float], part: Accelerator, matrix: str) -> Mapping[str, float]:
    """Borrowed values with the shares of peak and memory bandwidth that somebody measured on the device itself [1]."""
    peaks = {"matrix_share_": part.peak_flop_per_s.get(matrix, 0.0), "memory_share_": part.memory_bytes_per_s}
    rates = {"matrix_share_": part.sustained.get(f"matrix.{matrix}"), "memory_share_": part.sustained.get("hbm")}
    own = {
        name: min(1.0, fact.value / peaks[name])
        for name, fact in rates.items()
        if fact is not None and fact.evidence >= Evidence.MEASURED and name in values and peaks[name] > 0
    }
    return {**values, **own}


def _narrowness(fit: Fit) -> tuple[float, str]:
    """How much of the sizes a kernel is for: kernels that need a multiple, or a range, come first."""
    wide = sum(np.log(max(b, 1.0) / max(a, 1.0)) - np.log(step) for a, b, step in fit.domain.values())
    return float(wide), fit.kernel


def _admits(fit: Fit, model: Mechanism, table: Array) -> Array:
    inside = np.ones(len(table), dtype=bool)
    for name, (low, high, step) in fit.domain.items():
        column = table[:, model.sizes.index(name)]
        inside &= (column >= low) & (column <= high) & (np.mod(column, step) == 0)
    return inside


def interval_factors(fit: Fit, model: Mechanism, table: Array, seconds: Array) -> tuple[Array, Array]:
    """Factors of the ends of the 80 % interval [1]: the fit's residuals at this length, wider outside its sizes."""
    band = np.searchsorted(BANDS_S, seconds, side="right")
    low, high = np.asarray(fit.low)[band], np.asarray(fit.high)[band]
    outside = np.zeros(len(table))
    for name, (least, most) in fit.span.items():
        if name in model.sizes:
            column = np.maximum(table[:, model.sizes.index(name)], 1e-9)
            outside += np.maximum(0, np.log(column / max(most, 1e-9))) + np.maximum(
                0, np.log(max(least, 1e-9) / column)
            )
    reach = _REACH**outside
    return low / reach, high * reach
