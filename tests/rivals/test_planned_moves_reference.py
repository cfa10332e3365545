"""Three hundred small fleets that plan moves of KV blocks, drawn at random, end as the slow simulator says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from one_kind import OneKind, compared_batch, drawn_fleet
from reference_planned_moves import Debtor, Planner
from reference_serving import Fleet, Instance
from test_borrowing_reference import happened, lending, ranks_of

from ridgeline.seams.serving import RemoteKV, of
from ridgeline.techniques.remote_kv.borrowed_blocks import PlannedMoves

BATCHES = 6


@dataclass
class Planned(OneKind):
    """A fleet of one kind of instance that plans moves."""

    def instances(self) -> list[Instance]:
        common = self.common()
        way = of(self.engines[0].deployment, RemoteKV)
        assert isinstance(way, PlannedMoves)
        words = {"debtor_batch": way.debtor_batch, "creditor_used": way.creditor_used}
        ranks = [Planner(rule=common["rule"], **words) for _ in range(self.count)]
        for rank in ranks:
            rank.peers = list(ranks)
        return [Debtor(ranks=[rank], **common) for rank in ranks]


def planned_case(seed: int) -> Planned:
    draw = np.random.default_rng((seed, 12))
    batch, used = int(draw.choice([3, 8, 64])), float(draw.choice([0.6, 0.8, 1.0]))
    every = int(draw.integers(1, 6))
    text = f"planned-remote-kv(every={every},debtor_batch={batch},creditor_used={used:g})"

    def planning(draw: np.random.Generator, block: int) -> dict[str, Any]:
        return lending(draw, block) | {"rearranges": every}

    absent = ("swaps", "displaces", "prefix_tokens", "drafted")
    return Planned(**drawn_fleet(seed, 12, planning, absent=absent, technique=(text,)))


@cache
def compared(batch: int) -> tuple[list[str], Counter[str]]:
    return compared_batch(batch, planned_case, "loans", lambda slow: sum(rank.taken for rank in ranks_of(slow)), told)


def told(case: OneKind, slow: Fleet, loans: int) -> dict[str, bool]:
    return happened(case, slow, loans) | {
        "moved": any(rank.moves for rank in ranks_of(slow) if isinstance(rank, Planner))
    }


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_request_ends_as_the_slow_simulator_says(batch: int) -> None:
    wrong, _ = compared(batch)
    assert not wrong


def test_the_cases_are_not_vacuous() -> None:
    seen = sum((compared(batch)[1] for batch in range(BATCHES)), Counter[str]())
    least = {"moved": 20, "borrowed": 60, "preempted": 40, "longer than one": 20, "refused": 20}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}
