"""Sessions by hand: contexts that grow, caches that are kept, forgotten or on the host, and what users see of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import PlanError, WorkloadError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.registry import listed
from ridgeline.serving.compiling import clocked
from ridgeline.serving.engine import engine
from ridgeline.serving.replay import Replay
from ridgeline.serving.sessions import session_use
from ridgeline.serving.state import Clock, Record
from ridgeline.serving.traffic.asked import asked_traffic
from ridgeline.serving.traffic.sessions import as_asked, at_once, chained, grown_from, matched
from ridgeline.serving.traffic.traffic import Traffic, traffic

Replays = Callable[..., Replay]


@clocked
def for_a_second(clock: Clock, rule: Record, rank: int, request: int) -> float:
    return 1.0


@clocked
def until_the_next(clock: Clock, rule: Record, rank: int, request: int) -> float:
    return math.inf


def two_turns(tool_s: float) -> Traffic:
    """A session of prompts of 128 and 256 tokens that write 64 each; another prompt comes meanwhile, at 0.5 s."""
    asked = traffic(
        [0.0, 0.0, 0.5], [128, 256, 128], [64, 64, 1], session=np.array([0, 0, -1]), after=np.array([-1, 0, -1]),
        think_s=np.array([0.0, tool_s, 0.0]),
    )  # fmt: skip
    return grown_from(asked)


def run(replayed: Replays, tool_s: float, **numbers: object) -> Replay:
    """Prompts take 1 ms a token computed; the cache has room for 320 tokens, a session's end."""
    values = {"token_s": 1e-3, "capacity": 20, "swap_token_s": 1e-4, "beside": 0, **numbers}
    return replayed(two_turns(tool_s), **values)


def test_a_turn_finds_what_the_one_before_read_and_wrote(replayed: Replays) -> None:
    """Of 192 tokens 191 have a cache at the first turn's end, two whole blocks of 64; the second prompt finds 128."""
    found = run(replayed, 0.0, capacity=1000)
    assert found.hit_tokens.tolist() == [0, 128, 0]
    assert found.first_s[1] - found.came_s[1] == pytest.approx(0.128, abs=0.07)  # beside a step that runs


def test_a_stranger_takes_the_cache_that_nobody_keeps(replayed: Replays) -> None:
    """The stranger's 128 tokens and 2 blocks of the first turn fit 320; a longer tool changes nothing of that."""
    assert run(replayed, 5.0).hit_tokens[1] == 128
    assert run(replayed, 5.0, capacity=12).hit_tokens[1] == 0  # 192 tokens: one of the blocks of the session went


def test_a_kept_cache_never_stops_a_rank_that_idles(replayed: Replays) -> None:
    """192 tokens of room, 128 of which are kept from the first turn's end on: they are given up as nobody runs."""
    base = {"capacity": 12, "max_seqs": 1}
    loose = run(replayed, 5.0, **base)
    second = run(replayed, 5.0, **base, hooks={"keeps": for_a_second})
    assert second.came_s[2] == loose.came_s[2]
    assert second.first_s[2] == pytest.approx(loose.first_s[2])


def test_blocks_come_back_from_the_host_at_its_link(replayed: Replays) -> None:
    """128 of 256 tokens are fetched at 0.1 ms instead of being computed at 1 ms."""
    gone = run(replayed, 5.0, capacity=20, max_seqs=1, hooks=None)
    asked = {"capacity": 20, "max_seqs": 1}
    crowd = replace(two_turns(5.0))
    crowded = traffic(
        [0.0, 0.0, 0.5], [128, 256, 300], [64, 64, 1], session=np.array([0, 0, -1]), after=np.array([-1, 0, -1]),
        think_s=np.array([0.0, 5.0, 0.0]),
    )  # fmt: skip
    crowd = grown_from(crowded)
    lost = replayed(crowd, token_s=1e-3, swap_token_s=1e-4, **asked)
    held = replayed(crowd, token_s=1e-3, swap_token_s=1e-4, host_blocks=100, **asked)
    assert gone.hit_tokens[1] == 128
    assert (lost.hit_tokens[1], held.hit_tokens[1]) == (0, 128)
    assert lost.first_s[1] - lost.came_s[1] == pytest.approx(0.256)
    assert held.first_s[1] - held.came_s[1] == pytest.approx(0.128 + 128 * 1e-4)


@pytest.mark.parametrize(
    ("text", "tool_s", "waits"),
    [
        ("", 9.0, False),
        ("kv-ttl(seconds=3)", 9.0, True),
        ("kv-least-waste", 1e-4, False),
        ("kv-least-waste", 9.0, False),
    ],
)
def test_techniques_hold_a_turns_cache(replayed: Replays, text: str, tool_s: float, waits: bool) -> None:
    """At 0.5 s a stranger wants 178 of 200 blocks, of which one who decodes to 4 s has 17 and a first turn's cache 8.

    That is held from 0.13 to 3.13 s by `kv-ttl`. Computed again in 2 ms, it is not held for a tool of 9 s by
    `kv-least-waste`, and for one of 0.1 ms the next turn has it back long before.
    """
    asked = traffic(
        [0.0, 0.0, 0.0, 0.5], [128, 256, 16, 2848], [64, 1, 2000, 1], session=np.array([0, 0, -1, -1]),
        after=np.array([-1, 0, -1, -1]), think_s=np.array([0.0, tool_s, 0.0, 0.0]),
    )  # fmt: skip
    hooks = listed(text).hooks() if text else {}  # type: ignore[attr-defined]
    found = replayed(grown_from(asked), hooks=hooks, token_s=1e-6, lane_s=2e-3, capacity=200)
    assert (found.first_s[3] > 3.0) == waits


