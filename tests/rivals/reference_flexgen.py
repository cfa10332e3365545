"""FlexGen's published cost model: times of one layer as rows over the shares, with its authors' constants.

It reads the disk before it computes and lets links, disk and compute of a layer overlap, where its loop waits for
everything after each half layer (`streamed_schedule`). Source: Sheng et al. 2023 (flexgen), section 4.3, and the
authors' program. Letters as of `streamed_costs`.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.search.offload_placement import ranked
from ridgeline.serving.streamed_costs import (
    CACHE,
    DISK,
    DRAM,
    GPU,
    HIDDEN,
    WEIGHTS,
    HostMachine,
    Job,
    Terms,
    row,
    tier_bytes,
)
from ridgeline.serving.streamed_policy import StreamedPolicy, vector_of

PUBLISHED = Path(__file__).with_name("published_programs.toml")
FLEXGEN: dict[str, Any] = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))["flexgen"]
CASES: list[dict[str, Any]] = FLEXGEN["cases"]
GIB = 2.0**30
DISK_WEIGHT_SHARE = 0.95  # of the disk's rate that weights reach in decode


def flexgen_machine() -> HostMachine:
    """The T4 machine as FlexGen's authors fitted it; each memory times what they let a policy fill of it."""
    rate = {name: value * GIB for name, value in FLEXGEN.items() if name.endswith("_gib_per_s")}
    flop = {name.replace("_tflop", "_flop"): value * 1e12 for name, value in FLEXGEN.items() if "_tflop_" in name}
    return HostMachine(
        gpu_bytes=FLEXGEN["gpu_gib"] * GIB * FLEXGEN["usable"],
        cpu_bytes=FLEXGEN["cpu_gib"] * GIB * FLEXGEN["usable"],
        disk_bytes=FLEXGEN["disk_gib"] * GIB * FLEXGEN["usable"],
        cpu_to_gpu_bytes_per_s=rate["cpu_to_gpu_gib_per_s"],
        gpu_to_cpu_bytes_per_s=rate["gpu_to_cpu_hidden_gib_per_s"],
        gpu_to_cpu_cache_bytes_per_s=rate["gpu_to_cpu_cache_gib_per_s"],
        disk_read_bytes_per_s=rate["disk_to_cpu_gib_per_s"],
        disk_write_bytes_per_s=rate["cpu_to_disk_decode_gib_per_s"],
        disk_write_cache_bytes_per_s=rate["cpu_to_disk_cache_prefill_gib_per_s"],
        **flop,
    )


def job_of(case: dict[str, Any]) -> Job:
    """The model and the lengths of a published case."""
    shape = {name: case[name] for name in ("layers", "hidden", "feed_forward", "heads")}
    return Job(prompt_tokens=FLEXGEN["prompt_tokens"], output_tokens=FLEXGEN["output_tokens"], **shape)


def published(case: dict[str, Any]) -> StreamedPolicy:
    """The policy that a case's authors chose."""
    first = np.array(case["percent"], dtype=np.float64).reshape(3, 2) / 100
    shares = np.column_stack([first, 1.0 - first.sum(axis=1)])
    return StreamedPolicy(gpu_batch=case["gpu_batch"], gpu_batches=case["gpu_batches"], shares=shares)


