"""How fast schedules are made and simulated, and how small their bubbles are.

    PYTHONPATH=src python benchmarks/bench_schedules.py

Writes schedules.md beside this file. Times are wall clock. Warm: median of five after one call with the kernels
compiled. New process: imports, loading the compiled kernels from Numba's cache and everything else.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ridgeline import predict
from ridgeline.seams.schedule import Order
from ridgeline.timeline.simulate import Timeline, busy_s, simulate
from ridgeline.training.bounds import uneven_bound_s
from ridgeline.training.pipeline import order, pipeline_schedule, pipeline_tasks

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.rivals.held_chunks import held_chunks

CASES = [
    ("zb-h1", 1),
    ("zb-h2", 1),
    ("zb-v", 2),
    ("v-half", 2),
    ("v-min", 2),
]
SIZES = [(16, 64), (64, 256)]
# Seconds to produce one schedule with the schedulers published beside the papers
# (github.com/sail-sg/zero-bubble-pipeline-parallelism, megatron/core/pipeline_parallel/zerobubble/scheduler),
# measured on a machine with 2 cores, and the bubbles that they report; None where not measured.
PUBLISHED: dict[tuple[str, int], tuple[float, str]] = {
    ("zb-h2", 16): (0.05, "~0"),
    ("zb-h2", 64): (0.91, "~0"),
    ("zb-v", 16): (0.13, "0.0002"),
    ("zb-v", 64): (2.7, "0.0002"),
    ("v-half", 16): (1.2, "0.097-0.108"),
    ("v-half", 64): (80.0, "0.097-0.108"),
    ("v-min", 16): (0.74, "0.134-0.141"),
    ("v-min", 64): (51.0, "0.134-0.141"),
}
EVEN = {"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0}


def whole(schedule: str, stages: int, micro_batches: int, chunks: int) -> tuple[Order, Timeline]:
    """Order, tasks and timeline of one pipeline with equal parts."""
    one = order(pipeline_schedule(schedule), stages, micro_batches, chunks)
    return one, simulate(pipeline_tasks(one, **EVEN))


def median_s(call: Callable[[], object], repeats: int = 5) -> float:
    """Median wall-clock time of a call [s]."""
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def new_process_s(schedule: str, stages: int, micro_batches: int, chunks: int) -> float:
    """Wall-clock time of the same in a new process, imports included [s]."""
    arguments = [sys.executable, __file__, schedule, str(stages), str(micro_batches), str(chunks)]
    subprocess.run(arguments, check=True, env=os.environ)  # fills Numba's cache
    return median_s(lambda: subprocess.run(arguments, check=True, env=os.environ), repeats=3)


def schedule_rows() -> list[str]:
    """One table row per schedule and size."""
    rows = []
    for stages, micro_batches in SIZES:
        for schedule, chunks in CASES:
            make = lambda: order(pipeline_schedule(schedule), stages, micro_batches, chunks)  # noqa: B023, E731
            both = lambda: whole(schedule, stages, micro_batches, chunks)  # noqa: B023, E731
            one, timeline = both()
            tasks = pipeline_tasks(one, **EVEN)
            work_s = 3.0 * micro_batches * chunks
            span_s = busy_s(tasks, timeline).span_s[:stages].max()
            times = (np.ones((stages, chunks)),) * 3
            bound_s = uneven_bound_s(
                pipeline_schedule(schedule),
                micro_batches,
                forward_s=times[0],
                backward_input_s=times[1],
                backward_weight_s=times[2],
            )
            peak = held_chunks(tasks, timeline).peak.max() / chunks
            theirs_s, theirs = PUBLISHED.get((schedule, stages), (None, "-"))
            rows.append(
                f"| {schedule} | {stages} x {micro_batches} | {median_s(make) * 1e3:.1f} ms"
                f" | {median_s(both) * 1e3:.1f} ms | {new_process_s(schedule, stages, micro_batches, chunks):.2f} s"
                f" | {'-' if theirs_s is None else f'{theirs_s:g} s'} | {1 - work_s / span_s:.4f} | {theirs}"
                f" | {1 - work_s / timeline.makespan_s:.4f} | {1 - work_s / float(bound_s):.4f} | {peak:g} |"
            )
    return rows


def simulation_rows() -> list[str]:
    """Exact simulations per second of two common shapes."""
    rows = []
    for name, schedule, stages, micro_batches, chunks in (
        ("1F1B p=8 m=96", "1f1b", 8, 96, 1),
        ("interleaved p=8 v=12 m=96", "interleaved", 8, 96, 12),
    ):
        one = order(pipeline_schedule(schedule), stages, micro_batches, chunks)
        for send_s in (0.0, 0.01):
            make = lambda: pipeline_tasks(one, **EVEN, send_forward_s=send_s, send_backward_s=send_s)  # noqa: B023, E731
            tasks = make()
            run_s = median_s(lambda: simulate(tasks, compiled=True), repeats=51)  # noqa: B023
            build_s = median_s(make, repeats=21)
            rows.append(
                f"| {name}{', sends' if send_s else ''} | {tasks.tasks} | {build_s * 1e3:.2f} ms | {run_s * 1e3:.3f} ms"
                f" | {1 / run_s:,.0f} | {1 / (build_s + run_s):,.0f} |"
            )
    return rows


def vocabulary_rows() -> list[str]:
    """Steps of Vocabulary Parallelism's one-host pipelines by words, each way, and the most that a device holds."""
    ways = {"1F1B": {"schedule": "1f1b"}, "1f1b-vocab": {"schedule": "1f1b-vocab"}}
    ways["layers spread anew"] = {"schedule": "1f1b", "layer_split": "4,4,4,5,5,5,5,0"}
    asked = {
        "on": "8xA100-SXM-80GB", "pp": 8, "global_batch": 128, "seq_len": 2048, "micro_batch": 1, "precision": "fp16",
        "zero": 1, "framework": "Megatron-zero-bubble", "quick": True,
    }  # fmt: skip
    rows = []
    for words in ("32k", "64k", "128k", "256k"):
        cells = []
        for way in ("1F1B", "layers spread anew", "1f1b-vocab"):
            found = predict(f"gpt-4b-{words}-words", **asked, **ways[way]).as_dict()
            most = max(one["total_bytes"] for one in found["memory"])
            cells.append(f"{found['step_time_s']['value']:.2f} s, {most / 1e9:.1f} GB")
        rows.append(f"| {words.upper()} | {' | '.join(cells)} |")
    return rows


