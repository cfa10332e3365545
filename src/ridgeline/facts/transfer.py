"""Transfer of fits from similar devices to one that has none, and how far the answers of each rung lie from truth.

A device's relatives answer for it, else what all devices have in common. Intervals: `data/fit_rungs.tsv`, and
`data/source_spread.tsv` of sources other than an answer's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.facts import store
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.fits import (
    BORROWED,
    Fit,
    FitsAsked,
    fits,
    in_use,
    measured_devices,
    own_evidence,
    own_fits,
    preferred_engine,
)
from ridgeline.facts.mechanisms import constant, constants, kernel_traits
from ridgeline.facts.records import Accelerator, Evidence

EXCHANGES = frozenset({"exchange", "engine_exchange"})
LINK_FAMILIES = EXCHANGES | {"collective"}
_KINDS = ("mla", "dsa", "csa", "hca", "msa")
_LAYERS = (f"{kind}_layer_{phase}" for kind in _KINDS for phase in ("prefill", "decode"))
_EXPERTS = ("experts", "wide_experts", "wide_experts_decode")
PRODUCTS = frozenset(("gemm", "mla_bmm", *_EXPERTS))
"""Families that matrix libraries tune to an architecture, whatever memory its devices have."""
MODULES = frozenset((*_EXPERTS, *_LAYERS))
"""Families of many kernels in a row, which are an engine's own program; layers hold attention."""

ALL_FORMS = "all"  # of those that too few kernels were measured in for a line of their own, and where none is asked
SHORT_S = 1e-4  # kernels below it are short
ANY, SHORT, LONG = "any", "short", "long"  # bands of predicted time
_OTHER = "other"


class Likeness(NamedTuple):
    """What tells relatives: who makes a device, of which architecture, with which links ('' none) and memory."""

    vendor: str
    architecture: str
    link: str
    graphics: bool


def transferred_fits(family: str, part: Accelerator, **how: Any) -> tuple[Fit, ...]:
    """Fits for a device from its relatives, itself left out: same engine and format, nearest kind of device.

    Of a relative those are lent that would answer for itself, as `own_fits` says: the nearest release, kernels by name.
    Relatives of kernels are devices of the same architecture and kind of memory, graphics or stacked; of products also
    those with the other kind. Of collectives they are those with the same link, else the same generation of it, else
    the same kind: host bridges differ from box to box and lend nothing. Each value is the geometric mean of theirs,
    kernel by kernel; the interval is that of borrowed answers judged device by device.
    """
    return _transferred(family, part.name, _kind(part), FitsAsked(**how))


def _kind(part: Accelerator) -> Likeness:
    return Likeness(part.vendor, part.architecture, part.link_name or "", part.graphics)


def _relatives(family: str, kind: Likeness) -> tuple[Callable[[Likeness], bool], ...]:
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
def _transferred(family: str, device: str, kind: Likeness, asked: FitsAsked) -> tuple[Fit, ...]:
    others = [fit for fit in fits(family) if fit.device != device and fit.form == asked.form]
    others = [fit for fit in others if asked.engine and fit.engine == asked.engine] or others
    chosen: list[Fit] = []
    for lends in _relatives(family, kind):
        chosen = chosen or [fit for fit in others if lends(_kind(accelerator(fit.device)))]
    lenders = sorted({fit.device for fit in chosen})
    latest = [fit for name in lenders for fit in own_fits(family, name, **asked._asdict())]
    kernels = list(dict.fromkeys((fit.engine, fit.kernel) for fit in latest))
    first_engine = preferred_engine({key[0] for key in kernels})
    return tuple(
        blended([fit for fit in latest if (fit.engine, fit.kernel) == key], device)
        for key in kernels
        if key[0] == first_engine
    )


def common_fits(
    family: str,
    part: Accelerator,
    *,
    form: str,
    engine: str = "",
    apart_from: str = "",
    alone: bool = False,
    asked: str = "",
) -> tuple[Fit, ...]:
    """What the kernels of other devices have in common: one fit, the geometric mean of the values of those most alike.

    For devices without relatives, and formats that no relative was measured in. Each device lends the kernel of the
    widest domain, of the engine asked for where it has one, and with `alone` no other; devices with the same kind of
    memory, graphics or stacked, lend before others, of those the ones of the same vendor, else of any with a wider
    interval. Kernels that their own formula misses by twice as much as the best of them lend nothing, nor those that do
    on their device what they do on no other. `apart_from` leaves out a whole architecture, as the interval is judged:
    how far kernels of one lie from what all others have in common, in the format `asked` for.
    """
    return _common(family, part.name, _kind(part), form, engine, apart_from, alone, asked or form)


