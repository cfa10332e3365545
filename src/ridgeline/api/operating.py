"""The command `op`: what one operator costs, on one machine or several side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.errors import InputError, UnknownNameError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.fits import ENGINES
from ridgeline.predict.operator import operator_cost, usual_format
from ridgeline.predict.operator_mechanisms import BLOCKED
from ridgeline.predict.operator_shapes import KINDS, LINKED
from ridgeline.report.blocks import Line
from ridgeline.report.operator import OperatorCost, operator_blocks
from ridgeline.units import time_text


def operate(given: SimpleNamespace) -> Answer:
    """Prints the price of an operator on each machine named, separated by commas; draws the roofline when asked."""
    kind, shape, on = given.kind, given.shape, given.on
    if kind not in KINDS:
        raise UnknownNameError("operator", kind, KINDS, hint=f"known: {', '.join(KINDS)}")
    engine = given.library.partition(" ")[0].casefold()
    if engine and engine not in ENGINES:
        known = "known: " + ", ".join(ENGINES)
        raise InputError(str(UnknownNameError("library", engine, ENGINES, hint=known)), field="--library")
    options: dict[str, Any] = {
        "causal": not given.full, "backward": given.backward, "window": given.window, "cache_dtype": given.kv_dtype,
        "skew": given.skew, "technique": given.technique,
    }  # fmt: skip
    _refuse_idle(kind, options)
    machines = [name.strip() for name in on.split(",") if name.strip()]
    if not machines:
        raise InputError("names no machine; say one or some, e.g. --on H100-SXM,MI300X", field="--on", value=on)
    options |= {"library": given.library, "evidence": given.evidence}
    formats = [given.dtype or usual_format(kind, cluster(name).accelerator) for name in machines]
    found = [
        operator_cost(kind, shape, one, cluster(name), **options) for name, one in zip(machines, formats, strict=True)
    ]
    told = [] if given.dtype else _without_bf16(machines, formats)
    dtype = given.dtype or formats[0]
    if given.picture is not None:
        _draw(given.picture, f"{kind} {shape} {dtype}", machines, found)
    rows = [
        {name: value for name, value in vars(cost).items() if name != "power"}
        | {"dtype": one, "evidence": cost.evidence.label, "flop_per_s": cost.flop_per_s, "energy_j": cost.energy_j}
        | {"power_w": cost.power_w, "power_low_w": None, "power_high_w": None}
        | ({} if cost.power is None else {"power_low_w": cost.power.low_w, "power_high_w": cost.power.high_w})
        for one, cost in zip(formats, found, strict=True)
    ]
    said = {"kind": kind, "shape": shape, "dtype": dtype, "rows": rows, **({"assumed": told} if told else {})}
    notes = (Line(text=f"- assumed: {text}", indent=2) for text in told)
    return Answer(lambda: said, lambda: [*operator_blocks(found), *notes], width=OperatorCost.width, value=found)


def _without_bf16(machines: list[str], formats: list[str]) -> list[str]:
    """Devices whose products are in another format than bf16, as nobody asked for one and they have none."""
    pairs = {cluster(name).accelerator.name: one for name, one in zip(machines, formats, strict=True)}
    return [f"{name} multiplies no bf16: {one}" for name, one in pairs.items() if one != "bf16"]


_MASKED = ("attention", "prefill", "decode")
_USED = {
    "technique": ("--technique", (*sorted(LINKED), *BLOCKED)),
    "causal": ("--full", ("attention",)),
    "backward": ("--backward", ("attention",)),
    "window": ("--window", _MASKED),
    "skew": ("--skew", ("experts", "wide_experts", "wide_experts_decode")),
    "cache_dtype": (
        "--kv-dtype",
        (*_MASKED, *(kind for kind in KINDS if kind.startswith("mla_p") or "_layer_" in kind), "mla_decode"),
    ),
}
"""Options that only some kinds of operator have a use for: their flag, and those kinds."""


def _refuse_idle(kind: str, options: Mapping[str, Any]) -> None:
    """Raises for an option that would change nothing of this kind."""
    for name, (flag, kinds) in _USED.items():
        said = not options[name] if name == "causal" else bool(options[name])
        if said and kind not in kinds:
            raise InputError(f"says nothing of {kind}, it is of {', '.join(kinds)}; leave it out", field=flag)


def _draw(path: str, title: str, machines: list[str], found: list[OperatorCost]) -> None:
    """Writes the roofs of the machines and where the operator stands under them."""
    from ridgeline.report.picture import Roof, RoofPoint, roofline

    if any(not cost.flop for cost in found):
        raise InputError(f"{title}: no FLOP, so it has no place under a roofline", field="--picture")
    roofs, points = [], []
    for name, cost in zip(machines, found, strict=True):
        part = cluster(name).accelerator
        peak = cost.flop / cost.compute_s
        roofs.append(Roof(name=part.name, peak_flop_per_s=peak, memory_bytes_per_s=part.memory_bytes_per_s))
        points.append(
            RoofPoint(
                name=time_text(cost.seconds), machine=part.name, flop=cost.flop, bytes=cost.bytes, seconds=cost.seconds
            )
        )
    try:
        Path(path).write_text(roofline(roofs, points, title=title), encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be written: {reason}", file=path, field="--picture") from None
