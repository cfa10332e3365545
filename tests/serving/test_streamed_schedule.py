"""FlexGen's loop: the closed form against the loop itself, its bound, and what its authors measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.predict.offloaded import Offload, hybrid_of
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.hybrid_placement import OffloadMethod
from ridgeline.serving.streamed_costs import HostMachine, Job
from ridgeline.serving.streamed_machine import job_of, machine_of
from ridgeline.serving.streamed_policy import StreamedPolicy
from ridgeline.serving.streamed_schedule import least, scheduled

JOB = Job(layers=3, hidden=64, feed_forward=256, heads=4, prompt_tokens=16, output_tokens=5)
MACHINE = HostMachine(
    gpu_bytes=1e9, cpu_bytes=1e9, disk_bytes=1e9, cpu_to_gpu_bytes_per_s=1e6, gpu_to_cpu_bytes_per_s=2e6,
    gpu_to_cpu_cache_bytes_per_s=5e5, disk_read_bytes_per_s=4e5, disk_write_bytes_per_s=3e5,
    disk_write_cache_bytes_per_s=2e5, matmul_prefill_flop_per_s=1e8, matmul_decode_flop_per_s=1e8,
    attention_prefill_flop_per_s=5e7, attention_decode_flop_per_s=5e7, cpu_attention_flop_per_s=1e7,
    cpu_memory_bytes_per_s=3e6, gpu_memory_bytes_per_s=1e7, call_s=1e-4, cpu_copy_share=0.6, cpu_pin_bytes_per_s=2e6,
)  # fmt: skip


def drawn(rng: np.random.Generator) -> StreamedPolicy:
    shares = rng.dirichlet((0.5, 1.0, 0.3), size=3)
    shares[2] = [shares[2, 0], 1.0 - shares[2, 0], 0.0]
    on_host = bool(rng.integers(2))
    return StreamedPolicy(
        gpu_batch=int(rng.integers(1, 9)), gpu_batches=int(rng.integers(1, 6)), shares=shares, cpu_attention=on_host
    )


def loop_s(job: Job, machine: HostMachine, policy: StreamedPolicy) -> tuple[float, float]:
    """The loop as its source has it, one batch of one half layer after the other, in the middle of a run [s]."""
    m, b, width = machine, policy.gpu_batch, job.hidden
    (_, wc, wd), (cg, _, cd), (_, hc, _) = policy.shares
    sizes = {"attention": 8.0 * width**2, "feed": 4.0 * width * job.feed_forward}
    tensors, calls = {"attention": 10, "feed": 6}, {"attention": 30, "feed": 8}
    halves, cpu = ["attention", "feed"], policy.cpu_attention

    def weights(half: str) -> tuple[float, float]:
        return sizes[half] * (wc + wd) / m.cpu_to_gpu_bytes_per_s, sizes[half] * wd / m.disk_read_bytes_per_s

    def cache(i: int) -> tuple[float, float, float]:
        """Copying one batch's cache: the main thread, until it has crossed the link (keys, then values), the disk."""
        size = 4.0 * width * b * (job.prompt_tokens + i)
        read = cd * size / m.disk_read_bytes_per_s
        if cpu:
            return m.cpu_copy_share * (1 - cg) * m.cpu_attention_s(size), 0.0, read
        pinned, crossed = (1 - cg) * size / m.cpu_pin_bytes_per_s, (1 - cg) * size / m.cpu_to_gpu_bytes_per_s
        keys_there = pinned / 2 + crossed / 2
        values_pinned = pinned
        return pinned, max(keys_there, values_pinned) + crossed / 2, read

    def compute(i: int, half: str) -> float:
        tokens = job.prompt_tokens if i == 0 else 1
        moved = 2.0 * width * b * tokens * hc * (1 / m.cpu_to_gpu_bytes_per_s + 1 / m.gpu_to_cpu_bytes_per_s)
        if i == 0:
            seconds = b * tokens * sizes[half] / m.matmul_prefill_flop_per_s
            seconds += (half == "attention") * 4.0 * b * tokens**2 * width / m.attention_prefill_flop_per_s
            return max(seconds, calls[half] * m.call_s) + moved
        seconds = max(b * sizes[half] / m.matmul_decode_flop_per_s, sizes[half] / m.gpu_memory_bytes_per_s)
        if half == "feed":
            return max(seconds, calls[half] * m.call_s) + moved
        size = 4.0 * width * b * (job.prompt_tokens + i)
        seconds += (cg if cpu else 1.0) * max(size / m.attention_decode_flop_per_s, size / m.gpu_memory_bytes_per_s)
        away = (1 - cg) * m.cpu_attention_s(size) * (1 - m.cpu_copy_share) if cpu else 0.0
        new = (1 - cg) * 4.0 * width * b / m.gpu_to_cpu_cache_bytes_per_s
        return max(seconds, calls[half] * m.call_s) + moved + new + away

    def stored(i: int) -> float:
        size = 4.0 * width * b * (job.prompt_tokens if i == 0 else 1)
        if i == 0:
            return max((1 - cg) * size / m.gpu_to_cpu_cache_bytes_per_s, cd * size / m.disk_write_cache_bytes_per_s)
        return cd * size / m.disk_write_bytes_per_s

    spent = [0.0, 0.0]
    for i in range(job.output_tokens):
        for j in range(2 * job.layers):
            half, other = halves[j % 2], halves[(j + 1) % 2]
            for k in range(policy.gpu_batches):
                link = disk = writes = 0.0
                main = compute(i, half) + 2 * tensors[half] * m.call_s / policy.gpu_batches
                if k == 0:
                    link, disk = weights(other)
                following = "attention" if k + 1 < policy.gpu_batches and half == "attention" else ""
                if k + 1 == policy.gpu_batches and half == "feed":
                    following = "attention"
                if i > 0 and following:
                    for place, value in enumerate(cache(i)):
                        main, link, disk = (
                            (main + value, link, disk) if place == 0
                            else (main, link + value, disk) if place == 1 else (main, link, disk + value)
                        )  # fmt: skip
                if (half == "attention") == (k > 0):  # the batch before it: of attention, or its last one
                    writes = stored(i) if half == "attention" or k == 0 else 0.0
                spent[i > 0] += max(main, link, disk, writes)
    return spent[0], spent[1]


