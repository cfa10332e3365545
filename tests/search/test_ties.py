"""Plans that tie: the plainest stands first, the quickest stays in the list, and the gap is told."""

from __future__ import annotations

import pytest

from ridgeline.plan.plan import Plan
from ridgeline.search.ranked import TIE, Ranked

PLAIN = Plan(dp=8, zero=3)
MOVED = Plan(dp=8, zero=3, offload_optimizer=True)


def found(*plans: tuple[float, Plan]) -> Ranked:
    return Ranked(plans=plans, covered=2, legal=2, feasible=2, simulated=2, infeasible=())


def test_of_a_tie_the_plainer_plan_is_first_and_the_gap_is_told() -> None:
    first = found((1.0, MOVED), (1.0 + TIE / 2, PLAIN)).plain_first()
    assert first.plans == ((1.0 + TIE / 2, PLAIN), (1.0, MOVED))
    assert first.gap == pytest.approx(TIE / 2, rel=0.01)


def test_beyond_a_tie_the_quickest_is_first() -> None:
    ranked = found((1.0, MOVED), (1.0 + 2 * TIE, PLAIN))
    assert ranked.plain_first().plans == ranked.plans
    assert ranked.plain_first().gap == 0.0