def test_the_host_has_room_for_so_many_times_the_cache() -> None:
    one = Deployment(technique=("kv-host-tier(ratio=0.5)",))
    made = engine(load("llama-3.1-8b"), machine(cluster("1xH100-SXM")), one)
    rule = made.rule(made.tables(longest_prompt=100, longest=200))
    assert int(rule["host_blocks"]) == int(0.5 * made.capacity.cache_tokens // made.policy.block_tokens)
    assert rule["beside"]


def test_caches_are_kept_between_turns_only(replayed: Replays) -> None:
    with pytest.raises(PlanError, match="no request of 'traffic' is the next turn"):
        replayed(traffic([0.0], [10], [10]), hooks={"keeps": until_the_next})


def test_the_time_of_a_session_is_told_by_what_it_goes_on(replayed: Replays) -> None:
    asked = two_turns(5.0)
    found = replayed(asked, token_s=1e-3, capacity=1000)
    told = session_use(found, asked)
    assert told is not None
    assert (told.sessions, told.done, told.turns_mean) == (1, 1, 2.0)
    assert told.time.p50 == pytest.approx(found.end_s[1] - found.came_s[0])
    assert told.waits_share == pytest.approx(5.0 / told.time.p50)
    assert told.waits_share + told.ttft_share + told.decode_share == pytest.approx(1.0)
    assert [(one.first, one.turns, one.hit_share) for one in told.by_turn] == [(1, 1, 0.0), (2, 1, 0.5)]
    assert session_use(found, traffic([0.0], [1], [1])) is None


# traffic ---------------------------------------------------------------------------------------------


def test_prompts_grow_by_outputs_and_answers_of_tools() -> None:
    words = {"turns": (3, 3), "prompt": (100, 100), "output": (20, 20), "tool_tokens": (30, 30), "rate": 1.0}
    asked, _ = asked_traffic({**words, "requests": 2, "tool_time": {"low": 2.0, "high": 2.0}, "shared_prompt": 64})
    assert asked.prompt_tokens.tolist() == [164, 214, 264] * 2
    assert asked.after.tolist() == [-1, 0, 1, -1, 3, 4]
    assert asked.think_s.tolist() == [0.0, 2.0, 2.0] * 2
    size, start = asked.prefix_block_tokens, asked.prefix_start
    lists = [asked.prefix_blocks[start[i] : start[i + 1]].tolist() for i in range(6)]
    assert [len(one) for one in lists] == [184 // size, 234 // size, 284 // size] * 2
    assert lists[2][: len(lists[1])] == lists[1]
    assert lists[1][: len(lists[0])] == lists[0]
    assert lists[3][:1] == lists[0][:1]  # 64 tokens are shared by all
    assert lists[3][1:] != lists[0][1:]


def test_users_begin_the_next_session_when_one_has_ended() -> None:
    asked, _ = asked_traffic({"turns": (2, 2), "concurrency": 2, "requests": 5})
    heads = np.flatnonzero(np.concatenate([[True], np.diff(asked.session) != 0]))
    assert [int(asked.after[head]) for head in heads] == [-1, -1, 1, 3, 5]


def test_turns_are_matched_by_what_their_prompts_begin_with() -> None:
    """B goes on with A, which wrote 10: its prompt begins with A's two whole blocks. C shares but the first block."""
    start = np.array([0, 3, 7, 9])
    blocks = np.array([0, 1, 2, 0, 1, 3, 4, 0, 5])
    asked = traffic(
        [0.0, 9.0, 9.5], [25, 40, 20], [10, 5, 5], prefix_start=start, prefix_blocks=blocks, prefix_block_tokens=10
    )
    assert matched(asked).session.tolist() == [0, 0, 2]
    found = as_asked(asked, "matched", 0.0)
    assert found.after.tolist() == [-1, 0, -1]
    told = found.prefix_blocks[found.prefix_start[0] : found.prefix_start[1]]
    mine = found.prefix_blocks[found.prefix_start[1] : found.prefix_start[2]]
    assert told.tolist() == mine[:3].tolist()  # 35 tokens of the context after A


def test_a_trace_says_how_long_its_tools_take() -> None:
    asked = traffic([0.0, 1.0], [10, 30], [5, 5], session=np.array([0, 0]), think_s=np.array([0.0, 4.0]))
    assert chained(asked, think_s=2.0).think_s.tolist() == [0.0, 4.0]
    assert at_once(chained(asked), 3).after.tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"rate": 1.0, "tool_time": {"low": 1.0, "high": 1.0}}, "no turns of sessions"),
        ({"turns": (2, 2), "concurrency": 2, "rate": 1.0}, "a user begins when one has ended"),
        ({"turns": (2, 2), "arrivals": "closed"}, "needs users"),
        ({"turns": {"mean": 1e6, "cv": 0.0}, "rate": 1.0, "requests": 100}, "at most 10,000,000"),
    ],
)
def test_what_says_no_sessions_is_refused(words: dict[str, object], told: str) -> None:
    with pytest.raises(WorkloadError, match=told):
        asked_traffic(words)
