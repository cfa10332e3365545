"""FlexGen's loop for a model and a machine: the job, and the rates that everything else here is priced with."""

from __future__ import annotations

import math

import numpy as np

from ridgeline.cost.formats import form
from ridgeline.cost.host import Kernel, disk
from ridgeline.cost.host_times import host_slowness
from ridgeline.errors import PlanError
from ridgeline.facts.cpus import cpu_constant
from ridgeline.facts.mechanisms import constant
from ridgeline.graph.model import Model, op_params
from ridgeline.lower.pieces import Core, Product
from ridgeline.serving.hybrid import COPIED, WIDE, WIDENED
from ridgeline.serving.hybrid_model import Hybrid
from ridgeline.serving.hybrid_placement import OffloadMethod
from ridgeline.serving.hybrid_sides import Rows, device_s, link_bytes_per_s
from ridgeline.serving.streamed_costs import HostMachine, Job

_PROBE_TOKENS = 4096.0  # of the iteration that tells a device's rates: large, as blocks are
_SCORE_PASSES = 6.0  # of scores in 16 bits: written by a product, masked (2), softmax (2), read by a product
_MATRICES = "layers of four D x D and two D x F matrices, every head with keys of its own"


def differs(model: Model) -> str | None:
    """How a model's layers are not those of FlexGen's program; None where they are."""
    dims = _dims(model)
    return next(
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


def in_blocks(hybrid: Hybrid) -> bool:
    """Whether FlexGen's loop is replayed: by a program that works in blocks, on one device, with values of 16 bits."""
    asked = hybrid.placement.technique is OffloadMethod.STREAMED and hybrid.habits.blocks
    return asked and hybrid.devices == 1 and hybrid.weight_bytes == 2.0 and differs(hybrid.model) is None


def _dims(model: Model) -> dict[str, int]:
    return {name: int(model.dims.get(name) or 0) for name in ("layers", "hidden", "ffn", "heads", "kv_heads")}


def job_of(model: Model, prompt_tokens: int, output_tokens: int) -> Job:
    """A model as FlexGen's program knows it; raises `PlanError` for layers that are otherwise."""
    other, dims = differs(model), _dims(model)
    if other is not None:
        raise PlanError(f"streamed weights are placed for {_MATRICES}; {model.name} {other}: ask predict --serve")
    return Job(
        layers=dims["layers"], hidden=dims["hidden"], feed_forward=dims["ffn"], heads=dims["heads"],
        prompt_tokens=prompt_tokens, output_tokens=output_tokens,
        ends_bytes=2.0 * 2.0 * sum(op_params(op, 1) for op in model.graph.embedding),
    )  # fmt: skip


def attention_of(hybrid: Hybrid) -> tuple[bool, ...]:
    """Whether blocks may attend on processors, where some are named, and whether on the device."""
    return (True, False) if hybrid.host is not None else (False,)


def _loaded(hybrid: Hybrid) -> float:
    """The rate that the power limit leaves to products that never pause; any where nobody measured it [FLOP/s]."""
    assert hybrid.machine is not None
    loaded = hybrid.machine.device.loaded
    return min(
        (loaded[name] for name in (form(hybrid.formats.feed).matrix, "fp16") if name in loaded), default=math.inf
    )


def machine_of(hybrid: Hybrid, job: Job, dram_bytes: float | None = None) -> HostMachine:
    """The rates of FlexGen's program from those of kernels, links, processors and disks [FLOP/s, byte/s].

    Products and attention reach what an iteration of 4,096 tokens of a prompt does, and no more than the power limit
    leaves to products that never pause; decode also waits for memory. What FlexGen does to a cache of 16 bits in host
    memory moves, for each of its bytes, 5 to widen it (read 2, fetch and write 4 + 4 of an element), 2 to attend to it
    (read 4), 3 to pin it (read 2, fetch and write 2 + 2); memory of new cache is touched for the first time, page by
    page. Source: flexllmgen, flexllmgen/pytorch_backend.py: general_copy, mha_gen, init_cache_one_gpu_batch.
    """
    assert hybrid.machine is not None
    cluster = hybrid.machine.cluster
    (kind, *_) = hybrid.device_served.kinds
    tokens = np.array([_PROBE_TOKENS])
    sequences = max(1.0, _PROBE_TOKENS / job.prompt_tokens)
    rows = Rows(tokens=tokens, sequences=sequences, context=np.zeros(1), prompt=True)
    products, cores = (
        float(device_s(hybrid, [piece for piece in kind.pieces if isinstance(piece, which)], rows)[0])
        for which in (Product, Core)
    )
    matmul = min(_loaded(hybrid), _PROBE_TOKENS * sum(job.halves) / products)
    flop, prompt = 4.0 * job.prompt_tokens**2 * job.hidden, job.prompt_tokens
    scores_s = _SCORE_PASSES * 2.0 * job.heads * prompt**2 / hybrid.machine.device.memory_bytes_per_s
    attention = flop / (flop / (sequences * 4.0 * (_PROBE_TOKENS / sequences) ** 2 * job.hidden / cores) + scores_s)
    link, storage, host = link_bytes_per_s(hybrid), disk(hybrid.placement.storage), hybrid.host
    faults_s = cpu_constant("page.fault") / cpu_constant("page.bytes")
    widened_s = attended_s = pinned_s = 0.0
    if host is not None:
        widened_s = WIDENED / host.stream_bytes_per_s
        attended_s = WIDE / host.read_bytes_per_s
        pinned_s = COPIED / host.stream_bytes_per_s
    away_s = widened_s + attended_s
    return HostMachine(
        gpu_bytes=hybrid.room_bytes,
        cpu_bytes=cluster.host.dram_bytes if dram_bytes is None else dram_bytes,
        disk_bytes=cluster.host.nvme_bytes if hybrid.placement.from_disk else 0.0,
        cpu_to_gpu_bytes_per_s=link,
        gpu_to_cpu_bytes_per_s=link,
        gpu_to_cpu_cache_bytes_per_s=1.0 / (1.0 / link + faults_s),
        disk_read_bytes_per_s=storage.fault_bytes_per_s,  # mapped files
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
