"""FlexGen's question for a model, a machine and requests: where weights, cache and activations lie, in which blocks.

`offload_placement` answers it for rates; here the rates are those that the rest of the package prices with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ridgeline.cost.host import Kernel, disk
from ridgeline.errors import PlanError
from ridgeline.facts.records import Cluster
from ridgeline.graph.ops import Model
from ridgeline.lower.pieces import Core, Product
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.offloaded import Offload as Asked
from ridgeline.predict.offloaded import hybrid_of
from ridgeline.report.offload_policy import PolicyReport
from ridgeline.search.offload_placement import PLAIN, Job, Machine, place
from ridgeline.serving.hybrid_model import Hybrid
from ridgeline.serving.hybrid_sides import Rows, device_s, link_bytes_per_s

_PROBE_TOKENS = 4096.0  # of the iteration that tells a device's rates: large, as blocks are
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
    )  # fmt: skip


def best_policy(
    model: Model, cluster: Cluster, deployment: Deployment, asked: Asked, *, prompt_tokens: int = 512,
    output_tokens: int = 32, assumed: Sequence[str] = (),
) -> PolicyReport:  # fmt: skip
    """The policy of least time per token for one device, proven against all [s].

    Domain: layers of four D x D and two D x F matrices, one device, 16-bit values. Raises `NoPlanError` where not one
    sequence fits, `PlanError` for another model. Source: flexgen; evidence: derived.
    """
    job = job_of(model, prompt_tokens, output_tokens)
    hybrid, said = hybrid_of(model, cluster, replace(deployment, tp=1, pp=1), asked, "FlexGen")
    machine = machine_of(hybrid, cluster, job, asked)
    methods = PLAIN if hybrid.host is not None else tuple(one for one in PLAIN if not one.cpu_attention)
    if hybrid.host is None:
        said.append("attention never runs on processors, as none is named (--cpu)")
    found, price = place(job, machine, methods=methods), cluster.price_usd_per_device_h
    lengths = f"{prompt_tokens:,} prompt and {output_tokens:,} answer tokens"
    known = {name: float(value) for name, value in vars(machine).items() if name.endswith("_per_s")}
    return PolicyReport(
        title=f"{model.name} on one {cluster.accelerator.name}: streamed weights, requests of {lengths}",
        tokens_per_s=found.tokens_per_s, prefill_s=found.prefill_s, decode_s=found.decode_s, gap=found.gap,
        gpu_batch=found.policy.gpu_batch, gpu_batches=found.policy.gpu_batches,
        cpu_attention=found.policy.method.cpu_attention,
        shares={kind: tuple(map(float, row)) for kind, row in zip(_KINDS, found.policy.shares, strict=True)},
        peak_bytes=tuple(map(float, found.tier_bytes)), usable_bytes=tuple(map(float, machine.usable_bytes)),
        rates={name: value for name, value in known.items() if math.isfinite(value)},
        usd_per_h=None if price is None else price.value,
        assumed=(*assumed, *said, "values of 16 bits; a disk that is written as fast as it is read"),
    )  # fmt: skip


def machine_of(hybrid: Hybrid, cluster: Cluster, job: Job, asked: Asked) -> Machine:
    """The rates of FlexGen's program from those of kernels, links, processors and disks [FLOP/s, byte/s].

    Products and attention reach what an iteration of 4,096 tokens of a prompt does; decode also waits for memory.
    """
    (kind, *_) = hybrid.device_served.kinds
    tokens = np.array([_PROBE_TOKENS])
    sequences = max(1.0, _PROBE_TOKENS / job.prompt_tokens)
    rows = Rows(tokens=tokens, sequences=sequences, context=np.zeros(1), prompt=True)
    products, cores = (
        float(device_s(hybrid, [piece for piece in kind.pieces if isinstance(piece, which)], rows)[0])
        for which in (Product, Core)
    )
    matmul = _PROBE_TOKENS * (8.0 * job.hidden**2 + 4.0 * job.hidden * job.feed_forward) / products
    attention = sequences * 4.0 * (_PROBE_TOKENS / sequences) ** 2 * job.hidden / cores
    link, storage, host = link_bytes_per_s(hybrid), disk(asked.storage or "nvme"), hybrid.host
    assert hybrid.machine is not None
    return Machine(
        gpu_bytes=hybrid.room_bytes,
        cpu_bytes=cluster.host.dram_bytes if asked.dram_bytes is None else asked.dram_bytes,
        disk_bytes=cluster.host.nvme_bytes if asked.storage else 0.0,
        cpu_to_gpu_bytes_per_s=link,
        gpu_to_cpu_bytes_per_s=link,
        gpu_to_cpu_cache_bytes_per_s=link,
        disk_read_bytes_per_s=storage.bytes_per_s,
        disk_write_bytes_per_s=storage.bytes_per_s,
        disk_write_cache_bytes_per_s=storage.bytes_per_s,
        matmul_prefill_flop_per_s=matmul,
        matmul_decode_flop_per_s=matmul,
        attention_prefill_flop_per_s=attention,
        attention_decode_flop_per_s=attention,
        cpu_attention_flop_per_s=1.0 if host is None else host.flop_per_s(Kernel.VECTOR),
        cpu_memory_bytes_per_s=math.inf if host is None else host.read_bytes_per_s,
        gpu_memory_bytes_per_s=hybrid.machine.device.memory_bytes_per_s,
    )
