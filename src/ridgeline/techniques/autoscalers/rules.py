"""Rules of scaling: by load, by queue length, by TTFT attainment, by a forecast of the rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from ridgeline.errors import PlanError
from ridgeline.seams.router import Autoscaler
from ridgeline.seams.technique import param
from ridgeline.serving.compiling import clocked

if TYPE_CHECKING:
    from ridgeline.serving.state import Clock


@clocked
def pool_load(clock: Clock, pool: int, ready: int) -> float:
    """Requests that have not ended, for each instance of a pool that is up or starting [1]."""
    load = 0.0
    for index in range(clock.instances.size):
        if clock.instances[index].takes == pool:
            load += clock.instances[index].load
    return load / max(ready, 1)


@clocked
def starting(clock: Clock, pool: int) -> bool:
    """Whether an instance of a pool is being started."""
    found = False
    for index in range(clock.instances.size):
        if clock.instances[index].takes == pool and clock.instances[index].starts_s < math.inf:
            found = True
    return found


@clocked
def entered(clock: Clock, after_s: float, until_s: float) -> int:
    """Requests that entered the system in a stretch of time."""
    count = 0
    for request in range(clock.requests.size):
        if clock.requests[request].came_s > after_s and clock.requests[request].came_s <= until_s:
            count += 1
    return count


@cache
def _by_load(high: float, low: float) -> Callable[..., int]:
    @clocked
    def by_load(clock: Clock, pool: int, ready: int, now_s: float) -> int:
        load = pool_load(clock, pool, ready)
        if load > high:
            return 1
        return -1 if load < low else 0

    return by_load


@cache
def _by_queue(queue: float, low: float) -> Callable[..., int]:
    @clocked
    def by_queue(clock: Clock, pool: int, ready: int, now_s: float) -> int:
        waiting = 0.0
        for rank in range(clock.ranks.size):
            if clock.instances[clock.ranks[rank].instance].takes == pool:
                waiting += clock.ranks[rank].waiting
        if waiting / max(ready, 1) > queue:
            return 1
        return -1 if waiting <= 0.0 and pool_load(clock, pool, ready) < low else 0

    return by_queue


@cache
def _by_ttft(most_s: float, share: float, low: float, window_s: float) -> Callable[..., int]:
    @clocked
    def by_ttft(clock: Clock, pool: int, ready: int, now_s: float) -> int:
        since_s = now_s - window_s
        for index in range(clock.instances.size):
            if clock.instances[index].takes == pool and clock.instances[index].up > 0:
                since_s = max(since_s, clock.instances[index].up_since_s)
        seen, late = 0, 0
        for request in range(clock.requests.size):
            came_s, first_s = clock.requests[request].came_s, clock.requests[request].first_s
            if first_s > since_s:
                seen += 1
                late += int(first_s - came_s > most_s)
            elif now_s - came_s > most_s and math.isnan(first_s) and math.isnan(clock.requests[request].end_s):
                seen, late = seen + 1, late + 1
        if late > (1.0 - share) * seen:
            return 0 if starting(clock, pool) else 1
        return -1 if pool_load(clock, pool, ready) < low else 0

    return by_ttft


@clocked
def _for_growth(clock: Clock, pool: int, ready: int, high: float, low: float, growth: float) -> int:
    load = pool_load(clock, pool, ready)
    expected = load * max(growth, 1.0)
    if expected > high:
        return 1
    return -1 if expected < low else 0


@cache
def _by_trend(high: float, low: float, window_s: float) -> Callable[..., int]:
    @clocked
    def by_trend(clock: Clock, pool: int, ready: int, now_s: float) -> int:
        wide_s, count, sum_s = min(window_s, now_s), 0, 0.0
        for request in range(clock.requests.size):
            before_s = clock.requests[request].came_s - now_s
            if before_s > -wide_s and before_s <= 0.0:
                count += 1
                sum_s += before_s
        growth, mean = 1.0, count / wide_s
        slope = 12.0 * (sum_s + count * wide_s / 2.0) / (wide_s * wide_s * wide_s)
        rate = mean + slope * wide_s / 2.0
        if rate > 0.0:
            growth = (rate + slope * clock.system.start_s) / rate
        return _for_growth(clock, pool, ready, high, low, growth)

    return by_trend


@cache
def _by_season(high: float, low: float, season_s: float, window_s: float) -> Callable[..., int]:
    @clocked
    def by_season(clock: Clock, pool: int, ready: int, now_s: float) -> int:
        then_s, growth = now_s - season_s, 1.0
        if then_s >= window_s:
            base = entered(clock, then_s - window_s, then_s)
            ahead_s = then_s + min(clock.system.start_s, season_s)
            if base > 0:
                growth = entered(clock, ahead_s - window_s, ahead_s) / base
        return _for_growth(clock, pool, ready, high, low, growth)

    return by_season


@dataclass(frozen=True, kw_only=True)
class _Loads(Autoscaler):
    """Between two loads."""

    high: float = param(16.0, "1", "requests on each instance above which one is started", high=1e6)
    low: float = param(4.0, "1", "requests on each instance below which one is stopped", high=1e6)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low >= self.high:
            raise PlanError(f"{self.key}: low {self.low:g}, high {self.high:g}; needs low < high")


@dataclass(frozen=True, kw_only=True)
class LoadScaling(_Loads):
    """By requests on each instance that is up or starting: one is started above `high`, one stopped below `low`."""

    key: ClassVar[str] = "load-scaling"
    source: ClassVar[tuple[str, ...]] = ("llm-d-autoscaler",)

    def scales(self, ttft_s: float | None) -> Callable[..., Any]:
        """Hook `scales`: by load."""
        return _by_load(float(self.high), float(self.low))


@dataclass(frozen=True, kw_only=True)
class QueueScaling(Autoscaler):
    """By queue length: one is started where more than `queue` requests wait for each, one stopped at low load.

    Of instances that are up or starting, as llm-d's analyzer reads queues; none is stopped while a request waits. A
    full KV cache shows in the queue: who does not fit waits.
    """

    key: ClassVar[str] = "queue-scaling"
    source: ClassVar[tuple[str, ...]] = ("llm-d-autoscaler",)
    queue: float = param(3.0, "1", "waiting requests for each instance above which one is started", high=1e6)
    low: float = param(4.0, "1", "requests on each instance below which one is stopped", high=1e6)

    def scales(self, ttft_s: float | None) -> Callable[..., Any]:
        """Hook `scales`: by queues."""
        return _by_queue(float(self.queue), float(self.low))


@dataclass(frozen=True, kw_only=True)
class TtftScaling(Autoscaler):
    """By recent TTFT against its objective: one is started where a percentile nears it, one stopped at low load.

    Of first tokens within `window_s`, since the last start took effect, and of requests that have waited for longer, a
    share of 1 - `share` may be later than `near` of the objective's TTFT. None is started while one is on its way.
    """

    key: ClassVar[str] = "ttft-scaling"
    source: ClassVar[tuple[str, ...]] = ("dynamo-planner",)
    share: float = param(0.9, "1", "share of requests whose TTFT must not be near the objective", low=0.01, high=0.999)
    near: float = param(0.8, "1", "share of the objective's TTFT that counts as near", low=0.01, high=1.0)
    low: float = param(4.0, "1", "requests on each instance below which one is stopped", high=1e6)
    window_s: float = param(60.0, "s", "how long a first token counts", low=0.001, high=1e6)

    def scales(self, ttft_s: float | None) -> Callable[..., Any]:
        """Hook `scales`: by attainment; raises `PlanError` without a TTFT to attain."""
        if ttft_s is None:
            raise PlanError("ttft-scaling: the objective has no TTFT; say one, such as --slo ttft=1s")
        return _by_ttft(self.near * ttft_s, float(self.share), float(self.low), float(self.window_s))


@dataclass(frozen=True, kw_only=True)
class TrendScaling(_Loads):
    """By the load expected when an instance started now is up: the present one times the rate's trend.

    The trend is the straight line through the arrivals of the last `window_s` that has their number and mean time. A
    rate that falls stops nothing early.
    """

    key: ClassVar[str] = "trend-scaling"
    source: ClassVar[tuple[str, ...]] = ("sageserve-2025",)
    window_s: float = param(120.0, "s", "stretch of arrivals that the trend is taken from", low=0.001, high=1e6)

    def scales(self, ttft_s: float | None) -> Callable[..., Any]:
        """Hook `scales`: by trend."""
        return _by_trend(float(self.high), float(self.low), float(self.window_s))


@dataclass(frozen=True, kw_only=True)
class SeasonScaling(_Loads):
    """By the load expected when an instance started now is up, as the rate grew one season ago at the same phase.

    Arrivals of the `window_s` before the moment of that start, over those of the `window_s` before the same phase as
    now. In the first season it goes by load alone.
    """

    key: ClassVar[str] = "season-scaling"
    source: ClassVar[tuple[str, ...]] = ("sageserve-2025",)
    season_s: float = param(86_400.0, "s", "period after which the rate comes again", low=0.001, high=1e8)
    window_s: float = param(300.0, "s", "stretch of arrivals that a rate is taken from", low=0.001, high=1e6)

    def scales(self, ttft_s: float | None) -> Callable[..., Any]:
        """Hook `scales`: by season."""
        return _by_season(float(self.high), float(self.low), float(self.season_s), float(self.window_s))
