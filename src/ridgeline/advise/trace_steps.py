"""What the steps of a profiler's trace spend: kernels by kind, collectives exposed and hidden, gaps, launches."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.facts.profiler_trace import trace_events
from ridgeline.report.traced import TraceSteps

Floats = NDArray[np.float64]
KINDS = ("products", "attention", "optimizer", "other kernels", "collectives", "copies")
"""Kinds of work on a device; where several run at once, time belongs to the first."""
_MOST_EVENTS = 20_000_000  # that are held, of about 50 bytes each
_US = 1e-6
_DEVICE = {"kernel": "", "gpu_memcpy": "copies", "gpu_memset": "copies"}
_LAUNCHES = ("cuda_runtime", "cuda_driver", "runtime")
_ANNOTATIONS = ("user_annotation", "cpu_op", "")
_WAITS = re.compile(r"Synchronize|^cu(da)?Memcpy(?!.*Async)|hipMemcpy(?!.*Async|WithStream)", re.I)
_NAMES = (
    ("collectives", re.compile(
        r"nccl|rccl|c10d::|gloo:|cross_device_reduce|multimem|nvshmem|deep_?ep|all_?reduce", re.I
    )),
    ("attention", re.compile(r"flash|fmha|attention|attn|\bmha|paged|sdpa|softmax_warp", re.I)),
    ("optimizer", re.compile(r"multi_tensor_apply|fused_?adam|adamw?_|optimizer", re.I)),
    ("products", re.compile(
        r"gemm|cutlass|cublas|nvjet|xmma|wgmma|^Cijk_|marlin|wgrad|dgrad|fprop|splitK|s\d{4,}\w*_\d+x\d+"
        r"|conv\w*(fwd|grad|prop|2d|3d|olution)|aten::(mm|addmm|bmm|baddbmm|matmul|linear|mkldnn|_?conv)", re.I
    )),
)  # fmt: skip


def kind_of(name: str) -> str:
    """The kind of work that a kernel or an operator does, by its name."""
    return next((kind for kind, pattern in _NAMES if pattern.search(name)), "other kernels")


@dataclass
class _Spans:
    """Begins and ends [us], a number of the kind, and what links a kernel with its launch (-1: nothing)."""

    begin: array[float] = field(default_factory=lambda: array("d"))
    end: array[float] = field(default_factory=lambda: array("d"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    link: array[int] = field(default_factory=lambda: array("q"))

    def add(self, begin: float, end: float, kind: int, link: int) -> None:
        self.begin.append(begin)
        self.end.append(end)
        self.kind.append(kind)
        self.link.append(link)

    def arrays(self) -> tuple[Floats, Floats, NDArray[np.int8], NDArray[np.int64]]:
        """All four by begin, then the longer first."""
        begin, end = np.array(self.begin), np.array(self.end)
        order = np.lexsort((-end, begin))
        kind, link = np.array(self.kind, dtype=np.int8), np.array(self.link, dtype=np.int64)
        return begin[order], end[order], kind[order], link[order]


class _Trace:
    """What is held of a trace: kernels by device, launches, waits, operators by thread, and steps."""

    def __init__(self, path: str, mark: str) -> None:
        self.path, self.mark = path, mark
        self.kernels: dict[str, _Spans] = {}
        self.operators: dict[str, _Spans] = {}
        self.launches, self.waits = _Spans(), _Spans()
        self.steps: list[tuple[float, float]] = []
        self._kinds: dict[str, int] = {}
        count = 0
        for number, event in enumerate(trace_events(path, field="--trace-file"), start=1):
            if event.get("ph", "X") == "X" and "ts" in event:
                count += self._take(event, number)
                if count > _MOST_EVENTS:
                    raise InputError(f"holds more than {_MOST_EVENTS:,} kernels, launches and operators;"
                                     " profile fewer steps", file=path)  # fmt: skip

    def _take(self, event: Mapping[str, Any], number: int) -> int:
        category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
        begin = self._number(event, "ts", number)
        end = begin + self._number(event, "dur", number)
        if category in _ANNOTATIONS and name.startswith(self.mark):
            self.steps.append((begin, end))
            return 1
        told = event.get("args")
        args: Mapping[str, Any] = told if isinstance(told, dict) else {}
        link = args.get("correlation")
        link = link if isinstance(link, int) and 0 <= link < 2**62 else -1
        if category in _DEVICE:
            if self._kinds.get(name) is None:
                self._kinds[name] = KINDS.index(_DEVICE[category] or kind_of(name))
            device = args.get("device", event.get("pid"))
            self.kernels.setdefault(str(device), _Spans()).add(begin, end, self._kinds[name], link)
        elif category in _LAUNCHES:
            (self.waits if _WAITS.search(name) else self.launches).add(begin, end, 0, link)
        elif category == "cpu_op":
            if self._kinds.get(name) is None:
                self._kinds[name] = KINDS.index(kind_of(name))
            self.operators.setdefault(str(event.get("tid")), _Spans()).add(begin, end, self._kinds[name], -1)
        else:
            return 0
        return 1

    def _number(self, event: Mapping[str, Any], name: str, number: int) -> float:
        value = event.get(name, 0.0)
        try:
            found = float(value)
        except (TypeError, ValueError):
            found = float("nan")
        if not isfinite(found) or (name == "dur" and found < 0) or abs(found) > 1e18:
            raise InputError(
                f"'{str(value)[:40]}' of event {number:,} is no time in microseconds", file=self.path, field=name
            )
        return found


def read_steps(path: str, *, mark: str = "ProfilerStep#") -> TraceSteps:
    """What the steps of a trace spend, the mean over steps; `mark` begins the name of a step's annotation.

    Raises `InputError` for a file that is no trace, is damaged, is over a bound, or holds no work.
    """
    trace = _Trace(path, mark)
    if trace.kernels:
        return _on_device(trace)
    if trace.operators:
        return _on_processor(trace)
    raise InputError("holds no kernel and no operator; profile with activities CPU and CUDA", file=path)


def _windows(trace: _Trace, begin: float, end: float) -> list[tuple[float, float]]:
    """Begin and end of each step on the host, tiled; all of the trace where no step is marked."""
    marks = sorted(trace.steps)
    if not marks:
        return [(begin, end)]
    return [
        (first[0], after[0]) for first, after in zip(marks, [*marks[1:], (marks[-1][1], 0.0)], strict=True)
    ]  # fmt: skip


def _on_device(trace: _Trace) -> TraceSteps:
    """A device's work belongs to the step that launched it: of the device on which most time is spent."""
    device = max(trace.kernels, key=lambda one: sum(trace.kernels[one].end) - sum(trace.kernels[one].begin))
    begin, end, kind, link = trace.kernels[device].arrays()
    launch_begin, launch_end, _, launch_link = trace.launches.arrays()
    at, launched = _joined(link, launch_link)
    waits = begin[at] - launch_begin[launched]
    issued = np.full(begin.size, np.nan)
    issued[at], ended = launch_begin[launched], np.full(begin.size, np.nan)
    ended[at] = launch_end[launched]
    when = np.where(np.isnan(issued), begin, issued)
    host = _windows(trace, float(when.min()), float(end.max()) + 1.0)
    firsts, held = [], []
    for low, high in host:
        inside = np.flatnonzero((when >= low) & (when < high))
        if inside.size:
            firsts.append(float(begin[inside[0]]))
            held.append((low, high, float(end[inside].max())))
    if not firsts:
        raise InputError(f"holds no kernel that a step '{trace.mark}' launched", file=trace.path)
    last = max(held[-1][2], firsts[-1] + held[-1][1] - held[-1][0] if trace.steps else held[-1][2])
    edges = [*firsts, last]
    parts = [_parts(begin, end, kind, low, high) for low, high in pairwise(edges)]
    late = _late_s(begin, end, ended, edges[0], edges[-1])
    synced_s = _covered(*trace.waits.arrays()[:2], held[0][0], held[-1][1]) * _US if trace.waits.begin else 0.0
    span = launch_begin[(launch_begin >= held[0][0]) & (launch_begin < held[-1][1])]
    issue_s = max(0.0, float(np.ptp(span)) * _US - synced_s) if span.size else None
    count = len(parts)
    many = len(trace.kernels)
    told = f"device {device}" + (f", the busiest of {many}" if many > 1 else "")
    return _summed(trace, parts, edges, device=told, more={
        "kernels": round(int(((begin >= edges[0]) & (begin < edges[-1])).sum()) / count),
        "launch_gap_s": late * _US / count, "host_issue_s": None if issue_s is None else issue_s / count,
        **_launch_queue(waits, count),
    })  # fmt: skip


