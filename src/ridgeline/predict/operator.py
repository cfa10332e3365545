"""What one operator costs on one machine: a product, attention, a stream of bytes or a collective."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.cost.compute import KernelCost, attention_cost, gemm_cost, stream_cost
from ridgeline.cost.interval import interval
from ridgeline.cost.machine import Machine, machine
from ridgeline.cost.network import collective_seconds
from ridgeline.cost.price import ELEMENT_BYTES
from ridgeline.errors import DomainError, InputError
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Cluster, Evidence
from ridgeline.lower.work import Attention, Collective, CollectiveKind, Gemm, Phase, Stream
from ridgeline.units import parse

COLLECTIVES = tuple(kind.value for kind in CollectiveKind)
KINDS = ("gemm", "attention", "stream", *COLLECTIVES)
_SHAPES = {"gemm": (3, 4), "attention": (5,)}
_MEANING = {
    "gemm": "MxNxK, or COUNTxMxNxK for a batch, e.g. 4096x4096x14336",
    "attention": "BATCHxSEQUENCExHEADSxKV_HEADSxHEAD_DIM, e.g. 4x4096x32x8x128",
}
_LARGEST = 2**40  # of one dimension


@dataclass(frozen=True, kw_only=True)
class OperatorCost:
    """One operator's price: time [s] with its 80 % interval, work, traffic, and the two sides of its roofline.

    `compute_s` and `memory_s` are the datasheet's floor: FLOP at the peak rate, bytes at the peak bandwidth.
    `bound` names what the time is made of mostly: 'compute', 'hbm' or 'link'.
    """

    machine: str
    seconds: float
    low_s: float
    high_s: float
    flop: float
    bytes: float
    compute_s: float
    memory_s: float
    bound: str
    evidence: Evidence

    @property
    def flop_per_s(self) -> float:
        """Rate reached [FLOP/s]."""
        return self.flop / self.seconds


def dimensions(kind: str, shape: str) -> tuple[int, ...]:
    """The numbers of a shape such as '4096x4096x14336' [1]."""
    words = shape.lower().split("x")
    if len(words) not in _SHAPES[kind] or not all(word.strip().isdigit() for word in words):
        raise InputError(f"'{shape}' is no shape of {kind}; write {_MEANING[kind]}", field="SHAPE")
    found = tuple(int(word) for word in words)
    if not all(0 < number <= _LARGEST for number in found):
        raise InputError(f"'{shape}' has a dimension outside 1 to {_LARGEST}", field="SHAPE")
    return found


def operator_cost(
    kind: str,
    shape: str,
    dtype: str,
    cluster: Cluster,
    *,
    causal: bool = True,
    backward: bool = False,
    evidence: str | None = None,
) -> OperatorCost:
    """Price one operator on a cluster's device, or one collective over all its devices [s].

    `shape` as in `dimensions`, or a size such as '256 MiB' for a stream (bytes moved) and for collectives (the whole
    buffer of one rank). The launch gap of one kernel is included.
    """
    resolved = machine(cluster, datasheet_only=evidence == "datasheet")
    if kind in COLLECTIVES:
        return _collective(CollectiveKind(kind), shape, resolved)
    if dtype not in ELEMENT_BYTES:
        raise DomainError(f"'{dtype}' is no number format; known: {', '.join(ELEMENT_BYTES)}")
    cost, key = _kernel(kind, shape, dtype, resolved, causal=causal, backward=backward)
    device = resolved.device
    seconds = float(np.asarray(cost.seconds)) + cost.kernels * constant("launch.device")
    flop, size = float(np.asarray(cost.flop)), float(np.asarray(cost.bytes))
    compute_s, memory_s = float(np.asarray(cost.compute_s)), float(np.asarray(cost.memory_s))
    rung = device.evidence.get(key if compute_s >= memory_s else "hbm", Evidence.DATASHEET)
    low, high = interval(seconds, rung)
    peak = cluster.accelerator.peak_flop_per_s.get(dtype, device.matrix_rate(dtype))
    return OperatorCost(
        machine=cluster.accelerator.name,
        seconds=seconds,
        low_s=low,
        high_s=high,
        flop=flop,
        bytes=size,
        compute_s=flop / peak,
        memory_s=size / cluster.accelerator.memory_bytes_per_s,
        bound="compute" if compute_s >= memory_s else "hbm",
        evidence=rung,
    )


def _kernel(
    kind: str, shape: str, dtype: str, resolved: Machine, *, causal: bool, backward: bool
) -> tuple[KernelCost, str]:
    device = resolved.device
    phase = Phase.BACKWARD_INPUT if backward else Phase.FORWARD
    if kind == "stream":
        size = parse(shape, "byte", field="SHAPE")
        if size <= 0:
            raise InputError(f"'{shape}' is no size to move; needs more than 0 bytes", field="SHAPE")
        return stream_cost(Stream(name=kind, phase=phase, bytes=size), device, dtype=dtype), "hbm"
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
    overlapped = resolved.cluster.accelerator.architecture in ("hopper", "blackwell")
    return attention_cost(core, device, dtype=dtype, overlapped=overlapped), f"matrix.{dtype}"


def _collective(kind: CollectiveKind, shape: str, resolved: Machine) -> OperatorCost:
    size = parse(shape, "byte", field="SHAPE")
    ranks = resolved.cluster.count
    if size <= 0 or ranks < 2:
        raise DomainError(
            f"{kind.value} of {shape} over {ranks} device: needs more than 0 bytes and at least 2 devices;"
            " try --on 8xH100-SXM"
        )
    work = Collective(name=kind.value, phase=Phase.FORWARD, kind=kind, bytes=size, ranks=ranks, stride=1)
    seconds = float(np.asarray(collective_seconds(work, resolved)))
    low, high = interval(seconds, resolved.link_evidence)
    fastest = max(tier.bytes_per_s for tier in resolved.tiers)
    return OperatorCost(
        machine=f"{ranks}x{resolved.cluster.accelerator.name}",
        seconds=seconds,
        low_s=low,
        high_s=high,
        flop=0.0,
        bytes=size,
        compute_s=0.0,
        memory_s=size * (ranks - 1) / ranks / fastest,
        bound="link",
        evidence=resolved.link_evidence,
    )
