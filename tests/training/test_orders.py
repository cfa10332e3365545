"""Program orders: golden rows, validity, memory, and what a shape must obey."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rivals.held_chunks import held_chunks

from ridgeline.errors import PlanError
from ridgeline.seams.registry import names
from ridgeline.seams.schedule import Order
from ridgeline.timeline.simulate import simulate
from ridgeline.training.pipeline import KIND_LABEL, durations_of, order, pipeline_schedule, pipeline_tasks
from ridgeline.training.zero_bubble import Skeleton, fill

FOLDED = ("zb-v", "v-half", "v-min", "v-half-vocab")
SPLIT = ("v-half", "v-half-vocab", "v-min", "zb-h1", "zb-h2", "zb-v")
FUSED = ("gpipe", "1f1b", "interleaved")


def row(one: Order, stage: int) -> str:
    """A stage's program as text, e.g. 'F0.1' for the forward of chunk 0, micro-batch 1."""
    cells = zip(one.kind[stage], one.chunk[stage], one.micro_batch[stage], strict=True)
    return " ".join(f"{KIND_LABEL[kind]}{chunk}.{batch}" for kind, chunk, batch in cells)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[str, int, int, int]:
    one_copy = [one for one in names("schedules") if pipeline_schedule(one).copies == 1]
    schedule = draw(st.sampled_from(one_copy))
    stages = draw(st.integers(1, 6))
    if schedule == "dualpipev":
        return schedule, stages, 2 * stages + draw(st.integers(0, 5)), 2
    if schedule == "combined-1f1b":
        stages += 1
    if schedule in ("interleaved", "combined-1f1b"):
        return schedule, stages, stages * draw(st.integers(1, 3)), draw(st.integers(2, 3))
    return schedule, stages, draw(st.integers(1, 12)), 2 if schedule in FOLDED else 1


def times(seed: int, stages: int, chunks: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.uniform(0.1, 2.0, (stages, chunks)) for _ in range(3)]


def test_1f1b_rows() -> None:
    one = order(pipeline_schedule("1f1b"), 3, 4)
    assert row(one, 0) == "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3"
    assert row(one, 1) == "F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3"
    assert row(one, 2) == "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3"


def test_gpipe_row() -> None:
    assert row(order(pipeline_schedule("gpipe"), 2, 3), 1) == "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2"


def test_interleaved_rows() -> None:
    one = order(pipeline_schedule("interleaved"), 2, 4, 2)
    # Warm-up of stage 0: 2 (2 - 0 - 1) + (2 - 1) 2 = 4 forwards; of stage 1: 2.
    assert row(one, 0) == ("F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3")
    assert row(one, 1) == ("F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3")


def test_zb_h1_rows_by_hand() -> None:
    # Unit times, at most 2 in flight: stage 0 must finish W0 before F2; stage 1 fills its wait for F2 with W0.
    one = order(pipeline_schedule("zb-h1"), 2, 3)
    assert row(one, 0) == "F0.0 F0.1 Bi0.0 W0.0 F0.2 Bi0.1 W0.1 Bi0.2 W0.2"
    assert row(one, 1) == "F0.0 Bi0.0 F0.1 Bi0.1 W0.0 F0.2 Bi0.2 W0.1 W0.2"


def test_v_positions_fold_back() -> None:
    assert pipeline_schedule("v-half").places(4, 2).tolist() == [[0, 7], [1, 6], [2, 5], [3, 4]]
    assert pipeline_schedule("interleaved").places(2, 3).tolist() == [[0, 2, 4], [1, 3, 5]]


@settings(deadline=None, max_examples=150)
@given(shapes(), st.integers(0, 1000), st.sampled_from([0.0, 0.3]))
def test_every_task_once_runs_through_and_keeps_its_memory(
    shape: tuple[str, int, int, int], seed: int, send_s: float
) -> None:
    schedule, stages, micro_batches, chunks = shape
    forward, inputs, weights = times(seed, stages, chunks)
    durations = {"forward_s": forward, "backward_input_s": inputs, "backward_weight_s": weights}
    one = order(
        pipeline_schedule(schedule),
        stages,
        micro_batches,
        chunks,
        durations=durations_of((stages, chunks), send_s=send_s, **durations),
    )
    kinds = (0, 2, 3) if pipeline_schedule(schedule).splits else (0, 1)
    want = [(kind, batch, chunk) for kind in kinds for batch in range(micro_batches) for chunk in range(chunks)]
    if pipeline_schedule(schedule).barriers():
        want += [(kind, batch, 0) for kind in (4, 5) for batch in range(micro_batches)]
    want.sort()
    for stage in range(stages):
        cells = zip(one.kind[stage].tolist(), one.micro_batch[stage].tolist(), one.chunk[stage].tolist(), strict=True)
        assert sorted(cells) == want
    tasks = pipeline_tasks(one, send_forward_s=send_s, send_backward_s=send_s, **durations)
    profile = held_chunks(tasks, simulate(tasks))
    held = pipeline_schedule(schedule).in_flight(stages, micro_batches, chunks, np.arange(stages))
    if pipeline_schedule(schedule).splits:
        assert (profile.peak <= held).all()
    else:
        assert profile.peak.tolist() == held.tolist()
    assert all(steps[1][-1] == 0.0 for steps in profile.steps)


