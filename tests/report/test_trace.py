"""The Chrome trace of a hand-made timeline."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from ridgeline.errors import DomainError
from ridgeline.report.report import Report
from ridgeline.report.trace import write_trace


def _trace(report: Report) -> dict[str, list[dict[str, object]]]:
    out = io.StringIO()
    count = write_trace(report, out)
    trace: dict[str, list[dict[str, object]]] = json.loads(out.getvalue())
    assert len(trace["traceEvents"]) == count
    return trace


def test_spans_are_in_microseconds_and_sorted(report: Report) -> None:
    spans = [event for event in _trace(report)["traceEvents"] if event["ph"] == "X"]
    assert [(span["name"], span["pid"], span["tid"], span["ts"], span["dur"]) for span in spans] == [
        ("F0", 0, 0, 0.0, 1000.0),
        ("F1", 0, 0, 1000.0, 1000.0),
        ("S0", 0, 1, 1000.0, 500.0),
        ("F0", 1, 2, 1500.0, 1000.0),
        ("optimizer", 0, 0, 2000.0, 2000.0),
    ]


def test_a_process_per_device_and_a_thread_per_stream(report: Report) -> None:
    names = [event for event in _trace(report)["traceEvents"] if event["ph"] == "M"]
    assert [(event["pid"], event["tid"], event["args"]) for event in names] == [
        (0, 0, {"name": "stage 0"}),
        (0, 0, {"sort_index": 0}),
        (1, 0, {"name": "stage 1"}),
        (1, 0, {"sort_index": 1}),
        (0, 0, {"name": "compute"}),
        (0, 1, {"name": "send"}),
        (1, 2, {"name": "compute"}),
    ]


def test_same_report_same_bytes(report: Report) -> None:
    first, second = io.StringIO(), io.StringIO()
    write_trace(report, first)
    write_trace(report, second)
    assert first.getvalue() == second.getvalue()


def test_a_report_without_timeline_is_refused(report: Report) -> None:
    with pytest.raises(DomainError, match="no timeline"):
        write_trace(replace(report, tasks=None), io.StringIO())
