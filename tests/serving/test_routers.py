"""Routers: the hook that chooses an instance, on made-up engines."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import Replays
from ridgeline.errors import PlanError
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.serving import hooks_of, router_of
from ridgeline.serving.compiling import clocked
from ridgeline.serving.traffic.traffic import traffic

ONE_EACH = {"lane_s": 1.0, "max_seqs": 1}


@clocked
def always_last(clock, pool, request):
    return clock.instances.size - 1


@clocked
def by_prompt(clock, pool, request):
    return clock.requests[request].prompt % clock.instances.size


def test_a_router_of_ones_own_chooses_the_instance(replayed: Replays) -> None:
    asked = traffic(np.zeros(4), [3, 3, 4, 5], [1, 1, 1, 1])
    alone = replayed(asked, instances=3, hooks={"route": always_last}, **ONE_EACH)
    assert alone.end_s.tolist() == [1.0, 2.0, 3.0, 4.0]
    spread = replayed(asked, instances=3, hooks={"route": by_prompt}, **ONE_EACH)
    assert spread.end_s.tolist() == [1.0, 2.0, 1.0, 1.0]


def test_in_turn_is_blind_to_what_an_instance_has_to_do(replayed: Replays) -> None:
    asked = traffic([0.0, 0.0, 2.5], [4, 4, 4], [9, 2, 1])  # the second instance is idle from 2 s on
    assert replayed(asked, instances=2, router="round-robin", **ONE_EACH).end_s.tolist() == [9.0, 2.0, 10.0]
    assert replayed(asked, instances=2, router="least-loaded", **ONE_EACH).end_s.tolist() == [9.0, 2.0, 3.5]


def test_a_deployment_says_its_router_and_a_command_may_say_another(replayed: Replays) -> None:
    asked = traffic([0.0, 0.0, 2.5], [4, 4, 4], [9, 2, 1])
    said = deployed(router="least-loaded")
    assert said.technique == ("least-loaded",)
    assert deployed(router="round-robin") == deployed()
    assert replayed(asked, instances=2, deployment=said, router="", **ONE_EACH).end_s[2] == 3.5
    assert replayed(asked, instances=2, deployment=said, router="round-robin", **ONE_EACH).end_s[2] == 10.0


def test_pools_of_other_routers_share_the_hooks_of_their_queue() -> None:
    assert not hooks_of([deployed(router="prefix"), deployed(router="least-loaded")])
    assert router_of([deployed(router="prefix"), deployed()]).by_prefix


def test_what_is_no_router_is_refused() -> None:
    with pytest.raises(PlanError, match="is one of the queues; give a router"):
        router_of([deployed()], "shortest")
