"""Golden timelines of whole pipelines, worked by hand, and the tasks behind them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.rivals.held_chunks import held_chunks

from ridgeline.seams.schedule import FORWARD
from ridgeline.timeline.simulate import simulate
from ridgeline.training.pipeline import KIND_LABEL, SEND_FORWARD, order, pipeline_schedule, pipeline_tasks

F1_B2 = {"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0}


def log(
    schedule: str, stages: int, micro_batches: int, chunks: int = 1, **sends: float
) -> list[dict[str, tuple[float, float]]]:
    """For each stage, task name -> (start, end), e.g. 'F0.1' the forward of chunk 0, micro-batch 1."""
    one = order(pipeline_schedule(schedule), stages, micro_batches, chunks)
    tasks = pipeline_tasks(one, **F1_B2, **sends)
    timeline = simulate(tasks)
    found: list[dict[str, tuple[float, float]]] = [{} for _ in range(stages)]
    for task in range(one.kind.size):
        name = f"{KIND_LABEL[tasks.kind[task]]}{tasks.chunk[task]}.{tasks.micro_batch[task]}"
        found[tasks.stream[task]][name] = (float(timeline.start_s[task]), float(timeline.end_s[task]))
    return found


def spans(text: str) -> dict[str, tuple[float, float]]:
    """'F0.0 0-1, B0.0 4-6' as a log."""
    pieces = [piece.split() for piece in text.replace("\n", " ").split(",")]
    return {name: (float(span.split("-")[0]), float(span.split("-")[1])) for name, span in pieces}


def test_1f1b_four_stages_eight_micro_batches() -> None:
    # Forward 1, backward 2. The last stage alternates without a gap from 3 on; stage s runs backward j at 10 - 2s + 3j
    # and, after p - s forwards, one forward in the gap behind each backward.
    want = [
        spans(
            "F0.0 0-1, F0.1 1-2, F0.2 2-3, F0.3 3-4, B0.0 10-12, F0.4 12-13, B0.1 13-15, F0.5 15-16, B0.2 16-18,"
            "F0.6 18-19, B0.3 19-21, F0.7 21-22, B0.4 22-24, B0.5 25-27, B0.6 28-30, B0.7 31-33"
        ),
        spans(
            "F0.0 1-2, F0.1 2-3, F0.2 3-4, B0.0 8-10, F0.3 10-11, B0.1 11-13, F0.4 13-14, B0.2 14-16, F0.5 16-17,"
            "B0.3 17-19, F0.6 19-20, B0.4 20-22, F0.7 22-23, B0.5 23-25, B0.6 26-28, B0.7 29-31"
        ),
        spans(
            "F0.0 2-3, F0.1 3-4, B0.0 6-8, F0.2 8-9, B0.1 9-11, F0.3 11-12, B0.2 12-14, F0.4 14-15, B0.3 15-17,"
            "F0.5 17-18, B0.4 18-20, F0.6 20-21, B0.5 21-23, F0.7 23-24, B0.6 24-26, B0.7 27-29"
        ),
        spans(
            "F0.0 3-4, B0.0 4-6, F0.1 6-7, B0.1 7-9, F0.2 9-10, B0.2 10-12, F0.3 12-13, B0.3 13-15, F0.4 15-16,"
            "B0.4 16-18, F0.5 18-19, B0.5 19-21, F0.6 21-22, B0.6 22-24, F0.7 24-25, B0.7 25-27"
        ),
    ]
    assert log("1f1b", 4, 8) == want


def test_gpipe_two_stages_three_micro_batches() -> None:
    assert log("gpipe", 2, 3) == [
        spans("F0.0 0-1, F0.1 1-2, F0.2 2-3, B0.0 6-8, B0.1 8-10, B0.2 10-12"),
        spans("F0.0 1-2, F0.1 2-3, F0.2 3-4, B0.0 4-6, B0.1 6-8, B0.2 8-10"),
    ]


def test_interleaved_two_stages_two_chunks() -> None:
    assert log("interleaved", 2, 4, 2) == [
        spans(
            "F0.0 0-1, F0.1 1-2, F1.0 2-3, F1.1 3-4, F0.2 4-5, B1.0 6-8, F0.3 8-9, B1.1 9-11, F1.2 11-12, B0.0 12-14,"
            "F1.3 14-15, B0.1 15-17, B1.2 18-20, B1.3 21-23, B0.2 23-25, B0.3 25-27"
        ),
        spans(
            "F0.0 1-2, F0.1 2-3, F1.0 3-4, B1.0 4-6, F1.1 6-7, B1.1 7-9, F0.2 9-10, B0.0 10-12, F0.3 12-13,"
            "B0.1 13-15, F1.2 15-16, B1.2 16-18, F1.3 18-19, B1.3 19-21, B0.2 21-23, B0.3 23-25"
        ),
    ]


def test_zb_h1_two_stages_three_micro_batches() -> None:
    assert log("zb-h1", 2, 3) == [
        spans("F0.0 0-1, F0.1 1-2, Bi0.0 3-4, W0.0 4-5, F0.2 5-6, Bi0.1 6-7, W0.1 7-8, Bi0.2 8-9, W0.2 9-10"),
        spans("F0.0 1-2, Bi0.0 2-3, F0.1 3-4, Bi0.1 4-5, W0.0 5-6, F0.2 6-7, Bi0.2 7-8, W0.1 8-9, W0.2 9-10"),
    ]


def test_sends_delay_the_other_stage_but_not_their_own() -> None:
    # Forward sends of 0.5 s overlap with the next forward; backward sends of 0.25 s come back.
    assert log("gpipe", 2, 2, send_forward_s=0.5, send_backward_s=0.25) == [
        spans("F0.0 0-1, F0.1 1-2, B0.0 5.75-7.75, B0.1 7.75-9.75"),
        spans("F0.0 1.5-2.5, F0.1 2.5-3.5, B0.0 3.5-5.5, B0.1 5.5-7.5"),
    ]


def test_slow_link_queues_its_sends() -> None:
    # Each send takes 3 s on link 0>1: micro-batch 1 arrives at 1 + 3 + 3.
    tasks = pipeline_tasks(order(pipeline_schedule("gpipe"), 2, 2), **F1_B2, send_forward_s=3.0)
    timeline = simulate(tasks)
    link = tasks.stream_names.index("link 0>1")
    sent = np.flatnonzero(tasks.stream == link)
    assert timeline.start_s[sent].tolist() == [1.0, 4.0]
    assert tasks.stream_names == ("stage 0", "stage 1", "link 0>1")
    assert tasks.stream_device == (0, 1, 0)
    assert (tasks.kind[sent] == SEND_FORWARD).all()


def test_interleaved_wraps_around_on_its_own_link() -> None:
    tasks = pipeline_tasks(
        order(pipeline_schedule("interleaved"), 3, 3, 2), **F1_B2, send_forward_s=0.5, send_backward_s=0.5
    )
    names = set(tasks.stream_names[3:])
    assert names == {"link 0>1", "link 1>2", "link 2>0", "link 1>0", "link 2>1", "link 0>2"}
    # Chunk 1's forward on stage 0 waits for 0.5 s after stage 2 ends chunk 0: 1 + .5 + 1 + .5 + 1 + .5.
    first = np.flatnonzero((tasks.stream == 0) & (tasks.kind == FORWARD) & (tasks.chunk == 1))[0]
    assert simulate(tasks).start_s[first] == 4.5


def test_fold_of_a_v_needs_no_send() -> None:
    tasks = pipeline_tasks(order(pipeline_schedule("zb-v"), 2, 2, 2), **F1_B2, send_forward_s=0.5)
    # Two hops per micro-batch: 0 to 1 going down, 1 to 0 coming up.
    assert int((tasks.kind == SEND_FORWARD).sum()) == 4


def test_what_is_held_by_hand() -> None:
    # Each micro-batch is kept from its forward to the end of the weight part.
    one = order(pipeline_schedule("zb-h1"), 1, 2)
    tasks = pipeline_tasks(one, **F1_B2)
    profile = held_chunks(tasks, simulate(tasks))
    # F0 Bi0 W0 F1 Bi1 W1: one micro-batch in flight (p = 1).
    assert profile.peak.tolist() == [1.0]
    time_s, held = profile.steps[0]
    assert time_s.tolist() == [0.0, 3.0, 6.0]
    assert held.tolist() == [1.0, 1.0, 0.0]


def test_uneven_stages_take_their_own_times() -> None:
    forward = np.array([[1.0], [4.0]])
    tasks = pipeline_tasks(
        order(pipeline_schedule("gpipe"), 2, 2), forward_s=forward, backward_input_s=1.0, backward_weight_s=0.0
    )
    # Forwards: 0-1, 1-2 | 1-5, 5-9; backwards 9-10, 10-11 | 10-11, 11-12.
    assert simulate(tasks).makespan_s == 12.0


@pytest.mark.parametrize("schedule", ["gpipe", "zb-h2"])
def test_one_stage_has_no_bubble(schedule: str) -> None:
    tasks = pipeline_tasks(order(pipeline_schedule(schedule), 1, 5), **F1_B2, send_forward_s=9.0, send_backward_s=9.0)
    assert simulate(tasks).makespan_s == 15.0
