"""Parameters fitted to measured kernels: one row per device, library, format and kernel, one table per family.

`ridgeline fit` writes the tables of `data/fits/` from named public rows; this module reads them and borrows for
devices that have none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from ridgeline.facts import store
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.casting import with_cast_queries
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Accelerator, Evidence
from ridgeline.facts.traits import kernel_traits

FOLDER = "fits"
ENGINES = ("vllm", "sglang", "trtllm", "nccl", "oneccl")  # whose kernels answer when none is asked for
BORROWED = "borrowed from "
BANDS_S = (1e-5, 1e-4)  # residuals are kept apart below 10 us, to 100 us and above
# Columns of every table that are not parameters, in order.
KEYS = ("device", "engine", "version", "form", "kernel")
RECORD = ("rows", "held_median", "held_p90", "held_bias", "low", "high", "domain", "span", "source", "date")
TIMED = "timed"  # a column of families whose kernels engines choose by the model


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Fitted values of one mechanism, with how well they hold on shapes that no fit has seen.

    `low` and `high` are the 10 % and 90 % quantiles of measured / predicted in each time band; `domain` bounds the
    sizes that this kernel is chosen for, (low, high, multiple); `span` the sizes measured, (low, high). `timed` are
    the models that the kernel was timed in, as values of the sizes `timed_by`: engines choose kernels by the model.
    """

    family: str
    device: str
    engine: str
    version: str
    form: str
    kernel: str
    values: Mapping[str, float]
    rows: int
    held_median: float
    held_p90: float
    held_bias: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    domain: Mapping[str, tuple[float, float, float]]
    span: Mapping[str, tuple[float, float]]
    source: str
    date: str
    timed_by: tuple[str, ...] = ()
    timed: tuple[tuple[float, ...], ...] = ()

    @property
    def kernel_device(self) -> str:
        """The device whose kernel it is: the first relative's where values are borrowed."""
        return self.source.removeprefix(BORROWED).split(", ")[0] if self.source.startswith(BORROWED) else self.device

    @property
    def width(self) -> float:
        """How much of the sizes the kernel is for, in factors of e [1]: those that need a multiple are narrower."""
        return sum(math.log(max(b, 1.0) / max(a, 1.0)) - math.log(step) for a, b, step in self.domain.values())

    @property
    def library(self) -> str:
        """Engine and version in people's words."""
        return f"{self.engine} {self.version}".strip()


@cache
def families() -> tuple[str, ...]:
    """Families that have a table of fits."""
    return store.names(FOLDER, ".tsv")


@cache
def fits(family: str) -> tuple[Fit, ...]:
    """Every fit of a family; none when it has no table."""
    if family not in families():
        return ()
    return tuple(_fit(family, row) for row in with_cast_queries(family, store.read_tsv(f"{FOLDER}/{family}.tsv")))


def _fit(family: str, row: Mapping[str, str]) -> Fit:
    values = {name: float(cell) for name, cell in row.items() if name not in (*KEYS, *RECORD, TIMED) and cell}
    names, *timed = (word.split(":") for word in row.get(TIMED, "").split() or [""])
    return Fit(
        family=family,
        **{name: row[name] for name in KEYS},
        values=MappingProxyType(values),
        rows=int(row["rows"]),
        held_median=float(row["held_median"]),
        held_p90=float(row["held_p90"]),
        held_bias=float(row["held_bias"]),
        low=_numbers(row["low"]),
        high=_numbers(row["high"]),
        domain={name: (a, b, c) for name, (a, b, c) in _ranges(row["domain"]).items()},
        span={name: (a, b) for name, (a, b) in _ranges(row["span"]).items()},
        source=row["source"],
        date=row["date"],
        timed_by=tuple(filter(None, names)),
        timed=tuple(tuple(map(float, word)) for word in timed),
    )


def _numbers(cell: str) -> tuple[float, ...]:
    return tuple(float(word) for word in cell.split())


def _ranges(cell: str) -> dict[str, tuple[float, ...]]:
    words = (word.partition("=") for word in cell.split())
    return {name: tuple(float(number) for number in numbers.split(":")) for name, _, numbers in words}


