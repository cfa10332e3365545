"""The fitted and the borrowed rung: a mechanism with the values of a device's kernels, ready to price shapes.

A `FittedModel` is made once for a device, format and library; then a shape takes microseconds and a million shapes
one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.answer import Cost, Question, Rung
from ridgeline.cost.families.registry import mechanism
from ridgeline.cost.fit_choice import find_fits
from ridgeline.cost.formats import form, judged_form
from ridgeline.cost.lent import faster, memory_scaled, power_scaled, slower_host
from ridgeline.cost.machine import kernel_start_s
from ridgeline.cost.mechanism import Array, Mechanism, device_rates, device_vector, form_sizes, places_of
from ridgeline.cost.seconds import Seconds
from ridgeline.errors import DomainError
from ridgeline.facts.fits import BANDS_S, BORROWED, Fit
from ridgeline.facts.mechanisms import constant, kernel_traits
from ridgeline.facts.rates import OF_MODELS, own_share, similar_share
from ridgeline.facts.records import Accelerator, Evidence
from ridgeline.facts.transfer import rung_interval, transfer_evidence
from ridgeline.lower.work import Number

_NO_HOST_S = 1e-9  # a host that issues at once; the knee of `issued` needs a number above 0
_MODELS = 512  # kept ready
_NOTHING_KEPT = 1e-9  # share of L2; the formulas divide by it
WARM = {"gemm": ("input_kept_",), "decode": ("l2_kept_",), "mla_decode": ("l2_kept_",)}
"""What of a family's operands stays warm in L2 while one kernel repeats, but not until a model's next step."""
FED = ("sm_bytes_per_s_", "sm_l2_bytes_per_s_")
PACED = {"gemm": FED, "experts": FED, "decode": FED[:1], "mla_decode": (*FED[:1], "tile_s_", "fill_s_")}
"""What of a family's kernels keeps pace, from one architecture to the next, with what one SM computes: the bytes that
reach it, and the time of a tile."""
_READY: dict[tuple[object, ...], FittedModel] = {}


@dataclass(frozen=True, kw_only=True)
class _Kernel:
    """One kernel of a model: its fit, its values in the formula's order, and the sizes that it and its form decide."""

    fit: Fit
    values: Array
    row: Array  # NaN where the question must state the size
    decided: Mapping[str, float]  # of the row what is known
    residuals: Residuals


