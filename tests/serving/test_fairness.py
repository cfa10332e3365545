"""Fair queues and urgent requests, by hand and by the bound that the virtual token counter was proven to keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.mechanisms import constant
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import engine
from ridgeline.serving.fairness import PROMPT_WEIGHT, TOKEN_WEIGHT
from ridgeline.serving.replay import Replay
from ridgeline.serving.sampling import client_shares, priority_shares
from ridgeline.serving.traffic.traffic import Traffic, traffic

Replays = Callable[..., Replay]
EIGHT = machine(cluster("8xA100-SXM-80GB"))


def of_clients(asked: Traffic, *clients: int, session: bool = False) -> Traffic:
    owner = np.array(clients)
    if session:
        return replace(asked, session=owner)
    return replace(asked, client=owner, client_names=tuple(f"c{one}" for one in range(max(clients) + 1)))


# the counter -----------------------------------------------------------------------------------------

LATE = traffic([0.0, 0.0, 0.0, 0.0], [1, 1, 1, 1], [3, 3, 3, 3])


@pytest.mark.parametrize("session", [False, True])
def test_who_was_served_less_is_next(replayed: Replays, session: bool) -> None:
    """One place, a second a step, three steps a request; A asks three times before B does.

    First A (1 for its prompt and 2 for each of two decoded tokens: 5), then B, who has had nothing, then A twice; in
    order of arrival B would be last.
    """
    asked = of_clients(LATE, 0, 0, 0, 1, session=session)
    fair = replayed(asked, lane_s=1.0, max_seqs=1, fair=1)
    assert fair.end_s.tolist() == [3.0, 9.0, 12.0, 6.0]
    assert replayed(asked, lane_s=1.0, max_seqs=1).end_s.tolist() == [3.0, 6.0, 9.0, 12.0]


def test_absence_saves_up_nothing(replayed: Replays) -> None:
    """B comes when A has had 5 and waits for more: lifted to A's counter, it goes after the A that came before it.

    A's second is next at 3 (both at 5 and A came first), B's first then, 5 against A's 10, and B's second after A's
    third, as both stand at 10. Without the lift, B's two would go first: 0 and 5 are less than 10.
    """
    asked = traffic([0.0, 0.0, 0.0, 2.5, 2.5], [1] * 5, [3] * 5)
    fair = replayed(of_clients(asked, 0, 0, 0, 1, 1), lane_s=1.0, max_seqs=1, fair=1)
    assert fair.end_s.tolist() == [3.0, 6.0, 12.0, 9.0, 15.0]


def test_two_who_come_together_are_lifted_one_by_one(replayed: Replays) -> None:
    """Nobody waits at 4, A runs and stands at 3; B comes with 5, then C, new: to 5, which is the least who waits."""
    asked = traffic([0.0, 2.5, 3.5, 3.5], [1] * 4, [3] * 4)
    fair = replayed(of_clients(asked, 1, 0, 1, 2), lane_s=1.0, max_seqs=1, fair=1)
    assert fair.end_s.tolist() == [3.0, 6.0, 9.0, 12.0]


def test_a_long_prompt_counts_and_a_token_counts_twice(replayed: Replays) -> None:
    """A's prompt of 9 and two decoded tokens are 13; B's three requests of 1 and two tokens are 5 each: 15."""
    assert (PROMPT_WEIGHT, TOKEN_WEIGHT) == (1.0, 2.0)
    asked = traffic(np.zeros(6), [9, 9, 1, 1, 1, 1], [3] * 6)
    fair = replayed(of_clients(asked, 0, 0, 1, 1, 1, 1), lane_s=1.0, max_seqs=1, fair=1)
    assert np.argsort(fair.end_s).tolist() == [0, 2, 3, 4, 1, 5]


def test_nobody_slips_past_whose_turn_it_is(replayed: Replays) -> None:
    """A holds two of three blocks to the end; B is next and needs two; C behind it would fit, and waits too."""
    asked = traffic([0.0, 0.5, 0.6], [4, 8, 1], [4, 2, 2])
    fair = replayed(of_clients(asked, 0, 1, 2), lane_s=1.0, max_seqs=2, capacity=3, block_tokens=4, fair=1)
    assert fair.end_s[0] == 4.0
    assert fair.first_s[1] > fair.end_s[0]
    assert fair.first_s[2] >= fair.first_s[1]


@pytest.mark.parametrize("seed", range(6))
def test_backlogged_clients_differ_by_no_more_than_the_bound(replayed: Replays, seed: int) -> None:
    """Of two clients who always wait, the weighted tokens served differ by 2 max(w_p L, w_q M) at most.

    L is the longest prompt and M the most tokens that fit into the cache (sheng2024vtc, theorem 4.4). In order of
    arrival the client that sends nine in ten requests gets nine times as much.
    """
    draw = np.random.default_rng(seed)
    count, capacity = 400, 60
    owner = (draw.random(count) < 0.1).astype(int)
    asked = of_clients(traffic(np.zeros(count), draw.integers(1, 64, count), draw.integers(2, 64, count)), *owner)
    rule = {"max_seqs": 8, "capacity": capacity, "lane_s": 0.01, "token_s": 1e-4}
    bound = 2 * max(PROMPT_WEIGHT * 64, TOKEN_WEIGHT * capacity * 16)
    worst = {}
    for fair in (0, 1):
        found = replayed(asked, fair=fair, reserve=1.0, **rule)
        until = min(found.first_s[owner == client].max() for client in (0, 1))  # both have somebody waiting before
        served = []
        for client in (0, 1):
            mine = (owner == client) & (found.first_s < until)
            decoded = np.clip((until - found.first_s) / (found.end_s - found.first_s), 0, 1) * (asked.output_tokens - 1)
            served.append(PROMPT_WEIGHT * asked.prompt_tokens[mine].sum() + TOKEN_WEIGHT * decoded[mine].sum())
        worst[fair] = abs(served[0] - served[1])
    assert worst[1] <= bound < worst[0]


def test_a_fair_queue_needs_clients(replayed: Replays) -> None:
    with pytest.raises(PlanError, match="fair among clients, and 'traffic' names none"):
        replayed(LATE, fair=1)


# the urgent ------------------------------------------------------------------------------------------


def test_the_urgent_displaces_the_least_urgent(replayed: Replays) -> None:
    """One place: the urgent one comes at 1.5, in the step to 2, runs from 2 to 4, and the other is computed again.

    The other had its first token at 1 and its second at 2: its prompt and two tokens are computed by 5, which makes
    its third, and two more steps bring all five at 7. Without displacing, the urgent waits until 5.
    """
    asked = replace(traffic([0.0, 1.5], [4, 4], [5, 2]), priority=np.array([1, 0]))
    found = replayed(asked, lane_s=1.0, max_seqs=1, displaces=1)
    assert (found.end_s.tolist(), found.preempted.tolist()) == ([7.0, 4.0], [1, 0])
    assert replayed(asked, lane_s=1.0, max_seqs=1).end_s.tolist() == [5.0, 7.0]


def test_what_swapping_costs_and_that_it_may_go_on_beside(replayed: Replays) -> None:
    """As above, by swap: the 5 tokens of cache go out and in at 0.1 s each way, 1 s in all, noted with the preemption.

    Urgent first token at 2 + 1 + 1 s, or at 3 where what moves is beside the step of 1 s; the other goes on at once.
    """
    asked = replace(traffic([0.0, 1.5], [4, 4], [5, 2]), priority=np.array([1, 0]))
    rule = {"lane_s": 1.0, "max_seqs": 1, "displaces": 1, "swaps": 1, "swap_token_s": 0.1}
    after, beside = replayed(asked, **rule), replayed(asked, beside=1, **rule)
    assert after.first_s.tolist() == pytest.approx([1.0, 4.0])
    assert beside.first_s.tolist() == pytest.approx([1.0, 3.0])
    assert after.end_s.tolist() == pytest.approx([8.0, 5.0])
    assert beside.end_s.tolist() == pytest.approx([7.0, 4.0])
    slow = replayed(asked, beside=1, **{**rule, "swap_token_s": 0.3})
    assert slow.first_s[1] == pytest.approx(2.0 + 3.0)  # 3 s to move are longer than the step


def test_equal_urgency_displaces_nobody(replayed: Replays) -> None:
    asked = replace(traffic([0.0, 1.5, 1.6], [4, 4, 4], [5, 2, 2]), priority=np.array([1, 1, 2]))
    assert replayed(asked, lane_s=1.0, max_seqs=1, displaces=1).preempted.sum() == 0


def test_displacing_needs_priorities_that_differ(replayed: Replays) -> None:
    with pytest.raises(PlanError, match="have the same priority"):
        replayed(LATE, displaces=1)


# engines ---------------------------------------------------------------------------------------------


def rule(**words: object) -> np.ndarray:
    made = engine(load("llama-3.1-8b"), EIGHT, deployed(preemption="swap", **words))  # type: ignore[arg-type]
    return made.rule(made.tables(longest_prompt=512, longest=1024))


def test_copies_of_single_blocks_take_longer_than_the_link() -> None:
    """A token of Llama-3.1-8B keeps 32 layers x 2 x 8 heads x 128 x 2 byte = 131,072 byte, 5 us at 26 GB/s.

    Copied block by block, each of 16 tokens takes 64 copies: 4 of them a token. In groups of 60 blocks the link binds.
    """
    link = 131_072 / EIGHT.cluster.host.device_bytes_per_s
    assert float(rule()["swap_token_s"]) == pytest.approx(link)
    assert float(rule(swap_blocks=1)["swap_token_s"]) == pytest.approx(4 * constant("launch.host.compiled"))
    assert 4 * constant("launch.host.compiled") > link
    assert float(rule(swap_blocks=60)["swap_token_s"]) == pytest.approx(link)


def test_words_become_the_rule() -> None:
    assert [int(rule()[name]) for name in ("fair", "displaces", "beside", "swaps")] == [0, 0, 0, 1]
    said = rule(queue="fair", displaces=True, swap_beside=True)
    assert [int(said[name]) for name in ("fair", "displaces", "beside", "swaps")] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"swap_blocks": 1}, "swap_blocks is about preemption swap, which is not said"),
        ({"swap_beside": True}, "preemption is recompute"),
        ({"displaces": True, "engine": "FasterTransformer"}, "batches start and end together"),
    ],
)
def test_words_without_meaning_are_refused(words: dict[str, object], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        engine(load("llama-3.1-8b"), EIGHT, deployed(**words))  # type: ignore[arg-type]


# shares ----------------------------------------------------------------------------------------------


def test_shares_by_hand(replayed: Replays) -> None:
    asked = replace(of_clients(LATE, 0, 0, 0, 1), priority=np.array([2, 1, 1, 1]))
    found = replayed(asked, lane_s=1.0, max_seqs=1)
    first, second = client_shares(found, asked)
    assert (first.name, first.requests, first.done, first.prompt_tokens, first.output_tokens) == ("c0", 3, 3, 3, 9)
    assert (second.name, second.requests, second.ttft.p50, second.tpot.p50) == ("c1", 1, 7.0, 1.0)
    urgent, other = priority_shares(found, asked)
    assert (urgent.name, urgent.requests, other.name, other.ttft.p50) == ("1", 3, "2", 10.0)


# the shortest ----------------------------------------------------------------------------------------

WAITING = traffic([0.0, 0.0, 0.1, 0.1], [5, 9, 3, 7], [2] * 4)


@pytest.mark.parametrize(
    ("patience", "ends"),
    [
        (0.0, [2.0, 8.0, 4.0, 6.0]),  # 5 at once, then 3, 7, 9
        (30.0, [2.0, 6.0, 4.0, 8.0]),  # 3 and 3 for a tenth of a second less: 6, then 9, then 7 and 3
        (100.0, [2.0, 4.0, 6.0, 8.0]),  # 9, then 3 and 10, then 7 and 10
    ],
)
def test_the_shortest_prompt_is_next_and_waiting_counts(replayed: Replays, patience: float, ends: list[float]) -> None:
    found = replayed(WAITING, lane_s=1.0, max_seqs=1, shortest=1, patience=patience)
    np.testing.assert_allclose(found.end_s, ends)


def test_the_urgent_come_before_the_shortest(replayed: Replays) -> None:
    urgent = replace(WAITING, priority=np.array([0, 0, 1, 0]))
    assert replayed(urgent, lane_s=1.0, max_seqs=1, shortest=1).end_s.tolist() == [2.0, 6.0, 8.0, 4.0]


@pytest.mark.parametrize("words", [{"queue_patience": -1.0, "queue": "shortest"}, {"queue_patience": 1.0}])
def test_patience_is_of_the_queue_of_the_shortest(words: dict[str, object]) -> None:
    with pytest.raises(PlanError, match="queue_patience"):
        deployed(**words)  # type: ignore[arg-type]
