"""A fleet of the slow simulator whose instances are started and stopped by a rule, asked at even times."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from reference_rank import Asked
from reference_serving import Fleet, Instance


@dataclass(eq=False)
class Life:
    """When an instance takes requests, and for how long it is paid."""

    up: bool = True
    starts_s: float = math.inf
    up_since_s: float = 0.0
    paid_since_s: float | None = 0.0
    paid_s: float = 0.0

    def stop_paying(self, now_s: float) -> None:
        """It is drained."""
        if self.paid_since_s is not None:
            self.paid_s, self.paid_since_s = self.paid_s + now_s - self.paid_since_s, None


@dataclass(eq=False)
class ScaledFleet(Fleet):
    """A fleet with cold starts of `start_s`, scaled every `period_s` by up to `step` instances of each pool."""

    rule: Callable[[ScaledFleet, list[Instance], float], int] = lambda *_: 0
    period_s: float = math.inf
    start_s: float = 0.0
    fewest: int = 1
    step: int = 1
    life: dict[Instance, Life] = field(default_factory=dict)
    starts: int = 0
    stops: int = 0

    def pools(self) -> list[list[Instance]]:
        """Instances that take who arrives, and those that take caches."""
        both = [
            [each for each in self.instances if each.role in roles] for roles in (("whole", "prefill"), ("decode",))
        ]
        return [pool for pool in both if pool]

    def run(self) -> ScaledFleet:
        """Runs until nothing is left to happen but looks at the load."""
        self.life = {each: Life() for each in self.instances}
        for pool in self.pools():
            for each in pool[self.fewest :]:
                self.life[each] = Life(up=False, paid_since_s=None)
        look_s = self.period_s
        arrivals = [one for one in self.asked if one.after < 0]
        arrivals = arrivals[: self.concurrency] if self.concurrency else arrivals
        self.started = len(arrivals)
        while True:
            arrival_s = arrivals[0].arrival_s if arrivals else math.inf
            quiet = min(self.coming_s(), arrival_s) > self.now_s
            for each in self.instances if quiet else []:
                if each.at == "idle":
                    each.begin(self.now_s)
            coming_s = self.coming_s()
            ending = min(self.instances, key=lambda each: each.end_s)
            event_s = min(ending.end_s if quiet else math.inf, coming_s, arrival_s)
            if event_s == math.inf:
                return self
            change_s = min(look_s, *(one.starts_s for one in self.life.values()))
            self.now_s = max(self.now_s, min(event_s, change_s))
            if change_s <= self.now_s:
                self.wake()
                if look_s <= self.now_s:
                    look_s = self.now_s + self.period_s
                    self.look()
            elif quiet and ending.end_s <= self.now_s:
                self.finish_iteration(ending)
            else:
                self.arrive(heapq.heappop(self.coming)[2] if coming_s <= self.now_s else arrivals.pop(0))

    def wake(self) -> None:
        """Instances whose start is over are up."""
        for one in self.life.values():
            if one.starts_s <= self.now_s:
                one.starts_s, one.up, one.up_since_s = math.inf, True, self.now_s

    def idle(self, one: Life) -> bool:
        """Neither up nor starting."""
        return not one.up and one.starts_s == math.inf

    def look(self) -> None:
        """Those that are drained are given back; then each pool is scaled."""
        for each, one in self.life.items():
            if self.idle(one) and self.holds(each) == 0:
                one.stop_paying(self.now_s)
        for pool in self.pools():
            for _ in range(self.step):
                self.scale(pool)

    def scale(self, pool: list[Instance]) -> None:
        """Starts the first that is idle, or stops the last that is up."""
        asleep = [each for each in pool if self.idle(self.life[each])]
        up = [each for each in pool if self.life[each].up]
        wanted = self.rule(self, pool, self.now_s)
        if wanted > 0 and asleep:
            one = self.life[asleep[0]]
            one.starts_s = self.now_s + self.start_s
            one.paid_since_s = self.now_s if one.paid_since_s is None else one.paid_since_s
            self.starts += 1
        if wanted < 0 and len(up) > self.fewest:
            self.life[up[-1]].up = False
            self.stops += 1

    def ready(self, pool: list[Instance]) -> int:
        """Instances that are up or starting."""
        return sum(not self.idle(self.life[each]) for each in pool)

    def starting(self, pool: list[Instance]) -> bool:
        """Whether one is on its way."""
        return any(self.life[each].starts_s < math.inf for each in pool)

    def holds(self, instance: Instance) -> int:
        """Requests of an instance that have not ended, those whose cache is being sent among them."""
        return sum(one.stage not in ("ended", "refused") and one.home in instance.ranks for one in self.asked
                   if one.stage not in ("outside", "coming in"))  # fmt: skip

    def mean_load(self, pool: list[Instance]) -> float:
        """Requests on each instance that is up or starting [1]."""
        return sum(self.holds(each) for each in pool) / max(self.ready(pool), 1)

    def choose(self, pool: list[Instance], one: Asked, kind: str) -> Instance:
        """The instance that takes a request, of those that are up."""
        return super().choose([each for each in pool if self.life[each].up], one, kind)


def by_load(high: float, low: float) -> Callable[[ScaledFleet, list[Instance], float], int]:
    """One more above `high` requests on each, one fewer below `low`."""

    def rule(fleet: ScaledFleet, pool: list[Instance], now_s: float) -> int:
        load = fleet.mean_load(pool)
        return (load > high) - (load < low)

    return rule


def by_queue(queue: float, low: float) -> Callable[[ScaledFleet, list[Instance], float], int]:
    """One more where more than `queue` wait for each, one fewer where none waits and loads are below `low`."""

    def rule(fleet: ScaledFleet, pool: list[Instance], now_s: float) -> int:
        waits = sum(len(rank.queue) for each in pool for rank in each.ranks)
        if waits / max(fleet.ready(pool), 1) > queue:
            return 1
        return -1 if waits == 0 and fleet.mean_load(pool) < low else 0

    return rule


def by_ttft(
    most_s: float, share: float, low: float, window_s: float
) -> Callable[[ScaledFleet, list[Instance], float], int]:
    """By the times to first tokens of late, counted until now for who still waits for too long."""

    def rule(fleet: ScaledFleet, pool: list[Instance], now_s: float) -> int:
        since_s = max([now_s - window_s, *(one.up_since_s for each, one in fleet.life.items()
                                           if one.up and each in pool)])  # fmt: skip
        times = [one.first_s - one.came_s for one in fleet.asked if one.first_s > since_s]
        times += [
            now_s - one.came_s
            for one in fleet.asked
            if one.stage not in ("outside", "ended", "refused")
            and math.isnan(one.first_s) and now_s - one.came_s > most_s
        ]  # fmt: skip
        if sum(time > most_s for time in times) > (1.0 - share) * len(times):
            return 0 if fleet.starting(pool) else 1
        return -1 if fleet.mean_load(pool) < low else 0

    return rule


def arrived(fleet: ScaledFleet, after_s: float, until_s: float) -> list[float]:
    """When requests entered in a stretch of time [s]."""
    return [one.came_s for one in fleet.asked if after_s < one.came_s <= until_s]


def by_forecast(
    high: float, low: float, growth: Callable[[ScaledFleet, float], float]
) -> Callable[[ScaledFleet, list[Instance], float], int]:
    """By the load times the growth of the rate until a start that begins now is over, where it grows."""

    def rule(fleet: ScaledFleet, pool: list[Instance], now_s: float) -> int:
        load = fleet.mean_load(pool) * max(1.0, growth(fleet, now_s))
        return (load > high) - (load < low)

    return rule


def trend(window_s: float) -> Callable[[ScaledFleet, float], float]:
    """The growth of a + b t with the number and the mean time of the arrivals of a window."""

    def growth(fleet: ScaledFleet, now_s: float) -> float:
        wide_s = min(window_s, now_s)
        before = [one.came_s - now_s for one in fleet.asked if -wide_s < one.came_s - now_s <= 0.0]
        b = 12.0 * (sum(before) + len(before) * wide_s / 2.0) / wide_s**3
        a = len(before) / wide_s + b * wide_s / 2.0
        return (a + b * fleet.start_s) / a if a > 0.0 else 1.0

    return growth


def season(season_s: float, window_s: float) -> Callable[[ScaledFleet, float], float]:
    """The growth from the same phase of the season before."""

    def growth(fleet: ScaledFleet, now_s: float) -> float:
        then_s = now_s - season_s
        base = arrived(fleet, then_s - window_s, then_s)
        if then_s < window_s or not base:
            return 1.0
        ahead_s = then_s + min(fleet.start_s, season_s)
        return len(arrived(fleet, ahead_s - window_s, ahead_s)) / len(base)

    return growth
