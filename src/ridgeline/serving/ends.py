"""Both ends of a replay: the same traffic when everything takes as long as the ends of its 80 % interval.

Queues answer more than in proportion, so an interval of a latency under load is found by replaying, not by scaling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from ridgeline.cost.seconds import Seconds
from ridgeline.plan.deployment import Router
from ridgeline.serving.comings import Comings
from ridgeline.serving.engine import Engine
from ridgeline.serving.replay import Replay, replay_tables
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import Traffic

HOST_BAND = {"low": 0.5, "high": 2.0}  # of host times, most of which are assumed within a factor of two
LAUNCH_BAND = {"low": 0.5, "high": 2.5}
"""Of launches outside graphs [1]. A kernel of GPT-2 takes 34 us (deepspeed, pull request #8352), one of DeepSeek-R1 84
in SGLang: 180 ms to the first token of 128 to 4,096 prompt tokens (tenstorrent, tt-inference-server, issue #356)."""
_HOST = ("step_host_s", "seq_host_s", "group_host_s", "exposed_host_s", "request_host_s", "prompt_token_host_s")


def table_at(tables: StepTables, end: str) -> StepTables:
    """Tables in which every time is the `end` of its interval, 'low' or 'high' [s]."""
    changed: dict[str, Any] = {}
    for field in fields(tables):
        value = getattr(tables, field.name)
        if isinstance(value, Seconds):
            changed[field.name] = replace(value, mid=getattr(value, end))
    for name in ("nano", "split", "apart"):
        held = getattr(tables, name)
        if held is not None:
            at = {part: replace(value, mid=getattr(value, end)) for part, value in vars(held).items()}
            changed[name] = replace(held, **at)
    return replace(tables, **changed)


def engine_at(one: Engine, end: str) -> Engine:
    """An engine whose host, and what it launches, takes as long as the end of its band."""
    policy = one.policy
    factors = dict.fromkeys(_HOST, HOST_BAND[end]) | {"eager_kernel_host_s": LAUNCH_BAND[end]}
    changed = {name: factor * getattr(policy, name) for name, factor in factors.items()}
    return replace(one, policy=replace(policy, **changed))


def replay_ends(
    engines: Sequence[Engine],
    tables: Sequence[StepTables],
    traffic: Traffic,
    *,
    router: Router,
    comings: Comings | None = None,
) -> tuple[Replay, Replay]:
    """The replays of the low and of the high end of every time."""
    low, high = (
        replay_tables(
            [engine_at(one, end) for one in engines],
            [table_at(table, end) for table in tables],
            traffic,
            router=router,
            comings=comings,
        )
        for end in ("low", "high")
    )
    return low, high
