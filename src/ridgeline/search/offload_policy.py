"""FlexGen's question for a model, a machine and requests: where weights, cache and activations lie, in which blocks.

`offload_placement` answers it for rates; here the rates are those that the rest of the package prices with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ridgeline.cost.engine_limits import host_slowness
from ridgeline.cost.formats import form
from ridgeline.cost.host import Kernel, disk
from ridgeline.errors import PlanError
from ridgeline.facts.cpus import cpu_constant
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Cluster
from ridgeline.graph.ops import Model, op_params
from ridgeline.lower.pieces import Core, Product
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.offloaded import Offload as Asked
from ridgeline.predict.offloaded import hybrid_of
from ridgeline.report.offload_policy import PolicyReport
from ridgeline.search.offload_placement import PLAIN, Job, Machine, Method, Policy, evaluate, ranked
from ridgeline.search.offload_schedule import Scheduled, least, scheduled
from ridgeline.search.programs import gap
from ridgeline.serving.hybrid_band import band
from ridgeline.serving.hybrid_model import Hybrid
from ridgeline.serving.hybrid_sides import HybridParts, Rows, device_s, link_bytes_per_s

_PROBE_TOKENS = 4096.0  # of the iteration that tells a device's rates: large, as blocks are
_WIDENED, _WIDE, _COPIED = 5.0, 2.0, 3.0  # bytes that memory moves for each byte of cache of 16 bits
_SCORE_PASSES = 6.0  # of scores in 16 bits: written by a product, masked (2), softmax (2), read by a product
_TRIED = 48  # candidates replayed at most, in the order of what they could take at least
_KINDS = ("weights", "cache", "activations")
_MATRICES = "layers of four D x D and two D x F matrices, every head with keys of its own"


def job_of(model: Model, prompt_tokens: int, output_tokens: int) -> Job:
    """A model as FlexGen's program knows it; raises `PlanError` for layers that are otherwise."""
    dims = {name: int(model.dims.get(name) or 0) for name in ("layers", "hidden", "ffn", "heads", "kv_heads")}
    other = next(
        (
            text
            for wrong, text in (
                (any(block.experts for block in model.graph.blocks.values()), "has experts"),
                (bool(model.dims.get("gated")), "has gated feed-forwards"),
                (dims["kv_heads"] != dims["heads"], f"shares keys among its heads ({dims['kv_heads']} of them)"),
                (min(dims.values()) < 1, "is described otherwise"),
            )
            if wrong
        ),
        None,
    )
    if other is not None:
        raise PlanError(f"streamed weights are placed for {_MATRICES}; {model.name} {other}: ask predict --serve")
    return Job(
        layers=dims["layers"], hidden=dims["hidden"], feed_forward=dims["ffn"], heads=dims["heads"],
        prompt_tokens=prompt_tokens, output_tokens=output_tokens,
        ends_bytes=2.0 * 2.0 * sum(op_params(op, 1) for op in model.graph.embedding),
    )  # fmt: skip


def best_policy(
    model: Model, cluster: Cluster, deployment: Deployment, asked: Asked, *, prompt_tokens: int = 512,
    output_tokens: int = 32, assumed: Sequence[str] = (),
) -> PolicyReport:  # fmt: skip
    """The policy of least time per token for one device by FlexGen's loop, with its distance from what is possible [s].

    Candidates are replayed in the order of what they take at least (`offload_schedule.least`), until none that is left
    could be sooner, or so many were.

    Domain: layers of four D x D and two D x F matrices, one device, 16-bit values. Raises `NoPlanError` where not one
    sequence fits, `PlanError` for another model. Source: flexgen; evidence: derived.
    """
    job = job_of(model, prompt_tokens, output_tokens)
    hybrid, said = hybrid_of(model, cluster, replace(deployment, tp=1, pp=1), asked, "FlexGen")
    machine = machine_of(hybrid, cluster, job, asked)
    methods = PLAIN if hybrid.host is not None else tuple(one for one in PLAIN if not one.cpu_attention)
    if hybrid.host is None:
        said.append("attention never runs on processors, as none is named (--cpu)")
    policy, run, bound_s, tried = soonest(job, machine, methods)
    token_s = (run.prefill_s + run.decode_s) / (policy.block * job.output_tokens)
    held, price = evaluate(job, machine, policy).tier_bytes, cluster.price_usd_per_device_h
    ends = [band(_as_parts(spent)) for spent in (run.prefill, run.decode)]
    low_s, high_s = (run.prefill_s * ends[0][end] + run.decode_s * ends[1][end] for end in (0, 1))
    lengths = f"{prompt_tokens:,} prompt and {output_tokens:,} answer tokens"
    known = {name: float(value) for name, value in vars(machine).items() if name.endswith("_per_s")}
    return PolicyReport(
        title=f"{model.name} on one {cluster.accelerator.name}: streamed weights, requests of {lengths}",
        tokens_per_s=1.0 / token_s, low=policy.block * job.output_tokens / high_s,
        high=policy.block * job.output_tokens / low_s, prefill_s=run.prefill_s, decode_s=run.decode_s,
        prefill=run.prefill, decode=run.decode, gap=gap(token_s, bound_s), tried=tried,
        gpu_batch=policy.gpu_batch, gpu_batches=policy.gpu_batches, cpu_attention=policy.method.cpu_attention,
        shares={kind: tuple(map(float, row)) for kind, row in zip(_KINDS, policy.shares, strict=True)},
        peak_bytes=tuple(map(float, held)), usable_bytes=tuple(map(float, machine.usable_bytes)),
        rates={name: value for name, value in known.items() if math.isfinite(value)},
        usd_per_h=None if price is None else price.value,
        assumed=(*assumed, *said, "values of 16 bits; a disk that is written as fast as it is read"),
    )  # fmt: skip


