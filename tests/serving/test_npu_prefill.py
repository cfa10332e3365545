"""Prompts on a phone's NPU and CPU: hand-worked orders, every order of small graphs, chunks of a model, served time."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment
from ridgeline.plan.engine_options import EngineOptions
from ridgeline.serving.engine import Engine, engine
from ridgeline.techniques.prompt_devices.npu_prefill import (
    CPU,
    NPU,
    Layers,
    NpuPrefill,
    Subgraph,
    bound_s,
    prompt_s,
    schedule,
    subgraphs,
)

PHONE = machine(cluster("1xSnapdragon-8-Gen-3-16gb"))


def phone(technique: str = "npu-prefill", model: str = "qwen1.5-1.8b", **words: object) -> Engine:
    deployment = Deployment(engine="llama.cpp", weights="q8_0", technique=(technique,) if technique else (), **words)  # type: ignore[arg-type]
    return engine(load(model), PHONE, deployment)


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


def test_attention_waits_for_keys_of_earlier_chunks_and_grows_with_them() -> None:
    one: Layers = (((0.0, 1.0, 0.0), (2.0, 0.5, 0.0), (0.0, 1.0, 3.0)),)  # a norm, a product with outliers, attention
    tasks = subgraphs(one, 2, 1)
    assert [each.processor for each in tasks] == [CPU, NPU, CPU, CPU] * 2
    assert [each.seconds for each in tasks] == [1.0, 2.0, 0.5, 4.0, 1.0, 2.0, 0.5, 7.0]
    assert [each.after for each in tasks] == [(), (0,), (0,), (1, 2), (), (4,), (4,), (1, 2, 5, 6)]
    # CPU: norm to 1, outliers to 1.5, norm to 2.5, outliers to 3, attention of 4 s (keys at 3) to 7, of 7 s to 14
    assert prompt_s(one, "out_of_order", 2, 1) == 14.0


def test_chunks_of_a_model() -> None:
    tasks = subgraphs(NpuPrefill(shadowed=0.25).layers(load("qwen1.5-1.8b").graph, PHONE.device), 4, 0)
    npu = [each for each in tasks if each.processor == NPU]
    assert len(npu) == 4 * 24 * 4  # four chunks of four products in 24 layers
    assert len(tasks) == len(npu) + 4 * (24 * 5 + 6 * 4)  # five parts between them, outliers in six layers
    flop = 2 * 1024 * 24 * (4 * 2048**2 + 3 * 2048 * 5504)
    assert sum(each.seconds for each in npu) == pytest.approx(flop / 1.9e12)
    assert schedule(tasks, "in_order") > schedule(tasks, "out_of_order") >= bound_s(tasks)


def test_many_chunks_take_what_their_middle_does() -> None:
    layers = NpuPrefill().layers(load("qwen1.5-0.5b").graph, PHONE.device)
    whole = schedule(subgraphs(layers, 12, 0), "out_of_order")
    assert prompt_s(layers, "out_of_order", 12, 0) == pytest.approx(whole, rel=0.03)


def test_a_served_prompt_takes_its_schedule_and_a_step_what_it_did() -> None:
    one, plain = phone(), phone("")
    assert not one.policy.chunked  # a prompt of 1,000 tokens is one iteration
    found, before = (each.tables(longest_prompt=1000, longest=1100) for each in (one, plain))
    layers = NpuPrefill().layers(one.model.graph, PHONE.device)
    for tokens, chunks in ((1, 1), (256, 1), (257, 2), (600, 3), (1000, 4)):  # the last one padded
        first = found.first.at_two(found.chunks, found.pasts, tokens, 0.0).mid
        assert first == pytest.approx(prompt_s(layers, "out_of_order", chunks, 0))
    rows = found.experts(prompts=True).mid + found.lane.mid
    assert not rows.any()
    assert found.group.mid[0] == pytest.approx(before.lane.mid[0])  # a step of one token
    assert found.decode.mid[0, 0] == before.decode.mid[0, 0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"options": EngineOptions(chunked=True)}, "takes whole prompts"),
        ({"model": "mixtral-8x7b"}, "needs a dense decoder"),
        ({"technique": "npu-prefill(order=last)"}, "order = last, needs one of"),
    ],
)
def test_what_does_not_go_with_it_is_refused(words: dict[str, object], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        phone(**words)  # type: ignore[arg-type]


def test_it_is_beside_no_gpu_and_of_one_processor() -> None:
    with pytest.raises(PlanError, match="not beside H100"):
        engine(load("qwen1.5-1.8b"), machine(cluster("1xH100-SXM")), Deployment(technique=("npu-prefill",)))
    with pytest.raises(PlanError, match="is of one device, not of 2"):
        engine(load("qwen1.5-1.8b"), machine(cluster("2xH100-SXM")), Deployment(tp=2, technique=("npu-prefill",)))
