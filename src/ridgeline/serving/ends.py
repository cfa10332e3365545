"""Replays of the same traffic when everything takes as long as another place of its 80 % interval, as its ends.

Queues answer more than in proportion, so an interval of a latency under load is found by replaying, not by scaling.
A place is a number: -1 the low end, 0 the middle, 1 the high end; between and beyond them logarithms are in proportion.
Pools of prompts and of answers run other kernels, whose times are wrong each in its own way: where both were late alike
a queue between them would stay as it is. Each is replayed at its ends while the other keeps its times. Where nobody
waits, as in a batch that starts together, time is a sum of parts: each of its causes is replayed at its own ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from ridgeline.cost.seconds import Seconds
from ridgeline.facts.mechanisms import constant
from ridgeline.serving.engine import Engine
from ridgeline.serving.fleet_events import FleetEvents
from ridgeline.serving.fronts import Fronts
from ridgeline.serving.replay import Replay, replay_tables
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import Traffic

LOW, HIGH = -1.0, 1.0
ENDS = (LOW, HIGH)
_HOST = (
    "step_host_s", "seq_host_s", "group_host_s", "exposed_host_s", "request_host_s", "prompt_token_host_s",
    "scan_build_s",
)  # fmt: skip
_ATTENTION = ("decode", "first", "each")
CAUSES = ("products", "attention", "host")
"""What makes a step's time uncertain, each by itself: work beside attention, attention, and the host."""


def seconds_at(time: Seconds, place: float) -> Seconds:
    """Times whose middle is at a place of their interval [s].

    mid (end / mid)^|place| with the end on the side of the place; where the middle is 0, |place| of the end.
    """
    end = np.asarray(time.high if place > 0 else time.quickest, dtype=np.float64)
    mid = np.asarray(time.mid, dtype=np.float64)
    far = abs(place)
    if far == 1.0:
        return replace(time, mid=end)
    known = (mid > 0) & (end > 0)
    ratio = np.where(known, end, 1.0) / np.where(known, mid, 1.0)
    return replace(time, mid=np.where(known, mid * ratio**far, far * end + max(0.0, 1.0 - far) * mid))


def table_at(tables: StepTables, place: float, causes: Sequence[str] = CAUSES) -> StepTables:
    """Tables in which every time of the `causes` is at a place of its interval [s]."""
    changed: dict[str, Any] = {}
    for field in fields(tables):
        value = getattr(tables, field.name)
        if isinstance(value, Seconds) and ("attention" if field.name in _ATTENTION else "products") in causes:
            changed[field.name] = seconds_at(value, place)
    for name in ("nano", "split", "attention_ffn") if "products" in causes else ():
        held = getattr(tables, name)
        if held is not None:
            at = {part: seconds_at(value, place) for part, value in vars(held).items()}
            changed[name] = replace(held, **at)
    return replace(tables, **changed)


def engine_at(one: Engine, place: float, factor: float = 1.0) -> Engine:
    """An engine whose host, and what it launches, takes as long as at a place of its band, times a factor."""
    policy = one.policy
    end = "high" if place > 0 else "low"
    host, launch = (constant(f"{what}.{end}") ** abs(place) * factor for what in ("host", "host.launch"))
    factors = dict.fromkeys(_HOST, host) | {"eager_kernel_host_s": launch}
    changed = {name: each * getattr(policy, name) for name, each in factors.items()}
    return replace(one, policy=replace(policy, **changed))


def at_place(
    engines: Sequence[Engine], tables: Sequence[StepTables], places: Sequence[float], causes: Sequence[str] = CAUSES
) -> tuple[list[Engine], list[StepTables]]:
    """Engines and tables with every engine's times of the `causes` at a place of their interval."""
    hosts = places if "host" in causes else [0.0] * len(places)
    return (
        [engine_at(one, place) for one, place in zip(engines, hosts, strict=True)],
        [table_at(table, place, causes) for table, place in zip(tables, places, strict=True)],
    )


def replay_ends(
    engines: Sequence[Engine],
    tables: Sequence[StepTables],
    traffic: Traffic,
    *,
    router: str = "",
    fronts: Fronts | None = None,
    fleet_events: FleetEvents | None = None,
) -> tuple[Replay, ...]:
    """The replays of the low and of the high end of every time, of each pool in turn; `joined` joins what they give.

    Instances of one pool are late together, of whatever kind they are. Of several `fronts` each end draws its turns.
    Of requests that come at once and all run at once each of the `CAUSES` has its turn.
    """
    roles = [one.deployment.role for one in engines]
    turns = [(cause,) for cause in CAUSES] if _at_once(engines, traffic) else [CAUSES]
    cases = [(role, end, causes) for role in dict.fromkeys(roles) for causes in turns for end in ENDS]
    return tuple(
        replay_tables(
            *at_place(engines, tables, [end if own is role else 0.0 for own in roles], causes),
            traffic,
            router=router,
            fronts=None if fronts is None else replace(fronts, seed=fronts.seed + draw),
            fleet_events=fleet_events,
        )
        for draw, (role, end, causes) in enumerate(cases, start=1)
    )


def _at_once(engines: Sequence[Engine], traffic: Traffic) -> bool:
    """Whether no request waits for another: all come at once, and there are places and cache for all of them."""
    if traffic.concurrency is not None or traffic.arrival_s[-1] > 0.0 or (traffic.after >= 0).any():
        return False
    ranks = [one.deployment.dp * one.deployment.pp * one.deployment.instances for one in engines]
    places = sum(one.policy.max_seqs * count for one, count in zip(engines, ranks, strict=True))
    cache = sum(one.capacity.cache_tokens * count for one, count in zip(engines, ranks, strict=True))
    held = float((traffic.prompt_tokens + traffic.output_tokens).sum())
    return len({one.deployment.role for one in engines}) == 1 and traffic.requests <= places and held <= cache


_FOLLOWS = 0.5  # definition: a rate that moves by less than this share of what latencies do is the load's


def bound_by_times(rates: Sequence[float], latencies: Sequence[float]) -> bool:
    """Whether rates, the middle and those at the ends, follow the times of iterations, as `latencies` do, not the load.

    >>> bound_by_times([10.0, 12.0, 8.0], [1.0, 0.8, 1.25]), bound_by_times([10.0, 10.1, 9.9], [1.0, 0.8, 1.25])
    (True, False)
    """
    if min(*rates, *latencies) <= 0.0 or not np.isfinite([*rates, *latencies]).all():
        return False
    moved, lasted = (np.log(max(values) / min(values)) for values in (rates, latencies))
    return bool(moved > _FOLLOWS * lasted)
