"""Three hundred small fleets that borrow room of each other, drawn at random, end as the slow simulator says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from one_kind import OneKind, compared_batch, drawn_fleet
from reference_borrowing import Lender, Neighbour
from reference_serving import Fleet, Instance
from test_serving_reference import FakeEngine

from ridgeline.scenario.serving_words import replaced
from ridgeline.serving import state

BATCHES = 6


@dataclass
class Borrowing(OneKind):
    """A fleet of one kind of instance that borrows."""

    def instances(self) -> list[Instance]:
        common = self.common()
        ranks = [Neighbour(rule=common["rule"]) for _ in range(self.count)]
        for rank in ranks:
            rank.peers = ranks
        return [Lender(ranks=[rank], **common) for rank in ranks]


def lending(draw: np.random.Generator, block: int) -> dict[str, Any]:
    return {
        "scheduler": state.MIXED_BATCHES, "borrows": 1, "capacity": -(-int(draw.integers(20, 60)) // block),
        "owe": int(draw.integers(2, 60)), "lend_share": float(draw.choice([0.3, 0.5, 0.8, 1.0])),
        "lend_token_s": draw.uniform(0, 1e-3), "ask_start_s": draw.uniform(0, 2e-3), "ask_s": draw.uniform(0, 1e-3),
        "far_token_s": draw.uniform(0, 1e-3),
    }  # fmt: skip


def borrowing_case(seed: int) -> Borrowing:
    absent = ("swaps", "displaces", "prefix_tokens", "drafted")
    return Borrowing(**drawn_fleet(seed, 11, lending, absent=absent, borrows=True))


def happened(case: OneKind, slow: Fleet, loans: int) -> dict[str, bool]:
    most = case.engines[0].values["capacity"]
    ended = [one for one in slow.asked if one.stage == "ended"]
    return {
        "borrowed": loans > 0,
        "several times": loans > 3,
        "preempted": any(one.preempted for one in slow.asked),
        "longer than one": any(one.most_blocks(slow.instances[0].rule, one.output) > most for one in ended),
        "refused": any(one.stage == "refused" for one in slow.asked),
    }


@cache
def compared(batch: int) -> tuple[list[str], Counter[str]]:
    return compared_batch(
        batch, borrowing_case, "loans", lambda slow: sum(rank.taken for rank in ranks_of(slow)), happened
    )


def ranks_of(slow: Fleet) -> list[Neighbour]:
    return [rank for instance in slow.instances for rank in instance.ranks if isinstance(rank, Neighbour)]


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_request_ends_as_the_slow_simulator_says(batch: int) -> None:
    wrong, _ = compared(batch)
    assert not wrong


def test_the_cases_are_not_vacuous() -> None:
    seen = sum((compared(batch)[1] for batch in range(BATCHES)), Counter[str]())
    least = {"borrowed": 60, "several times": 10, "preempted": 40, "longer than one": 20, "refused": 20}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


def test_fleets_without_loans_are_as_they_were() -> None:
    """Where everything fits, a fleet that may borrow does what one that may not does."""
    for seed in range(20):
        case = borrowing_case(seed)
        (one,) = case.engines
        one.values |= {"capacity": 2000, "reserve": 0.0}
        never = FakeEngine(
            replaced(one.deployment, borrows=False), {**one.values, "borrows": 0}, one.graphs, one.policy
        )
        found, plain = case.compiled(), replace(case, engines=[never]).compiled()
        assert found.loans == 0
        np.testing.assert_allclose(found.end_s, plain.end_s, rtol=1e-9)
