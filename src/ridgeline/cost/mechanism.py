"""What a fitted mechanism is: the formula of one operator family, its sizes and its few physical parameters.

A mechanism prices arrays of shapes on one device with one set of parameter values. The same formula answers with
values fitted to a device's measured kernels and with values borrowed from its relatives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.compiled import run
from ridgeline.cost.formats import Form
from ridgeline.errors import DomainError
from ridgeline.facts.mechanisms import Parameter, constant, signature
from ridgeline.facts.records import Accelerator
from ridgeline.lower.work import Number

Array = NDArray[np.float64]
Kernel = Callable[[Array, Array, Array, Array], None]
"""`kernel(sizes (N, S), device (7,), values (P,), out (N, 3))` fills seconds, compute seconds and memory seconds."""

_THREADS = 2
_BLOCK = 4_096  # shapes priced at a time
_CHUNK = 16_384  # shapes of one thread; fewer are priced in the caller's
_TILED_VENDORS = frozenset({"NVIDIA", "AMD", "Intel"})
_LARGE_ARRAYS = frozenset({"gaudi"})  # architectures of those vendors whose matrix engines stand apart from their cores


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A formula over `sizes` with `parameters`; `defaults` are sizes that may be left out.

    `derive` turns a table of sizes into what the kernel reads, where that is costly and the same for all values.
    `selectors` are sizes that name a kernel rather than measure it: a fit of another value answers nothing for it.
    """

    family: str
    sizes: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    kernel: Kernel
    defaults: Mapping[str, float]
    derive: Callable[[Array], Array] | None = None
    selectors: tuple[str, ...] = ()

    def columns(self, sizes: Mapping[str, Number]) -> tuple[Array, tuple[int, ...]]:
        """The sizes as one (N, S) table, and the shape that they broadcast to."""
        parts = [np.asarray(self._size(name, sizes), dtype=float) for name in self.sizes]
        shape = np.broadcast_shapes(*(part.shape for part in parts))
        table = np.empty((int(np.prod(shape)), len(parts)))
        for index, part in enumerate(parts):
            table[:, index] = part if part.ndim == 0 else np.broadcast_to(part, shape).ravel()
        return table, shape

    def _size(self, name: str, sizes: Mapping[str, Number]) -> Number:
        found = sizes.get(name, self.defaults.get(name))
        if found is None:
            raise DomainError(f"{self.family} needs the size '{name}'; it takes {', '.join(self.sizes)}")
        return found

    def price(self, table: Array, device: Array, values: Array) -> Array:
        """Seconds, compute seconds and memory seconds of each row of a table of sizes, (N, 3) [s]."""
        return self.priced(self.derive(table) if self.derive is not None else table, device, values)

    def priced(self, table: Array, device: Array, values: Array) -> Array:
        """As `price`, of a table that `derive` has made."""
        rows = len(table)
        out = np.empty((rows, 3))
        if rows <= _CHUNK:
            run(self.kernel, rows, table, device, values, out)
            return out

        def part(begin: int, end: int) -> None:
            run(self.kernel, rows, table[begin:end], device, values, out[begin:end])

        bounds = np.linspace(0, rows, _THREADS + 1).astype(int)
        _side_by_side(part, bounds[:-1], bounds[1:])
        return out

    def seconds(self, sizes: Mapping[str, Number], device: Array, values: Array) -> Any:
        """Time of shapes [s], in the shape that the sizes broadcast to; blocks of them stay in a core's cache."""
        parts = [np.asarray(self._size(name, sizes), dtype=float) for name in self.sizes]
        shape = np.broadcast_shapes(*(part.shape for part in parts))
        flat = [part if part.ndim == 0 else np.broadcast_to(part, shape).ravel() for part in parts]
        seconds = np.empty(int(np.prod(shape)))

        def block(begin: int) -> None:
            end = min(begin + _BLOCK, len(seconds))
            table = np.empty((end - begin, len(flat)))
            for index, part in enumerate(flat):
                table[:, index] = part if part.ndim == 0 else part[begin:end]
            table = self.derive(table) if self.derive is not None else table
            out = np.empty((end - begin, 3))
            run(self.kernel, len(seconds), table, device, values, out)
            seconds[begin:end] = out[:, 0]

        begins = range(0, len(seconds), _BLOCK)
        if len(begins) < _THREADS:
            list(map(block, begins))
        else:
            _side_by_side(block, begins)
        return seconds.reshape(shape)

    def vector(self, values: Mapping[str, float]) -> Array:
        """Parameter values in the formula's order."""
        return np.array([values[parameter.name] for parameter in self.parameters])

    @property
    def start(self) -> Array:
        """The values that a fit starts from."""
        return np.array([parameter.start for parameter in self.parameters])


def _side_by_side(part: Callable[..., Any], *of: Any) -> None:
    """Runs a part for each of some numbers, on several threads."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(part, *of))


def formula(
    name: str, kernel: Kernel, *, family: str = "", derive: Callable[[Array], Array] | None = None
) -> Mechanism:
    """The mechanism of a kernel whose sizes and parameters `data/formulas.tsv` and `data/fit_parameters.tsv` list."""
    read = signature(name)
    return Mechanism(
        family=family or name, sizes=read.sizes, parameters=read.parameters, kernel=kernel, defaults=read.defaults,
        derive=derive, selectors=read.selectors,
    )  # fmt: skip


def multiprocessors(part: Accelerator) -> float:
    """SMs of a device [1]; where their number is not known, as many as its vector rate needs at its clock."""
    if part.vendor not in _TILED_VENDORS or part.architecture in _LARGE_ARRAYS:
        return max(1.0, part.memory_bytes_per_s / constant("sm.memory_bytes_per_s"))
    if part.sm_count:
        return float(part.sm_count)
    lanes, clock_hz = constant("sm.fp32_per_cycle"), part.boost_hz or constant("device.clock")
    return float(max(1, round(part.vector_flop_per_s / (2 * lanes * clock_hz))))


def device_vector(part: Accelerator, matrix: str) -> Array:
    """Datasheet rates of an accelerator as kernels read them, `device_rates` in an array."""
    return np.array(device_rates(part, matrix))


def device_rates(part: Accelerator, matrix: str) -> tuple[float, ...]:
    """Datasheet rates of an accelerator in the order that kernels read, for products in the format `matrix`.

    SMs [1], matrix rate [FLOP/s], memory [byte/s], L2 [byte], clock [Hz], vector rate [FLOP/s], matrix rate of 16-bit
    products [FLOP/s]. A format without a rate of its own runs at the 16-bit one: its operands are converted first.
    """
    plain = part.peak_flop_per_s.get("bf16") or part.peak_flop_per_s.get("fp16") or part.vector_flop_per_s
    return (
        float(multiprocessors(part)),
        part.peak_flop_per_s.get(matrix) or plain,
        part.memory_bytes_per_s,
        part.l2_bytes or constant("device.l2_bytes"),
        part.boost_hz or constant("device.clock"),
        part.vector_flop_per_s,
        plain,
    )


@cache
def places_of(sizes: tuple[str, ...]) -> Mapping[str, int]:
    """The place of each size in a formula's order."""
    return {name: index for index, name in enumerate(sizes)}


def form_sizes(mechanism: Mechanism, what: Form) -> dict[str, float]:
    """The sizes of a mechanism that the number format alone decides."""
    known = {
        "input_bytes": what.input_bytes,
        "weight_bytes": what.weight_bytes,
        "output_bytes": what.output_bytes,
        "cast": float(what.cast),
        "kv_bytes": what.weight_bytes,
    }
    return {name: value for name, value in known.items() if name in mechanism.sizes}