def soonest(job: Job, machine: Machine, methods: Sequence[Method]) -> tuple[Policy, Scheduled, float, int]:
    """The policy whose replay is soonest, it, the least time per token of any [s], and how many were replayed."""
    best: tuple[float, Policy, Scheduled] | None = None
    least_s, tried = math.inf, 0
    for bound_s, policy, _ in ranked(job, machine, methods=methods, costs=least):
        least_s = min(bound_s, best[0]) if best else bound_s
        if tried == _TRIED or (best is not None and bound_s >= best[0]):
            break
        run, tried = scheduled(job, machine, policy), tried + 1
        token_s = (run.prefill_s + run.decode_s) / (policy.block * job.output_tokens)
        if best is None or token_s < best[0]:
            best = token_s, policy, run
    assert best is not None  # `ranked` raises where nothing fits
    return best[1], best[2], least_s, tried


def _as_parts(spent: Mapping[str, float]) -> HybridParts:
    """Busy seconds by side, as intervals are told [s]."""
    named = {name: np.array([spent.get(name, 0.0)]) for name in ("device", "host", "link", "sync", "disk")}
    return HybridParts(**named, total=np.array([sum(spent.values())]))


def _loaded(hybrid: Hybrid) -> float:
    """The rate that the power limit leaves to products that never pause; any where nobody measured it [FLOP/s]."""
    assert hybrid.machine is not None
    loaded = hybrid.machine.device.loaded
    return min(
        (loaded[name] for name in (form(hybrid.formats.feed).matrix, "fp16") if name in loaded), default=math.inf
    )


def machine_of(hybrid: Hybrid, cluster: Cluster, job: Job, asked: Asked) -> Machine:
    """The rates of FlexGen's program from those of kernels, links, processors and disks [FLOP/s, byte/s].

    Products and attention reach what an iteration of 4,096 tokens of a prompt does, and no more than the power limit
    leaves to products that never pause; decode also waits for memory. What FlexGen does to a cache of 16 bits in host
    memory moves, for each of its bytes, 5 to widen it (read 2, fetch and write 4 + 4 of an element), 2 to attend to it
    (read 4), 3 to pin it (read 2, fetch and write 2 + 2); memory of new cache is touched for the first time, page by
    page. Source: flexllmgen, flexllmgen/pytorch_backend.py: general_copy, mha_gen, init_cache_one_gpu_batch.
    """
    assert hybrid.machine is not None
    (kind, *_) = hybrid.device_served.kinds
    tokens = np.array([_PROBE_TOKENS])
    sequences = max(1.0, _PROBE_TOKENS / job.prompt_tokens)
    rows = Rows(tokens=tokens, sequences=sequences, context=np.zeros(1), prompt=True)
    products, cores = (
        float(device_s(hybrid, [piece for piece in kind.pieces if isinstance(piece, which)], rows)[0])
        for which in (Product, Core)
    )
    matmul = min(
        _loaded(hybrid), _PROBE_TOKENS * (8.0 * job.hidden**2 + 4.0 * job.hidden * job.feed_forward) / products
    )
    flop, prompt = 4.0 * job.prompt_tokens**2 * job.hidden, job.prompt_tokens
    scores_s = _SCORE_PASSES * 2.0 * job.heads * prompt**2 / hybrid.machine.device.memory_bytes_per_s
    attention = flop / (flop / (sequences * 4.0 * (_PROBE_TOKENS / sequences) ** 2 * job.hidden / cores) + scores_s)
    link, storage, host = link_bytes_per_s(hybrid), disk(asked.storage or "nvme"), hybrid.host
    faults_s = cpu_constant("page.fault") / cpu_constant("page.bytes")
    widened_s = attended_s = pinned_s = 0.0
    if host is not None:
        widened_s = _WIDENED / host.stream_bytes_per_s
        attended_s = _WIDE / host.read_bytes_per_s
        pinned_s = _COPIED / host.stream_bytes_per_s
    away_s = widened_s + attended_s
    return Machine(
        gpu_bytes=hybrid.room_bytes,
        cpu_bytes=cluster.host.dram_bytes if asked.dram_bytes is None else asked.dram_bytes,
        disk_bytes=cluster.host.nvme_bytes if asked.storage else 0.0,
        cpu_to_gpu_bytes_per_s=link,
        gpu_to_cpu_bytes_per_s=link,
        gpu_to_cpu_cache_bytes_per_s=1.0 / (1.0 / link + faults_s),
        disk_read_bytes_per_s=storage.bytes_per_s,
        disk_write_bytes_per_s=storage.bytes_per_s,
        disk_write_cache_bytes_per_s=storage.bytes_per_s,
        matmul_prefill_flop_per_s=matmul,
        matmul_decode_flop_per_s=matmul,
        attention_prefill_flop_per_s=attention,
        attention_decode_flop_per_s=attention,
        cpu_attention_flop_per_s=1.0 if host is None else host.flop_per_s(Kernel.VECTOR),
        cpu_memory_bytes_per_s=1.0 / away_s if away_s else math.inf,
        cpu_copy_share=widened_s / away_s if away_s else 0.0,
        cpu_pin_bytes_per_s=1.0 / pinned_s if pinned_s else math.inf,
        call_s=constant("launch.host.kernel") * host_slowness(cluster.accelerator, cluster.host),
        gpu_memory_bytes_per_s=hybrid.machine.device.memory_bytes_per_s,
    )
