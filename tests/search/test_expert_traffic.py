"""Tokens that stay with their experts: rows by hand and by walking them, and what a service pays for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ridgeline.api.placing import loads_from
from ridgeline.cost.machine import machine
from ridgeline.cost.network import path
from ridgeline.errors import InputError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.lower.pieces import ExpertAllToAll
from ridgeline.lower.work import CollectiveKind
from ridgeline.scenario.serving import serving_from_words
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.serving import Placement, of
from ridgeline.search.expert_service import AFFINITY, LINEAR, Loads, Routes, crossing, flow_of, lies, placed, routes_of
from ridgeline.search.serving_space import ServingSpace, deployments
from ridgeline.serving.engine import engine

MIXTRAL = load("mixtral-8x7b")


def routes(**words: float) -> Routes:
    return Routes(**{"node": 2, "top_k": 1, "row_s": 1e-3, "inside_s": 1.0, "between_s": 8.0, **words})  # type: ignore[arg-type]


def ring(layers: int, experts: int, kept: float) -> np.ndarray:
    """Of an expert's tokens a share goes on to one expert of the next layer, 3 i + 1 of E; the rest to all alike."""
    flow = np.full((layers - 1, experts, experts), (1.0 - kept) / experts)
    for expert in range(experts):
        flow[:, expert, (3 * expert + 1) % experts] += kept
    return flow


# rows ------------------------------------------------------------------------------------------------


def test_rows_of_ranks_that_are_alike() -> None:
    """One expert each on 4 ranks in nodes of 2, chosen independently: 1 of 4 rows to the other of a node, 2 beyond."""
    slots = np.arange(4).reshape(1, 4, 1)
    assert crossing(slots, np.ones((1, 4)), None, routes()) == pytest.approx((0.25, 0.5))
    # two experts a token: two rows go out, and one result comes together
    assert crossing(slots, np.ones((1, 4)), None, routes(top_k=2)) == pytest.approx((0.75, 1.5))


def test_rows_by_hand() -> None:
    """Two layers, two experts on two ranks of one node; 3 of 4 tokens of expert 0 go on to 0, all of 1 to 1.

    From layer to layer rank 0 sends 1 of 8 tokens. The first layer's were at the last one's experts, 3/8 and 5/8:
    half of each go on to 0 and to 1, so rank 1 sends 5/16 and rank 0 takes them in. Times two ranks, over two layers.
    """
    slots = np.tile(np.arange(2).reshape(1, 2, 1), (2, 1, 1))
    loads, flow = np.array([[1.0, 1.0], [0.75, 1.25]]), np.array([[[0.75, 0.25], [0.0, 1.0]]])
    inside, between = crossing(slots, loads, flow, routes())
    assert (inside, between) == (pytest.approx(2 * (1 / 8 + 5 / 16) / 2), 0.0)


