"""Room that an instance borrows of others: by hand, and on real models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import engine
from ridgeline.serving.fleet_events import Autoscale, FleetEvents
from ridgeline.serving.replay import Replay, replay
from ridgeline.serving.traffic.traffic import traffic

BORROWS = deployed(borrows=True)
RULE = {
    "borrows": 1, "owe": 1000, "lend_share": 1.0, "capacity": 10, "lend_token_s": 0.01, "ask_start_s": 0.1,
    "ask_s": 0.2, "far_token_s": 0.02,
}  # fmt: skip
TIMES = {"lane_s": 1.0, "prompt_s": 2.0, "context_s": 0.01}
Replays = Callable[..., Replay]


def run(replayed: Replays, asked: Any, **words: Any) -> Replay:
    return replayed(asked, deployment=BORROWS, **{"instances": 2, **RULE, **TIMES, **words})


# by hand ---------------------------------------------------------------------------------------------


def test_a_request_longer_than_its_instance(replayed: Replays) -> None:
    """192 and 2 tokens are 13 blocks of 16; ten are at home, three beside it: 48 tokens, moved in 0.48 s.

    The prompt takes 1 + 2 + 0.48 s. A step reads 145 tokens at home, 1.45 s, 48 elsewhere meanwhile, 0.96; its
    queries and sums take 0.1 + 0.2, all else 1: 2.75 s.
    """
    found = run(replayed, traffic([0.0], [192], [2]))
    assert found.first_s.tolist() == pytest.approx([3.48])
    assert found.end_s.tolist() == pytest.approx([3.48 + 2.75])
    assert found.loans == 1
    # where reading them elsewhere takes longer, 48 x 0.05, that binds
    slow = run(replayed, traffic([0.0], [192], [2]), far_token_s=0.05)
    assert slow.end_s.tolist() == pytest.approx([3.48 + 1.0 + 2.4 + 0.3])
    # nobody lends: refused
    alone = replayed(traffic([0.0], [192], [2]), instances=2, **{**RULE, **TIMES, "borrows": 0})
    assert alone.refused.tolist() == [True]


def test_a_lender_reads_its_guests(replayed: Replays) -> None:
    """A (192, 40) borrows of B's instance, where B (16, 4) decodes: each of B's steps reads 16 x loans tokens more.

    A takes 232 tokens' blocks, 15, of which 5 elsewhere: 80 tokens, of which 80 are there when it decodes. Its prompt
    ends at 3 + 0.8. B comes at 4: its prompt, with guests 80 x 0.02, takes 3 + 1.6; its steps 1 + 0.01 (17 + i) + 1.6.
    """
    found = run(replayed, traffic([0.0, 4.0], [192, 16], [40, 4]))
    assert found.first_s.tolist() == pytest.approx([3.8, 4.0 + 4.6])
    assert found.end_s[1] == pytest.approx(8.6 + 3 * 2.6 + 0.01 * (17 + 18 + 19))
    # A's own steps: at home 112 tokens and what is new, elsewhere 80 x 0.02 = 1.6, which binds up to 160 at home
    assert found.end_s[0] == pytest.approx(3.8 + 39 * (1.0 + 0.3 + 1.6))


def test_loans_end_with_their_request(replayed: Replays) -> None:
    """B waits for blocks that A has borrowed, and begins when A ends."""
    asked = traffic([0.0, 1.0], [288, 112], [2, 2])  # 19 and 8 blocks; A borrows 9 of 10
    found = run(replayed, asked)
    ended = found.end_s[0]
    assert found.first_s[1] >= ended + 3.0 - 1e-9
    assert found.loans == 1
    assert found.done.all()


def test_limits_of_creditors_and_debtors(replayed: Replays) -> None:
    """Half of what is free is given: 5 of 10 blocks at home and 5 beside it hold 10 blocks, not 11."""
    asked = traffic([0.0], [150], [16])  # 11 blocks
    assert run(replayed, asked, lend_share=0.5).refused.tolist() == [True]
    assert run(replayed, asked, lend_share=0.5, instances=3).done.tolist() == [True]
    assert run(replayed, asked, lend_share=0.5, instances=3, owe=5).refused.tolist() == [True]
    assert run(replayed, asked, lend_share=0.5, instances=3, owe=6).done.tolist() == [True]


def test_several_lend_to_one(replayed: Replays) -> None:
    """Five instances of ten blocks hold 640 and 2 tokens, 41 blocks; the largest part elsewhere is ten, 160 tokens."""
    found = run(replayed, traffic([0.0], [640], [2]), instances=5)
    assert found.first_s.tolist() == pytest.approx([3.0 + 31 * 16 * 0.01])
    # at home 640 - 31 x 16 = 144 and one, elsewhere 160 x 0.02 = 3.2 s at the same time
    assert found.end_s[0] - found.first_s[0] == pytest.approx(1.0 + 0.3 + 3.2)


def test_a_lender_short_of_blocks_sends_its_own_back(replayed: Replays) -> None:
    """B decodes at the lender and grows; where nothing is left it gives way, alone as it is, and all end."""
    asked = traffic([0.0, 3.2], [16, 224], [120, 60])
    found = run(replayed, asked)
    assert found.done.all()
    assert found.preemptions >= 1


# real models -----------------------------------------------------------------------------------------


def fleet(**words: Any) -> Any:
    return engine(load("llama-2-7b"), machine(cluster("4xA100-SXM-40GB")), deployed(**{"borrows": True, **words}))


def test_contexts_beyond_one_instance_are_served() -> None:
    """Llama-2-7B holds some 45,000 tokens beside its weights on 40 GB: 100,000 fit on four such, not on one."""
    plain, borrows = (fleet(borrows=way, instances=4) for way in (False, True))
    assert 30_000 < plain.capacity.cache_tokens < 60_000
    asked = traffic([0.0, 1.0, 2.0], [90_000, 200, 300], [16, 32, 32])
    refused, served = replay([plain], asked), replay([borrows], asked)
    assert refused.refused.tolist() == [True, False, False]
    assert served.done.all()
    assert served.loans == 1


def test_what_room_elsewhere_costs() -> None:
    """A step asks 32 layers there and back; a token read there takes what it takes at home, as does its move."""
    one = fleet(instances=4)
    tables = one.tables(longest_prompt=4096, longest=90_000)
    rule = one.rule(tables, stride=1)
    (row,) = [place for place, count in enumerate(tables.sequences) if count == 1.0]
    at = [int(np.searchsorted(tables.contexts, length)) for length in (32_768, 65_536)]
    slope = np.diff(tables.decode.mid[row, at]) / np.diff(tables.contexts[at])
    assert float(rule["far_token_s"]) == pytest.approx(float(slope[0]), rel=0.02)
    assert float(rule["ask_start_s"]) > 64 * 1e-6
    assert float(rule["ask_s"]) < float(rule["ask_start_s"])
    assert float(rule["lend_token_s"]) == pytest.approx(float(rule["move_token_s"]))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"dp": 2}, "dp"),
        ({"kv_kept": 64}, "kv_kept"),
        ({"prefix_cache": True}, "prefix_cache"),
        ({"lend_share": 0.0}, "lend_share = 0"),
        ({"borrows": False, "owe_share": 2.0}, "say borrows as well"),
    ],
)
def test_what_is_not_modelled_is_refused(words: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        deployed(**{"borrows": True, **words})


def test_fleets_and_engines_that_cannot_lend_are_refused() -> None:
    asked = traffic([0.0], [100], [4])
    with pytest.raises(PlanError, match="SGLang is prefill-first"):
        replay([fleet(engine="SGLang", instances=2)], asked)
    with pytest.raises(PlanError, match="among instances that are alike and stay up"):
        replay([fleet(instances=1), fleet(instances=1, tp=2)], asked)
    one = engine(load("gpt-oss-20b"), machine(cluster("4xA100-SXM")), deployed(borrows=True, instances=2))
    with pytest.raises(PlanError, match="has windows or states"):
        replay([one], asked)


def test_a_fleet_that_changes_does_not_lend(replayed: Replays) -> None:
    with pytest.raises(PlanError, match="stay up"):
        run(
            replayed,
            traffic([0.0], [192], [2]),
            fleet_events=FleetEvents(autoscale=Autoscale()),
        )
