"""Placements of a served model's experts: the imbalance that a deployment pays, by hand and in its times."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ridgeline.api.placing import loads_from, with_placement
from ridgeline.cost.machine import machine
from ridgeline.errors import InputError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.expert_loads import loads_of
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment
from ridgeline.plan.deployment_rules import check_divides
from ridgeline.scenario.serving import ServingScenario, serving_from_words
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.serving import Placement, of
from ridgeline.search.expert_service import BALANCED, LINEAR, Loads, imbalance, placed
from ridgeline.search.serving_space import ServingSpace, deployments
from ridgeline.serving.attention_ffn import even_imbalance
from ridgeline.serving.engine import engine
from ridgeline.serving.step import StepTables

SKEWED = np.array([[30.0, 20, 12, 10, 9, 8, 6, 5]])  # 100 on 8 experts
MIXTRAL, EIGHT = load("mixtral-8x7b"), cluster("8xH100-SXM")


def test_imbalance_by_hand() -> None:
    """In order on four ranks: 50, 22, 17 and 11 of 100. Placed: 30 beside 5 at most, or 25 with two replicas."""
    assert imbalance(Loads(loads=SKEWED, how=LINEAR), 4) == pytest.approx(50 / 25)
    assert imbalance(Loads(loads=SKEWED), 4) == pytest.approx(35 / 25)
    assert imbalance(Loads(loads=SKEWED, redundant=2), 4) == pytest.approx(1.0)
    assert imbalance(Loads(loads=SKEWED), 1) == 1.0


def test_layers_count_by_what_they_carry() -> None:
    """A layer of 100 at twice the mean and an even one of 300: (50 + 75) / (25 + 75)."""
    both = np.vstack([SKEWED, np.full((1, 8), 300 / 8)])
    assert imbalance(Loads(loads=both, how=LINEAR), 4) == pytest.approx(125 / 100)


def test_a_deployment_pays_its_placement() -> None:
    even, found = np.ones((32, 8)), {}
    one = deployed(dp=8, ep=8)
    for name, asked in {
        "even": Loads(loads=even, how=LINEAR),
        "in order": Loads(loads=np.tile(SKEWED, (32, 1)), how=LINEAR),
        "replicated": Loads(loads=np.tile(SKEWED, (32, 1)), redundant=8),
    }.items():
        found[name] = placed(one, asked, 8)
    assert of(found["even"], Placement).imbalance == 1.0
    assert of(found["in order"], Placement).imbalance == pytest.approx(30 / 12.5)
    assert 1.0 <= (of(found["replicated"], Placement).imbalance or 0.0) < 1.1

    def tables(words: Deployment) -> StepTables:
        return engine(MIXTRAL, machine(EIGHT), words).tables(longest_prompt=2048, longest=4096)

    times = {name: tables(words) for name, words in found.items()}
    at = list(times["even"].tokens).index(2048.0)
    group = {name: float(one.group.mid[at]) for name, one in times.items()}
    assert group["even"] < group["replicated"] < group["in order"]
    # the fullest rank's rows are those of 2.4 times the tokens, links apart
    twice = engine(MIXTRAL, machine(EIGHT), found["even"]).steps
    from ridgeline.lower.pieces import Experts

    (piece,) = {piece for kind in twice.served.kinds for piece in kind.pieces if isinstance(piece, Experts)}
    rows = np.array([2048.0 * 8])
    own = 32 * (twice.prices.experts(piece, 2.4 * rows).mid - twice.prices.experts(piece, rows).mid)[0]
    assert group["in order"] - group["even"] == pytest.approx(own, rel=1e-6)


def test_replicas_take_memory() -> None:
    plain, more = (
        engine(MIXTRAL, machine(EIGHT), placed(deployed(dp=8, ep=8), Loads(loads=np.ones((32, 8)), redundant=n), 8))
        for n in (0, 8)
    )
    one = 32 * 3 * 4096 * 14336 * 2.0  # an expert in every layer
    assert more.capacity.weights_bytes - plain.capacity.weights_bytes == pytest.approx(one)


def test_a_search_places_for_every_number_of_ranks() -> None:
    space = ServingSpace(pools=False, loads=Loads(loads=np.tile(SKEWED, (32, 1)), how=LINEAR))
    grid = list(deployments(MIXTRAL, EIGHT, replace(space, fixed={"tp": 1})))
    assert {(one.ep, of(one, Placement).imbalance) for one in grid} == {
        (ep, None if ep == 1 else imbalance(Loads(loads=SKEWED, how=LINEAR), ep)) for ep in {one.ep for one in grid}
    }


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PlanError, match="which a linear placement has none of"):
        Loads(loads=SKEWED, how=LINEAR, redundant=1)
    with pytest.raises(PlanError, match="3 ranks do not divide 8 experts"):
        imbalance(Loads(loads=SKEWED, how=LINEAR), 3)
    with pytest.raises(PlanError, match="loads of 8 experts are given; the model has 16"):
        placed(deployed(dp=2, ep=2), Loads(loads=SKEWED), 16)
    with pytest.raises(PlanError, match="1 loads are missing, the first of layer 0, expert 1"):
        loads_of({(0, 0): 1.0, (1, 0): 1.0, (1, 1): 1.0})
    with pytest.raises(PlanError, match=r"expert_imbalance = 0\.5"):
        deployed(expert_imbalance=0.5)
    with pytest.raises(PlanError, match=r"expert_redundant = 2; .* where tokens stay"):
        deployed(expert_redundant=2, tokens_stay=True, dp=8, ep=8)


# files -----------------------------------------------------------------------------------------------


def asked(path: Path, **plan: object) -> ServingScenario:
    words = {"model": {"name": "mixtral-8x7b"}, "cluster": {"name": "8xH100-SXM"}, "workload": {"rate": "1"}}
    return serving_from_words({**words, "plan": {"expert_loads": str(path), **plan}})


def test_loads_are_read(tmp_path: Path) -> None:
    path = tmp_path / "loads.csv"
    rows = [f"{layer},{expert},{SKEWED[0, expert]}" for layer in (3, 4) for expert in range(8)]
    path.write_text("layer,expert,load\n" + "\n".join(rows) + "\n", encoding="utf-8")
    found = loads_from(asked(path, expert_redundant=2))
    assert found is not None
    assert found.loads.tolist() == np.tile(SKEWED, (2, 1)).tolist()
    assert (found.how, found.redundant) == (BALANCED, 2)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("layer,expert\n0,1\n", ":1: needs the columns layer, expert, load"),
        ("layer,expert,load\n", "holds no rows below its header"),
        ("layer,expert,load\n0,0,1\n0,one,1\n", ":3: field 'expert': 'one' is not a number"),
        ("layer,expert,load\n0,0,-1\n", ":2: field 'load': '-1' is not a load of 0 or more"),
        ("layer,expert,load\n0.5,0,1\n", ":2: field 'layer': '0.5' is not a whole number"),
        (
            "layer,expert,load\n0,0,1\n0,2e18,1\n",
            "999999999999 loads are missing, the first of layer 0, expert 1",
        ),
    ],
)
def test_bad_loads_are_told_by_their_place(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "loads.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=told):
        loads_from(asked(path))


def test_a_placement_needs_loads(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        loads_from(asked(tmp_path / "none.csv"))
    words = {"model": {"name": "mixtral-8x7b"}, "cluster": {"name": "8xH100-SXM"}, "workload": {"rate": "1"}}
    with pytest.raises(InputError, match="field 'expert_placement': needs loads"):
        loads_from(serving_from_words({**words, "plan": {"expert_placement": "linear"}}))
    staying = {"expert_redundant": 2, "tokens_stay": True, "tp": 1, "dp": 8, "ep": 8}
    with pytest.raises(InputError, match="field 'expert_redundant': needs loads where tokens stay"):
        loads_from(serving_from_words({**words, "plan": staying}))
    with pytest.raises(InputError, match="field 'expert_redundant': the model has no experts"):
        loads_from(serving_from_words({**words, "model": {"name": "llama-3.1-8b"}, "plan": {"expert_redundant": 2}}))


def test_replicas_without_loads_are_placed_for_even_ones() -> None:
    words = {"model": {"name": "mixtral-8x7b"}, "cluster": {"name": "12xH100-SXM"}, "workload": {"rate": "1"}}
    degrees = {"tp": 1, "dp": 12, "ep": 12, "expert_redundant": 4}
    found = serving_from_words({**words, "plan": degrees})
    assert [text for text in found.assumed if "loads are even" in text]
    (one,) = with_placement(found).deployments
    assert of(one, Placement).redundant == 4
    # 8 loads of 1, of which 4 are halved: the fullest of 12 ranks has one that is whole, the mean 8 / 12
    assert of(one, Placement).imbalance == pytest.approx(1.5)
    assert not [text for text in serving_from_words({**words, "plan": {"tp": 4}}).assumed if "even" in text]


@settings(max_examples=40, deadline=None)
@given(experts=st.sampled_from([8, 60, 64, 128, 256]), more=st.floats(0.0, 1.0), ranks=st.integers(2, 72))
@example(experts=256, more=0.125, ranks=72)  # 32 replicas: 8 ranks have four whole experts, 4 / (256 / 72)
def test_replicas_for_even_loads_lie_as_the_placement_says(experts: int, more: float, ranks: int) -> None:
    """A deployment made in Python has the imbalance that the command's placement finds."""
    redundant = max(int(more * experts), 1)
    if experts < ranks:
        return
    found = even_imbalance(experts, redundant, ranks)
    assert found == pytest.approx(imbalance(Loads(loads=np.ones((1, experts)), redundant=redundant), ranks), rel=0.05)
    assert (experts, redundant, ranks) != (256, 32, 72) or found == pytest.approx(1.125)


