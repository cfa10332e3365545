"""Nodes whose links differ: each exchange and send at its own links, and orders of nodes that hurt least."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline.errors import InputError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.records import Cluster
from ridgeline.graph.load import load
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor, predict
from ridgeline.seams.node_order import NodeOrderProblem
from ridgeline.search.search import search
from ridgeline.search.space import Space
from ridgeline.techniques.node_orders.annealed import Annealed

HEAD = """accelerator = "A100-SXM-80GB"
count = {count}
[[tier]]
size = 8
bandwidth = "300 GB/s"
[[tier]]
bandwidth = "3 GB/s"
latency = "2 us"
"""
JOB = Workload(seq_len=2048, global_batch=64)


def made(folder: Path, rest: str, count: int = 32, links: str | None = None) -> Cluster:
    path = folder / "machine.toml"
    path.write_text(HEAD.format(count=count) + rest)
    if links is not None:
        (folder / "links.tsv").write_text(links)
    return cluster(str(path))


def with_links(folder: Path, rates: dict[tuple[int, int], str], count: int = 32) -> Cluster:
    rows = "".join(f"{a}\t{b}\t{rate}\n" for (a, b), rate in rates.items())
    return made(folder, '[links]\nfile = "links.tsv"\n', count, "from\tto\tbandwidth\n" + rows)


def predictor(found: Cluster) -> Predictor:
    return Predictor(load("gpt3-1.3b"), found, JOB)


def test_links_that_are_all_the_outer_tier_change_nothing(tmp_path: Path) -> None:
    """A matrix of alike links is the cluster without one, up to what the links' efficiency takes."""
    plan = Plan(tp=2, pp=2, dp=8, micro_batch=2)
    same = with_links(tmp_path, {(0, 1): "3 GB/s"})
    times = [predictor(one).prepare(plan)[1] for one in (same, replace(same, links=None))]
    ratio = times[0].reduce_s / times[1].reduce_s
    share = Predictor(load("gpt3-1.3b"), replace(same, links=None), JOB).machine.efficiency[1]
    assert np.all((ratio >= share - 1e-9) & (ratio <= 1 + 1e-9))
    np.testing.assert_array_equal(times[0].forward_s, times[1].forward_s)


def test_a_ring_waits_for_its_slowest_link(tmp_path: Path) -> None:
    """Stage 0 fills nodes 0 and 1, stage 1 nodes 2 and 3: a slow link between these two slows the second alone."""
    plan = Plan(tp=2, pp=2, dp=8, micro_batch=2)
    fast = predictor(with_links(tmp_path, {})).prepare(plan)[1]
    slow = predictor(with_links(tmp_path, {(2, 3): "1 GB/s"})).prepare(plan)[1]
    assert slow.reduce_s[0, 0] == fast.reduce_s[0, 0]
    assert slow.reduce_s[1, 0] == pytest.approx(3 * fast.reduce_s[1, 0], rel=0.05)
    np.testing.assert_array_equal(slow.send_forward_s, fast.send_forward_s)
    # a slow link from node 0 to node 2 slows sends, forward and back, and no reduction
    hops = predictor(with_links(tmp_path, {(0, 2): "1 GB/s"})).prepare(plan)[1]
    np.testing.assert_array_equal(hops.reduce_s, fast.reduce_s)
    assert hops.send_forward_s[0, 0] > 2 * fast.send_forward_s[0, 0]
    assert hops.send_backward_s[1, 0] == hops.send_forward_s[0, 0]


def test_small_clusters_take_the_best_of_all_orders(tmp_path: Path) -> None:
    """Of six nodes every one of the 720 orders is looked at: none of a hundred others is quicker."""
    rng = np.random.default_rng(7)
    pairs = {(a, b): f"{rng.uniform(0.4, 3):.3f} GB/s" for a in range(6) for b in range(a + 1, 6)}
    found = predictor(with_links(tmp_path, pairs, count=48))
    plan = Plan(tp=4, pp=3, dp=4, micro_batch=2, node_order="annealed")
    best_s = found.evaluate(plan).bound_s
    listed_s = found.evaluate(replace(plan, node_order="in-order")).bound_s
    others_s = []
    for _ in range(100):
        found.orders[plan] = tuple(rng.permutation(6).tolist())
        others_s.append(found.evaluate(plan).bound_s)
    assert best_s < 0.95 * listed_s
    assert best_s <= min(others_s) * 1.001  # orders are compared by exchanges that are linear between rates