@dataclass(frozen=True, kw_only=True)
class FittedModel:
    """A mechanism on one device with the values of its kernels, the narrowest domain first."""

    mechanism: Mechanism
    device: Array
    kernels: tuple[_Kernel, ...]
    rung: Rung

    def seconds(self, sizes: Mapping[str, Number]) -> Number:
        """Time of shapes [s], as a number or in the shape that the sizes broadcast to."""
        kernel = self.kernels[0]
        row = self._row(kernel, sizes)
        if len(self.kernels) == 1 and row is not None:
            return float(self.mechanism.price(row, self.device, kernel.values)[0, 0])
        if len(self.kernels) == 1:
            found: Number = self.mechanism.seconds({**kernel.decided, **sizes}, self.device, kernel.values)
            return found
        priced, _, shape = self.price(sizes)
        return priced[:, 0].reshape(shape)

    def _row(self, kernel: _Kernel, sizes: Mapping[str, Number]) -> Array | None:
        """Numbers as a table of one row (1, S), with those that the kernel decides; None where some are no numbers."""
        if not all(isinstance(size, int | float) for size in sizes.values()):
            return None
        row, places = kernel.row.copy(), places_of(self.mechanism.sizes)
        for name, size in sizes.items():
            if name in places:
                row[places[name]] = size
        return None if np.isnan(row).any() else row[None, :]

    def _table(self, kernel: _Kernel, sizes: Mapping[str, Number]) -> tuple[Array, tuple[int, ...]]:
        """The sizes as one (N, S) table, with those that the kernel decides, and the shape that they broadcast to."""
        row = self._row(kernel, sizes)
        return (row, ()) if row is not None else self.mechanism.columns({**kernel.decided, **sizes})

    def price(
        self, sizes: Mapping[str, Number]
    ) -> tuple[Array, tuple[Array, Array, NDArray[np.int64]], tuple[int, ...]]:
        """Seconds, compute and memory seconds (N, 3), low, high and kernel of each (N,), and the sizes' shape.

        Each size takes the kernel whose domain it lies in, the narrowest first, else the widest.
        """
        model = self.mechanism
        table, shape = self._table(self.kernels[0], sizes)
        if len(self.kernels) == 1:
            (kernel,) = self.kernels
            priced = model.price(table, self.device, kernel.values)
            return priced, (*kernel.residuals.factors(table, priced[:, 0]), np.zeros(len(table), dtype=np.int64)), shape
        used = self._chosen(table)
        priced = np.empty((len(table), 3))
        low, high = np.empty(len(table)), np.empty(len(table))
        for index, kernel in enumerate(self.kernels):
            mask = used == index
            if not mask.any():
                continue
            rows = table if index == 0 else self._table(kernel, sizes)[0]
            chosen = rows if mask.all() else np.ascontiguousarray(rows[mask])
            priced[mask] = model.price(chosen, self.device, kernel.values)
            low[mask], high[mask] = kernel.residuals.factors(chosen, priced[mask, 0])
        return priced, (low, high, used), shape

    def _chosen(self, table: Array) -> NDArray[np.int64]:
        """The kernel of each row: the narrowest that was timed in its model and admits it, else the narrowest that
        admits it, else the widest that the selectors allow."""
        last = len(self.kernels) - 1
        used = np.full(len(table), last, dtype=np.int64)
        left = np.ones(len(table), dtype=bool)
        admitted = {index: _admits(self.kernels[index].fit, self.mechanism, table) for index in range(last)}
        for index, kernel in enumerate(self.kernels if last else ()):
            if kernel.fit.timed:
                whole = admitted[index] if index < last else _admits(kernel.fit, self.mechanism, table)
                mask = left & whole & _timed(kernel.fit, self.mechanism, table)
                used[mask] = index
                left &= ~mask
        for index in range(last):
            mask = left & admitted[index]
            used[mask] = index
            left &= ~mask
        for index in range(last, -1, -1) if self.mechanism.selectors and last else ():
            mask = left & _admits(self.kernels[index].fit, self.mechanism, table, self.mechanism.selectors)
            used[mask] = index
            left &= ~mask
        return used


def fitted_model(question: Question, part: Accelerator, rung: Rung) -> FittedModel:
    """The mechanism of a question's family with the values of a rung; `DomainError` where the rung has none."""
    fits = find_fits(question, part, rung)
    if not fits:
        raise DomainError(f"{part.name}: no {question.family} in {question.form} by the {rung.value} rung")
    return model_of(question.family, question.form, part, fits, rung, hosted=bool(question.engine))


def model_of(
    family: str,
    form_name: str,
    part: Accelerator,
    fits: Sequence[Fit],
    rung: Rung,
    *,
    hosted: bool = True,
    cold: bool = False,
    shares: tuple[float, float] = (1.0, 1.0),
) -> FittedModel:
    """The mechanism of a family on a device with the values of fits; made once for the same device and fits.

    `hosted` kernels wait for the engine's host where it issues them slowly; others are taken alone. `cold` ones find
    nothing in L2 of weights and caches, which a benchmark that repeats one kernel does (`WARM`). `shares`: of the
    kernels' matrix rate and of their memory rate [1].
    """
    matrix = form(form_name).matrix
    own = own_rates(part, matrix) if rung is Rung.COMMON else {}
    if not hosted or rung is Rung.COMMON:  # a host is no trait of all devices
        own["issue_s_"] = _NO_HOST_S
    if cold:
        own |= dict.fromkeys(WARM.get(family, ()), _NOTHING_KEPT)
    kernels = tuple((fit.device, fit.engine, fit.version, fit.form, fit.kernel, fit.source) for fit in fits)
    device = (*device_rates(part, matrix), part.tdp_w)
    key = (family, form_name, device, kernels, tuple(sorted(own.items())), rung, shares)
    if key not in _READY:
        if len(_READY) >= _MODELS:
            _READY.clear()
        _READY[key] = _made(family, form_name, part, fits, own, rung, shares)
    return _READY[key]


