"""What one operator costs on one machine: a product, attention, experts, a stream of bytes or a collective."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.cost import questions
from ridgeline.cost.answer import ALL, Answer, Rung
from ridgeline.cost.attention import attention_cost
from ridgeline.cost.compute import KernelCost, gemm_cost, stream_cost
from ridgeline.cost.formats import ELEMENT_BYTES, form
from ridgeline.cost.interval import interval
from ridgeline.cost.ladder import price
from ridgeline.cost.limits import bare_links, link_limit_s
from ridgeline.cost.machine import Machine, machine
from ridgeline.cost.network import collective_seconds
from ridgeline.cost.streams import STREAMS, stream_work
from ridgeline.energy.power import Activity, Power, kernel_power_w
from ridgeline.errors import DomainError
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Accelerator, Cluster, Evidence
from ridgeline.graph.workload import instead, without_rate
from ridgeline.lower.work import Attention, Collective, CollectiveKind, Gemm, Phase, Stream
from ridgeline.predict.operator_mechanisms import COPIES, LAUNCHES, MECHANISMS, host_cost, mechanism_costs
from ridgeline.predict.operator_shapes import COLLECTIVES, LINKED, UPDATES, buffer_bytes, dimensions, question
from ridgeline.report.operator import OperatorCost

_OTHER_HALF = {"bf16": "fp16", "fp16": "bf16"}
_NO_PRODUCTS = frozenset({"stream", *STREAMS, *COPIES, *LAUNCHES, *LINKED})
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
    causal: bool = True,
    backward: bool = False,
    window: int = 0,
    cache_dtype: str = "",
    skew: float = 0.0,
    library: str = "",
    evidence: str | None = None,
) -> OperatorCost:
    """Price one operator on a cluster's device, or one exchange over all its devices [s].

    `shape` as in `dimensions`, or a size such as '256 MiB' for a stream (bytes moved) and for collectives (the whole
    buffer of one rank). The best rung that `evidence` allows answers; without one the mechanism on sustained rates.
    Raises `DomainError` where none answers, one device has nothing to exchange with, or 16 bits are of a kind that it
    does not multiply.
    """
    _check_half(kind, dtype, cluster.accelerator)
    resolved = machine(cluster, datasheet_only=evidence == "datasheet")
    rungs = RUNGS[evidence or "measured"]
    if kind in LINKED and cluster.count < 2:
        raise DomainError(f"{kind} over {cluster.count} device needs at least 2 devices; try --on 8xH100-SXM")
    asked = None
    if kind in (*COPIES, *LAUNCHES):
        return _no_quicker(_hosted(kind, shape, resolved), kind, resolved)
    unmeasured = kind in ("stream", "send", *STREAMS, *MECHANISMS) or (kind == "attention" and (backward or not causal))
    if not unmeasured:
        asked = question(kind, shape, dtype, resolved, window=window, cache_dtype=cache_dtype, skew=skew)
        engine, _, version = library.partition(" ")
        asked = asked.by(engine.casefold(), version, library)
    if asked is not None:
        try:
            answer = price(asked.question, cluster.accelerator, rungs=rungs)
            return _no_quicker(_laddered(kind, asked, resolved, answer), kind, resolved)
        except DomainError:
            if library or kind not in ("gemm", "attention", *COLLECTIVES) or dtype not in ELEMENT_BYTES:
                raise
    if kind in COLLECTIVES:
        return _no_quicker(_collective(CollectiveKind(kind), shape, resolved), kind, resolved)
    return _no_quicker(_mechanism(kind, shape, dtype, resolved, causal=causal, backward=backward), kind, resolved)


def _no_quicker(found: OperatorCost, kind: str, resolved: Machine) -> OperatorCost:
    """The cost with an interval that begins no lower than FLOP at the peak, or bytes over the memory or the links.

    What the last cache on the device may hold from the call before need not come from memory.
    """
    part = resolved.cluster.accelerator
    if kind in COLLECTIVES:
        least_s = float(link_limit_s(bare_links(resolved), found.bytes, resolved.cluster.count))
    elif kind in (*COPIES, *LINKED):
        least_s = found.memory_s if kind in COPIES else 0.0
    else:
        beyond = max(0.0, found.bytes - (part.l2_bytes or constant("device.l2_bytes")))
        least_s = max(found.compute_s, beyond / part.memory_bytes_per_s)
    return replace(found, low_s=min(found.seconds, max(found.low_s, least_s)))


def usual_format(kind: str, part: Accelerator) -> str:
    """The number format of an operator where nobody says one: bf16, or what a device multiplies in its place."""
    known = part.peak_flop_per_s
    return "bf16" if kind in _NO_PRODUCTS or "bf16" in known or not known else instead("bf16", known)


def _check_half(kind: str, dtype: str, part: Accelerator) -> None:
    """Raises `DomainError` for 16 bits of a kind that a device does not multiply."""
    known = part.peak_flop_per_s
    if kind not in _NO_PRODUCTS and known and dtype in _OTHER_HALF and dtype not in known:
        raise DomainError(without_rate(part.name, dtype, known))


def _hosted(kind: str, shape: str, resolved: Machine) -> OperatorCost:
    """What the host does for one device: copies over its link, launches of kernels."""
    copied = kind in COPIES
    amount = buffer_bytes(shape) if copied else float(dimensions(kind, shape)[0])
    found = host_cost(kind, amount, resolved)
    return OperatorCost(
        machine=resolved.cluster.accelerator.name,
        seconds=found.seconds,
        low_s=found.low_s,
        high_s=found.high_s,
        flop=0.0,
        bytes=found.bytes,
        compute_s=0.0,
        memory_s=found.floor_s,
        bound="link" if copied else "start",
        evidence=found.evidence,
        source=found.source,
    )


def _peak(part: Accelerator, matrix: str) -> float | None:
    """The datasheet's rate of a matrix format [FLOP/s], as it is priced: of 16 bits of one kind that of the other, of
    narrower formats without a rate of their own that of 16 bits, to which their operands are converted.
    """
    peaks = part.peak_flop_per_s
    plain = peaks.get("bf16") or peaks.get("fp16") if matrix in _NARROW else None
    return peaks.get(matrix) or peaks.get(_OTHER_HALF.get(matrix, "")) or plain


def _laddered(kind: str, asked: questions.Asked, resolved: Machine, answer: Answer) -> OperatorCost:
    part = resolved.cluster.accelerator
    seconds, low, high, busy, moved = (
        float(np.asarray(x)) for x in (answer.seconds, answer.low_s, answer.high_s, answer.compute_s, answer.memory_s)
    )
    flop, size = float(np.asarray(asked.flop)), float(np.asarray(asked.bytes))
    linked = kind in LINKED
    matrix = form(asked.question.form).matrix
    peak = _peak(part, matrix) or _peak(part, "fp32") or resolved.device.matrix_rate("fp32")
    if not linked and busy == moved == 0.0:  # interpolated times do not tell what they are made of: take the floor
        busy, moved = flop / peak, size / part.memory_bytes_per_s
    bound = "link" if linked else "compute" if busy >= moved else "hbm"
    if not linked and max(busy, moved) < 0.5 * seconds:
        bound = "start"
    return OperatorCost(
        machine=f"{resolved.cluster.count}x{part.name}" if linked else part.name,
        seconds=seconds,
        low_s=low,
        high_s=high,
        flop=flop,
        bytes=size,
        compute_s=flop / peak,
        memory_s=size / (max(tier.bytes_per_s for tier in resolved.tiers) if linked else part.memory_bytes_per_s),
        bound=bound,
        evidence=answer.evidence,
        rung=answer.rung.value,
        library=answer.library,
        source=answer.source,
        power=None if linked else _power(part, form(asked.question.form).matrix, seconds, busy, moved, flop, size),
    )


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


def _mechanism(kind: str, shape: str, dtype: str, resolved: Machine, *, causal: bool, backward: bool) -> OperatorCost:
    """The price from the mechanism on sustained rates, or on the datasheet's alone; one launch gap a kernel."""
    if dtype not in ELEMENT_BYTES and kind not in STREAMS:
        raise DomainError(f"'{dtype}' has no mechanism of its own; known: {', '.join(ELEMENT_BYTES)}")
    cost, key = _kernel(kind, shape, dtype, resolved, causal=causal, backward=backward)
    device, part = resolved.device, resolved.cluster.accelerator
    seconds = float(np.asarray(cost.seconds + cost.kernels * constant("launch.device")))
    flop, size = float(np.asarray(cost.flop)), float(np.asarray(cost.bytes))
    compute_s, memory_s = float(np.asarray(cost.compute_s)), float(np.asarray(cost.memory_s))
    rung = device.evidence.get(key if compute_s >= memory_s else "hbm", Evidence.DATASHEET)
    low, high = interval(seconds, rung)
    return OperatorCost(
        machine=part.name,
        seconds=seconds,
        low_s=low,
        high_s=high,
        flop=flop,
        bytes=size,
        compute_s=flop / (part.peak_flop_per_s.get(dtype) or device.matrix.get(dtype) or device.vector_flop_per_s),
        memory_s=size / part.memory_bytes_per_s,
        bound="compute" if compute_s >= memory_s else "hbm",
        evidence=rung,
        power=_power(part, dtype, seconds, compute_s, memory_s, flop, size),
    )


