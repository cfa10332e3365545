"""Experts in host memory under continuous batching: the layer that a technique is asked about, and what it holds.

Shape letters: T tokens of an iteration.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.formats import Formats, form
from ridgeline.cost.host import Kernel, Processors
from ridgeline.cost.machine import Machine
from ridgeline.cost.seconds import Seconds
from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.described_cpus import described_cpu
from ridgeline.facts.mechanisms import constant
from ridgeline.lower.pieces import Experts, Served
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.host_experts import HostedLayer, HostedSeconds, HostExperts
from ridgeline.seams.serving import of
from ridgeline.serving.capacity import hosted_bytes
from ridgeline.serving.two_sides import crossing_s, expert_params, spread
from ridgeline.units import bytes_text

Array = NDArray[np.float64]


def expert_layers(served: Served) -> tuple[tuple[int, Experts], ...]:
    """Layers with routed experts: how many of each kind [1], and their experts."""
    return tuple(
        (kind.count, piece) for kind in served.kinds for piece in kind.pieces if isinstance(piece, Experts)
    )  # fmt: skip


def check_hosted(served: Served, deployment: Deployment, formats: Formats, machine: Machine) -> None:
    """Raises where a deployment's experts do not lie in host memory: `PlanError` for unlike ones, `NoPlanError`."""
    chosen = of(deployment, HostExperts)
    if not chosen.applied:
        return
    if len({(piece.count, piece.top_k, expert_params(piece)) for _, piece in expert_layers(served)}) > 1:
        raise PlanError("deployment: experts in host memory are modelled for layers whose experts are alike")
    held = hosted_bytes(served, deployment, formats)
    room = chosen.dram_gb * 1e9 if chosen.dram_gb else machine.cluster.host.dram_bytes
    if held > room:
        raise NoPlanError(
            f"{bytes_text(held)} of experts do not fit in {bytes_text(room)} of host memory; take a larger share on the"
            " device, narrower weights, or say what the host holds (dram_gb)"
        )


def processors(chosen: HostExperts, machine: Machine) -> Processors:
    """The host's processors as a technique describes them; their memory as the machine's host has where it is not."""
    rate = chosen.memory_gbs or machine.cluster.host.dram_bytes_per_s / 1e9
    words = f"{min(chosen.cores, 1024)} cores, {chosen.clock_ghz:g} GHz, {rate:.4f} GB/s, {chosen.instructions}"
    found = described_cpu(words)
    assert found is not None
    return Processors(cpu=found, sockets=1, cores=found.cores, memory_bytes_per_s=found.memory.value)


def hosted_seconds(
    served: Served, deployment: Deployment, machine: Machine, formats: Formats, tokens: Array, device: Seconds,
    other: Seconds,
) -> Seconds:  # fmt: skip
    """What all layers' experts take over T tokens, where the device alone would take `device` (T,) for them [s].

    `other` (T,) is what it takes outside experts and attention. Each part has its own interval, as weights in host
    memory have in a static batch (`hybrid_sides.spread`).
    """
    chosen, layers = of(deployment, HostExperts), expert_layers(served)
    number = sum(count for count, _ in layers)
    piece, host = layers[0][1], processors(chosen, machine)
    link = (machine.cluster.accelerator.host_bytes_per_s or machine.cluster.host.device_bytes_per_s) * constant(
        "efficiency.pcie.ring"
    )
    size = form(formats.feed).weight_bytes
    found = chosen.layer(
        HostedLayer(
            experts=piece.count, top_k=piece.top_k, expert_bytes=expert_params(piece) * size,
            row_flop=2.0 * expert_params(piece), tokens=tokens, device_s=device.mid / number,
            other_s=other.mid / number, start_s=np.asarray(crossing_s(tokens, piece.hidden, link)),
            link_bytes_per_s=link, read_bytes_per_s=host.read_bytes_per_s,
            host_flop_per_s=host.flop_per_s(Kernel.VECTOR),
        )
    )  # fmt: skip
    return _banded(found, device, number)


def _banded(found: HostedSeconds, device: Seconds, number: int) -> Seconds:
    """The times of `number` layers, with the interval of what each part takes of them [s]."""
    ends = {**spread(), "device": (device.low / device.mid, device.high / device.mid)}
    busy = {"device": found.device, "host": found.host, "link": found.link}
    whole = np.maximum(found.device + found.host + found.link, 1e-30)
    mid = number * found.total
    low, high = (
        mid / whole * np.sum([np.asarray(ends[name][end]) * busy[name] for name in busy], axis=0) for end in (0, 1)
    )
    share = found.device / np.maximum(device.mid / number, 1e-30)
    return Seconds(mid=mid, low=low, high=high, compute=share * device.compute, memory=share * device.memory)