def _made(
    family: str,
    form_name: str,
    part: Accelerator,
    fits: Sequence[Fit],
    own: Mapping[str, float],
    rung: Rung,
    shares: tuple[float, float],
) -> FittedModel:
    model, what = mechanism(family), form(form_name)
    start_s = 0.0 if rung is Rung.FITTED else kernel_start_s(part) * _kernels_of(family)
    kernels = []
    for fit in sorted(fits, key=narrowness):
        traits = kernel_traits(fit.family, fit.kernel_device, fit.engine, fit.kernel, fit.form)
        decided = {**model.defaults, **form_sizes(model, what), **traits}
        decided = {name: decided[name] for name in model.sizes if name in decided}
        row = np.array([decided.get(name, np.nan) for name in model.sizes])
        values = {**fit.values, **{name: value for name, value in own.items() if name in fit.values}}
        lent = rung is Rung.BORROWED and fit.source.startswith(BORROWED)
        if lent and "matrix_share_" in fit.values:
            values["matrix_share_"] = power_scaled(fit, part, what.matrix)
        if rung is not Rung.FITTED and "memory_share_" in fit.values:
            values["memory_share_"] = memory_scaled(fit, part, values["memory_share_"])
        if lent and traits.get("eager") and "issue_s_" in values:
            values["issue_s_"] *= slower_host(fit, part)
        if rung is Rung.COMMON:
            pace = faster(fit, part)
            for name in PACED.get(family, ()):
                values[name] *= pace if name in FED else 1 / pace
        for name, share in zip(("matrix_share_", "memory_share_"), shares, strict=True):
            if name in values:
                values[name] *= share
        if "start_s_" in values:
            values["start_s_"] = max(values["start_s_"], start_s)
        kernels.append(
            _Kernel(fit=fit, values=model.vector(values), row=row, decided=decided, residuals=Residuals.of(fit, model))
        )
    device = device_vector(part, what.matrix)
    return FittedModel(mechanism=model, device=device, kernels=tuple(kernels), rung=rung)


def from_fits(question: Question, part: Accelerator, fits: Sequence[Fit], rung: Rung) -> Cost:
    """The answer of the mechanism with the values of fits."""
    model = model_of(question.family, question.form, part, fits, rung, hosted=bool(question.engine))
    priced, (low, high, used), shape = model.price(question.sizes)
    fit = model.kernels[int(used[0])].fit if len(used) else model.kernels[0].fit
    columns = (priced[:, 0], priced[:, 1], priced[:, 2], low, high)
    seconds, compute_s, memory_s, least, most = (column.reshape(shape) for column in columns)
    return Cost(
        seconds=seconds,
        low_s=seconds * least,
        high_s=seconds * most,
        compute_s=compute_s,
        memory_s=memory_s,
        rung=rung,
        library=fit.library,
        source=fit.source,
        evidence=min(transfer_evidence(kernel.fit, part) for kernel in model.kernels),
    )


def own_rates(part: Accelerator, matrix: str) -> dict[str, float]:
    """Shares of peak and of memory bandwidth that somebody measured on the device or its kin, by parameter [1].

    A matrix rate that was measured on itself in a format alike counts (`similar_share`): fp16 and bf16 are one unit's.
    """
    own = (own_share(part, key) for key in ("hbm", OF_MODELS))
    memory = next((fact for fact in own if fact is not None and fact.evidence >= Evidence.MEASURED), None)
    found = {
        "matrix_share_": similar_share(part, f"matrix.{matrix}"),
        "memory_share_": memory or similar_share(part, "hbm"),
    }
    return {name: fact.value for name, fact in found.items() if fact is not None}


def _kernels_of(family: str) -> float:
    """Kernels one after the other behind the start of a family's formula [1]."""
    return constant("launch.served.experts") if family == "experts" else 1.0


def narrowness(fit: Fit) -> tuple[float, str]:
    """How much of the sizes a kernel is for: kernels that need a multiple, or a range, come first."""
    return fit.width, fit.kernel