def tour(orders: np.ndarray[Any, Any], rates: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The slowest of links along an order, as seconds of a byte."""
    return np.asarray((1 / rates[orders, np.roll(orders, -1, axis=1)]).max(axis=1))


@pytest.mark.parametrize("seed", range(5))
def test_walks_end_at_the_best_of_all_orders(seed: int) -> None:
    rates = np.random.default_rng(seed).uniform(1, 10, (8, 8))
    problem = NodeOrderProblem(
        bytes_per_s=rates, latency_s=np.zeros((8, 8)), groups=np.zeros(8, dtype=np.int64), places=1.0,
        seconds=lambda orders: tour(orders, rates),
    )  # fmt: skip
    least = min(
        float(tour(np.array([[0, *rest]]), rates)[0]) for rest in permutations(range(1, 8))
    )  # a ring has no beginning
    assert float(tour(Annealed().order(problem)[None], rates)[0]) == pytest.approx(least)


def test_a_search_places_nodes_and_is_never_slower(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    pairs = {(a, b): f"{rng.uniform(0.3, 3):.3f} GB/s" for a in range(4) for b in range(a + 1, 4)}
    found, model = with_links(tmp_path, pairs), load("gpt3-1.3b")
    limits = Space(fixed={"pp": 2, "tp": 2, "micro_batch": 2}, schedules=("1f1b",), recompute=("none",))
    placed = search(model, found, JOB, limits=limits, top=1).best[0]
    listed = search(model, found, JOB, limits=replace(limits, node_order="in-order"), top=1).best[0]
    assert placed.plan.node_order == "annealed"
    assert placed.step_time.value <= listed.step_time.value
    assert any("ranks fill nodes in the order" in told for told in placed.assumptions)


def test_groups_of_nodes_are_links(tmp_path: Path) -> None:
    """Two nodes on InfiniBand and two on RoCE: each kind at its own rate, and at the outer tier's to the other."""
    rest = "".join(
        f'[[group]]\nkind = "{kind}"\nnodes = 2\nbandwidth = "{rate} GB/s"\n'
        for kind, rate in (("ib", 25), ("roce", 12))
    )
    links = made(tmp_path, rest).links
    assert links is not None
    assert [links.bytes_per_s[pair] for pair in ((0, 1), (2, 3), (1, 2))] == [25e9, 12e9, 3e9]
    assert links.groups.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("links", "line", "told"),
    [
        ("from\tto\n", 1, "needs the columns"),
        ("from\tto\tbandwidth\n0\t4\t1 GB/s\n", 2, "0 to 3"),
        ("from\tto\tbandwidth\n0\t1\t80\n", 2, "write the unit"),
        ("from\tto\tbandwidth\n0\t1\t1 GB/s\n0\t1\t2 GB/s\n", 3, "a second time"),
        ("from\tto\tbandwidth\n1\t1\t1 GB/s\n", 2, "itself"),
        ("from\tto\tbandwidth\n0\t1\n", 2, "has 2 cells"),
        ("", 1, "is empty"),
    ],
)
def test_a_bad_table_of_links_is_named_by_line(tmp_path: Path, links: str, line: int, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        made(tmp_path, '[links]\nfile = "links.tsv"\n', links=links)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ('[links]\nbandwidth = [["1 GB/s"]]\n', "needs 4"),
        ("[links]\n", None),
        ('[links]\nlatency = [["1 us"]]\n', "needs file"),
        ('[[group]]\nkind = "ib"\nnodes = 3\nbandwidth = "25 GB/s"\n', "groups have 3 nodes"),
    ],
)
def test_tables_that_do_not_fit_the_cluster(tmp_path: Path, rest: str, told: str | None) -> None:
    if told is None:
        assert made(tmp_path, rest).links is None
        return
    with pytest.raises(InputError, match=told):
        made(tmp_path, rest)


def test_alike_links_leave_nothing_to_place() -> None:
    """An order changes nothing where all nodes are linked alike."""
    steps = [
        predict(load("gpt3-1.3b"), cluster("16xA100-SXM-80GB"), JOB, Plan(dp=16, node_order=text), changes=False)
        for text in ("in-order", "annealed")
    ]
    assert steps[0].step_time == steps[1].step_time


def test_the_published_matrix_is_read() -> None:
    """Pipette's 16 nodes of one 200 Gb/s port: 17 to 20 GB/s a node were measured."""
    links = cluster("pipette-a100").links
    assert links is not None
    assert links.nodes == 16
    assert 16.9e9 < links.worst[0] * 8 < links.best[0] * 8 < 19.7e9