def measured_devices(family: str) -> tuple[str, ...]:
    """Devices that a family has fits for."""
    return tuple(sorted({fit.device for fit in fits(family)}))


_OWN: dict[str, tuple[tuple[Fit, ...], Mapping[str, Evidence]]] = {}  # fits of machines measured here, by device


def register_own(device: str, found: tuple[Fit, ...], evidence: Mapping[str, Evidence]) -> None:
    """Lets the fits of a machine's own profile answer for it, each family with its rung."""
    _OWN[device] = found, evidence


def own_evidence(family: str, device: str) -> Evidence | None:
    """The rung of a machine's own fits of a family; None where it has no profile or the profile no fit."""
    return _OWN[device][1].get(family) if device in _OWN else None


def named_kernels(found: Sequence[Fit], text: str) -> tuple[Fit, ...]:
    """The fits whose kernel's source the text names; all of them where it names none."""
    named = tuple(fit for fit in found if fit.kernel.split(" ")[0] in text.split())
    return named or tuple(found)


Reach = tuple[tuple[str, float], ...]  # sizes and the most that is asked of them


def own_fits(
    family: str,
    device: str,
    *,
    engine: str = "",
    version: str = "",
    form: str = "",
    kernels: str = "",
    reach: Reach = (),
    one_tool: bool = True,
) -> tuple[Fit, ...]:
    """Fits of a device itself: of the engine asked for, or of the first that has any, in the nearest version.

    The nearest is the newest that is not newer than `version`, else the oldest; without `version` the newest of those
    measured nearest to `reach`. Where `kernels` names any, theirs are the versions to choose from; where not, kernels
    for the checkpoints of one tool (vLLM's of ModelOpt's per-tensor fp8) are left out but for `one_tool`.
    """
    known = [fit for fit in _OWN[device][0] if fit.family == family] if device in _OWN else fits(family)
    found = [fit for fit in known if fit.device == device and fit.form == form]
    engines = {fit.engine for fit in found}
    if engine and engine not in engines:
        return ()
    chosen = engine or preferred_engine(engines)
    of_engine = named_kernels([fit for fit in found if fit.engine == chosen], kernels)
    of_engine = of_engine if kernels or one_tool else for_any(of_engine)
    if reach and not version:
        least = min((_beyond(fit, reach) for fit in of_engine), default=0.0)
        of_engine = tuple(fit for fit in of_engine if _beyond(fit, reach) <= least)
    chosen_version = nearest_version({fit.version for fit in of_engine}, version)
    return tuple(fit for fit in of_engine if fit.version == chosen_version)


_ONE_TOOL = "modelopt"


def for_any(found: Sequence[Fit]) -> tuple[Fit, ...]:
    """The fits without those of kernels for the checkpoints of one tool."""
    return tuple(fit for fit in found if _ONE_TOOL not in fit.kernel)


def _beyond(fit: Fit, reach: Reach) -> float:
    """How far what is asked lies beyond what was measured, in factors of e [1]."""
    return sum(max(0.0, math.log(most / fit.span[name][1])) for name, most in reach if name in fit.span)


def preferred_engine(known: Iterable[str]) -> str:
    """The engine whose kernels stand for any: the first of `ENGINES` that is known, '' when none is known."""
    return min(known, key=lambda name: (ENGINES.index(name) if name in ENGINES else len(ENGINES), name), default="")


def nearest_version(known: Iterable[str], wanted: str) -> str:
    """The newest version that is not newer than the one wanted, else the oldest; the newest when none is wanted."""
    ordered = sorted(known, key=release_key)
    older = [version for version in ordered if not wanted or release_key(version) <= release_key(wanted)]
    return (older or ordered[:1] or [""])[-1]


@cache
def release_key(version: str) -> tuple[tuple[int, int | str], ...]:
    """Sorts versions as their writers meant: 0.5.14 after 0.5.9, candidates before a release, post-releases after."""
    words = re.findall(r"\d+|[a-z]+", version.casefold())
    keys = tuple((1, int(word)) if word.isdigit() else (2 if word == "post" else 0, word) for word in words)
    return keys if any(word.isalpha() for word in words) else (*keys, (0, "zz"))


