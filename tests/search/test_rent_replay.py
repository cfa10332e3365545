"""Rented mixes are replayed: the first that keeps to the objective is offered, and how far it may be from the least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import NoPlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.search import rent_replay
from ridgeline.search.rent import Option, Problem, rent
from ridgeline.search.rent_replay import dealt, rent_kept, replayed
from ridgeline.search.renting import offers_of, rent_fleet
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.objective import Objective
from ridgeline.serving.traffic.asked import asked_traffic
from ridgeline.serving.traffic.traffic import traffic

SMALL = Option(name="small", accelerator="S", price_usd_per_hour=1.0, most_per_s=[4.0, 1.0])
LARGE = Option(name="large", accelerator="L", price_usd_per_hour=3.0, most_per_s=[8.0, 8.0])
ROWS = np.tile([0, 1], 50)
LINE = traffic(np.arange(100) / 16.0, np.ones(100, dtype=int), np.ones(100, dtype=int))


def problem(**limits: int) -> Problem:
    return Problem(options=(SMALL, LARGE), rates_per_s=[8.0, 8.0], limits=limits)


def at_price(least: float) -> Any:
    """A replay that keeps to the objective from a price on [USD/h]."""
    return lambda answer, *_: 1.0 if answer.cost_usd_per_hour >= least else 0.5


def test_a_mix_that_keeps_is_the_one_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rent_replay, "replayed", at_price(0.0))
    answer, tried = rent_kept(problem(), [], LINE, ROWS, Objective(ttft_s=1.0))
    assert answer.counts == rent(problem()).counts == {"small": 2, "large": 1}
    assert (answer.gap, len(tried), tried[0].attained) == (0.0, 1, 1.0)


def test_a_mix_that_its_own_replay_overloads_is_followed_by_one_with_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixes at 5 and then 6 USD/h and so on up to 7; the bound stays that of the load, and so does what is filled."""
    monkeypatch.setattr(rent_replay, "replayed", at_price(6.5))
    answer, tried = rent_kept(problem(), [], LINE, ROWS, Objective(ttft_s=1.0))
    prices = [one.usd_per_h for one in tried]
    assert prices[0] == pytest.approx(5.0)
    assert prices == sorted(prices)
    assert [one.attained for one in tried] == [0.5] * (len(tried) - 1) + [1.0]
    assert answer.cost_usd_per_hour == prices[-1] >= 6.5
    assert answer.bound_usd_per_hour == pytest.approx(5.0)
    assert answer.gap == pytest.approx(1.0 - 5.0 / prices[-1])
    assert answer.headroom > 1.0
    loads = {one.option: one.load for one in answer.rented}
    carried = 4.0 * loads["small"] if loads["large"] == 0 else loads["small"] + loads["large"]
    assert carried <= sum(one.rented for one in answer.rented)


def test_no_mix_within_the_limits_ends_with_the_best_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rent_replay, "replayed", at_price(100.0))
    with pytest.raises(NoPlanError, match=r"no mix keeps 99% .* raise .* keeps 50.0%; loosen the objective"):
        rent_kept(problem(S=2, L=1), [], LINE, ROWS, Objective(ttft_s=1.0))


def test_requests_are_dealt_by_the_shares_of_their_bucket() -> None:
    answer = rent(problem(S=1, L=2))
    option = dealt(answer, np.tile([0, 1], 5000))
    for bucket in (0, 1):
        counts = np.bincount(option[bucket::2], minlength=2) / 5000
        assert counts == pytest.approx(answer.shares[bucket], abs=0.005)


def test_what_is_offered_keeps_to_the_objective_in_its_replay() -> None:
    """Requests of many lengths on small machines: what the sum of loads calls enough is replayed, not believed."""
    words = {"rate": 30.0, "prompt": (50, 900), "output": (10, 200), "requests": 400, "arrivals": "gamma", "cv": 3.0}
    asked, goal = asked_traffic(words)[0], Objective(ttft_s=0.3, tpot_s=0.01)
    fleet = rent_fleet(load("gpt2"), offers_of("T4", lambda _: 1.0), asked, goal)
    assert fleet.tried[-1].attained >= 0.99
    assert all(one.attained < 0.99 for one in fleet.tried[:-1])
    assert fleet.rent.counts == fleet.tried[-1].counts
    assert f"{fleet.tried[-1].attained:.1%} of requests keep to the objective" in str(fleet)
    assert str(fleet).count("its replay keeps") == len(fleet.tried) - 1


@pytest.mark.parametrize(("together", "mixes"), [(16, 2), (64, 7)])
def test_bursts_that_the_sum_of_loads_does_not_see_take_the_next_mix(together: int, mixes: int) -> None:
    """Requests come all at once every 20 s: by their mean rate one instance is plenty, in the replay they queue."""
    starts = np.repeat(20.0 * np.arange(8), together)
    asked = traffic(starts, np.full(8 * together, 512), np.full(8 * together, 32), name="bursts")
    goal = Objective(ttft_s=0.3, tpot_s=0.1)
    fleet = rent_fleet(load("llama-3.2-1b"), offers_of("L4", lambda _: 1.0), asked, goal)
    devices = [sum(int(name.split("x")[0]) * count for name, count in one.counts.items()) for one in fleet.tried]
    assert devices == sorted(devices)  # a device costs the same in every mix
    assert len(fleet.tried) == mixes
    kept = [one.attained for one in fleet.tried]
    assert kept == sorted(kept)
    assert kept[-1] >= 0.99 > kept[-2]
    assert fleet.rent.counts == fleet.tried[-1].counts
    assert fleet.rent.cost_usd_per_hour > fleet.rent.bound_usd_per_hour
    assert str(fleet).count("its replay keeps") == mixes - 1


def test_instances_that_are_down_serve_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three rented two are needed up: the replay has two."""
    asked, goal = asked_traffic({"rate": 8.0, "prompt": (64, 64), "output": (8, 8), "requests": 60})[0], Objective()
    (offer,) = offers_of("T4", lambda _: 1.0)
    fleet = rent_fleet(load("gpt2"), [replace(offer, availability=0.9)], asked, goal, availability_target=0.99)
    (one,) = [each for each in fleet.rent.rented if each.rented]
    assert one.needed < one.rented
    seen = []

    def stopped(fleets: Sequence[Engine], *_: object, **__: object) -> None:
        seen.append(fleets[0].deployment.instances)
        raise NoPlanError("replayed no further")

    monkeypatch.setattr(rent_replay, "replay_tables", stopped)
    made: list[Any] = [(engine(load("gpt2"), machine(cluster("1xT4")), deployed()), None)] * len(fleet.rent.rented)
    with pytest.raises(NoPlanError, match="no further"):
        replayed(fleet.rent, made, asked, fleet.buckets.rows, goal)
    assert seen == [one.needed]
