"""Dollars, joules and carbon of training plans: floors below every plan, and gaps that hold."""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest

from ridgeline.api.verb import ask
from ridgeline.energy.power import hosts_w, least_energy_j, step_energy_j
from ridgeline.errors import InputError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.mechanisms import constant
from ridgeline.graph.build import from_dims
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.predict import Predictor
from ridgeline.search.ranked import spending
from ridgeline.search.search import Searcher, search
from ridgeline.search.space import Space

AIMS = ("dollars", "joules", "carbon")
SMALL = {"layers": 8, "hidden": 1024, "heads": 8, "vocab": 32_000, "max_positions": 2048}
WIDE_HEAD = {**SMALL, "layers": 4, "vocab": 250_000}
EXPERTS = {**SMALL, "layers": 4, "hidden": 512, "experts": 8, "top_k": 2, "expert_ffn": 1024}
TINY = {**SMALL, "hidden": 256, "layers": 6}  # waits for its host
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "dense": (SMALL, "8xA100-SXM-80GB", {}),
    "wide head": (WIDE_HEAD, "8xH100-SXM", {}),
    "experts": (EXPERTS, "8xH100-SXM", {}),
    "waits for its host": (TINY, "4xL4", {}),
    "no backward": (SMALL, "8xA100-SXM-80GB", {"optimizer": "mezo"}),
}


@cache
def searcher(name: str) -> Searcher:
    dims, where, words = CASES[name]
    model = from_dims(name=name, **dims)
    found = Searcher(Predictor(model, cluster(where), Workload(seq_len=2048, global_batch=32, **words)), Space())
    found.bound()
    return found


def spent(one: Searcher, count: int, aim: str) -> list[tuple[float, float]]:
    """Floor and amount of plans that were drawn from the whole grid."""
    assert one.grid is not None
    of = spending(aim, one.predictor, one.grid)
    everything = list(islice(one.in_order(), 4000))
    rng = np.random.default_rng(0)
    found = []
    for place in rng.permutation(len(everything))[:count]:
        candidate = everything[place]
        plan = one.groups[candidate.group].plan(candidate.index)
        seconds = one.step_s(plan)
        if seconds is not None and np.isfinite(seconds):
            found.append((of.floor(candidate.bound_s), of.of(plan, seconds)))
    return found


@pytest.mark.parametrize("aim", ["dollars", "joules"])
@pytest.mark.parametrize("name", CASES)
def test_the_floor_is_never_above_what_a_plan_takes(name: str, aim: str) -> None:
    found = spent(searcher(name), 40, aim)
    assert len(found) > 20
    for floor, amount in found:
        assert 0.0 < floor <= amount * (1 + 1e-9)


def test_the_floor_of_joules_by_hand() -> None:
    """Eight boards that idle for two seconds, of which one draws 100 J more."""
    where = cluster("8xH100-SXM")
    assert where.pue is not None
    idle_w = constant("power.idle") * 700.0
    by_hand = where.pue.value * (2.0 * (8 * idle_w + hosts_w(where, 8)) + 100.0)
    assert least_energy_j(2.0, 100.0, where) == pytest.approx(by_hand)
    assert least_energy_j(2.0, 0.0, where) == pytest.approx(step_energy_j({"bubble": 2.0}, where))


@pytest.mark.parametrize("aim", AIMS)
def test_the_best_of_every_plan_is_within_the_gap_that_the_search_tells(aim: str) -> None:
    model: Model = from_dims(name="dense", **SMALL)
    space = Space(max_micro_batch=2, max_chunks=2, schedules=("1f1b",), overlap_tensor=(False,), max_cp=1)
    job = Workload(seq_len=2048, global_batch=32)
    where = cluster("4xA100-SXM-80GB")
    found = search(model, where, job, limits=space, top=1, aim=aim)
    one = Searcher(Predictor(model, where, job), space)
    one.bound()
    assert one.grid is not None
    of = spending(aim, one.predictor, one.grid)
    every = []
    for candidate in one.in_order():
        plan = one.groups[candidate.group].plan(candidate.index)
        seconds = one.step_s(plan)
        if seconds is not None and np.isfinite(seconds):
            every.append(of.of(plan, seconds))
    assert len(every) > 100
    name = {"dollars": "usd_per_step", "joules": "energy_j_per_step", "carbon": "carbon_kg_per_step"}[aim]
    best = getattr(found.best[0], name)
    assert min(every) <= best * (1 + 1e-9)
    assert best * (1 - found.bound_gap) <= min(every) * (1 + 1e-9)
    assert found.bound_gap < 0.5


@pytest.mark.parametrize("words", [{"layerwise": True}, {"on": "4xH100-SXM+4xA100-SXM-80GB"}])
def test_an_aim_is_refused_where_only_time_is_searched(words: dict[str, Any]) -> None:
    with pytest.raises(InputError) as told:
        ask("plan", **{"subject": "llama-3.1-8b", "on": "8xH100-SXM", "aim": "joules", **words})
    assert told.value.field == "--for"
