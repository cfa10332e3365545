"""The command `op`: what one operator costs, on one machine or several side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, UnknownNameError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.fits import ENGINES
from ridgeline.predict.operator import OperatorCost, operator_cost
from ridgeline.predict.operator_shapes import KINDS, LINKED
from ridgeline.report.blocks import Block, Line, Table, blank, show
from ridgeline.units import bytes_text, rate_text, time_text

_WIDTH = 120  # columns when piped


def operate(
    kind: str, shape: str, dtype: str, on: str, options: Mapping[str, Any], *, picture: str | None, as_json: bool
) -> None:
    """Prints the price of an operator on each machine named, separated by commas; draws the roofline when asked."""
    if kind not in KINDS:
        raise UnknownNameError("operator", kind, KINDS, hint=f"known: {', '.join(KINDS)}")
    engine = str(options.get("library", "")).partition(" ")[0].casefold()
    if engine and engine not in ENGINES:
        known = "known: " + ", ".join(ENGINES)
        raise InputError(str(UnknownNameError("library", engine, ENGINES, hint=known)), field="--library")
    machines = [name.strip() for name in on.split(",") if name.strip()]
    found = [operator_cost(kind, shape, dtype, cluster(name), **options) for name in machines]
    if picture is not None:
        _draw(picture, f"{kind} {shape} {dtype}", machines, found)
    if as_json:
        rows = [
            {name: value for name, value in vars(cost).items() if name != "power"}
            | {"evidence": cost.evidence.label, "flop_per_s": cost.flop_per_s, "energy_j": cost.energy_j}
            | {"power_w": cost.power_w, "power_low_w": None, "power_high_w": None}
            | ({} if cost.power is None else {"power_low_w": cost.power.low_w, "power_high_w": cost.power.high_w})
            for cost in found
        ]
        print(json.dumps({"kind": kind, "shape": shape, "dtype": dtype, "rows": rows}, indent=1, allow_nan=False))
    else:
        show([_table(kind, found), blank(), *_sources(found)], sys.stdout, width=_WIDTH)


def _table(kind: str, found: list[OperatorCost]) -> Block:
    rows = []
    for cost in found:
        moved = kind in LINKED or not cost.flop
        rate = rate_text(cost.bytes / cost.seconds, "B/s") if moved else rate_text(cost.flop_per_s, "FLOP/s")
        floor = max(cost.compute_s, cost.memory_s) / cost.seconds
        rows.append(
            (
                cost.machine,
                time_text(cost.seconds),
                f"{time_text(cost.low_s)} to {time_text(cost.high_s)}",
                rate,
                bytes_text(cost.bytes),
                cost.bound,
                f"{floor:.0%}",
                "" if cost.power_w is None else f"{cost.power_w:.0f} W",
                cost.rung,
            )
        )
    columns = ("machine", "time", "80 % interval", "rate", "bytes", "bound", "of roofline", "power", "rung")
    return Table(columns=columns, rows=tuple(rows), right=frozenset({"time", "rate", "bytes", "of roofline", "power"}))


def _sources(found: list[OperatorCost]) -> Iterator[Line]:
    """Where each price comes from, one line a machine."""
    for cost in found:
        told = f"{cost.library}, {cost.source}" if cost.library else "the mechanism on sustained rates"
        yield Line(text=f"{cost.machine}: {told} ({cost.evidence.label})", indent=2, hang=2)


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