def terms(job: Job, machine: HostMachine, gpu_batch: int, *, cpu_attention: bool) -> Terms:
    """The rows of one batch size and place of attention [s], [byte]."""
    return Terms(
        prefill_s=_prefill_s(job, machine),
        decode_s=_decode_s(job, machine, gpu_batch, cpu_attention=cpu_attention),
        tier_bytes=tier_bytes(job, gpu_batch, cpu_attention=cpu_attention),
    )


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A policy and what it takes by the published model."""

    policy: StreamedPolicy
    prefill_s: float
    decode_s: float
    token_s: float
    bound_s: float = 0.0
    programs: int = 0

    @property
    def gap(self) -> float:
        """How far the time per token can be from the least one, as a share of it [1]."""
        return max(0.0, round(1.0 - self.bound_s / self.token_s, 9))


def evaluate(job: Job, machine: HostMachine, policy: StreamedPolicy, bound_s: float = 0.0, programs: int = 0) -> Placed:
    """The closed form that the program of `place` must meet."""
    found = terms(job, machine, policy.gpu_batch, cpu_attention=policy.cpu_attention)
    vector, passes = vector_of(policy.shares, policy.block), job.layers * policy.block
    prefill_s = passes * float((found.prefill_s @ vector).max())
    decode_s = passes * (job.output_tokens - 1) * float((found.decode_s @ vector).max())
    token_s = (prefill_s + decode_s) / (policy.block * job.output_tokens)
    bound_s = min(bound_s, token_s)
    return Placed(
        policy=policy, prefill_s=prefill_s, decode_s=decode_s, token_s=token_s, bound_s=bound_s, programs=programs
    )


def place(job: Job, machine: HostMachine, **more: Any) -> Placed:
    """The best policy of the published model; more as of `ranked`."""
    bound_s, policy, programs = next(ranked(job, machine, costs=terms, **more))
    return evaluate(job, machine, policy, bound_s, programs)


def _prefill_s(job: Job, machine: HostMachine) -> Any:
    """Time of one layer's prefill (3, 16) [s]: fetching, storing, computing."""
    tokens, width, weights, token = job.prompt_tokens, job.hidden, sum(job.halves), 4.0 * job.hidden
    fetched, written = 2.0 * tokens * width, token * (tokens + 1)
    to_gpu, read = 1 / machine.cpu_to_gpu_bytes_per_s, 1 / machine.disk_read_bytes_per_s
    fetch = row(
        shares={
            (WEIGHTS, DRAM): weights * to_gpu,
            (WEIGHTS, DISK): weights * (to_gpu + read),
            (HIDDEN, DRAM): fetched * to_gpu,
            (HIDDEN, DISK): fetched * (to_gpu + read),
        }
    )
    store_cache, store = written / machine.gpu_to_cpu_cache_bytes_per_s, fetched / machine.gpu_to_cpu_bytes_per_s
    stored = row(
        shares={
            (CACHE, DRAM): store_cache,
            (CACHE, DISK): store_cache + written / machine.disk_write_cache_bytes_per_s,
            (HIDDEN, DRAM): store,
            (HIDDEN, DISK): store + fetched / machine.disk_write_bytes_per_s,
        }
    )
    matmul_s = tokens * weights / machine.matmul_prefill_flop_per_s
    compute = row(constant=matmul_s + 4.0 * tokens**2 * width / machine.attention_prefill_flop_per_s)
    return np.stack([fetch, stored, compute])


def _decode_s(job: Job, machine: HostMachine, gpu_batch: int, *, cpu_attention: bool) -> Any:
    """Time of one layer's decode step (4, 16) [s]: fetching, plus storing, reading, writing or computing."""
    width, context = job.hidden, job.prompt_tokens + job.output_tokens / 2
    weights, token, hidden = sum(job.halves), 4.0 * width, 2.0 * width
    to_gpu, cache, away = 1 / machine.cpu_to_gpu_bytes_per_s, token * context, (DRAM, DISK)
    new = 0.0 if cpu_attention else token / machine.gpu_to_cpu_cache_bytes_per_s
    load = row(
        shares={(WEIGHTS, tier): weights * to_gpu for tier in away}
        | {(HIDDEN, tier): hidden * to_gpu for tier in away}
        | {(CACHE, tier): (0.0 if cpu_attention else cache) * to_gpu for tier in away}
    )
    store = row(
        shares={(HIDDEN, tier): hidden / machine.gpu_to_cpu_bytes_per_s for tier in away}
        | {(CACHE, tier): new for tier in away}
    )
    read = row(
        shares={
            (CACHE, DISK): cache / machine.disk_read_bytes_per_s,
            (HIDDEN, DISK): hidden / machine.disk_read_bytes_per_s,
            (WEIGHTS, DISK): weights / (machine.disk_read_bytes_per_s * DISK_WEIGHT_SHARE),
        }
    )
    write = row(
        shares={
            (CACHE, DISK): token / machine.disk_write_bytes_per_s,
            (HIDDEN, DISK): hidden / machine.disk_write_bytes_per_s,
        }
    )
    over_memory = 1 / machine.gpu_memory_bytes_per_s
    on_gpu = max(cache / machine.attention_decode_flop_per_s, cache * over_memory)
    matmul = max(weights / machine.matmul_decode_flop_per_s, weights / gpu_batch * over_memory)
    slow = on_gpu
    if cpu_attention:  # slower where batches and models are small, as its authors fitted
        batch, small = max(0.0, math.log2(64 / gpu_batch)), max(0.0, math.log2(4096 / width))
        first, second, third = FLEXGEN["cpu_small_batch"]
        factor = max(0.1, 1.0 + first * batch * small - second * batch - third * small)
        slow = cache / (machine.cpu_attention_flop_per_s * factor)
    compute = row(constant=matmul, shares={(CACHE, GPU): on_gpu, (CACHE, DRAM): slow, (CACHE, DISK): slow})
    return load + np.stack([store, read, write, compute])
