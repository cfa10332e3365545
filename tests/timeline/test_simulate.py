"""The simulator against hand-worked timelines, an event-heap rival, and itself compiled."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import PlanError
from ridgeline.lower.tasks import TaskGraph
from ridgeline.timeline.simulate import busy_s, simulate


def graph(
    duration: Sequence[float],
    stream: Sequence[int],
    waits: Sequence[Sequence[int]],
    *,
    device: tuple[int, ...] | None = None,
) -> TaskGraph:
    streams = max(stream, default=-1) + 1
    return TaskGraph(
        duration_s=np.array(duration, dtype=np.float64),
        stream=np.array(stream, dtype=np.int32),
        dep_start=np.concatenate(([0], np.cumsum([len(each) for each in waits]))).astype(np.int64),
        dep=np.array([task for each in waits for task in each], dtype=np.int64),
        stream_names=tuple(f"stream {index}" for index in range(streams)),
        stream_device=device or tuple(range(streams)),
        kind=np.zeros(len(duration), dtype=np.int16),
        label=("task",),
        micro_batch=np.arange(len(duration), dtype=np.int32),
        chunk=np.zeros(len(duration), dtype=np.int16),
    )


def event_heap(tasks: TaskGraph) -> tuple[list[float], list[float]]:
    """The rival: events (time, serial, task) on a heap; a stream's head starts when nothing holds it back."""
    count = tasks.tasks
    queue: dict[int, list[int]] = {}
    for task in range(count):
        queue.setdefault(int(tasks.stream[task]), []).append(task)
    waits = [set(tasks.dep[tasks.dep_start[i] : tasks.dep_start[i + 1]].tolist()) for i in range(count)]
    start, end = [float("nan")] * count, [float("nan")] * count
    busy: set[int] = set()
    done: set[int] = set()
    events: list[tuple[float, int, int]] = []
    serial, now = 0, 0.0
    while True:
        for lane, pending in queue.items():
            if lane not in busy and pending and waits[pending[0]] <= done:
                task = pending.pop(0)
                start[task], end[task] = now, now + float(tasks.duration_s[task])
                busy.add(lane)
                heapq.heappush(events, (end[task], serial, task))
                serial += 1
        if not events:
            return start, end
        now, _, task = heapq.heappop(events)
        done.add(task)
        busy.discard(int(tasks.stream[task]))


@st.composite
def acyclic_graphs(draw: st.DrawFn) -> TaskGraph:
    count = draw(st.integers(1, 30))
    streams = draw(st.integers(1, 5))
    time = st.floats(0.0, 10.0) if draw(st.booleans()) else st.integers(0, 4).map(float)
    waits = [draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else [] for i in range(count)]
    lanes = draw(st.lists(st.integers(0, streams - 1), min_size=count, max_size=count))
    return graph(draw(st.lists(time, min_size=count, max_size=count)), lanes, waits)


def test_hand_worked_timeline() -> None:
    # Stream 0: a(2) c(1); stream 1: b(3) waits a, d(1) waits c. a 0-2, c 2-3, b 2-5, d 5-6.
    tasks = graph([2.0, 1.0, 3.0, 1.0], [0, 0, 1, 1], [[], [], [0], [1]])
    timeline = simulate(tasks)
    assert timeline.start_s.tolist() == [0.0, 2.0, 2.0, 5.0]
    assert timeline.end_s.tolist() == [2.0, 3.0, 5.0, 6.0]
    assert timeline.makespan_s == 6.0


def test_dependency_on_a_later_listed_task_of_another_stream() -> None:
    # Task 0 on stream 0 waits for task 2 (listed later) on stream 1, which follows task 1.
    timeline = simulate(graph([1.0, 2.0, 4.0], [0, 1, 1], [[2], [], []]))
    assert timeline.start_s.tolist() == [6.0, 0.0, 2.0]


def test_empty_graph_takes_no_time() -> None:
    assert simulate(graph([], [], [])).makespan_s == 0.0


@settings(deadline=None, max_examples=200)
@given(acyclic_graphs())
def test_agrees_exactly_with_event_heap(tasks: TaskGraph) -> None:
    timeline = simulate(tasks)
    start, end = event_heap(tasks)
    assert timeline.start_s.tolist() == start
    assert timeline.end_s.tolist() == end


@settings(deadline=None, max_examples=60)
@given(acyclic_graphs())
def test_plain_and_compiled_give_the_same_bits(tasks: TaskGraph) -> None:
    plain, compiled = simulate(tasks, compiled=False), simulate(tasks, compiled=True)
    assert plain.start_s.tobytes() == compiled.start_s.tobytes()
    assert plain.end_s.tobytes() == compiled.end_s.tobytes()


@settings(deadline=None, max_examples=100)
@given(acyclic_graphs(), st.data())
def test_longer_task_never_shortens_the_makespan(tasks: TaskGraph, data: st.DataObject) -> None:
    task = data.draw(st.integers(0, tasks.tasks - 1))
    before = simulate(tasks).makespan_s
    tasks.duration_s[task] += data.draw(st.floats(0.0, 5.0))
    assert simulate(tasks).makespan_s >= before


@pytest.mark.parametrize("compiled", [False, True])
def test_circle_is_refused_and_a_task_on_it_is_named(compiled: bool) -> None:
    # Task 0 is fine; 1 (stream 0) waits for 3, 3 (stream 1) waits for 1; 2 merely waits behind the circle.
    tasks = graph([1.0, 1.0, 1.0, 1.0], [0, 0, 0, 1], [[], [3], [], [1]])
    with pytest.raises(PlanError, match=r"3 of 4 tasks .* micro-batch [13], chunk 0 on 'stream [01]'"):
        simulate(tasks, compiled=compiled)


def test_stream_order_against_dependency_is_a_circle() -> None:
    with pytest.raises(PlanError, match="circle"):
        simulate(graph([1.0, 1.0], [0, 0], [[1], []]))


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_bad_duration_is_refused(bad: float) -> None:
    with pytest.raises(PlanError, match=r"\(task 1\) lasts .* finite time >= 0"):
        simulate(graph([0.0, bad], [0, 0], [[], []]))  # no time at all is a time


def test_busy_and_span_by_hand() -> None:
    tasks = graph([2.0, 1.0, 3.0, 1.0], [0, 0, 1, 1], [[], [], [0], [1]])
    busy = busy_s(tasks, simulate(tasks))
    assert busy.busy_s.tolist() == [3.0, 4.0]
    assert busy.span_s.tolist() == [3.0, 4.0]
