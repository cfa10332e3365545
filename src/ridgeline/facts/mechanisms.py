"""Sourced values of mechanisms: constants, formulas' parameters, attention kernels, traits and widths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.errors import InputError, UnknownNameError
from ridgeline.facts import store
from ridgeline.facts.records import Fact

OTHER = "other"  # architecture of kernels that has none of its own
POWER_SHARES = ("running_", "compute_", "memory_", "wide_flop_", "narrow_flop_", "byte_")
"""Shares of the rated power: running any kernel, units busy, memory busy, 16-bit and narrower FLOP, and bytes, at the
datasheet's rates."""
_LATENT = ("hidden", "rank", "nope", "value", "index_heads", "top")


@cache
def constants() -> Mapping[str, Fact]:
    """Every constant of `data/mechanisms.tsv` by key, with unit, source and evidence."""
    return store.facts("mechanisms.tsv")


def constant(key: str) -> float:
    """The value of one mechanism constant, in its row's unit."""
    return constants()[key].value


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """Values of one generation of fused attention kernels on one architecture; those fitted end in `_`.

    `norm` in which products and softmax add up (1 one after the other, 2 the root of the squares), `narrow` head size
    up to which the matrix rate holds. Shares of the sustained matrix rate, `exposed_` share of the softmax that
    products do not hide, `wide_` loss of the rate for each further `narrow` of head size, `fill_s_` fill and drain of
    a tile [s], `masked_` more time of a score under a causal mask [1]. `low`, `high`: 10 % and 90 % quantiles of
    measured / predicted on sequence lengths left out.
    """

    kernel: str
    architecture: str
    norm: float
    narrow: float
    forward_share_: float
    backward_share_: float | None
    exposed_: float
    wide_: float
    fill_s_: float
    masked_: float
    low: float
    high: float


@cache
def _kernels() -> Mapping[tuple[str, str], AttentionKernel]:
    found = store.records(AttentionKernel, store.read_tsv("attention_kernels.tsv"))
    return {(one.kernel, one.architecture): one for one in found}


def attention_kernel(kernel: str, architecture: str) -> AttentionKernel:
    """The values of a kernel on an architecture: its own, those of other architectures, or the only ones it has."""
    table = _kernels()
    own = table.get((kernel, architecture)) or table.get((kernel, OTHER))
    return own or next(values for (name, _), values in table.items() if name == kernel)


@cache
def kernel_traits(family: str, device: str, engine: str, kernel: str, form: str) -> Mapping[str, float]:
    """What a measured kernel does that its shapes do not tell, by trait [1]; the first row that fits decides.

    Most traits are sizes of its family's mechanism. Source: data/kernel_traits.tsv.
    """
    text = f"{device} {engine} {kernel} {form}"
    found: dict[str, float] = {}
    for row in store.read_tsv("kernel_traits.tsv"):
        if row["family"] == family and row["trait"] not in found and re.search(row["pattern"], text):
            found[row["trait"]] = float(row["value"])
    return found


@cache
def latent_widths(model: str, *, sparse: bool) -> Mapping[str, float]:
    """Widths of a model's layer with latent attention by size [1]; no indexer unless `sparse`.

    Raises `UnknownNameError` for a model without a row.
    """
    found = _widths("latent", model)
    widths = {name: float(found[name]) for name in _LATENT}
    return widths if sparse else {**widths, "index_heads": 0.0, "top": 0.0}


@cache
def compressed_widths(model: str) -> Mapping[str, float]:
    """Widths of a model's layer with compressed or block-chosen keys, by name [1].

    Raises `UnknownNameError` for a model without a row.
    """
    cells = _widths("compressed", model).items()
    return {name: float(cell) for name, cell in cells if name not in ("pattern", "source")}


def _widths(kind: str, model: str) -> Mapping[str, str]:
    """Row of a table of widths, which operator tables leave out; the first pattern in the model's name decides."""
    rows = store.read_tsv(f"{kind}_widths.tsv")
    found = next((row for row in rows if row["pattern"].casefold() in model.casefold()), None)
    if found is None:
        raise UnknownNameError(f"model with {kind} attention", model, [row["pattern"] for row in rows])
    return found


def token_frequency(first: int, last: int) -> float:
    """Share of WikiText-103's tokens that are words from rank `first` to before `last` [1].

    Raises `InputError` for ranks that no row has. Source: data/token_frequencies.tsv. Evidence: assumed.
    """
    for row in store.read_tsv("token_frequencies.tsv"):
        if (int(row["first"]), int(row["last"])) == (first, last):
            return float(row["share"])
    raise InputError(f"no frequency of the words of rank {first} to {last} is known")


def interference(resource: str) -> tuple[tuple[float, float], ...]:
    """Share that products give up [1] and speed of memory's or a link's kernels for it, over that alone [1].

    Source: data/interference.tsv (NanoFlow's measured table). Evidence: measured.
    """
    rows = [row for row in store.read_tsv("interference.tsv") if row["resource"] == resource]
    return (0.0, 0.0), *((float(row["share"]), float(row["speed"])) for row in rows), (1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class PowerFit:
    """What a busy board draws, as shares of its rated power, with how well they hold on shapes left out of the fit.

    `low` and `high` are the 10 % and 90 % quantiles of measured / predicted.
    """

    device: str
    shares: Mapping[str, float]
    rows: int
    held_median: float
    held_p90: float
    held_bias: float
    held_covered: float
    low: float
    high: float
    source: str
    date: str


@cache
def power_fits() -> Mapping[str, PowerFit]:
    """The fits of metered devices by name, in the order of `data/power.tsv`."""

    def shares(row: store.TableRow) -> Mapping[str, Mapping[str, float]]:
        return {"shares": {name: float(row[name]) for name in POWER_SHARES}}

    return {one.device: one for one in store.records(PowerFit, store.read_tsv("power.tsv"), shares)}


def power_of(device: str) -> PowerFit:
    """A device's own fit, else that of the first device that was metered."""
    known = power_fits()
    return known.get(device) or next(iter(known.values()))


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One physical parameter: a fit moves it between `low` and `high`, starting and shrunk to `start`."""

    name: str  # ends in '_': a fitted number
    unit: str
    low: float
    high: float
    start: float
    meaning: str
    grid: tuple[float, ...] = ()  # more starts, for a switch point: it has no gradient
    others: tuple[float, ...] = ()  # more starts of what has a gradient only where it decides


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Sizes in the order in which a formula reads them, those that may be left out, and its parameters in its order."""

    sizes: tuple[str, ...]
    defaults: Mapping[str, float]
    selectors: tuple[str, ...]
    parameters: tuple[Parameter, ...]


def signature(formula: str) -> Signature:
    """What a formula reads, by its name in `data/formulas.tsv` and `data/fit_parameters.tsv`."""
    row = next(row for row in store.read_tsv("formulas.tsv") if row["formula"] == formula)
    sizes = [word.partition("=") for word in row["sizes"].split()]
    return Signature(
        sizes=tuple(name for name, _, _ in sizes),
        defaults={name: float(value) for name, _, value in sizes if value},
        selectors=tuple(row["selectors"].split()),
        parameters=store.records(
            Parameter, (row for row in store.read_tsv("fit_parameters.tsv") if row["formula"] == formula)
        ),
    )
