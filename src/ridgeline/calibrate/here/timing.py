"""Times of a call by a clock that waits for the device: warm-up, repeats until a share of time is spent, median."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.facts.profiles import Measured

Call = Callable[[], Any]
MOST_REPEATS = 60
FEWEST_REPEATS = 3
_SHORTEST_S = 5e-5  # of one repeat: shorter calls are timed several at a time
_DEVICE_SHORTEST_S = 5e-4  # on a device whose queue is filled ahead


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How calls are timed on one kind of device: 'cuda' by events on its stream, others by the host's clock."""

    kind: str
    torch: Any

    def wait(self) -> None:
        """Returns when the device has done what was asked."""
        if self.kind == "cuda":
            self.torch.cuda.synchronize()
        elif self.kind == "mps":
            self.torch.mps.synchronize()

    def seconds(self, call: Call, times: int) -> float:
        """Time of `times` calls in a row [s], over their number."""
        if self.kind == "cuda":
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(times):
                call()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e-3 / times
        self.wait()
        start = time.perf_counter()
        for _ in range(times):
            call()
        self.wait()
        return (time.perf_counter() - start) / times

    def repeats(self, call: Call, budget_s: float) -> list[float]:
        """Times of repeats of a call within a budget, after a warm-up; one long call may be its own warm-up [s]."""
        end = time.perf_counter() + budget_s
        first = self.seconds(call, 1)
        if first > budget_s / 2:
            return [first]
        first = min(self.seconds(call, 1), first)
        shortest = _SHORTEST_S if self.kind == "cpu" else _DEVICE_SHORTEST_S
        times = max(1, min(1000, int(shortest / max(first, 1e-8))))
        found: list[float] = []
        while len(found) < MOST_REPEATS and (len(found) < FEWEST_REPEATS or time.perf_counter() < end):
            found.append(self.seconds(call, times))
            if time.perf_counter() > end + budget_s:
                break
        return found


def measured(
    kind: str,
    form: str,
    sizes: Mapping[str, float],
    times: list[float],
    *,
    flop: float = 0.0,
    moved: float = 0.0,
    note: str = "",
) -> Measured:
    """A row from the times of repeats: their median and best [s], and half the 10 to 90 % range over the median."""
    low, middle, high = np.quantile(times, (0.1, 0.5, 0.9))
    return Measured(
        kind=kind,
        form=form,
        sizes={name: float(size) for name, size in sizes.items()},
        seconds=float(middle),
        best_s=float(min(times)),
        spread=float((high - low) / 2 / middle),
        repeats=len(times),
        flop=float(flop),
        bytes=float(moved),
        note=note,
    )
