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
from ridgeline.report.aims import AIMS as AIM
from ridgeline.search.serving import search_serving
from ridgeline.search.serving_space import AIMS, ServingSpace
from ridgeline.serving.bounds import LeastWork, least_spent
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


@pytest.mark.parametrize("aim", ["dollars", "joules", "carbon"])
@pytest.mark.parametrize("rate", [0.5, 10, 60])
def test_no_candidate_takes_less_than_the_bound(aim: str, rate: float) -> None:
    traffic = synthetic(poisson(rate, requests=150, seed=7), Uniform(low=500, high=1500), Uniform(low=50, high=150))
    found = search_serving(MODEL, WHERE, traffic, BOUNDS, space=ServingSpace(aim=aim), top=200)
    assert found.bound_spent is not None
    spent = [amount for one in found.ranked if (amount := AIM[aim].fleet(one)) is not None]
    assert 0.0 < found.bound_spent <= min(spent)
    assert spent[0] / found.bound_spent < (4.0 if rate > 1 else 8.0)
    assert "(closed form)" in "\n".join(str(block) for block in found.blocks())


def test_the_bound_of_spending_by_hand() -> None:
    """At 2 and 3 a second: prompts cost least on the first, outputs on the second; or the first all along."""
    works = [(2.0, LeastWork(prompt_s=1.0, output_s=4.0)), (3.0, LeastWork(prompt_s=1.0, output_s=2.0))]
    rapid, slow = (synthetic(poisson(rate, requests=100, seed=3), Uniform(low=9, high=9), Uniform(low=9, high=9))
                   for rate in (1e3, 1e-2))  # fmt: skip
    assert least_spent(works, rapid) == pytest.approx(2.0 * 1.0 + 3.0 * 2.0)
    assert least_spent(works, slow) == pytest.approx(2.0 * float(slow.arrival_s[-1] - slow.arrival_s[0]) / 100)


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
