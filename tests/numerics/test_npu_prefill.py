"""Subgraphs on two processors: hand-worked orders, every order of small graphs, chunks of a model."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from ridgeline.errors import PlanError
from ridgeline.numerics.algorithm import Arrays
from ridgeline.numerics.npu_prefill import CPU, NPU, NpuPrefill, Subgraph, bound_s, schedule

ARRAYS = Arrays(weight=np.zeros((2, 2)), inputs=np.zeros((2, 2)))


def task(processor: int, seconds: float, *after: int) -> Subgraph:
    return Subgraph(processor=processor, seconds=seconds, after=after)


def test_two_chunks_by_hand() -> None:
    # Each chunk: 1 s on the CPU, 2 s on the NPU, 1 s on the CPU, 2 s on the NPU.
    chunk = [(CPU, 1.0), (NPU, 2.0), (CPU, 1.0), (NPU, 2.0)]
    tasks = [
        task(which, seconds, *((4 * number + place - 1,) if place else ()))
        for number in range(2)
        for place, (which, seconds) in enumerate(chunk)
    ]
    assert bound_s(tasks) == 8.0
    assert schedule(tasks, "in_order") == 11.0  # the CPU begins the second chunk at 4, when the first needs it no more
    assert schedule(tasks, "first_ready") == 9.0
    assert schedule(tasks, "out_of_order") == 9.0  # nothing fills the NPU's first second


def test_the_task_that_lets_most_begin_goes_first() -> None:
    late = [task(CPU, 1.0), task(CPU, 1.0), task(CPU, 5.0, 0), task(NPU, 8.0, 1)]
    assert schedule(late, "out_of_order") == 9.0  # in turn the NPU would begin a second later
    assert schedule(late, "first_ready") == 10.0


def every_order(tasks: list[Subgraph]) -> float:
    """The shortest schedule: each order of all tasks, each at its earliest after those of its processor before it."""
    best = float("inf")
    for order in permutations(range(len(tasks))):
        ends, free = dict[int, float](), [0.0, 0.0]
        for place in order:
            one = tasks[place]
            if any(before not in ends for before in one.after):
                break
            begin = max([free[one.processor], *(ends[before] for before in one.after)])
            ends[place] = free[one.processor] = begin + one.seconds
        else:
            best = min(best, max(ends.values()))
    return best


@pytest.mark.parametrize("seed", range(25))
def test_no_order_is_far_shorter_and_none_is_below_the_bound(seed: int) -> None:
    draw = np.random.default_rng(seed)
    tasks = list[Subgraph]()
    for number in range(2):  # two chunks of three parts, attention of the second after the first's product
        for place, which in enumerate((CPU, NPU, CPU)):
            after = () if place == 0 else (3 * number + place - 1,)
            if number and place == 2:
                after = (*after, 1)
            tasks.append(task(which, float(draw.integers(1, 9)), *after))
    best = every_order(tasks)
    assert bound_s(tasks) <= best <= schedule(tasks, "out_of_order") <= 1.4 * best
    assert schedule(tasks, "out_of_order") <= schedule(tasks, "in_order")


def test_chunks_of_a_model() -> None:
    one = NpuPrefill(prompt=1000, chunk=256, shadowed=0.25)
    tasks = one.tasks()
    npu = [each for each in tasks if each.processor == NPU]
    assert len(npu) == 4 * 24 * 4  # four chunks, the last one padded, of four products in 24 layers
    assert len(tasks) == len(npu) + 4 * (24 * 5 + 6 * 4)  # five parts between them, outliers in six layers
    flop = 2 * 1024 * 24 * (4 * 2048**2 + 3 * 2048 * 5504)
    assert sum(each.seconds for each in npu) == pytest.approx(flop / 1.9e12)
    found = one.run(ARRAYS)
    assert found["in_order_tokens_per_s"] < found["out_of_order_tokens_per_s"] <= found["bound_tokens_per_s"]
    assert found["energy_ratio"] == pytest.approx(found["cpu_energy_j"] / found["energy_j"])
    assert found["cpu_tokens_per_s"] == pytest.approx(166, rel=0.15)  # what `predict` says of llama.cpp there


def test_longer_prompts_wait_for_attention_of_earlier_chunks() -> None:
    tasks = NpuPrefill(model="qwen1.5-0.5b", prompt=512, chunk=256).tasks()
    per_chunk = len(tasks) // 2
    second = next(
        each for each in tasks[per_chunk:] if len(each.after) > 2 or min(each.after, default=9**9) < per_chunk
    )
    assert min(second.after) < per_chunk


def test_models_that_are_no_dense_decoders_are_refused() -> None:
    with pytest.raises(PlanError, match="dense decoder"):
        NpuPrefill(model="mixtral-8x7b").run(ARRAYS)
