"""A window of blocks on each rank: against two threads simulated plainly, and bytes and messages by hand."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.predict.offloaded import Offload, offloaded
from ridgeline.report.offloaded import OffloadReport
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.host_experts import StreamedBlocks
from ridgeline.seams.registry import technique
from ridgeline.serving.hybrid_placement import OffloadMethod


def made(window: int = 2, reduce: str = "star"):  # type: ignore[no-untyped-def]
    return technique("host_experts", f"tpi-llm(window={window},all_reduce={reduce})")


def blocks(load_s: list[float], compute_s: list[float], held: list[float] | None = None) -> StreamedBlocks:
    held_bytes = np.array(held or [4.0] * len(load_s))
    return StreamedBlocks(
        file_bytes=held_bytes / 2.0, held_bytes=held_bytes, load_s=np.array(load_s),
        compute_s=np.array(compute_s)[:, None],
    )  # fmt: skip


def threads(load_s: list[float], compute_s: list[float], window: int, tokens: int) -> list[float]:
    """When each token is done, where a reader and a worker share a bounded queue [s]."""
    order = [block for _ in range(tokens) for block in range(len(load_s))]
    held: deque[tuple[int, float]] = deque()
    reader = worker = 0.0
    left: list[float] = []  # when each block left memory
    ends = []
    for place, block in enumerate(order):
        if place >= window:
            reader = max(reader, left[place - window])
        reader += load_s[block]
        held.append((block, reader))
        assert len(held) <= window
        block, there = held.popleft()
        worker = max(worker, there) + compute_s[block]
        left.append(worker)
        if block == len(load_s) - 1:
            ends.append(worker)
    return ends


@pytest.mark.parametrize("seed", range(200))
def test_a_window_is_two_threads_and_a_queue(seed: int) -> None:
    draw = np.random.default_rng(seed)
    count, window = int(draw.integers(3, 20)), int(draw.integers(2, 8))
    load_s, compute_s = (draw.uniform(0.1, 3.0, count).tolist() for _ in range(2))
    ends = threads(load_s, compute_s, window, 60)
    found = float(made(window).window_s(blocks(load_s, compute_s))[0])
    assert found == pytest.approx(ends[1] - ends[0])
    assert max(sum(load_s), sum(compute_s)) <= found * (1 + 1e-9)
    assert found <= sum(load_s) + sum(compute_s) + 1e-9


def test_a_window_of_two_reads_beside_one_block() -> None:
    """Reads 1 and 3 s, computes 2 and 2 s: the long read hides 2 s, so that a token takes max(3, 2) + max(1, 2)."""
    assert made(2).window_s(blocks([1.0, 3.0] * 4, [2.0, 2.0] * 4))[0] == pytest.approx(4 * 5.0)
    assert made(8).window_s(blocks([1.0, 3.0] * 4, [2.0, 2.0] * 4))[0] == pytest.approx(4 * 4.0)


def test_the_fullest_window_wraps_around() -> None:
    """Head 9 and embedding 8 follow each other: 17, and the embedding's file, 4."""
    one = blocks([1.0] * 4, [1.0] * 4, held=[8.0, 1.0, 2.0, 9.0])
    assert made(2).window_bytes(one) == 21.0
    assert made(100).window_bytes(one) == 24.5  # all of it, and the largest file


def test_a_hub_waits_for_two_messages_and_a_ring_for_each_rank() -> None:
    """8 ranks, 1 ms, 32 KiB at 1 MB/s: 2 (1 + 7 x 32.768) ms, or 14 (1 + 4.096) ms; of few bytes the hub wins."""
    size = np.array([32768.0])
    assert made().exchange_s(size, 8, 1e-3, 1e6)[0] == pytest.approx(2 * (1e-3 + 7 * 0.032768))
    assert made(2, "ring").exchange_s(size, 8, 1e-3, 1e6)[0] == pytest.approx(14 * (1e-3 + 0.004096))
    assert made().exchange_s(size, 8, 1e-3, 1e9)[0] < made(2, "ring").exchange_s(size, 8, 1e-3, 1e9)[0]


def asked(ranks: int, text: str = "tpi-llm", memory: float = 8e9, **words: object) -> OffloadReport:
    offload = Offload(
        technique=OffloadMethod.DISK, processors="8 cores, 2.5 GHz, 38 GB/s, avx2", dram_bytes=memory, storage="sata"
    )
    deployment = deployed(weights="fp16", tp=ranks, technique=(text,), **words)
    on = cluster(f"{ranks}xApple-M1-8-core")
    return offloaded(load("llama-2-70b"), on, deployment, offload, prompt_tokens=32, output_tokens=32)


def test_ranks_hold_the_head_and_the_embedding_and_read_their_share() -> None:
    """32,000 x 8,192 twice in 32 bits and once in 16; logits of 512 tokens, 64 tokens of cache of one head a layer."""
    report, table = asked(8), 32000 * 8192
    cache = 64 * 80 * 2 * 128 * 4.0
    assert report.peak_bytes == pytest.approx(10.0 * table + 4.0 * 512 * 32000 + cache, rel=1e-6)
    layer = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672
    assert report.host_bytes == pytest.approx(2.0 * (80 * layer / 8 + 2 * table), rel=1e-3)
    read = report.host_bytes / 5.5e8
    assert read <= report.step.parts["disk"] <= 1.3 * read
    assert report.step.total >= report.step.parts["disk"] * (1 - 1e-9)
    assert asked(4).step.total > 1.7 * report.step.total


def test_memory_that_is_too_small_and_other_methods_are_refused() -> None:
    with pytest.raises(NoPlanError, match="--tp"):
        asked(8, memory=1e9)
    with pytest.raises(PlanError, match="goes without tpi-llm"):
        offloaded(
            load("llama-2-7b"), cluster("1xA100-80GB-SXM"), deployed(technique=("tpi-llm",)),
            Offload(technique=OffloadMethod.STREAMED),
        )  # fmt: skip
