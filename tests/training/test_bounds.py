"""The closed form never exceeds the simulation, and equals it where theory says so."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.seams.registry import names
from ridgeline.timeline.simulate import busy_s, simulate
from ridgeline.training.bounds import uneven_bound_s
from ridgeline.training.pipeline import durations_of, order, pipeline_schedule, pipeline_tasks

ROUNDING = 1 + 1e-12  # sums in another order
FOLDED = ("zb-v", "v-half", "v-min", "v-half-vocab")
FIXED = ["gpipe", "1f1b", "interleaved"]


Sends = float | np.ndarray  # every one alike, or (2, P, v): forward and backward of each chunk


def simulated_s(
    schedule: str, micro_batches: int, forward: np.ndarray, inputs: np.ndarray, weights: np.ndarray, send_s: Sends
) -> float:
    stages, chunks = forward.shape
    durations = {"forward_s": forward, "backward_input_s": inputs, "backward_weight_s": weights}
    one = order(
        pipeline_schedule(schedule),
        stages,
        micro_batches,
        chunks,
        durations=durations_of(forward.shape, send_s=send_s, **durations),
    )
    onward, homeward = np.broadcast_to(send_s, (2, *forward.shape))
    return simulate(pipeline_tasks(one, send_forward_s=onward, send_backward_s=homeward, **durations)).makespan_s


def bound_s(
    schedule: str, micro_batches: int, forward: np.ndarray, inputs: np.ndarray, weights: np.ndarray, send_s: Sends
) -> float:
    onward, homeward = np.broadcast_to(send_s, (2, *forward.shape))
    return float(
        uneven_bound_s(
            pipeline_schedule(schedule),
            micro_batches,
            forward_s=forward,
            backward_input_s=inputs,
            backward_weight_s=weights,
            send_forward_s=onward,
            send_backward_s=homeward,
        )
    )


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[str, int, int, int, int, float]:
    """Schedule, stages, micro-batches, chunks, seed of the times, send time."""
    schedule = draw(st.sampled_from(names("schedules")))
    stages = draw(st.integers(1, 6))
    rounds = draw(st.integers(1, 3))
    if schedule in ("dualpipe", "dualpipev"):
        stages += stages % 2
        micro_batches = 2 * (stages + draw(st.integers(0, 3)))
        return schedule, stages, micro_batches, 2, draw(st.integers(0, 10**6)), draw(st.sampled_from([0.0, 0.2, 3.0]))
    interleaved = schedule in ("interleaved", "combined-1f1b")
    stages += schedule == "combined-1f1b"
    micro_batches = stages * rounds if interleaved else draw(st.integers(1, 14))
    chunks = draw(st.integers(2, 3)) if interleaved else 2 if schedule in FOLDED else 1
    return schedule, stages, micro_batches, chunks, draw(st.integers(0, 10**6)), draw(st.sampled_from([0.0, 0.2, 3.0]))


@settings(deadline=None, max_examples=300)
@given(pipelines())
def test_bound_never_exceeds_the_simulation(pipeline: tuple[str, int, int, int, int, float]) -> None:
    schedule, stages, micro_batches, chunks, seed, send_s = pipeline
    times = np.random.default_rng(seed).exponential(1.0, (3, stages, chunks))
    assert (
        bound_s(schedule, micro_batches, *times, send_s)
        <= simulated_s(schedule, micro_batches, *times, send_s) * ROUNDING
    )


@settings(deadline=None, max_examples=300)
@given(pipelines(), st.sampled_from([0.3, 3.0, 30.0]))
def test_bound_holds_where_every_boundary_has_a_link_of_its_own(
    pipeline: tuple[str, int, int, int, int, float], slowest_s: float
) -> None:
    schedule, stages, micro_batches, chunks, seed, _ = pipeline
    random = np.random.default_rng(seed)
    times = random.exponential(1.0, (3, stages, chunks))
    sends = random.uniform(0, 0.1, (2, stages, chunks))
    sends[:, random.integers(stages)] = slowest_s
    bound = bound_s(schedule, micro_batches, *times, sends)
    assert bound <= simulated_s(schedule, micro_batches, *times, sends) * ROUNDING
    assert bound >= bound_s(schedule, micro_batches, *times, 0.0)


@pytest.mark.parametrize("schedule", FIXED)
@pytest.mark.parametrize("stages", [1, 2, 3, 8])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_even_stages_without_sends_attain_the_bound(schedule: str, stages: int, rounds: int) -> None:
    chunks = 3 if schedule == "interleaved" else 1
    micro_batches = stages * rounds
    times = np.broadcast_to(np.array([1.0, 1.5, 0.5])[:, None, None], (3, stages, chunks))
    theory = (micro_batches + (stages - 1) / chunks) * 3.0 * chunks
    assert bound_s(schedule, micro_batches, *times, 0.0) == pytest.approx(theory, rel=1e-12)
    assert simulated_s(schedule, micro_batches, *times, 0.0) == pytest.approx(theory, rel=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(1, 10), st.integers(0, 10**6), st.floats(0.0, 3.0))
def test_gpipe_is_exact_for_any_times(stages: int, micro_batches: int, seed: int, send_s: float) -> None:
    times = np.random.default_rng(seed).exponential(1.0, (3, stages, 1))
    bound = bound_s("gpipe", micro_batches, *times, send_s)
    assert bound == pytest.approx(simulated_s("gpipe", micro_batches, *times, send_s), rel=1e-12)


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-h2", "zb-v"])
@pytest.mark.parametrize("stages", [2, 3, 4, 8, 13])
def test_zero_bubble_attains_its_bound_with_equal_parts(schedule: str, stages: int) -> None:
    # m (f + b + w) of every stage plus the fill of the last one, which nothing can avoid.
    chunks = 2 if schedule == "zb-v" else 1
    micro_batches = 4 * stages
    times = np.ones((3, stages, chunks))
    theory = 3.0 * micro_batches * chunks + stages - 1
    assert bound_s(schedule, micro_batches, *times, 0.0) == theory
    assert simulated_s(schedule, micro_batches, *times, 0.0) == theory


@pytest.mark.parametrize(
    ("schedule", "chunks", "highest"),
    # Largest bubbles printed by the schedules' authors' scheduler at 16 stages, 64 micro-batches, F = B = W.
    [("zb-h2", 1, 0.001), ("zb-v", 2, 0.001), ("v-half", 2, 0.108), ("v-min", 2, 0.141)],
)
def test_bubbles_are_those_of_the_published_schedulers(schedule: str, chunks: int, highest: float) -> None:
    tasks = pipeline_tasks(
        order(pipeline_schedule(schedule), 16, 64, chunks), forward_s=1, backward_input_s=1, backward_weight_s=1
    )
    span = busy_s(tasks, simulate(tasks)).span_s[:16].max()
    assert 1 - 3 * 64 * chunks / span <= highest


def test_bound_by_hand_with_uneven_stages() -> None:
    # 1F1B, 3 stages, f = 1, 2, 1 and b = 2, 4, 2, two micro-batches, sends of 0.5.
    # Stage 1: head 1 + .5, work 2 (2 + 4), tail .5 + 2 = 16. Flow: chain 4 + 8 + 4 * .5 = 14, plus the slowest, 4: 18.
    forward, inputs = np.array([[1.0], [2.0], [1.0]]), np.array([[2.0], [4.0], [2.0]])
    bound = bound_s("1f1b", 2, forward, inputs, np.zeros((3, 1)), 0.5)
    assert bound == 18.0
    assert simulated_s("1f1b", 2, forward, inputs, np.zeros((3, 1)), 0.5) == 18.0


def test_sends_lengthen_the_round_trip_of_1f1b() -> None:
    # Two stages, f = b = send = 1. Stage 0 holds 2 in flight and a trip takes 6, so forward 7 starts at 1 + 3 * 6 or
    # later and its trip ends at 25. Really forward 7 stands behind backward 5 and starts at 20: 26.
    times = np.stack((np.ones((2, 1)), np.ones((2, 1)), np.zeros((2, 1))))
    assert bound_s("1f1b", 8, *times, 1.0) == 25.0
    assert simulated_s("1f1b", 8, *times, 1.0) == 26.0


def test_plans_axis_of_the_general_bound() -> None:
    times = np.random.default_rng(1).uniform(1.0, 2.0, (3, 5, 4, 1))
    together = uneven_bound_s(
        pipeline_schedule("zb-h1"),
        np.arange(3, 8),
        forward_s=times[0],
        backward_input_s=times[1],
        backward_weight_s=times[2],
    )
    alone = [bound_s("zb-h1", 3 + plan, *times[:, plan], 0.0) for plan in range(5)]
    assert together.tolist() == alone
