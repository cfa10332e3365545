"""Experts in host memory under continuous batching: the layer that a technique is asked about, and what it holds.

Shape letters: T tokens of an iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.formats import Formats, form
from ridgeline.cost.host import Kernel, Processors
from ridgeline.cost.machine import Machine
from ridgeline.cost.seconds import Seconds, nothing, stacked
from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.described_cpus import described_cpu
from ridgeline.lower.pieces import Core, Experts, Served
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.host_experts import HostedCache, HostedLayer, HostedSeconds, HostExperts
from ridgeline.seams.serving import Instance, of
from ridgeline.serving.capacity import hosted_bytes
from ridgeline.serving.nano import NanoTables
from ridgeline.serving.two_sides import crossing_s, expert_params, host_link_bytes_per_s, spread
from ridgeline.units import bytes_text

if TYPE_CHECKING:
    from ridgeline.serving.step import StepModel

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
    if (
        not chosen.streams
        and len({(piece.count, piece.top_k, expert_params(piece)) for _, piece in expert_layers(served)}) > 1
    ):
        raise PlanError("deployment: experts in host memory are modelled for layers whose experts are alike")
    held = hosted_bytes(served, deployment, formats)
    room = chosen.room_bytes(machine)
    if held > room:
        raise NoPlanError(
            f"{bytes_text(held)} of weights do not fit in {bytes_text(room)} of {chosen.elsewhere}; take a larger share"
            " on the device, narrower weights, or say what is there (dram_gb)"
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
    link = chosen.link_bytes_per_s(machine, host_link_bytes_per_s(machine))
    size = form(formats.feed).weight_bytes
    found = chosen.layer(
        HostedLayer(
            experts=piece.count, top_k=piece.top_k, expert_bytes=expert_params(piece) * size,
            row_flop=2.0 * expert_params(piece), tokens=tokens, device_s=device.mid / number,
            other_s=other.mid / number, start_s=np.asarray(crossing_s(tokens, piece.hidden, link)),
            link_bytes_per_s=link, read_bytes_per_s=host.read_bytes_per_s,
            host_flop_per_s=host.flop_per_s(Kernel.VECTOR), layers=number,
        )
    )  # fmt: skip
    return _banded(found, device, number)


def attended_s(served: Served, host: Processors, formats: Formats, tokens: Array) -> Array:
    """The processors' attention to so many tokens of all sequences' caches, in all layers [s].

    Of each core the longer of reading its keys and values, and its products.
    """
    size, total = form(formats.cache).weight_bytes, 0.0
    for count, core in cores(served):
        flop = 2.0 * core.heads * (core.query_elements + core.result_elements)
        total += count * max(core.token_bytes(size) / host.read_bytes_per_s, flop / host.flop_per_s(Kernel.VECTOR))
    return np.asarray(total * tokens)


def cores(served: Served) -> list[tuple[int, Core]]:
    """Attention cores of each kind of layer, and how many layers have them."""
    return [(kind.count, piece) for kind in served.kinds for piece in kind.pieces if isinstance(piece, Core)]


def hosted_cache(instance: Instance) -> HostedCache:
    """What an instance's weights, and its cache when it is full, take [s]; the device attends as its kernels do."""
    served, deployment, formats, machine = (
        instance.steps.served, instance.deployment, instance.formats, instance.machine
    )  # fmt: skip
    tokens, link = float(instance.capacity.cache_tokens), host_link_bytes_per_s(machine)
    sequences = np.array([float(instance.policy.max_seqs)])
    read = [
        count * instance.steps.prices.decode(core, sequences, tokens / sequences).mid for count, core in cores(served)
    ]
    link = of(deployment, HostExperts).link_bytes_per_s(machine, host_link_bytes_per_s(machine))
    return HostedCache(
        weights_s=hosted_bytes(served, deployment, formats) / link,
        link_s=tokens * instance.capacity.token_bytes / link,
        host_s=float(attended_s(served, processors(of(deployment, HostExperts), machine), formats, np.array(tokens))),
        device_s=float(np.sum(read)),
    )


def streamed_numbers(instance: Instance) -> dict[str, float]:
    """How device, processors and link are busy side by side where weights are streamed: numbers of the clock's rule.

    t = max(c + (1 - w) a d, w a, n + (1 - w) a l) with a the processors' attention to all of a step's cache, w the
    share of it to which they attend, d and l what the device and the link take for it over what they do.
    """
    if of(instance.deployment, HostExperts).keeps_cache:
        return {"nano_tokens": 1.0, "chain": 0.0, "memory_sms": 1.0, "link_sms": 0.0, "attention_memory": 0.0}
    full = hosted_cache(instance)
    share = of(instance.deployment, HostExperts).attended(full)
    left = (1.0 - share) / max(full.host_s, 1e-30)
    return {
        "nano_tokens": 1.0, "chain": 0.0, "memory_sms": left * full.device_s, "link_sms": 0.0,
        "attention_memory": share, "attention_link": left * full.link_s,
    }  # fmt: skip


def streamed_tables(
    steps: StepModel, tokens: Array, device: Sequence[Seconds], n: Array, c: Array, decode: Seconds
) -> NanoTables:
    """What each side does of an iteration whose weights cross the link: device, processors, link [s].

    `device` (T,) what a rank, its experts in steps and with prompts take there, and (N,) sampling; activations cross
    the link in every layer, and the processors start once in each. `decode` (N, C) is the device's own attention.
    """
    served, machine, deployment = steps.served, steps.machine, steps.deployment
    chosen = of(deployment, HostExperts)
    most = float(chosen.resident_tokens(int(tokens[-1])))
    link = chosen.link_bytes_per_s(machine, host_link_bytes_per_s(machine))
    lane, group, prompt_group = (_in_batches(each, tokens, most) for each in device[:3])
    head = device[3]
    layers = sum(kind.count for kind in served.kinds)
    beside = 0.0 if chosen.keeps_cache else layers * 2.0 * served.hidden
    size = hosted_bytes(served, deployment, steps.formats) + beside * tokens
    host = processors(chosen, machine)
    start = (beside > 0.0) * layers * np.asarray(crossing_s(tokens, served.hidden, link))
    none, sampled = nothing(tokens.shape), nothing(head.mid.shape)
    return NanoTables(
        compute=stacked((lane, group, prompt_group)), memory=stacked((_side(start, "sync"), none, none)),
        network=stacked((_side(size / link, "link"), none, none)), head_compute=head, head_memory=sampled,
        head_network=sampled,
        decode=decode if chosen.keeps_cache else _side(attended_s(served, host, steps.formats, n * c), "host"),
    )  # fmt: skip


def _in_batches(found: Seconds, tokens: Array, most: float) -> Seconds:
    """What T tokens take in batches of at most so many [s]."""
    batch = np.minimum(tokens, most)
    return Seconds(**{name: np.interp(batch, tokens, each) * tokens / batch for name, each in vars(found).items()})


def _side(mid: Array, side: str) -> Seconds:
    low, high = spread()[side]
    return Seconds(mid=mid, low=mid * low, high=mid * high, compute=0.0 * mid, memory=0.0 * mid)


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
