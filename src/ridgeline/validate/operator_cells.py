"""What the cells of an operator's row say: sizes, number formats; and the price that a family answers with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.answer import ALL, Rung
from ridgeline.cost.attention import attention_interval
from ridgeline.cost.formats import FORMS, Form
from ridgeline.cost.machine import Device, Machine
from ridgeline.cost.price_list import KernelPolicy, price
from ridgeline.cost.questions import Asked, Worked
from ridgeline.cost.samples import held_out
from ridgeline.errors import InputError
from ridgeline.facts.readings import reading
from ridgeline.facts.records import Accelerator, Evidence

LARGEST = 2.0**40  # of one dimension; a bound on nonsense
LARGEST_HEAD = 2**16  # of one attention head

_SIZES = re.compile(r"((?:[A-Za-z_]\w*[=,]\s*)*[A-Za-z_]\w*)\s*=\s*([\w.+-]+(?:,\s*[\w.+-]+\b(?!\s*=))*)")
_PRODUCT = re.compile(r"^\s*(\d+)(?:\s*[xX*,]\s*|\s+)(\d+)(?:\s*[xX*,]\s*|\s+)(\d+)\s*$")


_UNPRICED = re.compile(r"cuda cores|fp16 acc")
_HALF = FORMS["fp16"]
_FORMATS: tuple[tuple[str, Form], ...] = (
    (r"16 bit inputs, 16 bit mult", replace(_HALF, output_bytes=4)),
    (r"16 bit inputs, 32 bit mult", replace(_HALF, matrix="fp32", output_bytes=4)),
)
"""What dtype cells mean before the words of `facts.readings`, first match first."""

_SERVING = re.compile(r"trt-?llm|tensorrt|vllm|sglang", re.IGNORECASE)
_ENGINE = re.compile(r"\b(vllm|sglang|trt-?llm|oneccl|nccl)\b(?:\s+v?(\d[\w.]*))?", re.IGNORECASE)
_ENGINES = {name: name for name in ("vllm", "sglang", "trtllm", "oneccl", "nccl")}


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
    rungs: tuple[Rung, ...] = ALL

    @property
    def engine(self) -> tuple[str, str]:
        """The serving engine or collective library that the library cell names, and its version; '' where none."""
        found = _ENGINE.search(self.library)
        return (_ENGINES[found[1].casefold().replace("-", "")], found[2] or "") if found else ("", "")

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

    @property
    def cache_format(self) -> str:
        """The format of the KV cache that the dtype cell states after '/kv'; '' where it states none."""
        found = re.search(r"/kv\W*(\w+)", self.dtype, re.IGNORECASE)
        word = found[1].casefold() if found else ""
        return "fp8" if re.search(r"fp8|int8|float8|e4m3", word) else "bf16" if word else ""

    def format(self) -> Form:
        """The formats that the dtype cell means; raises `InputError` where it means none that has a rate.

        Only the layers of serving engines cast their activations; other products find them cast.
        """
        text = self.dtype.split("/kv")[0].strip().casefold()
        if _UNPRICED.search(text):
            raise InputError(f"'{self.dtype}': the catalog holds no rate of these units", field="dtype")
        found = FORMS.get(text) or next((what for pattern, what in _FORMATS if re.search(pattern, text)), None)
        named = reading("op_format", words=text) if found is None else None
        found = FORMS[named.text] if named is not None else found
        if found is None:
            raise InputError(f"'{self.dtype}' is no number format", field="dtype")
        return replace(found, cast=found.cast and self.serving)


@dataclass(frozen=True, kw_only=True)
class Priced:
    """A family's answer: time [s], what the source counts for rates, and what was put where cells are silent.

    `bytes` is what a bandwidth is of, `flop` what a FLOP rate is of, `keys` what a rate of sorted keys is of; `power_w`
    answers rows of power. Where the cells give no size, `sized` is False and only rates can be told. `rate` is the key
    of the sustained rate that decides ('hbm', 'matrix.bf16', '' for links and constants). Where the ladder answered,
    `rung` and the ends of its interval stand beside.
    """

    family: str
    seconds: float
    evidence: Evidence
    flop: float = 0.0
    bytes: float = 0.0
    keys: float = 0.0
    bus: float = 1.0  # bus bandwidth over algorithm bandwidth, nccl-tests
    power_w: float | None = None
    sized: bool = True
    rate: str = ""
    assumptions: tuple[str, ...] = ()
    rung: str = ""
    interval_s: tuple[float, float] | None = None


def sizes(text: str) -> dict[str, float]:
    """Sizes of a shape cell by name in lower case [1]; words such as 'opA=T' are left out.

    >>> sizes("m,n,k=2048,5120,6144")
    {'m': 2048.0, 'n': 5120.0, 'k': 6144.0}
    >>> sizes("batch=4 seq=2048 causal=False")
    {'batch': 4.0, 'seq': 2048.0}
    >>> sizes("M=64,N=128,K=32")
    {'m': 64.0, 'n': 128.0, 'k': 32.0}
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


def priced(
    family: str,
    asked: Asked | Worked,
    ask: Ask,
    *,
    flop: float | None = None,
    notes: Sequence[str] = (),
    attention: str = "",
) -> Priced:
    """The price that `op` gives an operator, for the engine or the published kernels that the row names [s].

    `flop` is what the source counts for a rate, the question's own unless said. Raises `DomainError` where nothing
    answers.
    """
    engine, version = ask.engine
    policy = KernelPolicy(engine=engine, version=version, library=ask.library, rungs=ask.rungs, attention=attention)
    cost = price(asked, ask.machine, policy)
    ends = (float(np.asarray(cost.low_s)), float(np.asarray(cost.high_s)))
    if flop is None:
        flop = float(np.asarray(asked.flop)) if isinstance(asked, Asked) else 0.0
    told: tuple[str, ...] = ()
    judged = bool(attention) and attention_interval(attention, ask.accelerator.architecture) is not None
    if cost.rung is not Rung.FORMULA and isinstance(asked, Asked):
        told, judged = (f"{cost.library}: {cost.source}",), True
        if cost.rung is Rung.FITTED:
            out = held_out(asked.question.family, asked.question.sizes)
            told += (f"shape block {'held out of the fit' if out else 'of the fit'}",)
    return Priced(
        family=family,
        seconds=float(np.asarray(cost.seconds)),
        evidence=cost.evidence,
        flop=flop,
        bytes=float(np.asarray(cost.bytes)),
        rate=cost.rate,
        assumptions=(*told, *notes),
        rung="" if cost.rung is Rung.FORMULA else cost.rung.value,
        interval_s=ends if judged else None,
    )