@cache
def _common(
    family: str, device: str, kind: Likeness, form: str, engine: str, apart_from: str, alone: bool, asked: str
) -> tuple[Fit, ...]:
    names = [name for name in measured_devices(family) if name != device]
    lent = (
        own_fits(family, name, engine=engine, form=form) or (() if alone else own_fits(family, name, form=form))
        for name in names
        if accelerator(name).architecture != apart_from
    )
    chosen = [max(in_use(found) or found, key=lambda fit: fit.width) for found in lent if found]
    if not chosen:
        return ()
    chosen = [fit for fit in chosen if accelerator(fit.device).graphics == kind.graphics] or chosen
    own_vendor = [fit for fit in chosen if accelerator(fit.device).vendor == kind.vendor]
    chosen = own_vendor or chosen
    chosen = _ordinary(chosen)
    least = min(fit.held_median for fit in chosen)
    first = blended([fit for fit in chosen if fit.held_median <= constant("fit.poor") * least], device)
    known, wider = rung_interval(family, "common", asked), 1.0 if own_vendor else foreign_factor(family)
    far = known.widened(wider)
    return (replace(first, domain={}, low=far.low, high=far.high, shared=far.shared),)


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
    known = rung_interval(first.family, "borrowed", first.form)
    return replace(
        first,
        device=device,
        values=values,
        rows=sum(fit.rows for fit in relatives),
        held_median=max(fit.held_median for fit in relatives),
        held_p90=max(fit.held_p90 for fit in relatives),
        held_bias=sum(fit.held_bias for fit in relatives) / len(relatives),
        low=known.low,
        high=known.high,
        shared=known.shared,
        span=_together(relatives),
        source=BORROWED + ", ".join(dict.fromkeys(fit.device for fit in relatives)),
        date=max(fit.date for fit in relatives),
        timed=tuple(sorted({model for fit in relatives for model in fit.timed})),
    )


def transfer_evidence(fit: Fit, part: Accelerator) -> Evidence:
    """How well a fit is known on a device: measured on it, derived from its vendor's, or assumed of strangers."""
    if not fit.source.startswith(BORROWED):
        return own_evidence(fit.family, part.name) or Evidence.MEASURED
    lenders = fit.source.removeprefix(BORROWED).split(", ")
    related = any(accelerator(name).vendor == part.vendor for name in lenders)
    return Evidence.DERIVED if related else Evidence.ASSUMED


def _together(relatives: Sequence[Fit]) -> dict[str, tuple[float, float]]:
    """The sizes that any of them was measured at."""
    names = dict.fromkeys(name for fit in relatives for name in fit.span)
    spans = {name: [fit.span[name] for fit in relatives if name in fit.span] for name in names}
    return {name: (min(low for low, _ in own), max(high for _, high in own)) for name, own in spans.items()}