EXCHANGES = frozenset({"exchange", "engine_exchange"})
LINK_FAMILIES = EXCHANGES | {"collective"}
_KINDS = ("mla", "dsa", "csa", "hca", "msa")
_LAYERS = (f"{kind}_layer_{phase}" for kind in _KINDS for phase in ("prefill", "decode"))
PRODUCTS = frozenset(("gemm", "mla_bmm", "experts", "wide_experts", "wide_experts_decode", *_LAYERS))
"""Families that matrix libraries tune to an architecture, whatever memory its devices have."""


class Kind(NamedTuple):
    """What tells relatives: who makes a device, of which architecture, with which links ('' none) and memory."""

    vendor: str
    architecture: str
    link: str
    graphics: bool


def borrowed_fits(
    family: str, part: Accelerator, *, engine: str = "", form: str = "", reach: Reach = ()
) -> tuple[Fit, ...]:
    """Fits for a device from its relatives, itself left out: same engine and format, nearest kind of device.

    Relatives of kernels are devices of the same architecture and kind of memory, graphics or stacked; of products also
    those with the other kind. Of collectives they are those with the same link, else the same generation of it, else
    the same kind: host bridges differ from box to box and lend nothing. Each value is the geometric mean of theirs,
    kernel by kernel; the interval is that of borrowed answers judged device by device.
    """
    return _borrowed(family, part.name, _kind(part), engine, form, reach)


def _kind(part: Accelerator) -> Kind:
    return Kind(part.vendor, part.architecture, part.link_name or "", part.graphics)


def _relatives(family: str, kind: Kind) -> tuple[Callable[[Kind], bool], ...]:
    """Who lends to a device, nearest first."""
    if family not in LINK_FAMILIES:
        alike = (lambda other: other[:2] == kind[:2] and other.graphics == kind.graphics,)
        return (*alike, lambda other: other[:2] == kind[:2]) if family in PRODUCTS else alike
    if not kind.link:
        return ()
    words = kind.link.split(" ")
    return (
        lambda other: (other.vendor, other.link) == (kind.vendor, kind.link),
        lambda other: (other.vendor, other.link.split(" ")[:2]) == (kind.vendor, words[:2]),  # cut to fewer bytes
        lambda other: (other.vendor, other.link.split(" ")[0]) == (kind.vendor, words[0]),
    )


@cache
def _borrowed(family: str, device: str, kind: Kind, engine: str, form: str, reach: Reach) -> tuple[Fit, ...]:
    others = [fit for fit in fits(family) if fit.device != device and fit.form == form]
    others = [fit for fit in others if engine and fit.engine == engine] or others
    chosen: list[Fit] = []
    for lends in _relatives(family, kind):
        chosen = chosen or [fit for fit in others if lends(_kind(accelerator(fit.device)))]
    latest = [
        fit
        for name in sorted({fit.device for fit in chosen})
        for fit in own_fits(family, name, engine=engine, form=form, reach=reach)
    ]
    kernels = list(dict.fromkeys((fit.engine, fit.kernel) for fit in latest))
    first_engine = preferred_engine({key[0] for key in kernels})
    return tuple(
        blended([fit for fit in latest if (fit.engine, fit.kernel) == key], device)
        for key in kernels
        if key[0] == first_engine
    )


def common_fits(
    family: str, part: Accelerator, *, form: str, engine: str = "", apart_from: str = ""
) -> tuple[Fit, ...]:
    """What the kernels of other devices have in common: one fit, the geometric mean of the values of those most alike.

    For devices without relatives, and formats that no relative was measured in. Each device lends the kernel of the
    widest domain, of the engine asked for where it has one; devices with the same kind of memory, graphics or stacked,
    lend before others, of those the ones of the same vendor, else of any with a wider interval. Kernels that their own
    formula misses by twice as much as the best of them lend nothing, nor those that do on their device what they do on
    no other. `apart_from` leaves out a whole architecture, as the interval is judged: how far kernels of one lie from
    what all others have in common.
    """
    return _common(family, part.name, _kind(part), form, engine, apart_from)


_POOR = 2.0  # held-out error of a lender's fit, against the best lender's, from which it lends nothing (assumed)


