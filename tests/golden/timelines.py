"""Golden timelines: every task of three small plans with its start and end, stored in timelines.json."""

from __future__ import annotations

import json
from pathlib import Path

from ridgeline.facts.clusters import cluster
from ridgeline.graph.build import from_dims
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor

FILE = Path(__file__).with_name("timelines.json")

PLANS = {
    "1f1b, sharded states, everything hidden": ("8xA100-SXM-80GB", 8, Plan(tp=2, pp=2, dp=2, zero=1)),
    "interleaved, exposed exchanges": (
        "4xV100-SXM2-32GB",
        4,
        Plan(pp=2, dp=2, chunks=2, schedule="interleaved", zero=1, overlap_gradients=False, overlap_weights=False),
    ),
    "zb-v over two nodes, weights gathered always": (
        "16xH100-SXM",
        16,
        Plan(tp=4, pp=2, dp=2, sequence_parallel=True, chunks=2, schedule="zb-v", zero=3),
    ),
}


def log(name: str) -> list[list[str | float]]:
    """The task log of one plan: stream, label, micro-batch, chunk, start [s], end [s], in the order of the graph."""
    text, batch, plan = PLANS[name]
    model = from_dims(name="tiny", layers=4, hidden=512, heads=8, vocab=32000, max_positions=1024)
    workload = Workload(seq_len=1024, global_batch=batch, precision="fp16", attention_kernel="unfused")
    found = Predictor(model, cluster(text), workload).evaluate(plan)
    tasks, timeline = found.tasks, found.timeline
    return [
        [
            tasks.stream_names[tasks.stream[i]],
            tasks.label[tasks.kind[i]],
            int(tasks.micro_batch[i]),
            int(tasks.chunk[i]),
            float(timeline.start_s[i]),
            float(timeline.end_s[i]),
        ]
        for i in range(tasks.tasks)
    ]


def stored() -> dict[str, list[list[str | float]]]:
    """The stored logs by plan."""
    found: dict[str, list[list[str | float]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def write() -> None:
    """Store the logs of the code as it is, a task a line."""
    plans = []
    for name in PLANS:
        lines = ",\n".join("  " + json.dumps(task) for task in log(name))
        plans.append(f"{json.dumps(name)}: [\n{lines}\n]")
    FILE.write_text("{\n" + ",\n".join(plans) + "\n}\n", encoding="utf-8")
