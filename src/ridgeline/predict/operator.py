"""What one operator costs on one machine: a product, attention, experts, a stream of bytes or a collective."""

from __future__ import annotations

from typing import Any

import numpy as np

from ridgeline.cost.answer import ALL, Cost, Rung
from ridgeline.cost.formats import form
from ridgeline.cost.machine import Machine, machine
from ridgeline.cost.network import datasheet_links, link_limit_s
from ridgeline.cost.price_list import KernelPolicy, price
from ridgeline.cost.questions import Asked
from ridgeline.cost.streams import STREAMS
from ridgeline.energy.power import Activity, Power, kernel_power_w
from ridgeline.errors import DomainError, PlanError
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Accelerator, Cluster
from ridgeline.graph.workload import instead, without_rate
from ridgeline.predict.operator_mechanisms import BLOCKED, COPIES, LAUNCHES, host_cost, strided_cost
from ridgeline.predict.operator_shapes import COLLECTIVES, LINKED, Options, buffer_bytes, dimensions, operator
from ridgeline.report.operator import OperatorCost
from ridgeline.seams.registry import family_of, names
from ridgeline.seams.routes import ROUTES
from ridgeline.seams.strided import STRIDED

_OTHER_HALF = {"bf16": "fp16", "fp16": "bf16"}
_NO_PRODUCTS = frozenset({"stream", *STREAMS, *COPIES, *LAUNCHES, *LINKED, *BLOCKED})
_NARROW = frozenset({"fp8", "int8", "fp4", "int4"})
RUNGS: dict[str, tuple[Rung, ...]] = {
    "measured": ALL,
    "fitted": (Rung.FITTED, Rung.BORROWED, Rung.COMMON),
    "borrowed": (Rung.BORROWED, Rung.COMMON),
    "datasheet": (Rung.DATASHEET,),
}
"""Rungs that each best evidence allows; a mechanism without fitted values always may answer."""


def operator_cost(
    kind: str,
    shape: str,
    dtype: str,
    cluster: Cluster,
    *,
    library: str = "",
    evidence: str | None = None,
    technique: str = "",
    **said: Any,
) -> OperatorCost:
    """Price one operator on a cluster's device, or one exchange over all its devices [s].

    `shape` as in `dimensions`, or a size such as '256 MiB' for a stream (bytes moved) and for collectives (the whole
    buffer of one rank); what else is `said` as in `Options`. The best rung that `evidence` allows answers; without one
    the formula on sustained rates. `technique` says how flows go over the cluster's switches. Raises `DomainError`
    where none answers, one device has nothing to exchange with, or 16 bits are of a kind that it does not multiply,
    and `PlanError` for another technique.
    """
    _check_half(kind, dtype, cluster.accelerator)
    family = STRIDED if kind in BLOCKED else ROUTES
    if technique and family_of(technique.partition("(")[0]) != family:
        raise PlanError(f"{technique} says nothing of {kind}; name one of {', '.join(names(family))}")
    resolved = machine(
        cluster, datasheet_only=evidence == "datasheet",
        techniques=(technique,) if technique and family == ROUTES else (),
    )  # fmt: skip
    if kind in BLOCKED:
        cost = strided_cost(kind, dimensions(kind, shape), resolved, technique)
        return _told(kind, cost, resolved, matrix="")
    if kind in LINKED and cluster.count < 2:
        raise DomainError(f"{kind} over {cluster.count} device needs at least 2 devices; try --on 8xH100-SXM")
    if kind in (*COPIES, *LAUNCHES):
        amount = buffer_bytes(shape) if kind in COPIES else float(dimensions(kind, shape)[0])
        return _told(kind, host_cost(kind, amount, resolved), resolved, matrix="")
    asked = operator(kind, shape, Options(dtype=dtype, machine=resolved, **said))
    engine, _, version = library.partition(" ")
    policy = KernelPolicy(
        engine=engine.casefold(), version=version, library=library, rungs=RUNGS[evidence or "measured"],
        measured_only=bool(library),
    )  # fmt: skip
    what = form(asked.question.form) if isinstance(asked, Asked) else asked.form
    return _told(kind, price(asked, resolved, policy), resolved, matrix=what.matrix)


