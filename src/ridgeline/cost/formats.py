"""Number formats of matrix products: bytes of operands and results, and the matrix rate they run at."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from ridgeline.errors import DomainError, closest
from ridgeline.facts.records import SPARSE
from ridgeline.facts.store import read_tsv

ELEMENT_BYTES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}


@dataclass(frozen=True, kw_only=True)
class Form:
    """One format: `matrix` is the rate it runs at, sizes are of one element, scales included [byte].

    `cast` says that 16-bit activations are cast to the format before the product, in serving layers. `like` is the
    format whose kernels stand for its own; `whole` says that a checkpoint's head is in it too.
    """

    name: str
    matrix: str
    input_bytes: float
    weight_bytes: float
    output_bytes: float = 2.0
    cast: bool = False
    like: str = ""
    whole: bool = False


BLOCK = 128  # weights on a side of a block with one scale. Source: DeepSeek-V3 report (arXiv:2412.19437), section 3.3


def _few(name: str, bits: float) -> Form:
    """Weights of so many bits that meet 16-bit activations: kernels of the nearest width stand for theirs."""
    like = "int4_wo" if bits <= _BETWEEN else "int8_wo"
    return Form(name=name, matrix="bf16", input_bytes=2, weight_bytes=bits / 8, like=like)


_BETWEEN = 5.66  # bits; derived: the geometric mean of 4 and 8
FORMS = {
    row["name"]: Form(
        name=row["name"], matrix=row["matrix"], input_bytes=float(row["input_bits"]) / 8,
        weight_bytes=float(row["weight_bits"]) / 8, output_bytes=float(row["output_bits"]) / 8,
        cast=bool(row["cast"]), like=row["like"], whole=bool(row["whole"]),
    )
    for row in read_tsv("formats.tsv")
}  # fmt: skip
EXPERTS_ONLY = frozenset({"w4a16_mxfp4", "w4a8_mxfp4_mxfp8"})  # in whose checkpoints only routed experts are so narrow
WIDENED_BYTES = ELEMENT_BYTES["bf16"]  # of a weight of few bits, widened for kernels that multiply 16-bit numbers
WIDE = ("fp64", "fp32", "tf32")  # wider than 16 bits, or held so
_SAME = {word: row["name"] for row in read_tsv("formats.tsv") for word in row["words"].split()}


_MIXTURE = re.compile(r"^(q[2-6]_k|iq[2-4])_(?:xxs|xs|s|m|l|nl)$")
_BY_BITS = re.compile(r"w(\d(?:\.\d{1,3})?)a16")
_LEAST_BITS, _MOST_BITS = 1.0, 8.5  # bounds of a word


@lru_cache(maxsize=4096)
def form(name: str) -> Form:
    """A format by name or alias, or `wBITSa16`: weights of so many bits, scales included, products in 16 bits.

    `int8-2:4` is int8 of which two of each four weights along a product's inner dimension are zeros that are skipped.

    A mixture of llama.cpp (Q4_K_M) is the format that most of its weights have. Raises `DomainError` with the names
    near to it and those known.
    """
    word = _MIXTURE.sub(r"\1", name.strip().casefold())
    if word.endswith(SPARSE):
        return _sparse(form(word.removesuffix(SPARSE)))
    found = FORMS.get(_SAME.get(word, word))
    bits = _BY_BITS.fullmatch(word)
    if found is None and bits and _LEAST_BITS <= float(bits[1]) <= _MOST_BITS:
        found = _few(by_bits(float(bits[1])), float(bits[1]))
    if found is None:
        near = closest(word, (*FORMS, *_SAME))
        told = f"nearest: {', '.join(near)}; " if near else ""
        raise DomainError(f"'{name}' is no number format; {told}known: {', '.join(FORMS)}, w1a16 to w8.5a16")
    return found


_PAIRED = frozenset({"int4"})  # formats of which pairs are kept or left: two pairs of four. Source: PTX ISA, mma.sp
_PLACE_BITS = 2.0  # bits that tell which of four a kept number, or a kept pair, is


def _sparse(dense: Form) -> Form:
    """The format with two of four weights kept: half of their bits, and the places of those kept."""
    if dense.matrix in ("fp64", "fp32", "fp4"):
        raise DomainError(f"'{dense.name}{SPARSE}' is no number format; nearest: bf16{SPARSE}, int8{SPARSE}")
    places = _PLACE_BITS / 2 / (2 if dense.matrix in _PAIRED else 1)
    weight, matrix = 0.5 * dense.weight_bytes + places / 8, f"{dense.matrix}{SPARSE}"
    return replace(dense, name=f"{dense.name}{SPARSE}", matrix=matrix, weight_bytes=weight, like=dense.name)


def by_bits(bits: float) -> str:
    """The word for weights of so many bits, scales included, that meet 16-bit activations."""
    return f"w{round(bits, 3):g}a16"


def words(what: Form) -> tuple[str, ...]:
    """Every word that means the format."""
    return (what.name, *(word for word, name in _SAME.items() if name == what.name))


@dataclass(frozen=True, kw_only=True)
class Formats:
    """Number formats of a deployment: of feed-forwards, of attention's projections, of the cache, of head and routers.

    `out` is that of the projection out of attention, '' as of those into it, `wide` fp32 or tf32. `static` says that
    inputs of fp8 products are written in fp8 by the kernels before them, with scales known before.
    """

    feed: str = "bf16"
    attention: str = "bf16"
    cache: str = "bf16"
    plain: str = "bf16"
    static: bool = False
    out: str = ""
    wide: str = "fp32"

    def of(self, part: str) -> str:
        """The format of a product's weight."""
        shared = self.attention if self.feed in EXPERTS_ONLY else self.feed
        known = {**vars(self), "shared": shared, "out": self.out or self.attention}
        return str(known[part])


def like_forms(what: Form) -> tuple[str, ...]:
    """The format itself, then one that runs alike."""
    alike = {"fp16": "bf16", "fp4": "nvfp4", "fp8": "fp8_block"}.get(what.name, what.like)
    return (what.name, alike) if alike else (what.name,)


def judged_form(asked: str, lent: str) -> str:
    """The format by whose residuals an answer is judged: that of its kernels where it runs alike, else its own."""
    return lent if lent in like_forms(form(asked)) else asked


_NARROW = {"fp4": ("nvfp4",), "w4a16_mxfp4": ("int4_wo",), "int8": ("fp8",), "fp8_block": ("fp8",)}
_BLOCKS = ("fp8_block", "nvfp4")  # weights and inputs in blocks with scales of their own


def narrow_forms(what: Form) -> tuple[str, ...]:
    """Other narrow formats, nearest first: of as many bits, then wider ones, then those scaled alike."""
    alike = (name for name in _BLOCKS if what.name in _BLOCKS and name != what.name)
    return (*_NARROW.get(what.name, ()), *alike)


def nearest_forms(what: Form) -> tuple[str, ...]:
    """Formats whose kernels stand for those of a format, nearest first: of as many bits, then wider ones."""
    return (*like_forms(what), *_NARROW.get(what.name, ()), *(("fp8",) if what.cast else ()), "bf16", "any")
