"""Front ends that take turns of their own."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import pytest

from ridgeline.errors import PlanError
from ridgeline.serving.fronts import Fronts, drawn_of, front_of
from ridgeline.serving.replay import Replay
from ridgeline.serving.state import INSTANCE
from ridgeline.serving.traffic.traffic import Traffic, traffic

Replays = Callable[..., Replay]


def loop(users: int, outputs: np.ndarray) -> Traffic:
    """A closed loop of short prompts with these answers."""
    asked = traffic(np.zeros(len(outputs)), np.full(len(outputs), 4), outputs)
    return asked.closed(users)


def one_by_one(users: int, outputs: np.ndarray, instances: int, fronts: Fronts) -> np.ndarray:
    """Waits of a closed loop at instances that serve one request at a time, a second a token: a plain event list."""
    pool = np.zeros(instances, dtype=INSTANCE)
    pool["takes"] = 1
    turns = fronts.first_turns(pool)[1]
    free, waits, ends = np.zeros(instances), np.zeros(len(outputs)), [0.0] * users
    for request in range(len(outputs)):
        now = heapq.heappop(ends)
        front = front_of(request, fronts.count)
        chosen = turns[front] % instances
        turns[front] = chosen + 1
        start = max(now, free[chosen])
        waits[request], free[chosen] = start - now, start + outputs[request]
        heapq.heappush(ends, free[chosen])
    return waits


def test_one_front_end_serves_equals_in_turn_and_many_let_them_wait(replayed: Replays) -> None:
    """Four users of four instances with room for one each, all alike: turns fit; of ten front ends they collide."""
    asked = loop(4, np.full(40, 100))
    numbers = {"instances": 4, "max_seqs": 1, "lane_s": 1.0, "router": "round-robin"}
    one, ten = replayed(asked, **numbers), replayed(asked, fronts=Fronts(count=10), **numbers)
    assert (one.first_s - one.came_s) == pytest.approx(np.ones(40))  # the iteration of the prompt
    assert 20.0 < (ten.first_s - ten.came_s).mean() - 1.0 < 80.0  # of 100 s that an answer takes


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [1, 3, 10])
def test_waits_are_those_of_a_plain_event_list(replayed: Replays, count: int, seed: int) -> None:
    """Answers are so long and so unlike that no two end at one instant."""
    outputs = np.random.default_rng((seed, 1)).integers(500_000, 1_100_000, 60)
    fronts = Fronts(count=count, seed=seed)
    numbers = {"instances": 3, "max_seqs": 1, "lane_s": 1.0, "capacity": 200_000, "router": "round-robin"}
    found = replayed(loop(5, outputs), fronts=fronts, **numbers)
    assert found.first_s - found.came_s - 1.0 == pytest.approx(one_by_one(5, outputs, 3, fronts))


def test_requests_come_in_through_all_front_ends_alike() -> None:
    counts = np.bincount([front_of(request, 10) for request in range(20_000)], minlength=10)
    assert counts.min() > 1_850  # of 2,000; four standard deviations are 170
    assert counts.max() < 2_150


def test_none_is_no_number_of_front_ends() -> None:
    with pytest.raises(PlanError, match="fronts: 0, needs >= 1"):
        Fronts(count=0)


@pytest.mark.parametrize(("draws", "last"), [(0, [11.0, 11.0, 12.0]), (1, [11.0, 12.0, 13.0])])
def test_a_rank_that_is_drawn_may_be_the_fuller_one(replayed: Replays, draws: int, last: list[float]) -> None:
    """Two ranks with one place each, iterations of a second: of six requests three draw the second rank in a row."""
    assert [drawn_of(request, 2) for request in range(6)] == [0, 1, 0, 1, 1, 1]
    asked = traffic([0.0] * 3 + [10.0] * 3, [4] * 6, [1] * 6)
    found = replayed(asked, ranks=2, max_seqs=1, lane_s=1.0, draws_rank=draws)
    assert found.first_s.tolist() == [1.0, 1.0, 2.0, *last]


@pytest.mark.parametrize("ranks", [2, 4, 8, 32])
def test_draws_are_even_and_do_not_follow_each_other(ranks: int) -> None:
    """Counts within four standard deviations of those of a fair die, and so are repeats of the draw before."""
    drawn = np.array([drawn_of(request, ranks) for request in range(8000)])
    share = 1.0 / ranks
    spread = 4.0 * np.sqrt(8000 * share * (1.0 - share))
    assert (np.abs(np.bincount(drawn, minlength=ranks) - 8000 * share) < spread).all()
    assert abs(np.count_nonzero(drawn[1:] == drawn[:-1]) - 7999 * share) < spread
