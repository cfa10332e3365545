"""A search for less time, dollars or joules against replays of single deployments and of fewer instances."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ridgeline.cli.main import run
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.predict.serving import Operation, simulate_serving
from ridgeline.search.serving import search_serving
from ridgeline.search.serving_space import AIMS, ServingSpace
from ridgeline.serving.objective import ATTAINED, Objective
from ridgeline.serving.traffic.arrivals import poisson
from ridgeline.serving.traffic.asked import synthetic
from ridgeline.serving.traffic.lengths import Uniform

MODEL, WHERE = load("llama-3.1-8b"), cluster("4xH100-SXM")
TRAFFIC = synthetic(poisson(10, requests=200, seed=1), Uniform(low=500, high=1500), Uniform(low=50, high=150))
BOUNDS = Objective(ttft_s=0.3, tpot_s=0.03)
FOUND = {
    aim: search_serving(MODEL, WHERE, TRAFFIC, BOUNDS, space=ServingSpace(pools=False, aim=aim), top=100)
    for aim in AIMS
}


def test_the_energy_of_a_candidate_is_that_of_its_simulation() -> None:
    for one in FOUND["joules"].ranked[:3]:
        again = simulate_serving(
            MODEL, WHERE, one.deployments, TRAFFIC, objective=BOUNDS, operation=Operation(router="least-loaded")
        )
        assert again.energy_j is not None
        assert one.energy_j_per_token == pytest.approx(again.energy_j / float(np.sum(TRAFFIC.output_tokens)), rel=1e-9)


def test_each_aim_is_best_at_what_it_wants_less_of() -> None:
    energy = {aim: FOUND[aim].ranked[0].energy_j_per_token or np.inf for aim in ("time", "dollars", "joules")}
    assert min(energy.values()) == energy["joules"] < energy["time"]
    assert FOUND["time"].ranked[0].metrics.latency.mean <= min(
        one.metrics.latency.mean for one in FOUND["joules"].ranked
    )
    dollars = {aim: FOUND[aim].ranked[0].good_per_usd or 0.0 for aim in AIMS}
    assert max(dollars.values()) == dollars["dollars"]
    for aim in AIMS:
        assert (FOUND[aim].ranked[0].metrics.attained or 0.0) >= ATTAINED
        assert FOUND[aim].fewest is not None


def test_fewer_instances_of_a_shape_are_ranked_where_they_keep_to_the_objective() -> None:
    """Light traffic: an instance costs less energy than the four that fill the node."""
    best = FOUND["joules"].ranked[0]
    assert best.devices == 1
    whole = [one for one in FOUND["joules"].ranked if one.devices == 4]
    assert all((one.energy_j_per_token or 0.0) > (best.energy_j_per_token or 0.0) for one in whole)


@pytest.mark.parametrize(
    ("words", "aim"),
    [(["--on", "8xH100-SXM"], "goodput"), (["--serve", "--rent", "H100-SXM", "--rate", "1"], "joules")],
)
def test_an_aim_is_refused_where_nothing_is_searched_for_it(words: list[str], aim: str, capsys: Any) -> None:
    assert run(["plan", "llama-3.1-8b", *words, "--for", aim, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["field"] == "--for"
