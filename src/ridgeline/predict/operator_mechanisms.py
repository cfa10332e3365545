"""Operators that no table holds and formulas alone answer: convolutions, scans, copies from the host, launches.

Shape letters: B sequences, S tokens, H heads, P head width, N state, G groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ridgeline.cost.answer import Cost, interval
from ridgeline.cost.convolution import Images
from ridgeline.cost.formats import form
from ridgeline.cost.host import disk
from ridgeline.cost.host_times import host_range, host_slowness
from ridgeline.cost.machine import Machine
from ridgeline.cost.network import send_seconds
from ridgeline.cost.questions import Worked
from ridgeline.errors import InputError
from ridgeline.facts.cpus import cpu_constants
from ridgeline.facts.mechanisms import constant, constants
from ridgeline.facts.records import Evidence
from ridgeline.graph.ops import Op, ScanOp
from ridgeline.graph.recurrent import lightning_ops, state_space_ops
from ridgeline.graph.spec import Lightning, StateSpace
from ridgeline.lower.strided import Halo, StridedType
from ridgeline.lower.work import Phase, Stream
from ridgeline.seams.registry import technique
from ridgeline.seams.strided import STRIDED, StridedRates, StridedTransfer

_CHUNK = 256  # tokens of a chunk of Mamba-2. Source: state-spaces/mamba, mamba_ssm/modules/mamba2.py, chunk_size
_STATE_BYTES = 4.0  # fp32. Source: vLLM, mamba_ssm_cache_dtype


def convolved(numbers: Sequence[int], dtype: str) -> Worked:
    """A convolution padded so that every stride-th pixel has an output; raises `InputError` for groups that divide
    no channels."""
    count, height, width, channels, filters, size = numbers[:6]
    stride, groups = (*numbers[6:], 1, 1)[:2]
    if channels % groups or filters % groups:
        fault = f"{groups} groups, which do not divide its {channels} and {filters} channels"
        raise InputError(f"'{'x'.join(map(str, numbers))}' has {fault}", field="SHAPE")
    images = Images(
        count=count, channels=channels, height=height, width=width, filters=filters, filter_height=size,
        filter_width=size, rows=math.ceil(height / stride), columns=math.ceil(width / stride), groups=groups,
    )  # fmt: skip
    return Worked(works=(images,), form=form(dtype))


def _scanned(
    ops: Iterable[Op], batch: int, tokens: int, state: float, dtype: str, *, flop: float | None = None
) -> Worked:
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
    return Worked(works=(work,), form=form(dtype))


def state_space(batch: int, tokens: int, sizes: Sequence[int], dtype: str) -> Worked:
    """A Mamba-2 scan of heads, their width, state and groups; one token of each sequence is a chunk of its own.

    Raises `InputError` for groups that do not divide the heads.
    """
    heads, width, state, groups = sizes
    if heads % groups:
        raise InputError(f"{groups} groups do not divide {heads} heads", field="SHAPE")
    chunk = min(_CHUNK, tokens)
    spec = StateSpace(heads=heads, head_dim=width, state=state, groups=groups, conv_kernel=4, chunk=chunk)
    ops = state_space_ops(spec, heads * width, ())
    return _scanned(ops, batch, tokens, heads * width * state, dtype)


def lightning(batch: int, tokens: int, heads: int, width: int, dtype: str) -> Worked:
    """A scan of lightning attention over prompts, or one token of each sequence."""
    ops = lightning_ops(Lightning(heads=heads, head_dim=width), heads * width, ())
    state = heads * width**2
    return _scanned(ops, batch, tokens, state, dtype, flop=4.0 * state if tokens == 1 else None)


def host_cost(kind: str, amount: float, found: Machine) -> Cost:
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
        return Cost(
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


def _told(seconds: float, evidence: Evidence, source: str, moved: float = 0.0, floor_s: float = 0.0) -> Cost:
    low_s, high_s = interval(seconds, evidence)
    return Cost(
        seconds=seconds, low_s=low_s, high_s=high_s, bytes=moved, memory_s=floor_s, evidence=evidence, source=source
    )


COPIES = ("host_copy", "nvme_read")
LAUNCHES = ("launch", "graph_replay")


HALO = "halo_exchange"
BLOCKED = ("strided_pack", "strided_send", HALO)
DEFAULT = "tempi"


def strided_type(numbers: Sequence[int]) -> StridedType:
    """The type of a shape: bytes of a block, then count and stride in bytes of each repetition, the innermost first.

    Raises `InputError` for blocks that overlap.
    """
    found, extent = StridedType(block=numbers[0]), numbers[0]
    for count, stride in zip(numbers[1::2], numbers[2::2], strict=True):
        if stride < extent and count > 1:
            raise InputError(f"a stride of {stride} bytes, of what extends over {extent}", field="SHAPE")
        found, extent = found.repeated(count, stride), (count - 1) * stride + extent
    return found


def rates_of(found: Machine, *, near: bool = False) -> StridedRates:
    """What a machine's host, device and network take for strided data, sent to another node if there is one.

    `near` keeps messages within the node.
    """
    part, host, node = found.cluster.accelerator, found.cluster.host, float(found.cluster.node_devices)
    apart = 1.0 if near or found.cluster.count <= node else max(float(found.tiers[0].size), node)

    def message_s(size: float) -> float:
        return float(np.asarray(send_seconds(size, apart, found)))

    return StridedRates(
        issue_s=constant("launch.host.kernel") * host_slowness(part, host), kernel_s=found.device.kernel_s,
        memory_bytes_per_s=found.device.memory_bytes_per_s,
        link_bytes_per_s=host.device_bytes_per_s * constants()["efficiency.pcie.ring"].value, message_s=message_s,
        near=apart == 1.0,
    )  # fmt: skip


def halo_seconds(one: StridedTransfer, halo: Halo, fields: int, found: Machine) -> tuple[float, float]:
    """Time until the last process has all halos of `fields` arrays [s], and the bytes that a process sends [byte].

    A process's host issues packing and unpacking of its 26 messages an array one after the other; messages to other
    nodes share its interface, those within the node its links, and the longer of both is waited for.
    """
    node = found.cluster.node_devices
    ranks = np.arange(found.cluster.count)
    handled, sent, total = np.zeros(len(ranks)), np.zeros((2, len(ranks))), 0
    ways = [rates_of(found, near=near) for near in (False, True)]
    for box, to in halo.messages():
        near = to // node == ranks // node
        total += box.bytes
        for side, rates in enumerate(ways):
            alone = one.send_s(box.block, box.blocks, rates) - one.message_s(box.bytes, rates)
            handled += np.where(near == bool(side), max(alone, 0.0), 0.0)
            sent[side] += np.where(near == bool(side), box.bytes, 0.0)
    waits = [
        [one.message_s(fields * float(size), rates) if size else 0.0 for size in sizes]
        for sizes, rates in zip(sent, ways, strict=True)
    ]
    return float(np.max(fields * handled + np.max(waits, axis=0))), float(fields * total)


def strided_cost(kind: str, numbers: Sequence[int], found: Machine, text: str) -> Cost:
    """Time to pack strided data on a device, to send them to one of another node, or of a halo exchange [s].

    `text` names how. Raises `InputError` for a grid that the devices divide into less than its radius.
    """
    one = technique(STRIDED, text or DEFAULT)
    assert isinstance(one, StridedTransfer)
    if kind == HALO:
        halo = Halo.of(numbers[:3], found.cluster.count, radius=numbers[3], element=numbers[5])
        if min(halo.local) < halo.radius:
            parts = "x".join(map(str, halo.local))
            fault = f"leaves {parts} points to each of {found.cluster.count} devices, fewer than its radius of"
            raise InputError(f"a grid that {fault} {halo.radius}; make it larger", field="SHAPE")
        seconds, size = halo_seconds(one, halo, numbers[4], found)
    else:
        form, rates = strided_type(numbers).canonical(), rates_of(found)
        run = one.pack_s if kind == "strided_pack" else one.send_s
        seconds, size = run(form.block, form.blocks, rates), float(form.bytes)
    low_s, high_s = interval(seconds, one.evidence)
    return Cost(
        seconds=seconds, low_s=low_s, high_s=high_s, bytes=size,
        memory_s=2.0 * size / found.cluster.accelerator.memory_bytes_per_s, evidence=one.evidence,
        source=f"the mechanism of {one.text}, with launches of launch.host.kernel",
    )  # fmt: skip