@dataclass(frozen=True, kw_only=True)
class RungInterval:
    """How far measured times lie from a rung's answers: quantiles of measured / predicted per time band [1].

    `shared` is the part of the errors' variance that shapes of one kernel have in common, per time band [1].
    """

    rows: int
    median: float
    p90: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    shared: tuple[float, ...]

    @cached_property
    def ends(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Both ends per time band, as arrays [1]."""
        return np.array(self.low), np.array(self.high)

    def widened(self, factor: float) -> RungInterval:
        """The interval with both ends a factor farther out, all of which is each shape's own.

        Kernels of a vendor that lends nothing are wrong shape by shape, not all alike. On Arc Pro B60 errors shared by
        shapes have standard deviations of 0.18, 0.72, 1.15 and 0.37 (products, prompts, decode, experts), on the
        lenders' own devices, their architecture left out, 0.38, 0.85, 0.87 and 0.54; what is a shape's own has 0.33,
        0.71, 0.64 and 0.34 against 0.21, 0.09, 0.30 and 0.36.
        """
        low, high = tuple(end / factor for end in self.low), tuple(end * factor for end in self.high)
        narrower = (
            (math.log(b / a) / math.log(d / c)) ** 2 if d > c else 1.0
            for a, b, c, d in zip(self.low, self.high, low, high, strict=True)
        )
        shared = tuple(share * part for share, part in zip(self.shared, narrower, strict=True))
        return replace(self, low=low, high=high, shared=shared)


_UNJUDGED = RungInterval(rows=0, median=1.0, p90=1.0, low=(0.5,) * 3, high=(2.0,) * 3, shared=(1.0,) * 3)


@cache
def _rung_intervals() -> Mapping[tuple[str, str, str], RungInterval]:
    rows = store.read_tsv("fit_rungs.tsv")
    keys = ((row["family"], row["rung"], row["form"]) for row in rows)
    return dict(zip(keys, store.records(RungInterval, rows), strict=True))


def rung_interval(family: str, rung: str, form: str = ALL_FORMS) -> RungInterval:
    """The interval of a rung whose residuals are a family's, not one fit's: 'table' or 'borrowed'; wide if unjudged.

    That of a number format where enough kernels in it were judged, else of all formats together.
    """
    known = _rung_intervals()
    return known.get((family, rung, form)) or known.get((family, rung, ALL_FORMS), _UNJUDGED)


def foreign_factor(family: str) -> float:
    """How much farther the ends of `common` are for a device whose vendor lends nothing [1].

    Source: rows interval.foreign of the mechanism table, of a family or of all alike.
    """
    own = f"interval.foreign.{family}"
    return constant(own if own in constants() else "interval.foreign")


@cache
def _spreads() -> dict[tuple[str, str, str], tuple[float, float]]:
    return {
        (row["rung"], row["family"], row["band"]): (float(row["low"]), float(row["high"]))
        for row in store.read_tsv("source_spread.tsv")
    }


def source_spread(rung: str, family: str) -> tuple[float, float]:
    """Ends that hold 80 % of measured / predicted over other sources [1]: a family's, else of all families.

    `rung`: `tables` of the device itself, or values `borrowed` from others.
    """
    return _spreads().get((rung, family, ANY)) or _spreads()[rung, _OTHER, ANY]


def mechanism_spread(family: str, seconds: float) -> tuple[float, float] | None:
    """Ends that hold 80 % of measured / predicted by the mechanism over devices [1]; None if unknown.

    Kernels shorter than 100 microseconds stand apart where enough devices tell.
    """
    band = SHORT if seconds < SHORT_S else LONG
    return _spreads().get(("mechanism", family, band)) or _spreads().get(("mechanism", family, ANY))


MEASURED, LENT, PHYSICS = "measured", "lent", "physics"
RUN_RUNGS: Mapping[str, str] = {
    "table": MEASURED, "fitted": MEASURED, "borrowed": LENT, "common": PHYSICS, "datasheet": PHYSICS,
    "mechanism": PHYSICS, "measured elsewhere": MEASURED, "derived": LENT, "assumed": PHYSICS,
}  # fmt: skip
"""What tells how far whole runs may lie: kernels measured on the device, on related ones, or formulas alone."""


@cache
def _run_spreads() -> dict[tuple[str, str], tuple[float, float]]:
    rows = store.read_tsv("run_spread.tsv")
    return {(row["kind"], row["rung"]): (float(row["low"]), float(row["high"])) for row in rows}


def run_spread(kind: str, rung: str = ANY) -> tuple[float, float]:
    """How far whole runs of other people lie from what mechanisms give, over it, beyond their own intervals [1].

    `rung` is what an answer rests on, as it is shown: a rung of kernels, or the evidence of a step. Of what was
    measured here nothing is known to lie beyond. Source: benchmarks/intervals.py, from end-to-end rows: the only
    numbers of an interval that are, beside the ends of memory.
    """
    if rung == Evidence.HERE.label:
        return 1.0, 1.0
    known = _run_spreads()
    return known.get((kind, RUN_RUNGS.get(rung, rung))) or known[kind, ANY]


def joined(value: float, ends: Sequence[float]) -> tuple[float, float]:
    """The ends of the 80 % interval of a quantity with P independent causes, each with two `ends`, (2 P,), in its unit.

    ln(high / v) = sqrt(sum_p max(0, ln(a_p / v), ln(b_p / v))^2), and so downwards. Of one cause these are its ends.
    What is not positive keeps the least and the most.

    >>> joined(10.0, [5.0, 20.0])
    (5.0, 20.0)
    >>> low, high = joined(10.0, [5.0, 20.0, 20.0, 5.0])
    >>> round(high / 10.0, 3), round(10.0 / low, 3)  # 2 ** sqrt(2)
    (2.665, 2.665)
    """
    if len(ends) <= 2 or min(value, *ends) <= 0.0 or not np.isfinite([value, *ends]).all():
        return min(value, *ends), max(value, *ends)
    apart = np.log(np.asarray(ends, dtype=np.float64).reshape(-1, 2) / value)
    up, down = np.maximum(apart.max(axis=1), 0.0), np.maximum(-apart.min(axis=1), 0.0)
    return float(value * np.exp(-np.sqrt((down**2).sum()))), float(value * np.exp(np.sqrt((up**2).sum())))
