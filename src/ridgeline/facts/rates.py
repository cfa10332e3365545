"""The rate to expect in a long run, and the matrix rate that the power limit leaves under continuous load.

Measured where somebody measured, derived where nobody did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from statistics import median

from ridgeline.errors import UnknownNameError
from ridgeline.facts.accelerators import accelerators
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import SPARSE, Accelerator, Evidence, Fact

# Formats whose matrix units are the same hardware at the same share of peak: a device measured in
# one speaks for the other, before other devices do.
_ALIKE = {"fp16": "bf16", "bf16": "fp16", "fp4": "fp8", "int8": "fp8", "int4": "int8", "fp64": "fp32"}
# Of the same device alone, formats of half the bits as well: eight devices were measured in both, and their share of
# peak in fp8 is 0.88 to 1.04 of that in bf16, 0.97 in the middle, where shares themselves go from 0.51 to 0.97.
_WIDER = {"fp8": ("bf16", "fp16"), "int8": ("bf16", "fp16"), "int4": ("bf16", "fp16")}
_HBM = "hbm"
OF_MODELS = "hbm.model"  # of token generation by whole models: that of the device itself, which lends it to none
OF_STENCIL = "hbm.lbm"  # of one memory-bound program on many devices: how they differ
_LOADED_AS = {"fp16": "bf16"}  # the same matrix units, switching as many bits
_SAME_CORE = 0.05  # relative difference of FLOP per SM and cycle up to which cores count as the same design
_VENDOR_LEAST = 2  # one device says little about a vendor's other architectures


def sustained_rate(accelerator: Accelerator, key: str) -> Fact:
    """Rate that a long run sustains on a device [FLOP/s for 'matrix.<format>', byte/s for 'hbm'].

    rate = measured; else peak x r, where r is the share of peak that was measured on the same
    device in an alike format or one of twice the bits, else the median share of the same architecture, else of the same
    vendor (two devices at least), else of all devices, which is assumed; else the datasheet's peak. Never above the
    datasheet's peak. Another device's share of a matrix rate is first moved to the clock that this
    one's rated power leaves it (`power_clock`).

    Raises UnknownNameError when the device has no peak for `key`.
    """
    measured = accelerator.sustained.get(key)
    if measured is not None:
        return measured
    peak = _peak(accelerator, key)
    if peak is None:
        known = [_HBM, *(f"matrix.{fmt}" for fmt in accelerator.peak_flop_per_s)]
        raise UnknownNameError(f"rate of {accelerator.name}", key, known, hint=f"known: {', '.join(known)}")
    found = _share(accelerator, key)
    if found is None:
        return peak
    share, where, evidence = found
    return Fact(
        value=peak.value * share,
        unit=peak.unit,
        source=peak.source,
        conditions=f"datasheet peak x {share:.3f}, {where}",
        evidence=evidence,
    )


def power_clock(watts_a_flop: float, lenders: float) -> float:
    """Clock of long products over that of a device with `lenders` watts for each FLOP/s of its peak [1].

    Dynamic power goes with the cube of the clock, so what the power limit leaves goes with the cube root of watts a
    FLOP/s; 1 where either is not known (0). Each measured device left out, with and without this (medians): bf16
    5.9 and 7.6 %, fp16 1.8 and 12.7 %, fp32 5.8 and 17.5 %, fp8 5.1 and 5.4 %. Evidence: derived.
    """
    return (watts_a_flop / lenders) ** (1.0 / 3.0) if watts_a_flop > 0 and lenders > 0 else 1.0


def _watts_a_flop(accelerator: Accelerator, key: str) -> float:
    power, peak = accelerator.facts.get("tdp_w"), _peak(accelerator, key)
    return power.value / peak.value if power is not None and peak is not None else 0.0


def _peak(accelerator: Accelerator, key: str) -> Fact | None:
    name = "memory_bytes_per_s" if key.startswith(_HBM) else key.replace("matrix.", "peak_flop_per_s.", 1)
    return accelerator.facts.get(name)


def _alike(key: str) -> str | None:
    if key.endswith(SPARSE):  # the same units, as many of them at work
        return key.removesuffix(SPARSE)
    other = _ALIKE.get(key.removeprefix("matrix."))
    return f"matrix.{other}" if other else None


def _own_keys(key: str) -> tuple[str, ...]:
    """Rates of a device that speak for another rate of it, nearest first."""
    if key.endswith(SPARSE):
        return (dense := key.removesuffix(SPARSE), *_own_keys(dense))
    alike = _alike(key)
    wider = tuple(f"matrix.{name}" for name in _WIDER.get(key.removeprefix("matrix."), ()))
    return (alike, *wider) if alike else wider


def own_share(accelerator: Accelerator, key: str) -> Fact | None:
    """Share of a peak rate that was measured on the device itself, in this format or in one near it [1]; else None."""
    for name in (key, *_own_keys(key)):
        rate, peak = accelerator.sustained.get(name), _peak(accelerator, name)
        if rate is not None and peak is not None and peak.value > 0:
            return replace(rate, value=min(1.0, rate.value / peak.value), unit="1")
    return None


def similar_share(accelerator: Accelerator, key: str) -> Fact | None:
    """Share of a peak rate that was measured on the device or similar ones, in this format or one near it [1].

    Similar are devices of its architecture with the same kind of memory, stacked or not: a part that nobody measured is
    then no quicker for that than one that somebody did. Their median, at the clock that its own power leaves it.
    """
    own = own_share(accelerator, key)
    if own is not None and own.evidence >= Evidence.MEASURED:
        return own
    family = _family_shares(accelerator.architecture, accelerator.graphics, key)
    others = {name: share for name, share in family.items() if name != accelerator.name}
    if not others:
        return None
    return Fact(
        value=median(_here(accelerator, key, share, name, key) for name, share in others.items()),
        unit="1",
        source=f"sustained rates of {', '.join(others)}",
        conditions=f"median share in {key}",
        evidence=Evidence.DERIVED,
    )


@cache
def _family_shares(architecture: str, graphics: bool, key: str) -> Mapping[str, float]:
    """Shares of a peak rate that were measured on devices of one architecture and kind of memory (`own_share`) [1]."""
    alike = (architecture, graphics)
    family = (device for device in accelerators().values() if (device.architecture, device.graphics) == alike)
    found = ((device.name, own_share(device, key)) for device in family)
    return {name: fact.value for name, fact in found if fact is not None and fact.evidence >= Evidence.MEASURED}


def _share(accelerator: Accelerator, key: str) -> tuple[float, str, Evidence] | None:
    """Share of peak [1], the devices it comes from and its rung; None when nothing alike was measured."""
    for other in _own_keys(key):
        peak = _peak(accelerator, other)
        if peak and other in accelerator.sustained:
            return (
                accelerator.sustained[other].value / peak.value,
                f"the share measured on it in {other}",
                Evidence.DERIVED,
            )
    alike = _alike(key)
    alike_shares = {name: (share, alike) for name, share in _shares(alike).items()} if alike else {}
    known = {**alike_shares, **{name: (share, key) for name, share in _shares(key).items()}}
    own, vendor = accelerator.architecture, accelerator.vendor
    for label, least, rung, belongs in (
        (f"architecture {own}", 1, Evidence.DERIVED, lambda a: a.architecture == own),
        (f"vendor {vendor}", _VENDOR_LEAST, Evidence.DERIVED, lambda a: a.vendor == vendor),
        ("all vendors", 1, Evidence.ASSUMED, lambda _: True),
    ):
        chosen = {name: lent for name, lent in known.items() if belongs(accelerators()[name])}
        if len(chosen) >= least:
            found = [_here(accelerator, key, share, name, measured) for name, (share, measured) in chosen.items()]
            keys = " and ".join(sorted({measured for _, measured in chosen.values()}))
            return median(found), f"median share in {keys} of {label}: {', '.join(chosen)}", rung
    return None


def _here(accelerator: Accelerator, key: str, share: float, lender: str, measured: str) -> float:
    """Share of its peak that a device reaches where `lender` reaches `share` of its own in `measured` [1].

    Of memory the same: its clock is not what power holds back.
    """
    if key in (_HBM, OF_STENCIL):
        return share
    own, theirs = _watts_a_flop(accelerator, key), _watts_a_flop(accelerators()[lender], measured)
    return min(1.0, share * power_clock(own, theirs))


@cache
def _shares(key: str) -> Mapping[str, float]:
    """Measured over datasheet rate [1] of every device measured in `key`."""
    found = {}
    for name, device in accelerators().items():
        peak, fact = _peak(device, key), device.sustained.get(key)
        if peak is not None and fact is not None and fact.evidence >= Evidence.MEASURED:
            found[name] = fact.value / peak.value
    return found


def loaded_rate(part: Accelerator, form: str) -> Fact | None:
    """Matrix rate of a device whose matrix units never pause [FLOP/s]; None where nobody measured its like.

    rate = measured on the device at its rated power; else that of the relative with the same cores and the nearest
    power per core, r0, scaled by what its own limit allows:

        r = r0 ((P - idle) / (P0 - idle0) (N / N0)^2)^(1/3)

    since dynamic power grows with the number of cores N and the cube of their clock, and the rate with both. P is the
    power limit [W], idle a fixed share of the rated power. The limit may leave more than the cores can do: callers
    take the lower of the two. Source: data/sustained.tsv (keys 'loaded.<format>'). Evidence: measured or derived.
    """
    if form.endswith(SPARSE):  # as many multipliers switch as in a dense product
        dense = form.removesuffix(SPARSE)
        found, peaks = loaded_rate(part, dense), part.peak_flop_per_s
        return found and replace(
            found, value=found.value * peaks[form] / peaks[dense], evidence=min(found.evidence, Evidence.DERIVED)
        )
    measured = part.sustained.get(f"loaded.{form}")
    form = _LOADED_AS.get(form, form)
    own = measured or part.sustained.get(f"loaded.{form}")
    if own is not None and part.tdp_w == _rated_w(part):
        return own
    power, sms = _dynamic_w(part), part.sm_count
    if power is None or power <= 0 or not sms:
        return None
    relatives = _same_cores(part, form)
    if not relatives:
        return None

    def apart(name: str) -> float:
        other = accelerators()[name]
        assert other.sm_count  # of every relative
        return abs(math.log(power / sms * other.sm_count / (_dynamic_w(other) or math.inf)))

    nearest = accelerators()[min(relatives, key=apart)]
    known, other_w = nearest.sustained[f"loaded.{form}"], _dynamic_w(nearest)
    assert other_w is not None
    assert nearest.sm_count
    scale = (power / other_w * (sms / nearest.sm_count) ** 2) ** (1 / 3)
    return Fact(
        value=known.value * scale,
        unit=known.unit,
        source=known.source,
        conditions=f"{known.conditions}; of {nearest.name}, dynamic power scaled from {other_w:.0f} W to {power:.0f} W",
        evidence=Evidence.DERIVED,
    )


def _rated_w(part: Accelerator) -> float | None:
    fact = part.facts.get("tdp_w")
    return fact.value if fact is not None else None


def _dynamic_w(part: Accelerator) -> float | None:
    """The power limit less what an idle device draws [W]."""
    rated = _rated_w(part)
    if rated is None or part.tdp_w is None:
        return None
    return part.tdp_w - constant("power.idle") * rated


def _per_core_cycle(part: Accelerator, form: str) -> float | None:
    """FLOP of one SM in one cycle [FLOP]."""
    peak = part.facts.get(f"peak_flop_per_s.{form}")
    if peak is None or not part.sm_count or not part.boost_hz:
        return None
    return peak.value / part.sm_count / part.boost_hz


def _same_cores(part: Accelerator, form: str) -> tuple[str, ...]:
    """Devices measured under load whose cores are of the same design."""
    own = _per_core_cycle(part, form)
    if own is None:
        return ()
    return tuple(
        name
        for name, architecture, other in _loaded(form)
        if architecture == part.architecture and abs(own / other - 1.0) < _SAME_CORE
    )


@cache
def _loaded(form: str) -> tuple[tuple[str, str, float], ...]:
    found = []
    for name, part in accelerators().items():
        per_core = _per_core_cycle(part, form)
        if f"loaded.{form}" in part.sustained and per_core is not None and _dynamic_w(part) is not None:
            found.append((name, part.architecture, per_core))
    return tuple(found)


def rated_w(part: Accelerator) -> float | None:
    """The power that a part is built for, whatever limit its board is set to [W]; None where none is known."""
    fact = part.facts.get("tdp_w")
    return part.tdp_w if fact is None or part.tdp_w is None else max(fact.value, part.tdp_w)
