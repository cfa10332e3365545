"""What the cells of an operator's row say: sizes, number formats; and the price that a family answers with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.compute import KernelCost
from ridgeline.cost.machine import Device, Machine
from ridgeline.errors import InputError
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Accelerator, Evidence

LARGEST = 2.0**40  # of one dimension; a bound on nonsense
LARGEST_HEAD = 2**16  # of one attention head

_SIZES = re.compile(r"((?:[A-Za-z_]\w*[=,]\s*)*[A-Za-z_]\w*)\s*=\s*([\w.+-]+(?:,\s*[\w.+-]+)*)")
_PRODUCT = re.compile(r"^\s*(\d+)\s*[xX*]\s*(\d+)\s*[xX*]\s*(\d+)\s*$")


@dataclass(frozen=True, kw_only=True)
class Format:
    """Number formats of a product: `matrix` is the rate it runs at, sizes are of one element [byte].

    `cast` is the format that a serving layer casts its 16-bit activations to before the product.
    """

    matrix: str
    input_bytes: float
    weight_bytes: float
    output_bytes: float = 2.0
    cast: bool = False


_FORMATS: tuple[tuple[str, Format], ...] = (
    (r"cuda cores", Format(matrix="", input_bytes=2, weight_bytes=2)),
    (r"fp16 acc", Format(matrix="", input_bytes=2, weight_bytes=2)),
    (r"16 bit inputs, 16 bit mult", Format(matrix="fp16", input_bytes=2, weight_bytes=2, output_bytes=4)),
    (r"16 bit inputs, 32 bit mult", Format(matrix="fp32", input_bytes=2, weight_bytes=2, output_bytes=4)),
    (r"int4_wo|w4a16|int4 weight", Format(matrix="bf16", input_bytes=2, weight_bytes=0.5)),
    (r"int8_wo|w8a16|int8 weight", Format(matrix="bf16", input_bytes=2, weight_bytes=1)),
    (r"w4a8", Format(matrix="fp8", input_bytes=1, weight_bytes=0.5, cast=True)),
    (r"nvfp4|mxfp4|fp4", Format(matrix="fp4", input_bytes=0.5, weight_bytes=0.5, cast=True)),
    (r"fp8|float8|e4m3|e5m2", Format(matrix="fp8", input_bytes=1, weight_bytes=1, cast=True)),
    (r"^sq$|smooth|int8|w8a8", Format(matrix="int8", input_bytes=1, weight_bytes=1)),
    (r"bf16|bfloat16", Format(matrix="bf16", input_bytes=2, weight_bytes=2)),
    (r"fp16|float16|half", Format(matrix="fp16", input_bytes=2, weight_bytes=2)),
    (r"tf32", Format(matrix="tf32", input_bytes=4, weight_bytes=4, output_bytes=4)),
    (r"fp64|float64|double", Format(matrix="fp64", input_bytes=8, weight_bytes=8, output_bytes=8)),
    (r"fp32|float32|^float$|single", Format(matrix="fp32", input_bytes=4, weight_bytes=4, output_bytes=4)),
)
"""What dtype cells mean, first match first. An empty `matrix` is a rate that the catalog does not hold."""

_SERVING = re.compile(r"trt-?llm|tensorrt|vllm|sglang", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One row's question: cells, and the machine they are asked of."""

    op: str  # case folded
    shape: Mapping[str, float]
    words: str  # shape cell as written
    dtype: str
    library: str
    notes: str
    metric: str
    machine: Machine

    @property
    def device(self) -> Device:
        """The device that the row names."""
        return self.machine.device

    @property
    def accelerator(self) -> Accelerator:
        """Its facts."""
        return self.machine.cluster.accelerator

    @property
    def serving(self) -> bool:
        """Whether the library is a serving engine, whose layers cast activations themselves."""
        return _SERVING.search(self.library) is not None

    def size(self, *names: str, default: float | None = None) -> float:
        """The first of the sizes that the shape gives [1]; `InputError` names the first when none is given."""
        for name in names:
            if name in self.shape:
                return self.shape[name]
        if default is not None:
            return default
        raise InputError(f"'{self.words}' does not state {names[0]}", field="shape")

    def format(self) -> Format:
        """The formats that the dtype cell means; raises `InputError` where it means none that has a rate."""
        text = self.dtype.split("/kv")[0].casefold()
        for pattern, found in _FORMATS:
            if re.search(pattern, text):
                if not found.matrix:
                    raise InputError(f"'{self.dtype}': the catalog holds no rate of these units", field="dtype")
                cast = found.cast and self.serving
                return replace(found, cast=cast)
        raise InputError(f"'{self.dtype}' is no number format", field="dtype")


@dataclass(frozen=True, kw_only=True)
class Priced:
    """A family's answer: time [s], what the source counts for rates, and what was put where cells are silent.

    `bytes` is what a bandwidth is of, `flop` what a FLOP rate is of; `power_w` answers rows of power. Where the cells
    give no size, `sized` is False and only rates can be told. `rate` is the key of the sustained rate that decides
    ('hbm', 'matrix.bf16', '' for links and constants).
    """

    family: str
    seconds: float
    evidence: Evidence
    flop: float = 0.0
    bytes: float = 0.0
    bus: float = 1.0  # bus bandwidth over algorithm bandwidth, nccl-tests
    power_w: float | None = None
    sized: bool = True
    rate: str = ""
    assumptions: tuple[str, ...] = ()


def sizes(text: str) -> dict[str, float]:
    """Sizes of a shape cell by name in lower case [1]; words such as 'opA=T' are left out.

    >>> sizes("m,n,k=2048,5120,6144")
    {'m': 2048.0, 'n': 5120.0, 'k': 6144.0}
    >>> sizes("batch=4 seq=2048 causal=False")
    {'batch': 4.0, 'seq': 2048.0}
    """
    product = _PRODUCT.match(text)
    if product:
        return dict(zip("mnk", (_size(word) for word in product.groups()), strict=True))
    found: dict[str, float] = {}
    for match in _SIZES.finditer(text):
        names = [name for name in re.split(r"[=,\s]+", match[1].casefold()) if name]
        values = re.split(r",\s*", match[2])
        if len(values) not in (1, len(names)):
            continue
        for index, name in enumerate(names):
            value = values[index if len(values) > 1 else 0]
            if re.fullmatch(r"\d+(?:\.\d+)?", value):
                found[name] = _size(value)
    return found


def _size(word: str) -> float:
    value = float(word)
    if not 0 <= value <= LARGEST:
        raise InputError(f"'{word[:24]}' is out of range; needs 0 to {LARGEST:.0e}", field="shape")
    return value


def bill(
    family: str,
    costs: Sequence[KernelCost],
    ask: Ask,
    matrix: str,
    *,
    flop: float,
    size: float = 0.0,
    notes: Sequence[str] = (),
) -> Priced:
    """The price of kernels run one after another, one launch gap each [s]; evidence of the side that lasts longer."""
    gaps = sum(cost.kernels for cost in costs) * constant("launch.device")
    seconds = sum(float(np.asarray(cost.seconds)) for cost in costs) + gaps
    compute = sum(float(np.asarray(cost.compute_s)) for cost in costs)
    memory = sum(float(np.asarray(cost.memory_s)) for cost in costs)
    rate = f"matrix.{matrix}" if compute >= memory else "hbm"
    return Priced(
        family=family,
        seconds=seconds,
        evidence=ask.device.evidence.get(rate, Evidence.DATASHEET),
        flop=flop,
        bytes=size,
        rate=rate,
        assumptions=tuple(notes),
    )
