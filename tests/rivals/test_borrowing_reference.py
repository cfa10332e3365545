"""Three hundred small fleets that borrow room of each other, drawn at random, end as the slow simulator says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from reference_borrowing import Lender, Neighbour
from reference_serving import Fleet, Instance
from test_serving_reference import (
    ROUTERS,
    Case,
    FakeEngine,
    differences,
    prepared,
    random_engines,
    random_tables,
    random_traffic,
    shared,
)

from ridgeline.plan.deployment import Role
from ridgeline.serving import state

BATCHES, CASES = 6, 50


@dataclass
class Borrowing(Case):
    """A fleet of one kind of instance that borrows."""

    def instances(self) -> list[Instance]:
        (one,), (table,) = self.engines, self.tables
        record = one.rule(table)
        rule = {name: record[name].item() for name in record.dtype.names}
        found: list[Instance] = []
        ranks = [Neighbour(rule=rule) for _ in range(one.deployment.instances)]
        for rank in ranks:
            rank.peers = ranks
            found.append(
                Lender(
                    kind=0, rule=rule, tables=table, graphs=one.graphs, ranks=[rank],
                    extra_s=one.policy.exposed_host_s, role="whole",
                )
            )  # fmt: skip
        return found


def borrowing_case(seed: int) -> Borrowing:
    draw = np.random.default_rng((seed, 11))
    block = int(draw.integers(1, 9))
    engines = random_engines(draw, 1, block)[:1]
    tables, asked = [random_tables(draw)], shared(draw, engines, random_traffic(draw, block))
    prepared(draw, engines)
    (one,) = engines
    one.deployment = replace(one.deployment, instances=int(draw.integers(2, 5)), role=Role.WHOLE, borrows=True)
    one.values |= dict.fromkeys(("swaps", "displaces", "prefix_tokens", "drafted"), 0)
    one.values |= {
        "scheduler": state.MIXED_BATCHES, "ranks": 1, "gained": 1.0, "draft_share": 0.0, "period": block,
        "growth_blocks": 1, "balance": 1.0, "borrows": 1, "capacity": -(-int(draw.integers(20, 60)) // block),
        "owe": int(draw.integers(2, 60)), "lend_share": float(draw.choice([0.3, 0.5, 0.8, 1.0])),
        "lend_token_s": draw.uniform(0, 1e-3), "ask_start_s": draw.uniform(0, 2e-3), "ask_s": draw.uniform(0, 1e-3),
        "far_token_s": draw.uniform(0, 1e-3),
    }  # fmt: skip
    return Borrowing(engines=engines, tables=tables, traffic=asked, router=ROUTERS[int(draw.integers(2))])


@cache
def compared(batch: int) -> tuple[list[str], Counter[str]]:
    """What differs in one batch of cases, and in how many of them what happened."""
    wrong, seen = [], Counter[str]()
    for seed in range(batch * CASES, (batch + 1) * CASES):
        case = borrowing_case(seed)
        names, slow = differences(case)
        loans = sum(rank.taken for rank in ranks_of(slow))
        if case.compiled().loans != loans:
            names.append("loans")
        wrong += [f"case {seed}: {', '.join(names)}"] if names else []
        most = case.engines[0].values["capacity"]
        happened = {
            "borrowed": loans > 0,
            "several times": loans > 3,
            "preempted": any(one.preempted for one in slow.asked),
            "longer than one": any(
                one.stage == "ended" and one.most_blocks(slow.instances[0].rule, one.output) > most
                for one in slow.asked
            ),
            "refused": any(one.stage == "refused" for one in slow.asked),
        }
        seen.update(name for name, true in happened.items() if true)
    return wrong, seen


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
        never = FakeEngine(replace(one.deployment, borrows=False), {**one.values, "borrows": 0}, one.graphs, one.policy)
        found, plain = case.compiled(), replace(case, engines=[never]).compiled()
        assert found.loans == 0
        np.testing.assert_allclose(found.end_s, plain.end_s, rtol=1e-9)
