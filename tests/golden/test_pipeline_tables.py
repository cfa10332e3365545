"""The authors' tables of zero-bubble and V-shaped schedules: bubbles and activation memory where F = B = W.

Bubble rates and memory of 1F1B, ZB1P (H1), ZB2P (H2) and ZBV: README of sail-sg/zero-bubble-pipeline-parallelism,
commit 3a91d0c (arXiv 2401.10241). V-Half's half and V-Min's third of 1F1B's memory: abstract of arXiv 2405.15362; their
bubbles: the same README at its newest; their activations in micro-batches: the authors' playground
(huggingface.co/spaces/sail/pipeline-parallelism-with-controllable-memory, description1.md). Unequal parts with sends:
`zero_bubble.tsv`.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.rivals.held_chunks import held_chunks

from ridgeline.timeline.simulate import busy_s, simulate
from ridgeline.training.pipeline import durations_of, order, pipeline_schedule, pipeline_tasks

CHUNKS = {"zb-v": 2, "v-half": 2, "v-min": 2}
LINES = Path(__file__).with_name("zero_bubble.tsv").read_text(encoding="utf-8").splitlines()
PROFILED = list(csv.DictReader((line for line in LINES if not line.startswith("#")), delimiter="\t"))
WORSE = {"zb-h1": 0.0, "zb-h2": 0.0, "zb-v": 0.005, "v-half": 0.027, "v-min": 0.0015}
"""Most by which a bubble rate is above that of the authors' own scheduler."""


def run(schedule: str, stages: int, micro_batches: int) -> tuple[float, float]:
    """The largest bubble of a stage over its work, and the most activations that a stage holds, over 1F1B's."""
    chunks = CHUNKS.get(schedule, 1)
    found = order(pipeline_schedule(schedule), stages, micro_batches, chunks)
    tasks = pipeline_tasks(found, forward_s=1, backward_input_s=1, backward_weight_s=1)
    timeline, work_s = simulate(tasks), 3 * micro_batches * chunks
    bubble = busy_s(tasks, timeline).span_s[:stages].max() / work_s - 1
    return bubble, held_chunks(tasks, timeline).peak.max() / chunks / stages


@pytest.mark.parametrize("stages", [4, 8, 16])
@pytest.mark.parametrize(
    ("schedule", "over", "memory"), [("1f1b", 1.0, 1.0), ("zb-h1", 3.0, 1.0), ("zb-h2", None, 2.0), ("zb-v", None, 1.0)]
)
def test_the_table_of_zero_bubble_schedules(schedule: str, over: float | None, memory: float, stages: int) -> None:
    micro_batches = 4 * stages
    bubble, held = run(schedule, stages, micro_batches)
    assert bubble == pytest.approx((stages - 1) / (over * micro_batches) if over else 0.0, abs=1e-12)
    assert memory - 1 / stages <= held <= memory  # of ZB-H2 2P - 1, which the table rounds to 2P


@pytest.mark.parametrize(("schedule", "memory"), [("v-half", 1 / 2), ("v-min", 1 / 3)])
def test_v_schedules_hold_a_half_and_a_third(schedule: str, memory: float) -> None:
    held = [run(schedule, stages, 4 * stages)[1] - memory for stages in (8, 16, 32)]
    assert all(0 <= more <= 1.5 / stages for more, stages in zip(held, (8, 16, 32), strict=True))


@pytest.mark.parametrize("stages", [16, 32])
@pytest.mark.parametrize(
    ("schedule", "of_bubble", "micro_batches"), [("v-half", 1 / 2, (2, 2)), ("v-min", 2 / 3, (4, 3))]
)
def test_the_table_of_v_schedules(schedule: str, of_bubble: float, micro_batches: tuple[int, int], stages: int) -> None:
    """Half and two thirds of 1F1B's bubble; activations of (P + 2) // 2 and (P + 4) // 3 micro-batches, to a half."""
    bubble, held = run(schedule, stages, 4 * stages)
    plain = (stages - 1) / (4 * stages)
    assert bubble / (1 + bubble) == pytest.approx(of_bubble * plain / (1 + plain), abs=0.01)
    more, share = micro_batches
    assert held * stages == pytest.approx((stages + more) // share, abs=0.5)


@pytest.mark.parametrize("schedule", WORSE)
@pytest.mark.parametrize("row", PROFILED, ids=lambda row: f"{row['stages']}x{row['micro_batches']}x{row['forward']}")
def test_bubbles_at_the_times_that_the_authors_profiled(row: dict[str, str], schedule: str) -> None:
    stages, micro_batches = int(row["stages"]), int(row["micro_batches"])
    chunks = CHUNKS.get(schedule, 1)
    forward, backward, weight, send = (float(row[name]) for name in ("forward", "input", "weight", "send"))
    times = {"forward_s": forward, "backward_input_s": backward, "backward_weight_s": weight}
    known = durations_of((stages, chunks), **times, send_s=send)
    found = order(pipeline_schedule(schedule), stages, micro_batches, chunks, durations=known)
    tasks = pipeline_tasks(found, **times, send_forward_s=send, send_backward_s=send)
    longest = busy_s(tasks, simulate(tasks)).span_s[:stages].max()
    rate = 1 - micro_batches * chunks * (forward + backward + weight) / longest
    assert rate <= float(row[schedule]) + WORSE[schedule] + 5.1e-5
    if not WORSE[schedule]:
        assert rate == pytest.approx(float(row[schedule]), abs=5.1e-5)
