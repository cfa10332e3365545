"""Traces of a profiler beside the prediction of their scenario: gaps by part, and which advice shortens them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ridgeline.advise.trace_steps import KINDS, read_steps
from ridgeline.report.advice import Advice
from ridgeline.report.report import Report
from ridgeline.report.serving import ServingReport
from ridgeline.report.traced import PartGap, Traced, TraceSteps

_PART = {
    "matrix": "products", "attention": "attention", "update": "optimizer", "memory": "other kernels",
    "copies": "other kernels", "host link": "copies", "launch": "idle", "bubble": "idle", "host": "idle",
}  # fmt: skip
_OF_SERVING = {"products": "weights and links", "other kernels": "weights and links", "optimizer": "weights and links",
               "collectives": "weights and links", "copies": "weights and links"}  # fmt: skip
_HELPS = 4  # lines of a part
_LEAST = 0.01  # of a step, from which a gap is worth a technique


def against_training(paths: Sequence[str], mark: str, report: Report, advice: Advice) -> Traced:
    """Traces of training steps beside a predicted step; of a pipeline, waiting is inside the collectives' kernels."""
    predicted = dict.fromkeys((*KINDS, "idle"), 0.0)
    piped = report.plan.pp > 1
    for share in report.shares:
        part = "collectives" if piped and share.label == "bubble" else _part(share.label)
        predicted[part] += share.seconds
    traces = _read(paths, mark)
    step = report.step_time
    notes = ["a pipeline's bubbles are counted with collectives, whose kernels wait for other stages"] if piped else []
    return Traced(
        traces=traces, predicted_s=step.value, low_s=step.low, high_s=step.high, what="training step",
        gaps=_gaps(traces[-1].parts_s, predicted), helps=_helps(traces[-1], predicted, advice),
        notes=(*notes, *_noted(traces[-1])),
    )  # fmt: skip


def against_serving(paths: Sequence[str], mark: str, report: ServingReport, advice: Advice) -> Traced:
    """Traces of iterations beside a predicted decode step, or beside a prompt where outputs are one token."""
    prompts = report.traffic.output.mean <= 1
    parts, band = (report.prefill_parts, report.prefill) if prompts else (report.decode_parts, report.decode)
    predicted: dict[str, float] = {}
    for label, seconds in parts.items():
        part = {"host": "idle", "attention": "attention"}.get(label, "weights and links")
        predicted[part] = predicted.get(part, 0.0) + seconds
    traces = _read(paths, mark)
    measured: dict[str, float] = {}
    for part, seconds in traces[-1].parts_s.items():
        told = _OF_SERVING.get(part, part)
        measured[told] = measured.get(told, 0.0) + seconds
    total_s = sum(parts.values())
    lines = tuple(_line(one.written, one.why) for one in advice.helps[:_HELPS])
    return Traced(
        traces=traces, predicted_s=total_s, low_s=total_s * band.low, high_s=total_s * band.high,
        what="prompt" if prompts else "decode step", gaps=_gaps(measured, predicted),
        helps={"the whole": lines} if lines else {},
        notes=_noted(traces[-1]),
    )  # fmt: skip


def _read(paths: Sequence[str], mark: str) -> tuple[TraceSteps, ...]:
    return tuple(read_steps(path, mark=mark) for path in paths)


def _part(label: str) -> str:
    return _PART.get(label, "collectives" if label.endswith("link") else "other kernels")


def _gaps(measured: Mapping[str, float], predicted: Mapping[str, float]) -> tuple[PartGap, ...]:
    names = list(dict.fromkeys((*measured, *predicted)))
    found = [
        PartGap(part=name, measured_s=measured.get(name, 0.0), predicted_s=predicted.get(name, 0.0)) for name in names
    ]
    kept = [one for one in found if one.measured_s > 0 or one.predicted_s > 0]
    return tuple(sorted(kept, key=lambda one: -abs(one.gap_s)))


def _helps(one: TraceSteps, predicted: Mapping[str, float], advice: Advice) -> dict[str, tuple[str, ...]]:
    """What advice shortens each part that takes longer than predicted, those with the largest gaps first."""
    found: dict[str, tuple[str, ...]] = {}
    for gap in _gaps(one.parts_s, predicted):
        if gap.gap_s < _LEAST * one.step_s:
            continue
        lines = [_line(each.written, each.why) for each in advice.helps if _shortens(each.why, gap.part)]
        if lines:
            found[gap.part] = tuple(lines[:_HELPS])
    return found


def _shortens(why: str, part: str) -> bool:
    label = why.split(" ->")[0].rsplit(" ", 2)[0]
    return _part(label) == part


def _line(written: str, why: str) -> str:
    return f"{written}: {why}" if why else written


def _noted(one: TraceSteps) -> tuple[str, ...]:
    """Techniques that the trace itself points to, by what it measures."""
    found = []
    if one.launch_gap_s and one.launch_gap_s > 0.05 * one.step_s:
        found.append("the device waits for the host's launches: capture steps as graphs (--execution graph in training,"
                     " --graphs in serving), fuse kernels, or enlarge the batch")  # fmt: skip
    idle_s = one.parts_s["idle"] - (one.launch_gap_s or 0.0)
    if one.launch_gap_s is not None and idle_s > 0.05 * one.step_s:
        found.append("the device also idles between kernels that were launched in time: dependencies between streams,"
                     " and starts of many short kernels")  # fmt: skip
    exposed_s = one.parts_s["collectives"]
    if exposed_s > 0.05 * one.step_s:
        found.append(f"{exposed_s / one.step_s:.0%} of the step waits for collectives, part of it for"
                     " ranks that come late: read the trace of another rank beside this one")  # fmt: skip
    if not one.marked:
        found.append("name what begins a step's annotation with --trace-step, or profile with a schedule and step()")
    return tuple(found)