def _kernel(
    kind: str, shape: str, dtype: str, resolved: Machine, *, causal: bool, backward: bool
) -> tuple[KernelCost, str]:
    device = resolved.device
    phase = Phase.BACKWARD_INPUT if backward else Phase.FORWARD
    if kind == "stream":
        return stream_cost(Stream(name=kind, phase=phase, bytes=buffer_bytes(shape)), device, dtype=dtype), "hbm"
    if kind in MECHANISMS:
        return mechanism_costs(kind, dimensions(kind, shape), dtype, device), f"matrix.{dtype}"
    if kind in STREAMS:
        rows, width = dimensions(kind, shape) if kind not in UPDATES else (1, *dimensions(kind, shape))
        return stream_cost(stream_work(kind, rows, width, form(dtype).input_bytes), device, dtype=dtype), "hbm"
    numbers = dimensions(kind, shape)
    if kind == "gemm":
        count, m, n, k = numbers if len(numbers) == 4 else (1, *numbers)
        work = Gemm(name=kind, phase=phase, m=m, n=n, k=k, count=count, output_bytes=max(2.0, ELEMENT_BYTES[dtype]))
        return gemm_cost(work, device, dtype=dtype, element_bytes=ELEMENT_BYTES[dtype]), f"matrix.{dtype}"
    batch, tokens, heads, kv_heads, dim = numbers
    core = Attention(
        name=kind,
        phase=phase,
        sequences=batch,
        heads=heads,
        kv_heads=kv_heads,
        q_tokens=tokens,
        kv_tokens=tokens,
        mean_context=(tokens + 1) / 2 if causal else tokens,
        qk_dim=dim,
        v_dim=dim,
        fused=True,
    )
    return attention_cost(core, device, dtype=dtype), f"matrix.{dtype}"


def _collective(kind: CollectiveKind, shape: str, resolved: Machine) -> OperatorCost:
    size, ranks = buffer_bytes(shape), resolved.cluster.count
    work = Collective(name=kind.value, phase=Phase.FORWARD, kind=kind, bytes=size, ranks=ranks, stride=1)
    seconds = float(np.asarray(collective_seconds(work, resolved)))
    low, high = interval(seconds, resolved.link_evidence)
    return OperatorCost(
        machine=f"{ranks}x{resolved.cluster.accelerator.name}",
        seconds=seconds,
        low_s=low,
        high_s=high,
        flop=0.0,
        bytes=size,
        compute_s=0.0,
        memory_s=size * (ranks - 1) / ranks / max(tier.bytes_per_s for tier in resolved.tiers),
        bound="link",
        evidence=resolved.link_evidence,
    )