def break_even_rows() -> list[str]:
    """What one plain step costs, and what loading Numba costs."""
    one = order(pipeline_schedule("1f1b"), 16, 64)
    tasks = pipeline_tasks(one, **EVEN)
    plain_s = median_s(lambda: simulate(tasks, compiled=False)) / tasks.tasks
    load = "import time; t = time.perf_counter(); import numba; print(time.perf_counter() - t)"
    loads = [float(subprocess.check_output([sys.executable, "-c", load])) for _ in range(3)]
    return [
        f"One plain step of the simulator: {plain_s * 1e6:.2f} us; importing Numba: {statistics.median(loads):.2f} s."
    ]


def main() -> None:
    """Measure everything and write the page."""
    for schedule, chunks in CASES:  # compile before anything is timed
        for _ in range(20):
            whole(schedule, 16, 64, chunks)
    lines = [
        "# Schedules: how fast, how small a bubble",
        "",
        f"Written by `benchmarks/bench_schedules.py` on {os.cpu_count()} cores, Python {sys.version.split()[0]}.",
        "Equal parts (F = B = W), no sends. *make*: the order alone; *all*: order, tasks and exact timeline;",
        "*new process*: the same from a fresh interpreter; *theirs*: the published schedulers, order alone, on two",
        "cores. *Span bubble*: 1 - work / longest span of a stage, which is what the published schedulers report and",
        "what is paid per step when steps follow without a barrier; *step bubble*: 1 - work / makespan, paid when the",
        "optimizer waits for all; *least*: the step bubble that no order can beat (`training.bounds`). *Peak* in",
        "full-stage activations of one micro-batch.",
        "",
        "| schedule | p x m | make | all | new process | theirs | span bubble | theirs | step bubble | least | peak |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *schedule_rows(),
        "",
        "## A vocabulary over all stages",
        "",
        "Vocabulary Parallelism's pipelines of one host: 32 layers of 3,072, 128 micro-batches of a sequence of 2,048",
        "tokens on 8 A100. A step and the most that a device holds, head and embedding on the last and first stage,",
        "with layers spread to make room for them, and divided over all stages (`1f1b-vocab`).",
        "",
        "| words | 1F1B | 1F1B, layers 4,4,4,5,5,5,5,0 | `1f1b-vocab` |",
        "|---|---|---|---|",
        *vocabulary_rows(),
        "",
        "## Exact simulations",
        "",
        "| pipeline | tasks | build | simulate | simulations per second | with build |",
        "|---|---|---|---|---|---|",
        *simulation_rows(),
        "",
        *break_even_rows(),
        "",
    ]
    Path(__file__).with_name("schedules.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        whole(sys.argv[1], *(int(value) for value in sys.argv[2:]))
    else:
        main()
