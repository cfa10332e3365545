"""Engines made of numbers alone, so that a replay can be worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ridgeline.cost.seconds import Seconds
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving import state
from ridgeline.serving.fleet_events import FleetEvents
from ridgeline.serving.fronts import Fronts
from ridgeline.serving.replay import Replay, replay_tables
from ridgeline.serving.step import StepTables
from ridgeline.serving.stopping import Stop
from ridgeline.serving.traffic.traffic import Traffic

HOST = ("exposed_host_s", "request_host_s", "prompt_token_host_s")
RULE: dict[str, float] = {
    "scheduler": state.MIXED_BATCHES, "chunked": 1, "token_budget": 2**20, "max_seqs": 2**20, "block_tokens": 16,
    "capacity": 2**30, "ranks": 1, "balance": 1.0, "gained": 1.0,
}  # fmt: skip


@dataclass
class NumbersEngine:
    """What a replay asks of an engine: a rule and tables whose every time is given [s]."""

    values: dict[str, float]
    deployment: Deployment
    table: StepTables
    graphs: tuple[int, ...] = ()
    policy: Any = field(default_factory=lambda: SimpleNamespace(**dict.fromkeys(HOST, 0.0)))

    def rule(self, table: StepTables, *, prefix_tokens: int = 0, stride: int = 0, takers: object = ()) -> np.ndarray:
        rule = np.zeros((), dtype=state.RULE)
        values = {**RULE, "prefix_tokens": prefix_tokens, **self.values}
        growth = max(1, -(-values["gained"] // values["block_tokens"]))
        values["growth_blocks"] = growth
        values["period"] = max(1, int(values["block_tokens"] * growth / values["gained"]))
        for name, value in values.items():
            rule[name] = value
        return rule


def _seconds(values: np.ndarray) -> Seconds:
    return Seconds(mid=values, low=values, high=values, compute=values, memory=values)


def numbers_table(
    *,
    lane_s: float = 0.0,
    token_s: float = 0.0,
    step_s: float = 0.0,
    context_s: float = 0.0,
    prompt_s: float = 0.0,
    past_s: float = 0.0,
) -> StepTables:
    """An iteration of T tokens takes lane + token * T [s].

    A decode step takes step + context * C besides, a chunk prompt + past * P.
    """
    grid, flat = np.array([1.0, 2.0]), np.ones((2, 2))
    return StepTables(
        tokens=grid, lane=_seconds(lane_s + token_s * grid), group=_seconds(0 * grid), head=_seconds(0 * grid),
        sequences=grid, contexts=grid, decode=_seconds(step_s + context_s * grid * flat), chunks=grid, pasts=grid - 1,
        first=_seconds(prompt_s * flat + past_s * (grid - 1)), each=_seconds(0 * flat),
        kernels=1.0, stage_share=1.0, send_s=0.0,
        send_start_s=0.0,
    )  # fmt: skip


Replays = Callable[..., Replay]


@pytest.fixture(scope="session")
def replayed() -> Replays:
    """Replays traffic on `instances` of a made-up engine; numbers that the table knows go there, others to the rule."""

    def run(
        traffic: Traffic,
        *,
        instances: int = 1,
        router: str = "round-robin",
        fleet_events: FleetEvents | None = None,
        stop: Stop | None = None,
        deployment: Deployment | None = None,
        fronts: Fronts | None = None,
        hooks: dict[str, Callable[..., Any]] | None = None,
        **numbers: float,
    ) -> Replay:
        times = {name: numbers.pop(name) for name in _TIMES if name in numbers}
        engine = NumbersEngine(
            numbers, replace(deployment or deployed(), instances=instances, role=Role.WHOLE), numbers_table(**times)
        )
        way = {"router": router, "fronts": fronts, "fleet_events": fleet_events, "stop": stop, "hooks": hooks}
        return replay_tables([engine], [engine.table], traffic, **way)  # type: ignore[arg-type, list-item]

    return run


@pytest.fixture(scope="session")
def pooled() -> Replays:
    """Replays traffic on one made-up instance for prompts and one for the rest, alike but for `decode`'s numbers."""

    def run(asked: Traffic, *, decode: dict[str, float], lane_s: float, **numbers: float) -> Replay:
        table = numbers_table(lane_s=lane_s)
        pools = [
            NumbersEngine(numbers | more, deployed(role=role), table)
            for role, more in ((Role.PREFILL, {}), (Role.DECODE, decode))
        ]
        return replay_tables(pools, [table, table], asked, router="round-robin")  # type: ignore[arg-type]

    return run


_TIMES = ("lane_s", "token_s", "step_s", "context_s", "prompt_s", "past_s")


@pytest.fixture(scope="session")
def numbered() -> Callable[..., Replay]:
    """Replays traffic on one made-up engine with a table of the caller's, changed from one that `times` describe."""

    def run(
        asked: Traffic,
        change: Callable[[StepTables], StepTables],
        times: dict[str, float],
        fleet_events: FleetEvents | None = None,
        **numbers: float,
    ) -> Replay:
        table = change(numbers_table(**times))
        engine = NumbersEngine(numbers, deployed(), table)
        return replay_tables([engine], [table], asked, router="round-robin", fleet_events=fleet_events)  # type: ignore[list-item]

    return run