@cache
def _common(family: str, device: str, kind: Kind, form: str, engine: str, apart_from: str) -> tuple[Fit, ...]:
    names = [name for name in measured_devices(family) if name != device]
    lent = (
        own_fits(family, name, engine=engine, form=form) or own_fits(family, name, form=form)
        for name in names
        if accelerator(name).architecture != apart_from
    )
    chosen = [max(found, key=lambda fit: fit.width) for found in lent if found]
    if not chosen:
        return ()
    chosen = [fit for fit in chosen if accelerator(fit.device).graphics == kind.graphics] or chosen
    own_vendor = [fit for fit in chosen if accelerator(fit.device).vendor == kind.vendor]
    chosen = own_vendor or chosen
    chosen = _ordinary(chosen)
    least = min(fit.held_median for fit in chosen)
    first = blended([fit for fit in chosen if fit.held_median <= _POOR * least], device)
    known, wider = rung_interval(family, "common"), 1.0 if own_vendor else constant("interval.foreign")
    low, high = tuple(end / wider for end in known.low), tuple(end * wider for end in known.high)
    return (replace(first, domain={}, low=low, high=high),)


def _ordinary(lenders: Sequence[Fit]) -> list[Fit]:
    """Those lenders whose kernels do nothing that they do on their device alone; all where none is left."""
    does = (
        (f, [kernel_traits(f.family, name, f.engine, f.kernel, f.form) for name in (f.device, "")]) for f in lenders
    )
    return [fit for fit, (own, elsewhere) in does if own == elsewhere] or list(lenders)


def blended(relatives: Sequence[Fit], device: str) -> Fit:
    """What fits of other devices lend to one: geometric means, with the interval of borrowed answers."""
    first = relatives[0]
    names = [name for name in first.values if all(name in fit.values for fit in relatives)]
    values = {name: math.exp(sum(math.log(fit.values[name]) for fit in relatives) / len(relatives)) for name in names}
    known = rung_interval(first.family, "borrowed")
    return Fit(
        family=first.family,
        device=device,
        engine=first.engine,
        version=first.version,
        form=first.form,
        kernel=first.kernel,
        values=values,
        rows=sum(fit.rows for fit in relatives),
        held_median=max(fit.held_median for fit in relatives),
        held_p90=max(fit.held_p90 for fit in relatives),
        held_bias=sum(fit.held_bias for fit in relatives) / len(relatives),
        low=known.low,
        high=known.high,
        domain=first.domain,
        span=_together(relatives),
        source=BORROWED + ", ".join(dict.fromkeys(fit.device for fit in relatives)),
        date=max(fit.date for fit in relatives),
        timed_by=first.timed_by,
        timed=tuple(sorted({model for fit in relatives for model in fit.timed})),
    )


def _together(relatives: Sequence[Fit]) -> dict[str, tuple[float, float]]:
    """The sizes that any of them was measured at."""
    names = dict.fromkeys(name for fit in relatives for name in fit.span)
    spans = {name: [fit.span[name] for fit in relatives if name in fit.span] for name in names}
    return {name: (min(low for low, _ in own), max(high for _, high in own)) for name, own in spans.items()}


@dataclass(frozen=True, kw_only=True)
class RungInterval:
    """How far measured times lie from a rung's answers: quantiles of measured / predicted per time band [1]."""

    rows: int
    median: float
    p90: float
    low: tuple[float, ...]
    high: tuple[float, ...]


_UNJUDGED = RungInterval(rows=0, median=1.0, p90=1.0, low=(0.5,) * 3, high=(2.0,) * 3)


@cache
def _rung_intervals() -> Mapping[tuple[str, str], RungInterval]:
    return {
        (row["family"], row["rung"]): RungInterval(
            rows=int(row["rows"]),
            median=float(row["median"]),
            p90=float(row["p90"]),
            low=_numbers(row["low"]),
            high=_numbers(row["high"]),
        )
        for row in store.read_tsv("fit_rungs.tsv")
    }


def rung_interval(family: str, rung: str) -> RungInterval:
    """The interval of a rung whose residuals are a family's, not one fit's: 'table' or 'borrowed'; wide if unjudged."""
    return _rung_intervals().get((family, rung), _UNJUDGED)