def test_rows_are_those_of_tokens_that_walk() -> None:
    """The rival: every token followed through the layers over a placement with replicas, and its rows counted."""
    draw, (layers, experts, ranks) = np.random.default_rng(3), (4, 8, 4)
    flow = ring(layers, experts, 0.7)
    loads = [np.ones(experts)]
    for layer in flow:
        loads.append(loads[-1] @ layer)
    asked = Loads(loads=np.array(loads), how=AFFINITY, flow=flow, redundant=4)
    where = lies(asked, ranks, routes())
    tokens, sent, taken = 40_000, np.zeros((2, layers, ranks)), np.zeros((2, layers, ranks))
    expert = draw.integers(experts, size=tokens)
    at = np.array([draw.choice(np.flatnonzero((where.slots[0] == one).any(axis=1))) for one in expert])
    for layer in range(1, layers):
        chosen = np.array([draw.choice(experts, p=flow[layer - 1, one]) for one in expert])
        goes = np.array([draw.choice(np.flatnonzero((where.slots[layer] == one).any(axis=1))) for one in chosen])
        for far in (0, 1):
            crossed = (at != goes) & ((at // 2 != goes // 2) == far)
            sent[far, layer] = np.bincount(at[crossed], minlength=ranks)
            taken[far, layer] = np.bincount(goes[crossed], minlength=ranks)
        expert, at = chosen, goes
    busiest = np.maximum(sent.max(axis=2), taken.max(axis=2))[:, 1:].sum(axis=1) * ranks / tokens
    first = Loads(loads=np.array(loads)[[0, -1]], how=LINEAR)
    both = np.array(crossing(where.slots, np.array(loads), flow, routes())) * layers
    ends = where.slots[[-1, 0]]  # from the last layer to the first, independently
    independent = np.array(crossing(ends, np.array(loads)[[-1, 0]], None, routes())) * 2
    back = np.array(crossing(ends[::-1], first.loads, None, routes())) * 2
    assert independent == pytest.approx(back)  # both layers of a pair pass to each other
    assert busiest == pytest.approx(both - independent / 2, rel=0.05, abs=0.01)


def test_affinity_keeps_tokens_where_they_are() -> None:
    """Experts that follow each other lie on one rank: only the even rest crosses, 3 of 4 ranks of 0.2."""
    flow, even = ring(6, 8, 0.8), np.ones((6, 8))
    found = {
        how: crossing(lies(Loads(loads=even, how=how, flow=flow), 4, routes()).slots, even, flow, routes())
        for how in (LINEAR, AFFINITY)
    }
    first = (1 / 4 + 2 / 4) / 6  # of the first layer, whose tokens come from anywhere
    assert sum(found[AFFINITY]) == pytest.approx(first + 5 / 6 * 0.2 * 3 / 4, rel=1e-6)
    assert sum(found[LINEAR]) > 2 * sum(found[AFFINITY])


def test_more_load_is_taken_only_where_links_cost_more() -> None:
    """All tokens go to expert 0 of both layers: on slow links it stays on one rank, whatever else is there."""
    flow = np.zeros((1, 4, 4))
    flow[0, 0, 0] = 4.0
    asked = Loads(loads=np.array([[4.0, 1, 1, 1], [4.0, 1, 1, 1]]), how=AFFINITY, flow=flow)
    found = lies(asked, 2, routes())
    assert [int(np.flatnonzero((found.slots[layer] == 0).any(axis=1))[0]) for layer in (0, 1)] in ([0, 0], [1, 1])


def test_routes_are_those_of_the_model_and_the_machine() -> None:
    found = routes_of(MIXTRAL, cluster("16xH100-SXM"))
    assert (found.node, found.top_k) == (8, 2)
    assert found.row_s == pytest.approx(2 * 3 * 4096 * 14336 / 989e12, rel=0.01)
    assert found.inside_s == pytest.approx(8192 / 450e9)
    assert found.between_s == pytest.approx(8192 / 50e9)


# prices ----------------------------------------------------------------------------------------------


def test_rows_of_ranks_alike_are_even_all_to_alls() -> None:
    """Mixtral's two experts: one all-to-all of 2 rows and one of 1 row a token take as long as two of 1.5."""
    where = machine(cluster("16xH100-SXM"))
    prices = engine(MIXTRAL, where, deployed(dp=16, ep=1)).steps.prices
    tokens = np.array([64.0, 1024.0])
    plain = ExpertAllToAll(width=4096, ranks=16, top_k=2, experts=8, stay=True)
    even = prices.collective(CollectiveKind.ALL_TO_ALL, 1.5 * 2 * 4096 * tokens, 16)
    assert prices.expert_all_to_all(plain, 16 * tokens).mid == pytest.approx(2 * even)
    # rows beyond the node bind: a quarter of them is a quarter of the bytes
    found = path(where, 16, 1)
    assert found.outer_bytes_per_s < found.inner_bytes_per_s
    less = ExpertAllToAll(width=4096, ranks=16, top_k=2, experts=8, stay=True, inside=0.1, between=3 * 8 / 16 / 4)
    quarter = prices.collective(CollectiveKind.ALL_TO_ALL, 1.5 * 2 * 4096 * tokens / 4, 16)
    assert prices.expert_all_to_all(less, 16 * tokens).mid == pytest.approx(2 * quarter)


def test_a_service_pays_what_its_placement_sends() -> None:
    """Fewer rows between nodes, less time; attention is as uneven as experts, and caches are on every rank."""
    where, even, flow = machine(cluster("16xH100-SXM")), np.ones((32, 8)), ring(32, 8, 0.9)
    paths, times = routes_of(MIXTRAL, cluster("16xH100-SXM")), {}
    one = deployed(dp=8, ep=8, tokens_stay=True, token_budget=2048)
    for how in (LINEAR, AFFINITY):
        made = engine(MIXTRAL, where, placed(one, Loads(loads=even, how=how, flow=flow), 8, routes=paths))
        times[how] = made.tables(longest_prompt=2048, longest=4096)
    assert times[AFFINITY].group.mid[-1] < times[LINEAR].group.mid[-1]
    plain = engine(MIXTRAL, where, deployed(dp=8, ep=8, token_budget=2048))
    stays = engine(MIXTRAL, where, one)
    assert stays.capacity.cache_tokens == plain.capacity.cache_tokens // 8
    # where nothing is uneven attention is what it was, and experts' products too
    for name in ("lane", "decode"):
        found = [getattr(each.tables(longest_prompt=2048, longest=4096), name).mid for each in (plain, stays)]
        np.testing.assert_allclose(*found)
    uneven = engine(MIXTRAL, where, deployed(dp=8, ep=8, tokens_stay=True, token_budget=2048, expert_imbalance=2.0))
    tables = uneven.tables(longest_prompt=2048, longest=4096)
    one_table = stays.tables(longest_prompt=2048, longest=4096)
    at, twice = (list(tables.tokens).index(value) for value in (64.0, 128.0))
    assert tables.lane.mid[at] == pytest.approx(one_table.lane.mid[twice])


def test_new_cache_goes_to_all_ranks() -> None:
    """Of Mixtral 131,072 bytes a token: 8 ranks of 64 tokens gather 67 MB an iteration, over NVLink."""
    where = machine(cluster("8xH100-SXM"))
    words = {"dp": 8, "ep": 8, "token_budget": 2048}
    found = engine(MIXTRAL, where, deployed(**words, tokens_stay=True))
    tables = found.tables(longest_prompt=2048, longest=4096)
    at = list(tables.tokens).index(64.0)
    (trade,) = {
        piece for kind in found.steps.served.kinds for piece in kind.pieces if isinstance(piece, ExpertAllToAll)
    }
    prices = found.steps.prices
    rows = np.array([512.0])
    from ridgeline.lower.pieces import Experts

    (piece,) = {piece for kind in found.steps.served.kinds for piece in kind.pieces if isinstance(piece, Experts)}
    own = (
        32 * (prices.expert_all_to_all(trade, rows).mid + prices.experts(piece, rows).mid)
        + prices.gathered(rows * 131_072, 8).mid
    )
    assert tables.group.mid[at] == pytest.approx(own[0])


# words -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"tp": 2, "ep": 2}, r"tokens_stay\) with tp 2"),
        ({"dp": 8, "ep": 1}, "take dp and ep alone, both the same"),
        ({"dp": 2, "ep": 2, "draft_tokens": 2}, "draft_tokens"),
        ({"dp": 2, "ep": 2, "tokens_stay": False, "expert_inside": 0.5}, "say tokens_stay as well"),
    ],
)
def test_what_cannot_be_is_refused(words: dict[str, object], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        deployed(**{"tokens_stay": True, **words})  # type: ignore[arg-type]


def test_traffic_from_a_file(tmp_path: Path) -> None:
    loads, passed = tmp_path / "loads.csv", tmp_path / "traffic.csv"
    rows = [f"{layer},{expert},1" for layer in range(32) for expert in range(8)]
    loads.write_text("layer,expert,load\n" + "\n".join(rows), encoding="utf-8")
    rows = [f"{layer},{expert},{(expert + 1) % 8},2.5" for layer in range(31) for expert in range(8)]
    passed.write_text("layer,expert,next,tokens\n" + "\n".join(rows), encoding="utf-8")

    def asked(**plan: object) -> Loads | None:
        words = {"model": {"name": "mixtral-8x7b"}, "cluster": {"name": "8xH100-SXM"}, "plan": plan}
        return loads_from(serving_from_words(words))

    found = asked(expert_loads=str(loads), expert_traffic=str(passed), expert_placement="affinity")
    assert found is not None
    assert found.flow is not None
    assert found.flow.sum() == 31 * 8 * 2.5
    assert found.flow[30, 7, 0] == 2.5
    with pytest.raises(InputError, match="needs loads to place experts for"):
        asked(expert_traffic=str(passed))
    with pytest.raises(PlanError, match="nothing says what passes on"):
        asked(expert_loads=str(loads), expert_placement="affinity")
    passed.write_text("layer,expert,next,tokens\n31,0,0,1\n", encoding="utf-8")
    with pytest.raises(PlanError, match="from expert 0 of layer 31 to expert 0; loads are those of 8 experts in 32"):
        asked(expert_loads=str(loads), expert_traffic=str(passed))
    passed.write_text("layer,expert,next,tokens\n0,0,zero,1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"traffic.csv:2.*next.*'zero' is not a number"):
        asked(expert_loads=str(loads), expert_traffic=str(passed))
    with pytest.raises(PlanError, match="traffic between 2 layers of 4 experts"):
        Loads(loads=np.ones((3, 4)), flow=np.ones((1, 4, 4)))
    assert flow_of({(0, 1, 2): 3.0}, 2, 4)[0, 1, 2] == 3.0


def test_a_search_lets_tokens_stay_where_traffic_is_known() -> None:
    known = Loads(loads=np.ones((32, 8)), how=AFFINITY, flow=ring(32, 8, 0.9))
    grid = list(deployments(MIXTRAL, cluster("8xH100-SXM"), ServingSpace(pools=False, loads=known)))
    stays = [one for one in grid if of(one, Placement).stay]
    assert {(one.dp, one.ep) for one in stays} == {(2, 2), (4, 4), (8, 8)}
    assert all(of(one, Placement).rows[0] is not None for one in stays)
    assert len([one for one in grid if not of(one, Placement).stay]) > len(stays)
    plain = ServingSpace(pools=False, loads=Loads(loads=np.ones((32, 8))))
    assert not any(of(one, Placement).stay for one in deployments(MIXTRAL, cluster("8xH100-SXM"), plain))