def _told(kind: str, cost: Cost, resolved: Machine, *, matrix: str) -> OperatorCost:
    """The cost beside its roofline, with an interval that begins no lower than the machine's own limits.

    These are FLOP at the peak, or bytes over the memory or the links. What the last cache on the device may hold from
    the call before need not come from memory.
    """
    part, linked = resolved.cluster.accelerator, kind in LINKED
    seconds, low, high, flop, size, busy, moved = (
        float(np.asarray(x))
        for x in (cost.seconds, cost.low_s, cost.high_s, cost.flop, cost.bytes, cost.compute_s, cost.memory_s)
    )
    peak = (_peak(part, matrix) or _peak(part, "fp32") or resolved.device.vector_flop_per_s) if flop else 1.0
    compute_s, memory_s = flop / peak, size / part.memory_bytes_per_s
    power = None
    if linked:
        memory_s = size * _sent_share(kind, cost, resolved) / max(tier.bytes_per_s for tier in resolved.tiers)
        bound = "link"
    elif kind in BLOCKED:
        memory_s, bound = moved, "hbm" if moved > 0.5 * seconds else "start"
    elif kind in (*COPIES, *LAUNCHES):
        memory_s, bound = moved, "link" if kind in COPIES else "start"
    else:
        if busy == moved == 0.0:  # interpolated times do not tell what they are made of: take the floor
            busy, moved = compute_s, memory_s
        bound = "compute" if busy >= moved else "hbm"
        bound = "start" if max(busy, moved) < 0.5 * seconds else bound
        power = _power(part, matrix, seconds, busy, moved, flop, size)
    beyond = max(0.0, size - (part.l2_bytes or constant("device.l2_bytes"))) / part.memory_bytes_per_s
    least_s = max(compute_s, beyond)
    if kind in COLLECTIVES:
        least_s = float(link_limit_s(datasheet_links(resolved), size, resolved.cluster.count))
    elif linked or kind in (*COPIES, *LAUNCHES, *BLOCKED):
        least_s = memory_s if kind in COPIES else 0.0
    return OperatorCost(
        machine=f"{resolved.cluster.count}x{part.name}" if linked else part.name,
        seconds=seconds,
        low_s=min(seconds, max(low, least_s)),
        high_s=high,
        flop=flop,
        bytes=size,
        compute_s=compute_s,
        memory_s=memory_s,
        bound=bound,
        evidence=cost.evidence,
        rung=cost.rung.value,
        library=cost.library,
        source=cost.source,
        power=power,
    )


def _sent_share(kind: str, cost: Cost, resolved: Machine) -> float:
    """Of a collective's buffer what a rank's link carries at least, by formulas [1]; all of it by fits."""
    ranks = resolved.cluster.count
    return (ranks - 1) / ranks if cost.rung is Rung.FORMULA else 1.0


def usual_format(kind: str, part: Accelerator) -> str:
    """The number format of an operator where nobody says one: bf16, or what a device multiplies in its place."""
    known = part.peak_flop_per_s
    return "bf16" if kind in _NO_PRODUCTS or "bf16" in known or not known else instead("bf16", known)


def _check_half(kind: str, dtype: str, part: Accelerator) -> None:
    """Raises `DomainError` for 16 bits of a kind that a device does not multiply."""
    known = part.peak_flop_per_s
    if kind not in _NO_PRODUCTS and known and dtype in _OTHER_HALF and dtype not in known:
        raise DomainError(without_rate(part.name, dtype, known))


def _peak(part: Accelerator, matrix: str) -> float | None:
    """The datasheet's rate of a matrix format [FLOP/s], as it is priced: of 16 bits of one kind that of the other, of
    narrower formats without a rate of their own that of 16 bits, to which their operands are converted.
    """
    peaks = part.peak_flop_per_s
    plain = peaks.get("bf16") or peaks.get("fp16") if matrix in _NARROW else None
    return peaks.get(matrix) or peaks.get(_OTHER_HALF.get(matrix, "")) or plain


def _power(
    part: Accelerator, matrix: str, seconds: float, busy_s: float, moved_s: float, flop: float, size: float
) -> Power | None:
    """Watts of the board with their interval; None without a rated power."""
    if part.tdp_w is None:
        return None
    share = flop / (_peak(part, matrix) or part.vector_flop_per_s) / seconds
    narrow = matrix in _NARROW
    activity = Activity(
        compute_busy=busy_s / seconds,
        memory_busy=moved_s / seconds,
        wide_share=0.0 if narrow else share,
        narrow_share=share if narrow else 0.0,
        byte_share=size / part.memory_bytes_per_s / seconds,
    )
    return kernel_power_w(part.name, part.tdp_w, activity)
