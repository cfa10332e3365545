"""What a profiler's trace spends beside what was predicted, part by part: the values, their text and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ridgeline.report.blocks import Block, Line, Table, blank, labelled, listed
from ridgeline.units import time_text

_KNEE = 2.0  # rise of the mean launch and queuing time of a kernel that marks the device as the bound (assumed)
_CPU_BOUND = 0.1  # of a step (assumed)


@dataclass(frozen=True, kw_only=True)
class TraceSteps:
    """The mean step of a trace [s]: `parts_s` add up to it, `collectives_s` also counts what compute hides.

    `tklqt_s` is SKIP's total kernel launch and queuing time of a step: from each launching call's begin to its
    kernel's begin. `launch_gap_s` is idle time of the device before a kernel whose launch had not returned.
    `host_issue_s` is the host's time from a step's first launch to its last, less what it waits for the device.
    """

    file: str
    marked: bool  # whether annotations tell the steps; else the whole trace is one
    device: str
    steps_s: tuple[float, ...]
    parts_s: Mapping[str, float]
    collectives_s: float
    kernels: int
    launch_gap_s: float | None = None
    host_issue_s: float | None = None
    tklqt_s: float | None = None
    wait_s: float | None = None
    least_wait_s: float | None = None

    @property
    def step_s(self) -> float:
        """Mean seconds of a step [s]."""
        return sum(self.steps_s) / len(self.steps_s)

    @property
    def bound(self) -> str:
        """'CPU-bound' where the device waits for launches a tenth of the step or more, else 'GPU-bound'; '' without."""
        if self.tklqt_s is None or self.launch_gap_s is None:
            return ""
        return "CPU-bound" if self.launch_gap_s >= _CPU_BOUND * self.step_s else "GPU-bound"

    @property
    def turn(self) -> float | None:
        """Times the batch of the trace at which host and device take equally long [1], if kernels grow with it."""
        busy_s = self.step_s - self.parts_s["idle"]
        return None if not self.host_issue_s or busy_s <= 0 else self.host_issue_s / busy_s


@dataclass(frozen=True, kw_only=True)
class PartGap:
    """A part of a step: measured and predicted [s]."""

    part: str
    measured_s: float
    predicted_s: float

    @property
    def gap_s(self) -> float:
        """How much longer it takes than predicted [s]."""
        return self.measured_s - self.predicted_s


@dataclass(frozen=True, kw_only=True)
class Traced:
    """Traces beside a prediction; `gaps` of the last trace, the largest first, `helps` what shortens each part."""

    traces: tuple[TraceSteps, ...]
    predicted_s: float
    low_s: float
    high_s: float
    what: str  # was predicted: 'training step', 'decode step', 'prompt'
    gaps: tuple[PartGap, ...]
    helps: Mapping[str, Sequence[str]]
    notes: tuple[str, ...] = ()

    @property
    def knee(self) -> int | None:
        """The first of several traces, 1 the first, whose kernels wait twice the smallest mean."""
        waits = [one.wait_s for one in self.traces]
        if len(waits) < 2 or any(wait is None for wait in waits):
            return None
        told = [wait for wait in waits if wait is not None]
        return next((place for place, wait in enumerate(told, 1) if wait > _KNEE * min(told)), None)

    def as_dict(self) -> dict[str, Any]:
        """The entry `trace` of JSON."""
        return {
            "files": [
                {**asdict(one), "step_s": one.step_s, "bound": one.bound, "turn": one.turn} for one in self.traces
            ],
            "knee": self.knee, "what": self.what,
            "predicted_s": {"value": self.predicted_s, "low": self.low_s, "high": self.high_s},
            "gaps": [{**asdict(one), "gap_s": one.gap_s} for one in self.gaps],
            "helps": {part: list(lines) for part, lines in self.helps.items()}, "notes": list(self.notes),
        }  # fmt: skip

    def blocks(self) -> list[Block]:
        """The traces, the gaps by part, and what would help."""
        one = self.traces[-1]
        inside = self.low_s <= one.step_s <= self.high_s
        told = "inside" if inside else "outside"
        rows = [
            ("trace", f"{one.file}: {_steps(one)}, {one.kernels:,} kernels a step, {one.device}"),
            ("step", f"{time_text(one.step_s)} measured, {time_text(self.predicted_s)} predicted for a {self.what}"),
            ("", f"{one.step_s / self.predicted_s:.2f}x, {told} {time_text(self.low_s)} to {time_text(self.high_s)}"),
        ]  # fmt: skip
        rows += [("collectives", _hidden(one))] if one.collectives_s > 0 else []
        rows += [("launches", text) for text in _launches(one)]
        blocks: list[Block] = [Line(text="The trace beside the prediction", strong=True), *labelled(rows), blank()]
        blocks += [self._gaps(one), blank()]
        if len(self.traces) > 1:
            blocks += [*self._across(), blank()]
        for part, lines in self.helps.items():
            blocks += listed(lines, f"Would shorten {part}")
        return [*blocks, *listed(self.notes, "Of the trace")]

    def _gaps(self, one: TraceSteps) -> Table:
        rows = tuple(
            (gap.part, time_text(gap.measured_s), time_text(gap.predicted_s), _signed(gap.gap_s),
             f"{gap.gap_s / one.step_s:+.0%}")
            for gap in self.gaps
        )  # fmt: skip
        columns = ("part", "measured", "predicted", "gap", "of the step")
        return Table(columns=columns, rows=rows, right=frozenset(columns[1:]))

    def _across(self) -> list[Block]:
        rows = tuple(
            (one.file, time_text(one.step_s), *_or_dash(one.tklqt_s, one.wait_s),
             f"{one.parts_s['idle'] / one.step_s:.0%}", one.bound or "-")
            for one in self.traces
        )  # fmt: skip
        columns = ("trace", "step", "TKLQT", "a kernel", "idle", "")
        table = Table(columns=columns, rows=rows, right=frozenset(columns[1:5]))
        knee = self.knee
        said = "kernels begin to queue in none" if knee is None else f"kernels begin to queue in trace {knee}"
        return [table, Line(text=f"In the order given, {said}.", indent=2)]


def _steps(one: TraceSteps) -> str:
    if not one.marked:
        return "no step is marked, so all of it is one"
    return f"{len(one.steps_s)} steps of {time_text(min(one.steps_s))} to {time_text(max(one.steps_s))}"


def _hidden(one: TraceSteps) -> str:
    exposed_s = one.parts_s["collectives"]
    hidden = time_text(one.collectives_s - exposed_s)
    return f"{time_text(one.collectives_s)}: {time_text(exposed_s)} exposed, {hidden} under compute"


def _launches(one: TraceSteps) -> list[str]:
    if one.tklqt_s is None or one.wait_s is None:
        return []
    late = f"{time_text(one.launch_gap_s or 0.0)} of {time_text(one.parts_s['idle'])} idle waits for launches"
    said = [f"{one.bound}: TKLQT {time_text(one.tklqt_s)} a step, {time_text(one.wait_s)} a kernel; {late}"]
    if one.turn is not None:
        way = "from" if one.bound == "CPU-bound" else "below"
        side = "device" if one.bound == "CPU-bound" else "host"
        said.append(f"the {side} bounds it {way} about {one.turn:.2g} times this batch, where kernels grow with it")
    return said


def _signed(seconds: float) -> str:
    return ("-" if seconds < 0 else "+") + time_text(abs(seconds))


def _or_dash(*values: float | None) -> tuple[str, ...]:
    return tuple("-" if value is None else time_text(value) for value in values)