@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6, 9, 16])
def test_peak_is_reached_under_unit_times(schedule: str, stages: int) -> None:
    # Long runs fill the cap on stage 0; V-Half and V-Min keep one unit of slack at some alignments.
    chunks = 2 if schedule in FOLDED else 1
    one = order(pipeline_schedule(schedule), stages, 6 * stages, chunks)
    tasks = pipeline_tasks(one, forward_s=1, backward_input_s=1, backward_weight_s=1)
    peak = held_chunks(tasks, simulate(tasks)).peak.max()
    cap = int(pipeline_schedule(schedule).in_flight(stages, 6 * stages, chunks, 0))
    slack = 2 if schedule in ("v-half", "v-min") else 0
    assert cap - slack <= peak <= cap


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(SPLIT),
    st.integers(1, 5),
    st.integers(1, 8),
    st.data(),
)
def test_any_memory_limit_per_stage_is_kept(
    schedule: str, stages: int, micro_batches: int, data: st.DataObject
) -> None:
    chunks = 2 if schedule in FOLDED else 1
    some = st.integers(chunks, chunks * micro_batches)
    limit = data.draw(st.lists(some, min_size=stages, max_size=stages))
    one = order(pipeline_schedule(schedule), stages, micro_batches, chunks, memory_limit=limit)
    tasks = pipeline_tasks(one, forward_s=1, backward_input_s=1, backward_weight_s=1)
    assert (held_chunks(tasks, simulate(tasks)).peak <= limit).all()


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 1000), st.sampled_from([0.0, 0.7]), st.integers(0, 4))
def test_filling_plain_and_compiled_give_the_same_bits(
    stages: int, micro_batches: int, seed: int, send_s: float, ahead: int
) -> None:
    chain = pipeline_schedule("zb-v").places(stages, 2)
    passes = np.array((0, 1, 1, 0))
    # One micro-batch at a time: down, up, and back.
    line = np.tile(np.arange(4), micro_batches)
    skeleton = Skeleton(
        position=chain[:, passes[line]],
        kind=np.tile(np.array((0, 0, 2, 2))[line], (stages, 1)),
        allowed=np.full((stages, 4 * micro_batches), min(ahead, micro_batches)),
        patience=0.5,
    )
    both = [
        fill(
            skeleton,
            chain=chain,
            micro_batches=micro_batches,
            times_s=np.stack([each.ravel() for each in times(seed, stages, 2)]),
            send_s=send_s,
            cap=np.full(stages, 4),
            compiled=compiled,
        )
        for compiled in (False, True)
    ]
    plain, compiled = both
    if plain is None or compiled is None:  # forwards ahead of their turn filled the memory, the same way in both
        assert ahead > 0
        assert plain is compiled
    else:
        assert plain.kind.tobytes() == compiled.kind.tobytes()
        assert plain.micro_batch.tobytes() == compiled.micro_batch.tobytes()
        assert plain.makespan_s == compiled.makespan_s


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (("interleaved", 4, 10, 2), "10 micro-batches are not a multiple of 4 stages; nearest legal number: 8"),
        (("interleaved", 4, 1, 2), "nearest legal number: 4"),
        (("interleaved", 4, 8, 1), "chunks = 1, needs >= 2"),
        (("zb-v", 4, 8, 1), "chunks = 1, needs exactly 2"),
        (("1f1b", 4, 8, 2), "chunks = 2, needs exactly 1"),
        (("gpipe", 0, 8, 1), "stages = 0, needs >= 1"),
        (("gpipe", 2, 0, 1), "micro-batches = 0, needs >= 1"),
    ],
)
def test_illegal_shapes_name_the_nearest_legal_one(shape: tuple[str, int, int, int], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        order(pipeline_schedule(shape[0]), *shape[1:])


def test_too_small_memory_limit_is_refused() -> None:
    with pytest.raises(PlanError, match="memory limit 1 chunk-activations on stage 2, needs >= 2"):
        order(pipeline_schedule("v-min"), 4, 8, 2, memory_limit=[8, 8, 1, 8])


def test_times_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(PlanError, match=r"shape \(3,\) do not fit 4 stages"):
        order(pipeline_schedule("zb-h1"), 4, 8, durations=durations_of((4, 1), forward_s=[1.0, 1.0, 1.0]))


def test_in_flight_by_hand() -> None:
    assert pipeline_schedule("gpipe").in_flight(4, 8, 1, np.arange(4)).tolist() == [8, 8, 8, 8]
    assert pipeline_schedule("1f1b").in_flight(4, 3, 1, np.arange(4)).tolist() == [3, 3, 2, 1]
    assert pipeline_schedule("interleaved").in_flight(4, 8, 2, np.arange(4)).tolist() == [11, 9, 7, 5]
    for schedule, chunks, most in (("zb-h1", 1, 4), ("zb-h2", 1, 7), ("zb-v", 2, 8)):
        assert int(pipeline_schedule(schedule).in_flight(4, 99, chunks, 0)) == most
    assert int(pipeline_schedule("v-half").in_flight(64, 256, 2, 0)) == 66
    assert int(pipeline_schedule("v-min").in_flight(64, 256, 2, 0)) == 46
