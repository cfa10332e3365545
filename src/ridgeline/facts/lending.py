"""Who lends fits to a device that has none: its relatives, else what all devices have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.fits import (
    BORROWED,
    Fit,
    Reach,
    fits,
    in_use,
    measured_devices,
    own_evidence,
    own_fits,
    preferred_engine,
)
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Accelerator, Evidence
from ridgeline.facts.rung_intervals import foreign_factor, rung_interval
from ridgeline.facts.traits import kernel_traits

EXCHANGES = frozenset({"exchange", "engine_exchange"})
LINK_FAMILIES = EXCHANGES | {"collective"}
_KINDS = ("mla", "dsa", "csa", "hca", "msa")
_LAYERS = (f"{kind}_layer_{phase}" for kind in _KINDS for phase in ("prefill", "decode"))
_EXPERTS = ("experts", "wide_experts", "wide_experts_decode")
PRODUCTS = frozenset(("gemm", "mla_bmm", *_EXPERTS))
"""Families that matrix libraries tune to an architecture, whatever memory its devices have."""
MODULES = frozenset((*_EXPERTS, *_LAYERS))
"""Families of many kernels in a row, which are an engine's own program; layers hold attention."""


class Kind(NamedTuple):
    """What tells relatives: who makes a device, of which architecture, with which links ('' none) and memory."""

    vendor: str
    architecture: str
    link: str
    graphics: bool


def borrowed_fits(
    family: str,
    part: Accelerator,
    *,
    engine: str = "",
    version: str = "",
    form: str = "",
    kernels: str = "",
    reach: Reach = (),
    aside: bool = True,
) -> tuple[Fit, ...]:
    """Fits for a device from its relatives, itself left out: same engine and format, nearest kind of device.

    Of a relative those are lent that would answer for itself, as `own_fits` says: the nearest release, kernels by name.
    Relatives of kernels are devices of the same architecture and kind of memory, graphics or stacked; of products also
    those with the other kind. Of collectives they are those with the same link, else the same generation of it, else
    the same kind: host bridges differ from box to box and lend nothing. Each value is the geometric mean of theirs,
    kernel by kernel; the interval is that of borrowed answers judged device by device.
    """
    asked = _Asked(engine=engine, version=version, form=form, kernels=kernels, reach=reach, aside=aside)
    return _borrowed(family, part.name, _kind(part), asked)


class _Asked(NamedTuple):
    """Which of a relative's fits are lent, in the words of `own_fits`."""

    engine: str
    version: str
    form: str
    kernels: str
    reach: Reach
    aside: bool


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
def _borrowed(family: str, device: str, kind: Kind, asked: _Asked) -> tuple[Fit, ...]:
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
    family: str, device: str, kind: Kind, form: str, engine: str, apart_from: str, alone: bool, asked: str
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
        shared=known.shared,
        domain=first.domain,
        span=_together(relatives),
        source=BORROWED + ", ".join(dict.fromkeys(fit.device for fit in relatives)),
        date=max(fit.date for fit in relatives),
        timed_by=first.timed_by,
        timed=tuple(sorted({model for fit in relatives for model in fit.timed})),
    )


def lent_evidence(fit: Fit, part: Accelerator) -> Evidence:
    """How well a fit is known on a device: measured on it, derived from its vendor's, or assumed of strangers."""
    if not fit.source.startswith(BORROWED):
        return own_evidence(fit.family, part.name) or Evidence.MEASURED
    lenders = fit.source.removeprefix(BORROWED).split(", ")
    kin = any(accelerator(name).vendor == part.vendor for name in lenders)
    return Evidence.DERIVED if kin else Evidence.ASSUMED


def _together(relatives: Sequence[Fit]) -> dict[str, tuple[float, float]]:
    """The sizes that any of them was measured at."""
    names = dict.fromkeys(name for fit in relatives for name in fit.span)
    spans = {name: [fit.span[name] for fit in relatives if name in fit.span] for name in names}
    return {name: (min(low for low, _ in own), max(high for _, high in own)) for name, own in spans.items()}