def _joined(link: NDArray[np.int64], launch_link: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of kernels with a launch, and of their launches."""
    order = np.argsort(launch_link, kind="stable")
    place = np.searchsorted(launch_link[order], link)
    place = np.minimum(place, max(0, order.size - 1))
    if not order.size:
        return np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp)
    matched = (launch_link[order][place] == link) & (link >= 0)
    return np.flatnonzero(matched), order[place[matched]]


def _launch_queue(waits: Floats, steps: int) -> dict[str, float | None]:
    """SKIP's total kernel launch and queuing time of a step, its mean of a kernel and the least [s]."""
    if not waits.size:
        return {"tklqt_s": None, "wait_s": None, "least_wait_s": None}
    return {
        "tklqt_s": float(waits.sum()) * _US / steps, "wait_s": float(waits.mean()) * _US,
        "least_wait_s": float(waits.min()) * _US,
    }  # fmt: skip


def _late_s(begin: Floats, end: Floats, ended: Floats, low: float, high: float) -> float:
    """Time in which the device is idle because the next kernel's launch had not returned yet."""
    before = np.maximum.accumulate(np.concatenate(([low], end[:-1])))
    ready = np.minimum(np.where(np.isnan(ended), before, ended), begin)
    inside = (begin >= low) & (begin < high)
    return float(np.maximum(0.0, ready - np.maximum(before, low))[inside].sum())


def _parts(begin: Floats, end: Floats, kind: NDArray[np.int8], low: float, high: float) -> dict[str, float]:
    """Time of a window by kind, each moment given to the first kind that runs; and collectives whole [us]."""
    near = (end > low) & (begin < high)
    begin, end, kind = begin[near], end[near], kind[near]
    found, before = {}, 0.0
    for number, name in enumerate(KINDS):
        upto = _covered(begin[kind <= number], end[kind <= number], low, high)
        found[name], before = upto - before, upto
    found["idle"] = high - low - before
    only = kind == KINDS.index("collectives")
    found["all collectives"] = _covered(begin[only], end[only], low, high)
    return found


def _covered(begin: Floats, end: Floats, low: float, high: float) -> float:
    """Time of a window in which any of these spans, which are in order of begin, runs."""
    if not begin.size:
        return 0.0
    begin, end = np.clip(begin, low, high), np.clip(end, low, high)
    before = np.maximum.accumulate(np.concatenate(([low], end[:-1])))
    return float(np.maximum(0.0, end - np.maximum(begin, before)).sum())


def _on_processor(trace: _Trace) -> TraceSteps:
    """Of a trace without a device: operators of all threads, each moment given to the innermost on its thread."""
    pieces = [piece for spans in trace.operators.values() for piece in _innermost(spans)]
    begin, end = np.array([one[0] for one in pieces]), np.array([one[1] for one in pieces])
    kind = np.array([one[2] for one in pieces], dtype=np.int8)
    order = np.argsort(begin, kind="stable")
    begin, end, kind = begin[order], end[order], kind[order]
    host = _windows(trace, float(begin[0]), float(end.max()))
    parts = [_parts(begin, end, kind, low, high) for low, high in host]
    return _summed(trace, parts, [low for low, _ in host] + [host[-1][1]], device="processor, no device in the trace",
                   more={"kernels": round(len(pieces) / len(parts))})  # fmt: skip


def _innermost(spans: _Spans) -> Iterator[tuple[float, float, int]]:
    """Pieces of a thread's time with the kind of the innermost operator; what a product calls is product."""
    begin, end, kind, _ = spans.arrays()
    other = KINDS.index("other kernels")
    stack: list[tuple[float, int]] = []  # end and kind of those open
    now = 0.0
    for start, stop, own in zip(begin.tolist(), end.tolist(), kind.tolist(), strict=True):
        while stack and stack[-1][0] <= start:
            until, above = stack.pop()
            if until > now:
                yield now, until, above
                now = until
        if stack and start > now:
            yield now, start, stack[-1][1]
        above = stack[-1][1] if stack else other
        stack.append((min(stop, stack[-1][0]) if stack else stop, own if above == other else above))
        now = max(now, start)
    while stack:
        until, above = stack.pop()
        if until > now:
            yield now, until, above
            now = until


def _summed(
    trace: _Trace, parts: Sequence[Mapping[str, float]], edges: Sequence[float], *, device: str, more: Mapping[str, Any]
) -> TraceSteps:
    mean = {name: sum(one[name] for one in parts) * _US / len(parts) for name in parts[0]}
    whole = mean.pop("all collectives")
    return TraceSteps(
        file=trace.path, marked=bool(trace.steps), device=device, parts_s=mean, collectives_s=whole,
        steps_s=tuple((after - first) * _US for first, after in pairwise(edges)), **more,
    )  # fmt: skip