def test_replicas_need_no_imbalance_in_python() -> None:
    """Eight experts with 4 replicas on 12 ranks: the fullest has a whole one, the mean 8 / 12."""
    words = {"dp": 12, "ep": 12, "expert_redundant": 4}
    where = machine(cluster("12xH100-SXM"))
    even = engine(load("mixtral-8x7b"), where, deployed(**words)).deployment
    assert of(even, Placement).imbalance == pytest.approx(1.5)
    said = engine(load("mixtral-8x7b"), where, deployed(**words, expert_imbalance=2.0))
    assert of(said.deployment, Placement).imbalance == 2.0
    with pytest.raises(PlanError, match=r"expert_redundant = 4, but llama-3\.1-8b has no experts"):
        engine(load("llama-3.1-8b"), where, deployed(**words))


@given(ranks=st.integers(1, 300), experts=st.integers(1, 512), redundant=st.integers(0, 64))
def test_ranks_that_divide_no_experts_are_told_how_many_replicas_do(ranks: int, experts: int, redundant: int) -> None:
    if experts % ranks == 0 or (experts + redundant) % ranks == 0:
        check_divides(ranks, experts, redundant)
        return
    with pytest.raises(PlanError, match=f"ep = {ranks} does not divide {experts} experts") as told:
        check_divides(ranks, experts, redundant)
    more, fewer = re.search(r"expert_redundant = (\d+) .* or ep = (\d+)$", str(told.value)).groups()  # type: ignore[union-attr]
    assert int(more) > redundant
    check_divides(ranks, experts, int(more))
    check_divides(int(fewer), experts, 0)


def test_seventy_two_ranks_hold_256_experts_with_32_replicas() -> None:
    from ridgeline.lower.pieces import Experts

    model, where = load("deepseek-v3"), machine(cluster("72xH100-SXM"))
    plain = {"engine": "SGLang", "dp": 72, "ep": 72, "weights": "fp8_block"}
    with pytest.raises(PlanError, match=r"take expert_redundant = 32 \(288 experts, 4 on each rank\), or ep = 64"):
        engine(model, where, deployed(**plain))
    one = placed(deployed(**plain), Loads(loads=np.ones((1, 256)), redundant=32), 256)
    held = {piece.count / piece.ranks for kind in engine(model, where, one).steps.served.kinds for piece in kind.pieces
            if isinstance(piece, Experts)}  # fmt: skip
    assert held == {4.0}