def _admits(fit: Fit, model: Mechanism, table: Array, names: Sequence[str] = ()) -> NDArray[np.bool_]:
    """Which rows lie in a kernel's domain; of some of its sizes where `names` are given."""
    inside = np.ones(len(table), dtype=bool)
    for name, (low, high, step) in fit.domain.items():
        if names and name not in names:
            continue
        column = table[:, model.sizes.index(name)]
        inside &= (column >= low) & (column <= high)
        if step > 1:  # a divisor of 1 says nothing: mean contexts and skews need not be whole
            inside &= np.mod(column, step) == 0
    return inside


def _timed(fit: Fit, model: Mechanism, table: Array) -> NDArray[np.bool_]:
    """Which rows are of models that a kernel was timed in."""
    columns = [model.sizes.index(name) for name in fit.timed_by]
    found = np.zeros(len(table), dtype=bool)
    for one in fit.timed:
        same = table[:, columns[0]] == one[0]
        for column, size in zip(columns[1:], one[1:], strict=True):
            same &= table[:, column] == size
        found |= same
    return found


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """The sizes that a fit was measured in, each by its place in the formula, and the ends of its residuals [1].

    Sizes below 1 count as 1. Keys before a prompt (`ahead`, the places of keys and tokens), where none were measured,
    are as far outside as keys are more than queries.
    """

    places: NDArray[np.int64]
    least: Array
    most: Array
    ahead: tuple[int, int] | None
    low: Array
    high: Array

    @classmethod
    def of(cls, fit: Fit, model: Mechanism) -> Residuals:
        """That of a fit of a mechanism's kernels."""
        known = places_of(model.sizes)
        names = [name for name in fit.span if name in known]
        none_ahead = "cached" in names and fit.span["cached"][1] < 1.0 and "tokens" in known
        names = [name for name in names if not (none_ahead and name == "cached")]
        return cls(
            places=np.array([known[name] for name in names], dtype=np.int64),
            least=np.array([max(fit.span[name][0], 1.0) for name in names]),
            most=np.array([max(fit.span[name][1], 1.0) for name in names]),
            ahead=(known["cached"], known["tokens"]) if none_ahead else None,
            low=np.array(fit.low),
            high=np.array(fit.high),
        )

    def factors(self, table: Array, seconds: Array) -> tuple[Array, Array]:
        """Factors of the ends of the 80 % interval [1]: residuals at this length, wider outside the sizes."""
        sizes = np.maximum(table[:, self.places], 1.0)
        beyond = np.maximum(np.maximum(sizes / self.most, self.least / sizes), 1.0)
        outside = np.log(beyond).sum(axis=1)
        if self.ahead is not None:
            keys, tokens = self.ahead
            outside = outside + np.log(1.0 + table[:, keys] / np.maximum(table[:, tokens], 1.0))
        reach = constant("fit.reach") ** outside
        band = BANDS_S.searchsorted(seconds, side="right")
        return self.low[band] / reach, self.high[band] * reach


def model_seconds(question: Question, model: FittedModel, *, stand_ins: bool) -> Seconds:
    """The price of a question's sizes with its interval, and how much of this is each shape's own [s].

    own = sqrt(1 - shared) of each end's distance. With `stand_ins` others' kernels stand for the engine's, as devices
    stand for a stranger: the interval is at least that of what devices have in common.
    """
    priced, (low, high, used), shape = model.price(question.sizes)
    mid, compute, memory = (priced[:, index].reshape(shape) for index in range(3))
    band = np.searchsorted(BANDS_S, priced[:, 0], side="right")
    shared = np.array([kernel.fit.shared for kernel in model.kernels])[used, band]
    if stand_ins:
        known = rung_interval(question.family, "common", judged_form(question.form, model.kernels[0].fit.form))
        low, high = np.minimum(low, np.asarray(known.low)[band]), np.maximum(high, np.asarray(known.high)[band])
        shared = np.minimum(shared, np.asarray(known.shared)[band])
    own = np.sqrt(1.0 - shared)
    return Seconds(
        mid=mid, low=mid * low.reshape(shape), high=mid * high.reshape(shape), compute=compute, memory=memory,
        below=mid * (own * (1.0 - low)).reshape(shape), above=mid * (own * (high - 1.0)).reshape(shape),
    )  # fmt: skip
