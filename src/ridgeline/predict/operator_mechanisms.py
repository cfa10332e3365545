"""Operators that no table holds and formulas alone answer: convolutions, scans, copies from the host, launches.

Shape letters: B sequences, S tokens, H heads, P head width, N state, G groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.cost.compute import KernelCost, stream_cost
from ridgeline.cost.convolution import Images
from ridgeline.cost.engine_limits import host_range, host_slowness
from ridgeline.cost.formats import form
from ridgeline.cost.host import disk
from ridgeline.cost.interval import interval
from ridgeline.cost.machine import Device, Machine
from ridgeline.errors import InputError
from ridgeline.facts.cpus import cpu_constants
from ridgeline.facts.mechanisms import constant, constants
from ridgeline.facts.records import Evidence
from ridgeline.graph.ops import Op, ScanOp
from ridgeline.graph.recurrent import lightning_ops, state_space_ops
from ridgeline.graph.spec import Lightning, StateSpace
from ridgeline.lower.work import Phase, Stream

_CHUNK = 256  # tokens of a chunk of Mamba-2. Source: state-spaces/mamba, mamba_ssm/modules/mamba2.py, chunk_size
_STATE_BYTES = 4.0  # fp32. Source: vLLM, mamba_ssm_cache_dtype

_Cost = Callable[[Sequence[int], str, Device], Sequence[KernelCost]]


def mechanism_costs(kind: str, numbers: Sequence[int], dtype: str, device: Device) -> KernelCost:
    """All kernels of an operator of `MECHANISMS`, one after another [s]; raises `InputError` for impossible sizes."""
    costs = MECHANISMS[kind](numbers, dtype, device)

    def total(name: str) -> float:
        return sum(float(np.asarray(getattr(cost, name))) for cost in costs)

    return KernelCost(
        seconds=total("seconds"),
        flop=total("flop"),
        bytes=total("bytes"),
        compute_s=total("compute_s"),
        memory_s=total("memory_s"),
        kernels=total("kernels"),
    )


def _convolution(numbers: Sequence[int], dtype: str, device: Device) -> Sequence[KernelCost]:
    """Padded so that every stride-th pixel has an output."""
    count, height, width, channels, filters, size = numbers[:6]
    stride, groups = (*numbers[6:], 1, 1)[:2]
    if channels % groups or filters % groups:
        fault = f"{groups} groups, which do not divide its {channels} and {filters} channels"
        raise InputError(f"'{'x'.join(map(str, numbers))}' has {fault}", field="SHAPE")
    images = Images(
        count=count, channels=channels, height=height, width=width, filters=filters, filter_height=size,
        filter_width=size, rows=math.ceil(height / stride), columns=math.ceil(width / stride), groups=groups,
    )  # fmt: skip
    return images.costs(form(dtype), device)[0]


def _scanned(
    ops: Iterable[Op], batch: int, tokens: int, state: float, dtype: str, device: Device, flop: float | None = None
) -> list[KernelCost]:
    """The scan among a mixer's operators over B x S tokens; the states of B sequences are read and written once.

    `flop` of a token are those of the operator, in chunks, unless they are told.
    """
    (scan,) = (op for op in ops if isinstance(op, ScanOp))
    rows, flop = batch * tokens, scan.flop_per_token if flop is None else flop
    handed = rows * scan.handed if tokens > 1 else 0.0
    moved = rows * (scan.read + scan.write) * form(dtype).input_bytes + handed + 2.0 * _STATE_BYTES * state * batch
    work = Stream(
        name=scan.name, phase=Phase.FORWARD, bytes=moved, flop=rows * flop, matrix=True,
        kernels=float(scan.kernels) if tokens > 1 else 1.0,
    )  # fmt: skip
    return [stream_cost(work, device, dtype=form(dtype).matrix)]


def _state_space(
    batch: int, tokens: int, heads: int, width: int, state: int, groups: int, dtype: str, device: Device
) -> list[KernelCost]:
    """A Mamba-2 scan; one token of each sequence is a chunk of its own."""
    if heads % groups:
        raise InputError(f"{groups} groups do not divide {heads} heads", field="SHAPE")
    chunk = min(_CHUNK, tokens)
    spec = StateSpace(heads=heads, head_dim=width, state=state, groups=groups, conv_kernel=4, chunk=chunk)
    ops = state_space_ops(spec, heads * width, ())
    return _scanned(ops, batch, tokens, heads * width * state, dtype, device)


def _lightning(batch: int, tokens: int, heads: int, width: int, dtype: str, device: Device) -> list[KernelCost]:
    ops = lightning_ops(Lightning(heads=heads, head_dim=width), heads * width, ())
    state = heads * width**2
    return _scanned(ops, batch, tokens, state, dtype, device, flop=4.0 * state if tokens == 1 else None)


MECHANISMS: Mapping[str, _Cost] = {
    "conv2d": _convolution,
    "state_space_prefill": lambda n, dtype, device: _state_space(n[0], n[1], n[2], n[3], n[4], n[5], dtype, device),
    "state_space_decode": lambda n, dtype, device: _state_space(n[0], 1, n[1], n[2], n[3], n[4], dtype, device),
    "lightning_prefill": lambda n, dtype, device: _lightning(n[0], n[1], n[2], n[3], dtype, device),
    "lightning_decode": lambda n, dtype, device: _lightning(n[0], 1, n[1], n[2], dtype, device),
}
"""Kinds of operators by the formula that answers: numbers of the shape, format and device to kernels."""


@dataclass(frozen=True, kw_only=True)
class HostCost:
    """What a host does for its device: time [s] with its 80 % interval, bytes and their time at full rate [s]."""

    seconds: float
    low_s: float
    high_s: float
    evidence: Evidence
    source: str
    bytes: float = 0.0
    floor_s: float = 0.0


def host_cost(kind: str, amount: float, found: Machine) -> HostCost:
    """A copy of `amount` bytes between host and device or from a drive, or as many kernels issued or replayed [s].

    `host_copy`: bytes / (link x what copies reach of it); `nvme_read`: first byte + bytes / sequential rate; `launch`:
    kernels x a launch of an eager chain x the host's slowness, between the quickest and the slowest host measured;
    `graph_replay`: the longer of the host's part and the gaps between kernels.
    """
    table, part, host = constants(), found.cluster.accelerator, found.cluster.host
    slow = host_slowness(part, host)
    if kind == "launch":
        fact, (low, high) = table["launch.host.kernel"], host_range(part, host)
        seconds = amount * fact.value * slow
        return HostCost(
            seconds=seconds, low_s=low * seconds, high_s=high * seconds, evidence=fact.evidence, source=fact.source
        )
    if kind == "graph_replay":
        fact = table["launch.host.graph"]
        return _told(amount * max(fact.value * slow, constant("launch.device")), fact.evidence, fact.source)
    if kind == "host_copy":
        fact, floor_s = table["efficiency.pcie.ring"], amount / host.device_bytes_per_s
        return _told(floor_s / fact.value, fact.evidence, fact.source, amount, floor_s)
    drive, first = disk("nvme"), cpu_constants()["disk.nvme.latency"]
    floor_s = amount / drive.bytes_per_s
    return _told(drive.latency_s + floor_s, first.evidence, cpu_constants()["disk.nvme.rate"].source, amount, floor_s)


def _told(seconds: float, evidence: Evidence, source: str, moved: float = 0.0, floor_s: float = 0.0) -> HostCost:
    low, high = interval(seconds, evidence)
    return HostCost(
        seconds=seconds, low_s=low, high_s=high, bytes=moved, floor_s=floor_s, evidence=evidence, source=source
    )


COPIES = ("host_copy", "nvme_read")
LAUNCHES = ("launch", "graph_replay")
