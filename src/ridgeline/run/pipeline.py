"""A pipeline's stage by PyTorch's own schedules, with the spans in which it computes."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

_SCHEDULES: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Stopwatch:
    """Seconds of named work, added up until it is cleared; the device is done at both ends of each."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    def now(self) -> float:
        """Seconds on the clock once the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return perf_counter()

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, whose time is added to a name."""

        def run(*words: Any, **named: Any) -> Any:
            begin = self.now()
            made = call(*words, **named)
            self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - begin
            return made

        return run


class TimedStage(PipelineStage):  # type: ignore[misc]
    """A stage that adds the time of its own forwards and backwards to a stopwatch."""

    def __init__(self, watch: Stopwatch, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self.watch = watch

    def forward_one_chunk(self, *words: Any, **named: Any) -> Any:
        """One micro-batch forward."""
        return self.watch.timed("forward", super().forward_one_chunk)(*words, **named)

    def backward_one_chunk(self, *words: Any, **named: Any) -> Any:
        """One micro-batch backward."""
        return self.watch.timed("backward", super().backward_one_chunk)(*words, **named)


def schedule_of(
    name: str, module: Any, *, watch: Stopwatch, stage: int, stages: int, group: Any, micro_batches: int, loss: Any
) -> Any:
    """The schedule that runs a stage; its forwards, losses and backwards are timed by `watch`."""
    part = TimedStage(watch, module, stage, stages, watch.device, group=group)
    return _SCHEDULES[name](part, n_microbatches=micro_batches, loss_fn=watch.timed("forward", loss))
