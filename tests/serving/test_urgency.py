"""Priorities that change while requests run: by hand, and evenly drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ridgeline.errors import PlanError
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving import state
from ridgeline.serving.replay import Replay
from ridgeline.serving.traffic.traffic import traffic
from ridgeline.serving.urgency import drawn_priority

Replays = Callable[..., Replay]


def rule_of(levels: int) -> Any:
    rule = np.zeros(1, dtype=state.RULE).view(np.recarray)
    rule["levels"] = levels
    return rule[0]


def test_draws_are_even_and_do_not_follow_each_other() -> None:
    """4,000 draws of four levels: a thousand each within 4 standard deviations, a quarter kept from epoch to epoch."""
    rule = rule_of(4)
    draws = np.array([[drawn_priority(rule, request, epoch) for request in range(200)] for epoch in range(20)])
    assert set(np.unique(draws)) == {0, 1, 2, 3}
    assert all(abs(count - 1000) < 4 * (4000 * 0.25 * 0.75) ** 0.5 for count in Counter(draws.ravel()).values())
    assert abs(float((draws[1:] == draws[:-1]).mean()) - 0.25) < 0.03
    assert abs(float((draws[:, 1:] == draws[:, :-1]).mean()) - 0.25) < 0.03


def test_who_loses_urgency_gives_way_by_hand(replayed: Replays) -> None:
    """One place, 1 s an iteration, two requests of 60 tokens: each epoch of 5 iterations the more urgent one runs.

    The place changes hands exactly where the draws say so, each time at the cost of a prompt computed again.
    """
    asked = traffic([0.0, 0.0], [4, 4], [60, 60])
    found = replayed(asked, lane_s=1.0, max_seqs=1, displaces=1, redraws=5, levels=4)
    rule, running, made, changes, left = rule_of(4), 0, [0, 0], 0, [60, 60]
    urgent = [drawn_priority(rule, request, 0) for request in (0, 1)]
    running = 0 if urgent[0] <= urgent[1] else 1
    for step in range(400):
        if step and step % 5 == 0:
            urgent = [drawn_priority(rule, request, step // 5) for request in (0, 1)]
            other = 1 - running
            if left[other] and left[running] and urgent[other] < urgent[running]:
                running, changes = other, changes + 1
        made[running] += 1
        left[running] -= 1
        if not left[running]:
            running = 1 - running
        if not any(left):
            break
    assert changes > 0
    assert int(found.preempted.sum()) == changes
    assert found.iterations == sum(made) == 120  # a prompt, old or computed again, makes a token as a step does
    assert float(found.end_s.max()) == 120.0


def test_more_changes_cost_more_and_swaps_beside_iterations_less(replayed: Replays) -> None:
    asked = traffic(np.arange(40) * 0.5, [64] * 40, [64] * 40)
    words = {"lane_s": 0.05, "max_seqs": 4, "displaces": 1, "levels": 4, "swaps": 1, "swap_token_s": 1e-3}
    often, seldom = (replayed(asked, redraws=redraws, **words) for redraws in (5, 50))
    assert often.preempted.sum() > 2 * seldom.preempted.sum() > 0
    beside = replayed(asked, redraws=5, beside=1, **words)
    assert beside.span_s < often.span_s


@pytest.mark.parametrize(
    ("words", "told"), [({}, "is about displaces"), ({"displaces": True, "queue": "fair"}, "queue arrival")]
)
def test_what_is_not_modelled_is_refused(words: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        deployed(priority_period=25, **words)
