"""Three hundred small fleets whose instances merge for long prompts end as the slow simulator says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from one_kind import OneKind, compared_batch, drawn_fleet
from reference_merging import Elastic
from reference_rank import Rank
from reference_serving import Fleet, Instance

BATCHES = 6


@dataclass
class Merging(OneKind):
    """A fleet of one kind of instance that merges."""

    def instances(self) -> list[Instance]:
        common = self.common()
        found = [Elastic(ranks=[Rank(rule=common["rule"])], **common) for _ in range(self.count)]
        for each in found:
            each.peers = found
        return list(found)


def elastic(draw: np.random.Generator, block: int) -> dict[str, Any]:
    return {
        "scheduler": int(draw.integers(2)), "elastic": int(draw.integers(2, 20)),
        "ring_start_s": draw.uniform(0, 1e-3), "move_token_s": draw.uniform(0, 1e-3),
    }  # fmt: skip


def merging_case(seed: int) -> Merging:
    return Merging(**drawn_fleet(seed, 13, elastic, absent=("prefix_tokens", "drafted")))


def happened(case: OneKind, slow: Fleet, merges: int) -> dict[str, bool]:
    return {
        "merged": merges > 0,
        "several times": merges > 2,
        "preempted": any(one.preempted for one in slow.asked),
        "beyond the budget": merges > 0 and case.engines[0].values["token_budget"] < 20,
    }


@cache
def compared(batch: int) -> tuple[list[str], Counter[str]]:
    return compared_batch(batch, merging_case, "merges", merges_of, happened)


def merges_of(slow: Fleet) -> int:
    return sum(one.merges for one in slow.instances if isinstance(one, Elastic))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_request_ends_as_the_slow_simulator_says(batch: int) -> None:
    wrong, _ = compared(batch)
    assert not wrong


def test_the_cases_are_not_vacuous() -> None:
    seen = sum((compared(batch)[1] for batch in range(BATCHES)), Counter[str]())
    least = {"merged": 120, "several times": 60, "preempted": 20, "beyond the budget": 20}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}
