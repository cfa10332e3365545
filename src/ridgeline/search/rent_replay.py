"""Rented mixes under their own traffic: what the program calls enough is replayed before it is offered.

The program adds up loads of buckets that were replayed alone and evenly; a mix of them has queues that the sum does not
know. So the traffic is dealt to the options by the program's shares and each option is replayed with what it gets. A
mix that misses the objective is followed by the cheapest one with room for more than it had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.errors import NoPlanError
from ridgeline.search.rent import Problem, Rent, mix_text, rent
from ridgeline.serving.engine import Engine
from ridgeline.serving.metrics import kept_to, overload
from ridgeline.serving.objective import ATTAINED, Objective
from ridgeline.serving.replay import replay_tables
from ridgeline.serving.state import Whole
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import Traffic

_MOST_MIXES = 24  # each with room for at least a thousandth more than the one before had
_MORE = 1.001
_GOLDEN = 0.6180339887498949  # its multiples fill the unit interval evenly


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A mix that was replayed: instances by option, its price [USD/h], and who kept to the objective [1]."""

    counts: Mapping[str, int]
    usd_per_h: float
    attained: float


def rent_kept(
    problem: Problem, made: Sequence[tuple[Engine, StepTables]], traffic: Traffic, rows: Whole, objective: Objective
) -> tuple[Rent, tuple[Tried, ...]]:
    """The cheapest mix found whose replay keeps to the objective, and all that were replayed, it last.

    `made` are the options' engines, `rows` the bucket of each request. Bound and prices of buckets are those of the
    load itself. Raises `NoPlanError` where limits leave no further mix, or none of so many keeps to it.
    """
    tried: list[Tried] = []
    room, first = 1.0, None
    for _ in range(_MOST_MIXES):
        try:
            answer = rent(replace(problem, rates_per_s=np.asarray(problem.rates_per_s) * room))
        except NoPlanError as error:
            if first is None:
                raise
            raise NoPlanError(_missed(tried, str(error))) from None
        first = first or answer
        attained = replayed(answer, made, traffic, rows, objective)
        tried.append(Tried(counts=answer.counts, usd_per_h=answer.cost_usd_per_hour, attained=attained))
        if attained >= ATTAINED:
            told = replace(
                answer,
                rented=tuple(replace(one, load=one.load / room) for one in answer.rented),
                headroom=answer.headroom * room,
                bound_usd_per_hour=first.bound_usd_per_hour,
                relaxation_usd_per_hour=first.relaxation_usd_per_hour,
                bucket_usd_per_hour=first.bucket_usd_per_hour,
            )
            return told, tuple(tried)
        room *= answer.headroom * _MORE
    raise NoPlanError(_missed(tried, f"{_MOST_MIXES} mixes were replayed"))


def _missed(tried: Sequence[Tried], why: str) -> str:
    best = max(tried, key=lambda one: one.attained)
    return (
        f"no mix keeps {ATTAINED:.0%} of requests to the objective in its replay: {why}; the best,"
        f" {mix_text(best.counts)}, keeps {best.attained:.1%}; loosen the objective (--slo), or offer more devices"
    )


def replayed(
    answer: Rent, made: Sequence[tuple[Engine, StepTables]], traffic: Traffic, rows: Whole, objective: Objective
) -> float:
    """The share of requests that keep to the objective on a mix [1]; without one 1, or 0 where an option is overloaded.

    Instances of an option share a queue as `least-loaded` does; those that are rented beyond what is needed are down.
    """
    kept = 0
    option = dealt(answer, rows)
    for place, (one, tables) in enumerate(made):
        mine = np.flatnonzero(option == place)
        if not len(mine):
            continue
        part = traffic.take(mine)
        fleet = replace(one, deployment=replace(one.deployment, instances=answer.rented[place].needed))
        found = replay_tables([fleet], [tables], part, router="least-loaded")
        kept += int(kept_to(found, objective).sum()) if objective.bounds or not overload(found, part) else 0
    return kept / traffic.requests


def dealt(answer: Rent, rows: Whole) -> Whole:
    """The option of each request: those of a bucket go round by its shares, evenly in order of arrival."""
    option = np.zeros(len(rows), dtype=np.int64)
    for bucket in np.unique(rows):
        mine = np.flatnonzero(rows == bucket)
        edges = np.cumsum(answer.shares[bucket])
        draws = np.modf((np.arange(len(mine)) + 0.5) * _GOLDEN)[0] * edges[-1]
        option[mine] = np.searchsorted(edges, draws, side="right")
    return option