def test_the_closed_form_is_the_loop() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        policy = drawn(rng)
        if policy.shares[1, 2] > 0 and policy.shares[0, 2] > 0:  # both on the disk: told apart below
            policy = replace(policy, shares=np.column_stack([policy.shares[:, 0], 1 - policy.shares[:, 0], [0, 0, 0]]))
        found = scheduled(JOB, MACHINE, policy)
        assert (found.prefill_s, found.decode_s) == pytest.approx(loop_s(JOB, MACHINE, policy), rel=1e-9)


def test_no_schedule_is_sooner_than_the_bound_nor_than_its_link() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        policy = drawn(rng)
        found = scheduled(JOB, MACHINE, policy)
        rows, y = least(JOB, MACHINE, policy.gpu_batch, cpu_attention=policy.cpu_attention), 1.0 / policy.block
        shares = policy.shares
        vector = np.concatenate([shares[0] * y, shares[1:].ravel(), [y], shares[1:].ravel() * y])
        passes = JOB.layers * policy.block
        assert found.prefill_s >= passes * float((rows.prefill_s @ vector).max()) * (1 - 1e-9)
        assert found.decode_s >= passes * 4 * float((rows.decode_s @ vector).max()) * (1 - 1e-9)
        assert found.decode["link"] <= found.decode_s * (1 + 1e-9)  # that of prompts goes both ways at once


@pytest.mark.parametrize(
    ("model", "prompt", "sizes", "percent", "measured"),
    [
        ("opt-30b", 256, (160, 2), (10, 90, 0, 100, 0, 100), 16.01),
        ("opt-30b", 512, (48, 3), (20, 80, 0, 100, 0, 100), 7.32),
        ("opt-6.7b", 256, (4, 1), (100, 0, 100, 0, 100, 0), 53.29),
        ("opt-6.7b", 512, (2, 1), (100, 0, 100, 0, 100, 0), 25.26),
    ],
)
def test_policies_of_its_authors_take_what_they_measured(
    model: str, prompt: int, sizes: tuple[int, int], percent: tuple[int, ...], measured: float
) -> None:
    """On a T4 in a cloud, 32 tokens each (flexllmgen, benchmark/flexllmgen/bench_suite.py); nothing is fitted."""
    asked = Offload(technique=OffloadMethod.STREAMED, processors="Skylake", dram_bytes=208e9)
    where = cluster("1xT4")
    hybrid, _ = hybrid_of(load(model), where, deployed(weights="fp16"), asked, "FlexGen")
    job = job_of(load(model), prompt, 32)
    first = np.array(percent, dtype=float).reshape(3, 2) / 100
    shares = np.column_stack([first, 1.0 - first.sum(axis=1)])
    cpu = percent[3] > 0
    policy = StreamedPolicy(gpu_batch=sizes[0], gpu_batches=sizes[1], shares=shares, cpu_attention=cpu)
    limits = machine_of(hybrid, job, asked.dram_bytes)
    found = scheduled(job, limits, policy)
    tokens_per_s = policy.block * 32 / (found.prefill_s + found.decode_s)
    assert tokens_per_s == pytest.approx(measured, rel=0.3)
    assert policy.held_bytes(job)[1] < 208e9
