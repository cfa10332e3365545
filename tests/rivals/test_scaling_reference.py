"""Six hundred small fleets that are scaled by a rule, drawn at random, end every request as the slow simulator says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from reference_scaling import ScaledFleet, by_forecast, by_load, by_queue, by_ttft, season, trend
from test_serving_reference import Case, FakeEngine, random_case

from ridgeline.serving.fleet_events import Autoscale, FleetEvents
from ridgeline.serving.replay import Replay, replay_tables

BATCHES, CASES = 12, 50


@dataclass
class ScaledCase(Case):
    """A fleet that is scaled: the compiled one by a rule's text, the plain one by a function."""

    auto: Autoscale | None = None
    rule: object = None

    def compiled(self) -> Replay:
        events = FleetEvents(autoscale=self.auto)
        return replay_tables(self.engines, self.tables, self.traffic, router=self.router, fleet_events=events)  # type: ignore[arg-type]

    def plain(self) -> ScaledFleet:
        still, auto = super().fleet(), self.auto
        assert auto is not None
        return ScaledFleet(
            instances=still.instances, asked=still.asked, router=still.router, concurrency=still.concurrency,
            by_priority=still.by_priority, rule=self.rule, period_s=auto.period_s, start_s=auto.start_s or 0.0,
            fewest=auto.fewest, step=auto.step,
        ).run()  # type: ignore[arg-type]  # fmt: skip


def drawn_rule(draw: np.random.Generator, way: int) -> tuple[str, object]:
    """A rule as text, and as the slow simulator's function."""
    high, low = round(draw.uniform(0.5, 4.0), 2), round(draw.uniform(0.2, 0.49), 2)
    window = round(draw.uniform(0.02, 1.0), 3)
    if way == 0:
        return f"load-scaling(high={high},low={low})", by_load(high, low)
    if way == 1:
        queue, low = round(draw.uniform(0.1, 2.0), 2), round(draw.uniform(0.3, 2.0), 2)
        return f"queue-scaling(queue={queue},low={low})", by_queue(queue, low)
    if way == 2:
        share, near = round(draw.uniform(0.5, 0.95), 2), round(draw.uniform(0.05, 1.0), 2)
        text = f"ttft-scaling(share={share},near={near},low={low},window_s={window})"
        return text, by_ttft(near * 0.5, share, low, window)
    if way == 3:
        text = f"trend-scaling(high={high},low={low},window_s={window})"
        return text, by_forecast(high, low, trend(window))
    window, again = round(draw.uniform(0.02, 0.2), 3), round(draw.uniform(0.05, 0.5), 3)
    text = f"season-scaling(high={high},low={low},season_s={again},window_s={window})"
    return text, by_forecast(high, low, season(again, window))


def scaled_case(seed: int) -> ScaledCase:
    draw = np.random.default_rng((seed, 13))
    case = random_case(seed)
    while any(one.values.get("split") for one in case.engines):
        case = random_case(int(draw.integers(10**6)))
    engines: list[FakeEngine] = case.engines
    for one in engines:
        one.deployment = replace(one.deployment, instances=int(draw.integers(2, 4)))
    text, rule = drawn_rule(draw, seed % 5)
    auto = Autoscale(
        rule=text, ttft_s=0.5, period_s=draw.uniform(0.01, 0.3), start_s=draw.uniform(0.0, 0.5),
        fewest=int(draw.integers(1, 3)), step=int(draw.integers(1, 3)),
    )  # fmt: skip
    return ScaledCase(
        engines=engines, tables=case.tables, traffic=case.traffic, router=case.router, auto=auto, rule=rule
    )


@cache
def compared(batch: int) -> tuple[list[str], Counter[str]]:
    """What differs in one batch of cases, and in how many of them what happened."""
    wrong, seen = [], Counter[str]()
    for seed in range(batch * CASES, (batch + 1) * CASES):
        case = scaled_case(seed)
        fast, slow = case.compiled(), case.plain()
        for name in ("came_s", "first_s", "end_s"):
            theirs = np.array([getattr(one, name) for one in slow.asked])
            if not np.allclose(getattr(fast, name), theirs, rtol=1e-9, atol=0.0, equal_nan=True):
                wrong.append(f"case {seed}: {name}")
        if (slow.starts, slow.iterations) != (fast.starts, fast.iterations):
            wrong.append(f"case {seed}: starts {slow.starts} {fast.starts}")
        for one in slow.life.values():
            one.stop_paying(slow.now_s)
        if not np.allclose(fast.paid_s, [one.paid_s for one in slow.life.values()], rtol=1e-9, atol=1e-12):
            wrong.append(f"case {seed}: paid")
        way = str(case.auto and case.auto.rule).partition("-")[0]
        found = {f"{way} started": slow.starts, f"{way} stopped": slow.stops, "pools": len(slow.pools()) > 1}
        seen.update(name for name, true in found.items() if true)
    return wrong, seen


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_request_ends_as_the_slow_simulator_says(batch: int) -> None:
    wrong, _ = compared(batch)
    assert not wrong


def test_the_cases_are_not_vacuous() -> None:
    seen = sum((compared(batch)[1] for batch in range(BATCHES)), Counter[str]())
    ways = ("load", "queue", "ttft", "trend", "season")
    least = {f"{way} {what}": 20 for way in ways for what in ("started", "stopped")} | {"pools": 100}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}
