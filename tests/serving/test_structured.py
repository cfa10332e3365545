"""Structured output by hand: schemas compiled once, masks, forced tokens; and cold starts."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.cold_start import cold_start
from ridgeline.seams.registry import listed
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.fleet_events import Autoscale
from ridgeline.serving.replay import Replay
from ridgeline.serving.traffic.traffic import traffic

Replays = Callable[..., Replay]


def served(technique: str, version: str = "0.11", name: str = "vllm") -> Engine:
    one = Deployment(engine=name, version=version, technique=(technique,) if technique else ())
    return engine(load("llama-3.1-8b"), machine(cluster("1xH100-SXM")), one)


@pytest.mark.parametrize(("beside", "step_s"), [(0, 1.0 + 2 * 0.3), (1, 1.0)])
def test_masks_of_two_sequences_before_a_step_or_beside_it(replayed: Replays, beside: int, step_s: float) -> None:
    """Steps of 1 s and masks of 0.3 s a sequence: 1.6 s one after another, 1 s side by side."""
    found = replayed(traffic([0.0, 0.0], [1, 1], [5, 5]), lane_s=1.0, mask_s=0.3, masks_beside=beside)
    assert found.end_s - found.first_s == pytest.approx([4 * step_s] * 2)


def test_masks_take_longer_than_the_device_or_are_shared_among_threads(replayed: Replays) -> None:
    asked = traffic([0.0, 0.0], [1, 1], [5, 5])
    found = replayed(asked, lane_s=1.0, mask_s=0.8, masks_beside=1, mask_above=2, mask_threads=4)
    assert found.end_s - found.first_s == pytest.approx([4 * 1.6] * 2)
    found = replayed(asked, lane_s=1.0, mask_s=0.8, masks_beside=0, mask_above=1, mask_threads=4)
    assert found.end_s - found.first_s == pytest.approx([4 * 1.4] * 2)


def test_a_schema_is_compiled_for_those_who_come_first() -> None:
    """The first waits 2 s, who comes a second later one, who comes at 5 s none; in closed loops the first alone."""
    one = listed("structured-output(compiling=2)")
    asked = SimpleNamespace(arrival_s=np.array([0.0, 1.0, 5.0]), requests=3, concurrency=None, after=np.full(3, -1))
    assert one.front_seconds(served(""), asked).tolist() == [2.0, 1.0, 0.0]  # type: ignore[attr-defined]
    closed = SimpleNamespace(arrival_s=np.zeros(3), requests=3, concurrency=1, after=np.full(3, -1))
    assert one.front_seconds(served(""), closed).tolist() == [2.0, 0.0, 0.0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "version", "mask_s", "beside", "threads"),
    [("vllm", "0.11", 8e-6, 0, 8), ("vllm", "0.17", 8e-6, 1, 8), ("sglang", "0.5.6", 8e-6, 1, 1),
     ("vllm", "0.5.4", 118e-6, 0, 1)],
)  # fmt: skip
def test_engines_make_masks_their_own_way(name: str, version: str, mask_s: float, beside: int, threads: int) -> None:
    made = served("structured-output", version, name)
    rule = made.rule(made.tables(longest_prompt=100, longest=200))
    assert (rule["mask_s"], rule["masks_beside"], rule["mask_threads"]) == (pytest.approx(mask_s), beside, threads)


def test_forced_tokens_come_without_steps_of_their_own() -> None:
    """Of 5 tokens one is forced: a step gains 1.25 and computes as many."""
    made = served("structured-output(forced=0.2)")
    rule = made.rule(made.tables(longest_prompt=100, longest=200))
    assert (rule["gained"], rule["drafted"]) == (pytest.approx(1.25), pytest.approx(0.25))


def test_a_cold_start_goes_through_its_parts() -> None:
    """16.06 GB at 1.67 GB/s, 10 GB of an image at 0.5 GB/s, 25 s of a process, 7.5 s of compiling, 0.25 s a graph."""
    made = served("")
    auto = Autoscale(start_s=None)
    parts = cold_start(made, auto)
    assert parts["image"] == pytest.approx(20.0)
    assert parts["weights"] == pytest.approx(made.capacity.weights_bytes / 1.67e9)
    assert (parts["process"], parts["compiling"]) == (25.0, 7.5)
    assert parts["graphs"] == pytest.approx(0.25 * len(made.graphs))
    quick = cold_start(
        made, Autoscale(rule="load-scaling(high=4.0,low=1.0)", start_s=None, load_bytes_per_s=1e12, image_bytes=0.0)
    )
    assert quick["weights"] == pytest.approx(made.capacity.weights_bytes / made.machine.cluster.host.device_bytes_per_s)
    assert quick["image"] == 0.0
