"""A step's timeline as a Chrome trace, for Perfetto or chrome://tracing.

A process per device, a thread per stream, times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TextIO

from ridgeline.errors import DomainError
from ridgeline.lower.tasks import TaskGraph
from ridgeline.report.report import Report
from ridgeline.timeline.simulate import Timeline

_US_PER_S = 1e6
_DIGITS = 4  # of a microsecond: a tenth of a nanosecond


def trace_events(tasks: TaskGraph, timeline: Timeline) -> Iterator[dict[str, Any]]:
    """The events of the trace: names of processes and threads, then the spans by start time.

    A span is named for its work and micro-batch, e.g. F3; `ts` and `dur` are in microseconds.
    """
    for device in sorted(set(tasks.stream_device)):
        yield {"ph": "M", "name": "process_name", "pid": device, "tid": 0, "args": {"name": f"stage {device}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": device, "tid": 0, "args": {"sort_index": device}}
    for stream, name in enumerate(tasks.stream_names):
        pid = tasks.stream_device[stream]
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": stream, "args": {"name": name}}
    for task in sorted(range(tasks.tasks), key=lambda task: (float(timeline.start_s[task]), task)):
        stream = int(tasks.stream[task])
        label, micro_batch = tasks.label[int(tasks.kind[task])], int(tasks.micro_batch[task])
        start_s, end_s = float(timeline.start_s[task]), float(timeline.end_s[task])
        yield {
            "ph": "X",
            "name": f"{label}{micro_batch}" if micro_batch >= 0 else label,
            "cat": label,
            "pid": tasks.stream_device[stream],
            "tid": stream,
            "ts": round(start_s * _US_PER_S, _DIGITS),
            "dur": round((end_s - start_s) * _US_PER_S, _DIGITS),
            "args": {"micro_batch": micro_batch, "chunk": int(tasks.chunk[task])},
        }


def write_trace(report: Report, out: TextIO) -> int:
    """Writes the report's timeline as trace JSON, one event a line; the number of events [1].

    Raises `DomainError` where the report holds no timeline.
    """
    import json

    if report.tasks is None or report.timeline is None:
        raise DomainError("this report holds no timeline; predict one plan to get one")
    out.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
    count = 0
    for event in trace_events(report.tasks, report.timeline):
        out.write((",\n" if count else "") + json.dumps(event, allow_nan=False))
        count += 1
    out.write("\n]}\n")
    return count
