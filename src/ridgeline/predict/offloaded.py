"""A static batch of a model larger than its devices, composed: weights placed, both sides priced, told as a report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ridgeline.cost.formats import form
from ridgeline.cost.host import Processors
from ridgeline.cost.machine import machine
from ridgeline.cost.network import path
from ridgeline.errors import InputError, NoPlanError, PlanError, UnknownNameError
from ridgeline.facts.cpus import cpus
from ridgeline.facts.described_cpus import HOW, cpu_of
from ridgeline.facts.records import Cluster, Evidence
from ridgeline.graph.model import Model
from ridgeline.plan.checkpoint_formats import with_formats
from ridgeline.plan.deployment import Deployment
from ridgeline.report.offloaded import OffloadReport, Spent
from ridgeline.seams.serving import HostExperts, instance_devices, of
from ridgeline.serving.engine import formats_of
from ridgeline.serving.hybrid import decode, neuron_room, prefill, rank_blocks
from ridgeline.serving.hybrid_model import Hybrid
from ridgeline.serving.hybrid_placement import DeviceOrder, HostPlacement, OffloadMethod, habits_of, offload_program
from ridgeline.serving.hybrid_sides import HybridParts, Rows, band
from ridgeline.serving.streamed_costs import GPU, WEIGHTS
from ridgeline.serving.streamed_fill import filled
from ridgeline.serving.streamed_machine import attention_of, in_blocks, job_of, machine_of
from ridgeline.serving.streamed_policy import StreamedPolicy
from ridgeline.serving.streamed_schedule import scheduled
from ridgeline.units import bytes_text

TECHNIQUES: Mapping[str, OffloadMethod] = MappingProxyType(
    {technique.name.casefold(): technique for technique in OffloadMethod}
)
ORDERS: Mapping[str, DeviceOrder] = MappingProxyType({order.name.casefold(): order for order in DeviceOrder})
_ENGINES = {
    OffloadMethod.COMPUTED: "KTransformers", OffloadMethod.FETCHED: "MoE-Infinity", OffloadMethod.STREAMED: "FlexGen",
    OffloadMethod.NEURONS: "PowerInfer",
}  # whose habits are taken where none are asked for; else llama.cpp's  # fmt: skip
_KNOWN = "KTransformers, kt-kernel, Fiddler, MoE-Infinity, accelerate, DeepSpeed, FlexGen, vLLM, llama.cpp, PowerInfer"
_ALONE = (OffloadMethod.HOST, OffloadMethod.DISK)  # nothing runs on a device
_NO_PRODUCTS = (OffloadMethod.FETCHED, OffloadMethod.STREAMED)  # nothing is computed by processors
_UNITS = {
    OffloadMethod.COMPUTED: "experts", OffloadMethod.FETCHED: "experts", OffloadMethod.STREAMED: "layers",
    OffloadMethod.LAYERS: "layers", OffloadMethod.NEURONS: "neurons",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Offload:
    """Where the weights lie that devices do not hold, and who computes with them.

    `processors` is a name of `data/cpus.tsv`, perhaps after their number ('2x EPYC 9654'); `dram_bytes` [byte] what the
    host holds (None: what the cluster's host has), `share` [1] what devices hold (None: as much as fits).
    """

    technique: OffloadMethod
    engine: str = ""  # whose habits are taken; '': those of the technique's own
    processors: str = ""
    dram_bytes: float | None = None
    share: float | None = None
    hot_neurons: float | None = None  # of a layer, that make up 80 % of its activations [1]; None: of such models
    active_neurons: float | None = None  # of a layer, that a token uses [1]
    order: DeviceOrder | None = None
    storage: str = ""  # '': NVMe, and of streamed weights none
    layerwise: bool = False
    policy: StreamedPolicy | None = (
        None  # of weights that FlexGen streams: where all lies, in which batches; None: as fits
    )


def offloaded(
    model: Model, cluster: Cluster, deployment: Deployment, asked: Offload, *, batch: int = 1,
    prompt_tokens: int = 1024, output_tokens: int = 256, assumed: Sequence[str] = (),
) -> OffloadReport:  # fmt: skip
    """Times of one static batch whose weights devices do not hold [s].

    TTFT is the time of all prompts, chunk after chunk; TPOT that of a step at the mean context. The deployment is one
    instance. Weights that FlexGen streams to one device are priced by its loop, as `plan` does. Raises `NoPlanError`
    where weights, or a block of FlexGen's, fit in no memory, `InputError` for processors or an engine that nobody
    described, `PlanError` where the model has no such parts. Source: docs/offload.md; evidence: derived.
    """
    technique = asked.technique
    name = asked.engine or _ENGINES.get(technique, "llama.cpp")
    if offload_program(name) is None:
        raise InputError(f"'{name}' is not known to keep weights in host memory; known: {_KNOWN}", field="--engine")
    _check_parts(model, technique)
    ranked = of(deployment, HostExperts)
    if deployment.technique and not (ranked.in_blocks and technique is OffloadMethod.DISK):
        raise PlanError(f"{technique.value}: goes without {deployment.technique[0]}; leave one out")
    deployment, why = with_formats(deployment, model, cluster)
    hybrid, said = hybrid_of(model, cluster, deployment, asked, name)
    host = hybrid.host
    said += [] if asked.engine else [f"an engine that does as {name} does, as none was named"]
    peak = 0.0
    if in_blocks(hybrid):
        share, first, step, where = _block(hybrid, asked, batch, prompt_tokens, output_tokens)
        said += ["values of 16 bits; a disk that is written as fast as it is read"]
    else:
        share, where = hybrid.share(float(batch * (prompt_tokens + output_tokens))), ""
        if technique is OffloadMethod.NEURONS:
            attended, _, neurons = neuron_room(hybrid, share)
            where = f"{attended:.0%} of attention and {neurons:.0%} of the neurons on devices, by an integer program"
        _check_dram(hybrid, asked, cluster, hybrid.held_bytes(share)[1])
        first = _spent(prefill(hybrid, batch, prompt_tokens), host, prompt=True)
        step = _spent(decode(hybrid, batch, prompt_tokens + output_tokens / 2.0), host)
    held, elsewhere = hybrid.held_bytes(share)
    if hybrid.ranked is not None:
        peak, elsewhere, where = _window(hybrid, batch, prompt_tokens, output_tokens)
    price, used = cluster.price_usd_per_device_h, 0 if technique in _ALONE else instance_devices(deployment)
    rungs = {} if hybrid.prices is None else hybrid.prices.rungs_used
    return OffloadReport(
        model=model.name, cluster=cluster.name, technique=technique.value, engine=name,
        processors="" if host is None else f"{host.sockets} x {host.cpu.name}, {host.cores} cores",
        unit=_UNITS.get(technique, "weights"), share=share, device_bytes=held, host_bytes=elsewhere,
        batch=batch, prompt_tokens=prompt_tokens, output_tokens=output_tokens, first=first, step=step,
        placement=where, peak_bytes=peak,
        usd_per_h=None if price is None or not used else price.value * used,
        rungs={family: rung.value for family, rung in rungs.items()}, evidence=Evidence.DERIVED,
        assumed=tuple(dict.fromkeys((*assumed, *([why] if why else []), *said))),
    )  # fmt: skip


def _block(
    hybrid: Hybrid, asked: Offload, batch: int, prompt_tokens: int, output_tokens: int
) -> tuple[float, Spent, Spent, str]:
    """A batch by FlexGen's loop: share of the weights on the device [1], prompts, a mean step [s], and the placement.

    Raises `NoPlanError` where the batch does not fit, `InputError` for a policy of another batch.
    """
    job = job_of(hybrid.model, prompt_tokens, max(2, output_tokens))
    limits = machine_of(hybrid, job, asked.dram_bytes)
    if asked.policy is None:
        policy, run = filled(job, limits, attention_of(hybrid), batch, asked.share)
    else:
        policy, run = asked.policy, scheduled(job, limits, asked.policy)
        if policy.block != batch:
            raise InputError(
                f"a block of {policy.block} sequences for a batch of {batch}; needs the same", field="policy"
            )
    policy.check(job, limits)
    before, after = run.parts()
    prompts, answers = _spent(before, hybrid.host, prompt=True), _spent(after, hybrid.host)
    step = answers.times(1.0 / (job.output_tokens - 1))
    return float(policy.shares[WEIGHTS, GPU]), prompts, step, policy.text(job, limits)


def _window(hybrid: Hybrid, batch: int, prompt_tokens: int, output_tokens: int) -> tuple[float, float, str]:
    """The fullest rank's peak of blocks, cache and workspace, its files [byte], and words; raises `NoPlanError`."""
    assert hybrid.ranked is not None
    assert hybrid.host is not None
    tokens = float(batch * (prompt_tokens + output_tokens))
    rows = Rows(tokens=np.array([float(batch)]), sequences=float(batch), context=np.zeros(1), prompt=False)
    blocks = rank_blocks(hybrid, rows)
    wide = hybrid.weight_bytes / form(hybrid.formats.cache).weight_bytes
    rest = hybrid.cache_bytes(tokens) * wide + hybrid.workspace_bytes
    peak, room = hybrid.ranked.window_bytes(blocks) + rest, hybrid.host.memory_bytes
    if room is not None and peak > room:
        raise NoPlanError(
            f"{hybrid.model.name}: a window of blocks, cache and logits take {bytes_text(peak)} of"
            f" {bytes_text(room)} of host memory; take more ranks (--tp), a smaller window or more memory (--dram)"
        )
    text = (
        f"{hybrid.ranked.told_of(hybrid.deployment)}, {bytes_text(peak)} with cache and logits at most on the fullest"
        f" of {hybrid.deployment.tp} hosts, whose drive keeps the weights"
    )
    return peak, float(blocks.file_bytes.sum()), text


def hybrid_of(
    model: Model, cluster: Cluster, deployment: Deployment, asked: Offload, engine: str
) -> tuple[Hybrid, list[str]]:
    """The model of both sides, by the habits of an engine, and what was assumed of the host."""
    host, said = _processors(asked, cluster)
    formats = formats_of(deployment)
    matrix = host is not None and host.has_matrix_units
    where = None if asked.technique in _ALONE else machine(cluster)
    hybrid = Hybrid(
        model, where, host, _placement(asked, cluster, deployment.tp), deployment=deployment,
        habits=habits_of(engine, weights=formats.feed, matrix_units=matrix),
    )  # fmt: skip
    return hybrid, said


def _network(cluster: Cluster, ranks: int) -> tuple[float, float]:
    """What a message between hosts waits [s] and the rate of one's link [byte/s]."""
    if ranks == 1:
        return 0.0, 1.0
    where = path(machine(cluster), ranks, 1)
    return float(where.hop_s), float(where.bytes_per_s)


def _check_parts(model: Model, technique: OffloadMethod) -> None:
    """Raises where a model has no parts of the kind that a technique moves."""
    experts = any(block.experts for block in model.graph.blocks.values())
    if technique in (OffloadMethod.COMPUTED, OffloadMethod.FETCHED) and not experts:
        raise PlanError(f"{technique.value}: {model.name} has no experts; take layers, streamed or neurons")
    if technique is OffloadMethod.NEURONS and experts:
        raise PlanError(f"{technique.value}: {model.name} has experts, which move whole; take computed or fetched")


def _processors(asked: Offload, cluster: Cluster) -> tuple[Processors | None, list[str]]:
    """The processors of the host, None where none is named and none computes; and what was assumed."""
    technique, text = asked.technique, asked.processors.strip()
    if not text:
        if technique in _NO_PRODUCTS:
            return None, _about_dram(asked, cluster)
        raise InputError(
            f"{technique.value}, by which processors is not said; say e.g. 'Xeon Gold 6454S', '2x EPYC 9654' or"
            f" 'Core i9-13900K', one of {len(cpus())} of `ridgeline catalog processors`; of another {HOW}",
            field="--cpu",
        )  # fmt: skip
    match = re.fullmatch(r"(?:([1-8])\s*x\s*)?(.+)", text)
    assert match is not None
    sockets = int(match[1] or 1)
    try:
        found = cpu_of(match[2])
    except UnknownNameError as error:
        raise InputError(str(error), field="--cpu") from None
    made = Processors(
        cpu=found, sockets=sockets, cores=found.cores * sockets, memory_bytes_per_s=found.memory.value * sockets,
        memory_bytes=_dram_bytes(asked, cluster),
    )  # fmt: skip
    memory = found.assumed or f"{found.channels} channels of {found.memory_type} on each socket, the fastest it takes"
    return made, [memory, *_about_dram(asked, cluster)]


def _dram_bytes(asked: Offload, cluster: Cluster) -> float:
    return cluster.host.dram_bytes if asked.dram_bytes is None else asked.dram_bytes


def _about_dram(asked: Offload, cluster: Cluster) -> list[str]:
    if asked.dram_bytes is not None:
        return []
    return [f"{bytes_text(cluster.host.dram_bytes)} of host memory, as machines with {cluster.accelerator.name} have"]


def _placement(asked: Offload, cluster: Cluster, ranks: int) -> HostPlacement:
    recent = asked.technique in (OffloadMethod.FETCHED, OffloadMethod.DISK)
    return HostPlacement(
        technique=asked.technique,
        share=asked.share,
        hot_neurons=asked.hot_neurons,
        active_neurons=asked.active_neurons,
        order=asked.order or (DeviceOrder.RECENT if recent else DeviceOrder.UNIFORM),
        resident_bytes=_dram_bytes(asked, cluster) if asked.technique is OffloadMethod.DISK else None,
        storage=asked.storage or "nvme",
        from_disk=asked.technique is OffloadMethod.STREAMED and bool(asked.storage),
        layerwise=asked.layerwise,
        network=_network(cluster, ranks) if asked.technique is OffloadMethod.DISK else (0.0, 1.0),
    )


def _check_dram(hybrid: Hybrid, asked: Offload, cluster: Cluster, elsewhere: float) -> None:
    """Raises where streamed or fetched weights do not fit in host memory, nor come from a disk."""
    room = _dram_bytes(asked, cluster)
    disk = hybrid.placement.from_disk or asked.technique is OffloadMethod.DISK
    if not disk and elsewhere > room:
        raise NoPlanError(
            f"{hybrid.model.name}: {bytes_text(elsewhere)} of weights beside the devices do not fit in"
            f" {bytes_text(room)} of host memory; take narrower weights, more devices or memory (--dram), or a disk"
        )


def _spent(parts: HybridParts, host: Processors | None, *, prompt: bool = False) -> Spent:
    guessed = ("host",) if host is not None and host.cpu.assumed else ()
    low, high = band(parts, guessed=guessed, prompt=prompt)
    total = float(parts.total.sum())
    sides = {name: float(value.sum()) for name, value in vars(parts).items() if name != "total"}
    return Spent(total=total, low=total * low, high=total * high, parts=sides)
