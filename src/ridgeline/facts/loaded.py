"""The matrix rate that is left under continuous load, where the power limit sets the clock."""

from __future__ import annotations

import math
from functools import cache

from ridgeline.facts.accelerators import accelerators
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Accelerator, Evidence, Fact

_ALIKE = {"fp16": "bf16"}  # the same matrix units, switching as many bits
_SAME_CORE = 0.05  # relative difference of FLOP per SM and cycle up to which cores count as the same design


def loaded_rate(part: Accelerator, form: str) -> Fact | None:
    """Matrix rate of a device whose matrix units never pause [FLOP/s]; None where nobody measured its like.

    rate = measured on the device at its rated power; else that of the relative with the same cores and the nearest
    power per core, r0, scaled by what its own limit allows:

        r = r0 ((P - idle) / (P0 - idle0) (N / N0)^2)^(1/3)

    since dynamic power grows with the number of cores N and the cube of their clock, and the rate with both. P is the
    power limit [W], idle a fixed share of the rated power. The limit may leave more than the cores can do: callers
    take the lower of the two. Source: data/sustained.tsv (keys 'loaded.<format>'). Evidence: measured or derived.
    """
    measured = part.sustained.get(f"loaded.{form}")
    form = _ALIKE.get(form, form)
    own = measured or part.sustained.get(f"loaded.{form}")
    if own is not None and part.tdp_w == _rated_w(part):
        return own
    power, sms = _dynamic_w(part), part.sm_count
    if power is None or power <= 0 or not sms:
        return None
    relatives = _relatives(part, form)
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


def _relatives(part: Accelerator, form: str) -> tuple[str, ...]:
    """Devices measured under load whose cores are of the same design."""
    own = _per_core_cycle(part, form)
    if own is None:
        return ()
    return tuple(
        name
        for name, architecture, other in _measured(form)
        if architecture == part.architecture and abs(own / other - 1.0) < _SAME_CORE
    )


@cache
def _measured(form: str) -> tuple[tuple[str, str, float], ...]:
    found = []
    for name, part in accelerators().items():
        per_core = _per_core_cycle(part, form)
        if f"loaded.{form}" in part.sustained and per_core is not None and _dynamic_w(part) is not None:
            found.append((name, part.architecture, per_core))
    return tuple(found)
