"""The command `op`: what one operator costs, on one machine or several side by side."""

from __future__ import annotations

import json
import sys

from ridgeline.errors import UnknownNameError
from ridgeline.facts.clusters import cluster
from ridgeline.predict.operator import COLLECTIVES, KINDS, OperatorCost, operator_cost
from ridgeline.report.blocks import Block, Table, show
from ridgeline.units import bytes_text, rate_text, time_text

_WIDTH = 120  # columns when piped


def operate(
    kind: str, shape: str, dtype: str, on: str, *, causal: bool, backward: bool, evidence: str, as_json: bool
) -> None:
    """Prints the price of an operator on each machine named, separated by commas."""
    if kind not in KINDS:
        raise UnknownNameError("operator", kind, KINDS, hint=f"known: {', '.join(KINDS)}")
    machines = [name.strip() for name in on.split(",") if name.strip()]
    found = [
        operator_cost(kind, shape, dtype, cluster(name), causal=causal, backward=backward, evidence=evidence)
        for name in machines
    ]
    if as_json:
        rows = [vars(cost) | {"evidence": cost.evidence.label} for cost in found]
        print(json.dumps({"kind": kind, "shape": shape, "dtype": dtype, "rows": rows}, indent=1, allow_nan=False))
    else:
        show([_table(kind, found)], sys.stdout, width=_WIDTH)


def _table(kind: str, found: list[OperatorCost]) -> Block:
    link = kind in COLLECTIVES
    rows = []
    for cost in found:
        rate = (
            rate_text(cost.bytes / cost.seconds, "B/s")
            if link or not cost.flop
            else rate_text(cost.flop_per_s, "FLOP/s")
        )
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
                cost.evidence.label,
            )
        )
    columns = ("machine", "time", "80 % interval", "rate", "bytes", "bound", "of roofline", "evidence")
    return Table(columns=columns, rows=tuple(rows), right=frozenset({"time", "rate", "bytes", "of roofline"}))
