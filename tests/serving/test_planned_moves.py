"""Moves of KV blocks that are planned by what they gain: by hand, beside a search, and on a real model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.serving import hooks_of
from ridgeline.serving.engine import engine
from ridgeline.serving.replay import Replay, replay
from ridgeline.serving.traffic.traffic import Traffic, traffic

RULE = {
    "borrows": 1, "owe": 1000, "lend_share": 1.0, "capacity": 10, "lend_token_s": 0.01, "ask_start_s": 0.1,
    "ask_s": 0.2, "far_token_s": 0.002, "lane_s": 1.0, "prompt_s": 2.0, "context_s": 0.01, "instances": 2,
}  # fmt: skip
Replays = Callable[..., Replay]


def run(replayed: Replays, asked: Traffic, text: str, **words: Any) -> Replay:
    way = deployed(technique=(text,) if text else ())
    numbers = {**RULE, "borrows": int(bool(text)), "rearranges": int("planned" in text), **words}
    return replayed(asked, deployment=way, hooks=hooks_of([way]), **numbers)


def test_one_who_waits_is_let_in_by_a_move(replayed: Replays) -> None:
    """A (128, 20) has 8 of 10 blocks when its prompt ends at 1 + 2 and needs 10 to its end; B (48, 2) came at 1.

    B needs 4 blocks with a step ahead. 2 are free, of which A takes one in its next step: 3 lack, and 2 that A will
    need, so that 5 of A's move to the instance of C (16, 2), which has one in use: 5 x 16 x 0.01 = 0.8 s. The iteration
    with B's prompt takes that, 1 + 2, A's tokens at home 128 - 80 + 1 at 0.01, queries and sums 0.3.
    """
    asked = traffic([0.0, 0.5, 1.0], [128, 16, 48], [20, 2, 2])
    found = run(replayed, asked, "planned-remote-kv(every=1,lend_share=1)")
    assert found.loans == 1
    assert found.first_s[:2].tolist() == pytest.approx([3.0, 3.5])
    assert found.first_s[2] == pytest.approx(3.0 + 0.8 + 3.0 + 0.49 + 0.3)
    alone = run(replayed, asked, "")
    assert alone.first_s[2] > alone.end_s[0] > found.first_s[2]


def test_nothing_moves_where_it_gains_nothing(replayed: Replays) -> None:
    """Where a token costs a creditor more than another sequence makes, B waits, and A's steps are as they were."""
    asked = traffic([0.0, 0.5, 1.0], [128, 16, 48], [20, 40, 2])
    dear = run(replayed, asked, "planned-remote-kv(every=1)", far_token_s=1.0)
    plain = run(replayed, asked, "")
    assert dear.loans == 0
    assert dear.end_s.tolist() == plain.end_s.tolist()


def test_thresholds_of_debtors_and_creditors(replayed: Replays) -> None:
    asked = traffic([0.0, 0.5, 1.0], [128, 16, 48], [20, 40, 2])
    assert run(replayed, asked, "planned-remote-kv(every=1)").loans == 1
    assert run(replayed, asked, "planned-remote-kv(every=1,debtor_batch=1)").loans == 0
    assert run(replayed, asked, "planned-remote-kv(every=1,creditor_used=0.05)").loans == 0


def test_the_longest_request_of_a_fleet(replayed: Replays) -> None:
    """Four instances of 10 blocks that give half: 20 blocks of 16 tokens; 5 at home and 6 that one may owe: 11."""
    asked = traffic([0.0], [100], [4])
    words = {"instances": 4, "lend_share": 0.5}
    assert run(replayed, asked, "planned-remote-kv", **words).longest_tokens == 320
    assert run(replayed, asked, "planned-remote-kv", **words, owe=6).longest_tokens == 176
    assert run(replayed, asked, "").longest_tokens == 160


def test_short_and_long_requests_of_a_real_model() -> None:
    """One request in ten is long: over three draws planned moves end sooner than static instances and eager loans."""
    model, where = load("llama-2-7b"), machine(cluster("4xA100-SXM-40GB"))
    ways = {"static": (), "eager": ("remote-kv",), "planned": ("planned-remote-kv",)}
    fleets = {name: engine(model, where, deployed(instances=4, technique=way)) for name, way in ways.items()}
    span_s, waited_s = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0.0)
    for seed in range(3):
        draw = np.random.default_rng(seed)
        prompts = np.where(draw.random(600) < 0.9, draw.integers(100, 2000, 600), draw.integers(10000, 40000, 600))
        asked = traffic(np.sort(draw.uniform(0, 60, 600)), prompts, draw.integers(50, 400, 600))
        for name, fleet in fleets.items():
            found = replay([fleet], asked)
            assert found.done.all()
            span_s[name] += found.span_s
            waited_s[name] += float(np.mean(found.end_s - found.came_s))
    assert span_s["planned"] < min(span_s["static"], span_s["eager"])
    assert waited_s["planned"] < min(waited_s["static"], waited_s["eager"])
