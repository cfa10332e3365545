"""Two-phase exchanges and replicas by awake experts: by hand, and against every choice of replicas."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.cost.seconds import unfitted
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.serving import SentActivations
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.metrics import decode_parts
from ridgeline.techniques.disaggregation.attention_ffn import AttentionFFN
from ridgeline.techniques.disaggregation.janus import Janus, awake_over_mean, chosen, placed


def sent(rows: float, tp: int = 1, dp: int = 1, node: int = 8) -> SentActivations:
    """Rows of one byte: 1 s a byte between both kinds of devices, 1/100 s inside a node."""
    return SentActivations(
        rows=np.array([rows]), row_bytes=1.0, reached=5.0, tp=tp, dp=dp, node=node, over=unfitted,
        gathered=lambda size, ranks: unfitted(0.01 * size),
    )  # fmt: skip


def test_two_phases_send_once_to_each_node() -> None:
    """100 rows of one device to 16 devices of 2 nodes: 1,600 s at once, 200 + 100 / 100 in two phases, else 500."""
    assert Janus(devices=16).one_way(sent(100.0)).mid[0] == pytest.approx(201.0)
    assert AttentionFFN(devices=16).one_way(sent(100.0)).mid[0] == pytest.approx(500.0)


def test_one_device_of_experts_takes_all_at_once() -> None:
    """Four ranks of 100 rows to one device, which takes in 400."""
    assert Janus(devices=1).one_way(sent(100.0, dp=4)).mid[0] == pytest.approx(400.0)


def test_what_a_busy_end_takes_in_counts() -> None:
    """64 ranks of 100 rows to 8 devices of one node: each takes in 800, then gathers 6,400."""
    assert Janus(devices=8).one_way(sent(100.0, dp=64)).mid[0] == pytest.approx(800.0 + 64.0)


def test_replicas_are_of_what_is_likeliest_awake() -> None:
    """Two replicas of four experts on three devices of two slots: of the first, then of the second (0.45 > 0.4)."""
    holds = placed(np.array([0.9, 0.8, 0.4, 0.2]), 2, 3)
    assert holds.sum(axis=1).tolist() == [2, 2, 1, 1]
    assert holds.sum(axis=0).tolist() == [2, 2, 2]


def test_awake_experts_are_balanced_by_hand() -> None:
    """Expert 0 lies on device 0 alone, expert 1 on both: awake together the second goes to device 1."""
    holds = np.array([[True, False], [True, True]])
    assert chosen(np.array([[True, True], [False, True]]), holds).tolist() == [[1.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_of_replicas_is_much_better(seed: int) -> None:
    """Every choice for small layers: the fullest device has at most one expert more than the best choice's."""
    draw = np.random.default_rng(seed)
    chance = draw.uniform(0.2, 1.0, 7)
    holds = placed(chance, 5, 4)
    awake = draw.random((1, 7)) < chance
    names = np.flatnonzero(awake[0])
    best = min(
        np.bincount(ranks, minlength=4).max()
        for ranks in product(*(np.flatnonzero(holds[name]) for name in names))
    )  # fmt: skip
    count = chosen(awake, holds)
    assert count.sum() == len(names)
    assert best <= count.max() <= best + 1


def test_balancing_lowers_the_fullest_device() -> None:
    drawn, balanced = (awake_over_mean(160, 40, 10, 6, 32.0, 1.0, one) for one in (False, True))
    none = awake_over_mean(160, 0, 10, 6, 32.0, 1.0, True)
    assert 1.0 <= balanced < 0.9 * drawn
    assert balanced < none


def served(text: str) -> Engine:
    return engine(load("deepseek-v2"), machine(cluster("12xH100-SXM")), deployed(technique=(text,), dp=2))


def test_a_step_of_a_model() -> None:
    """Of 64 sequences: links shorter than those of rows to each device; replicas are held, and shorten experts."""
    parts, held = {}, {}
    for text in (
        "attention-ffn-disaggregation(devices=10,micro_batches=1)", "janus(devices=10)", "janus(devices=10,spare=2)",
        "janus(devices=10,spare=2,balanced=false)",
    ):  # fmt: skip
        one = served(text)
        parts[text] = decode_parts(one, one.tables(longest_prompt=256, longest=512), 32.0, 256.0)
        held[text] = one.capacity.experts_bytes
    plain, alone, balanced, drawn = parts.values()
    assert alone["links"] < plain["links"]
    assert balanced["experts' devices"] < min(alone["experts' devices"], drawn["experts' devices"])
    sizes = list(held.values())
    assert sizes[0] == sizes[1]
    assert sizes[2] == sizes[3] == pytest.approx(18 / 16 * sizes[1])
