"""Instances that merge for the prefill of long prompts: by hand, and on a real model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Role
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import engine
from ridgeline.serving.fleet_events import Autoscale, FleetEvents
from ridgeline.serving.replay import Replay, replay
from ridgeline.serving.traffic.traffic import traffic

RULE = {"elastic": 32, "ring_start_s": 0.5, "move_token_s": 0.01}
TIMES = {"lane_s": 1.0, "token_s": 0.1, "prompt_s": 12.0, "step_s": 2.0}
Replays = Callable[..., Replay]


def run(replayed: Replays, asked: Any, **words: Any) -> Replay:
    return replayed(asked, **{"instances": 3, **RULE, **TIMES, **words})


def test_a_long_prompt_by_all_who_are_free(replayed: Replays) -> None:
    """60 tokens by three: 20 each, 1 + 2 s; attention 12 / 3 = 4 s, parts go round in 2 (0.5 + 0.2) meanwhile: 7 s.

    Its step, alone: 1.1 + 2 s. One by itself takes 1 + 6 + 12 s.
    """
    found = run(replayed, traffic([0.0], [60], [2]))
    assert found.first_s.tolist() == pytest.approx([7.0])
    assert found.end_s.tolist() == pytest.approx([10.1])
    assert found.merges == 1
    assert found.busy_s.tolist() == pytest.approx([10.1, 7.0, 7.0])
    alone = run(replayed, traffic([0.0], [60], [2]), elastic=61)
    assert (alone.first_s.tolist(), alone.merges) == (pytest.approx([19.0]), 0)


def test_the_degree_follows_what_is_fastest(replayed: Replays) -> None:
    """Where going round takes 5 s a part two are faster than three: 1 + 3 + max(6, 5.3) = 10 against 1 + 2 + 10.4."""
    found = run(replayed, traffic([0.0], [60], [2]), ring_start_s=5.0)
    assert found.first_s.tolist() == pytest.approx([10.0])
    assert sorted(found.busy_s.tolist()) == pytest.approx([0.0, 10.0, 13.1])
    slow = run(replayed, traffic([0.0], [60], [2]), ring_start_s=50.0)
    assert (slow.first_s.tolist(), slow.merges) == (pytest.approx([19.0]), 0)


def test_who_helps_is_not_there_for_others_until_the_iteration_ends(replayed: Replays) -> None:
    """A's prompt takes all three until 7. B comes to the second at 1 and begins at 7: 1 + 0.8 + 12, to 20.8."""
    found = run(replayed, traffic([0.0, 1.0], [60, 8], [2, 1]))
    assert found.first_s.tolist() == pytest.approx([7.0, 20.8])
    # who decodes does not help: A comes while B does, and one instance is free beside its own
    busy = run(replayed, traffic([0.0, 14.0], [8, 60], [9, 1]))
    assert busy.first_s.tolist() == pytest.approx([13.8, 14.0 + 1.0 + 3.0 + 6.0])


def test_a_prompt_that_merges_is_not_cut(replayed: Replays) -> None:
    """A budget of 16 cuts 60 tokens in four; merged they are one iteration, beyond the budget."""
    cut = run(replayed, traffic([0.0], [60], [1]), token_budget=16, elastic=0)
    assert cut.iterations == 4
    whole = run(replayed, traffic([0.0], [60], [1]), token_budget=16)
    assert (whole.iterations, whole.first_s.tolist()) == (1, pytest.approx([7.0]))


def test_a_long_prompt_is_sooner_done_on_a_real_model() -> None:
    """Llama-3.1-8B, 100,000 tokens, four instances of one H100: between two and four times as fast."""
    where = machine(cluster("4xH100-SXM"))
    asked = traffic([0.0], [100_000], [32])
    ttft = {}
    for elastic in (None, 8192):
        one = engine(load("llama-3.1-8b"), where, deployed(instances=4, elastic_tokens=elastic))
        found = replay([one], asked)
        ttft[elastic] = float(found.first_s[0])
        assert found.merges == (0 if elastic is None else 1)
    assert 2.0 < ttft[None] / ttft[8192] < 4.2
    rule = engine(load("llama-3.1-8b"), where, deployed(instances=4, elastic_tokens=8192)).rule(
        engine(load("llama-3.1-8b"), where, deployed(instances=4)).tables(longest_prompt=100, longest=200), stride=1
    )
    assert float(rule["ring_start_s"]) == pytest.approx(32 * float(rule["move_start_s"]))
    assert np.isclose(float(rule["move_token_s"]), 131_072 / 450e9, rtol=0.5)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"dp": 2}, "dp"),
        ({"borrows": True}, "borrows"),
        ({"role": Role.PREFILL}, "a pool"),
        ({"elastic_tokens": 0}, "elastic_tokens = 0 tokens, needs 1 to"),
    ],
)
def test_what_is_not_modelled_is_refused(words: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        deployed(**{"elastic_tokens": 100, **words})


def test_fleets_and_engines_that_do_not_merge_are_refused(replayed: Replays) -> None:
    with pytest.raises(PlanError, match="stay up"):
        run(
            replayed,
            traffic([0.0], [60], [2]),
            fleet_events=FleetEvents(autoscale=Autoscale()),
        )
    asked = deployed(engine="Transformers", elastic_tokens=64)
    with pytest.raises(PlanError, match="Transformers, which is static"):
        engine(load("llama-3.1-8b"), machine(cluster("1xH100-SXM")), asked)
