"""Three hundred small fleets whose instances merge for long prompts end as the slow simulator says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from reference_merging import Elastic
from reference_rank import Rank
from reference_serving import Instance
from test_serving_reference import (
    ROUTERS,
    Case,
    differences,
    prepared,
    random_engines,
    random_tables,
    random_traffic,
    shared,
)

from ridgeline.plan.deployment import Role

BATCHES, CASES = 6, 50


@dataclass
class Merging(Case):
    """A fleet of one kind of instance that merges."""

    def instances(self) -> list[Instance]:
        (one,), (table,) = self.engines, self.tables
        record = one.rule(table)
        rule = {name: record[name].item() for name in record.dtype.names}
        found = [
            Elastic(
                kind=0, rule=rule, tables=table, graphs=one.graphs, ranks=[Rank(rule=rule)],
                extra_s=one.policy.exposed_host_s, role="whole",
            )
            for _ in range(one.deployment.instances)
        ]  # fmt: skip
        for each in found:
            each.peers = found
        return list(found)


def merging_case(seed: int) -> Merging:
    draw = np.random.default_rng((seed, 13))
    block = int(draw.integers(1, 9))
    engines = random_engines(draw, 1, block)[:1]
    tables, asked = [random_tables(draw)], shared(draw, engines, random_traffic(draw, block))
    prepared(draw, engines)
    (one,) = engines
    one.deployment = replace(one.deployment, instances=int(draw.integers(2, 5)), role=Role.WHOLE)
    one.values |= dict.fromkeys(("prefix_tokens", "drafted"), 0)
    one.values |= {
        "scheduler": int(draw.integers(2)), "ranks": 1, "gained": 1.0, "draft_share": 0.0, "period": block,
        "growth_blocks": 1, "balance": 1.0, "elastic": int(draw.integers(2, 20)),
        "ring_start_s": draw.uniform(0, 1e-3), "move_token_s": draw.uniform(0, 1e-3),
    }  # fmt: skip
    return Merging(engines=engines, tables=tables, traffic=asked, router=ROUTERS[int(draw.integers(2))])


@cache
def compared(batch: int) -> tuple[list[str], Counter[str]]:
    """What differs in one batch of cases, and in how many of them what happened."""
    wrong, seen = [], Counter[str]()
    for seed in range(batch * CASES, (batch + 1) * CASES):
        case = merging_case(seed)
        names, slow = differences(case)
        merges = sum(one.merges for one in slow.instances if isinstance(one, Elastic))
        if case.compiled().merges != merges:
            names.append("merges")
        wrong += [f"case {seed}: {', '.join(names)}"] if names else []
        happened = {
            "merged": merges > 0,
            "several times": merges > 2,
            "preempted": any(one.preempted for one in slow.asked),
            "beyond the budget": merges > 0 and case.engines[0].values["token_budget"] < 20,
        }
        seen.update(name for name, true in happened.items() if true)
    return wrong, seen


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_request_ends_as_the_slow_simulator_says(batch: int) -> None:
    wrong, _ = compared(batch)
    assert not wrong


def test_the_cases_are_not_vacuous() -> None:
    seen = sum((compared(batch)[1] for batch in range(BATCHES)), Counter[str]())
    least = {"merged": 120, "several times": 60, "preempted": 20, "beyond the budget": 20}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}
