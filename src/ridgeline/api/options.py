"""The questions and what each takes: arguments and options (`data/options.tsv`), fields, help and examples."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ridgeline.api.flags import LIMIT_FIELDS, STATED_FIELDS
from ridgeline.api.verb import REQUIRED, VERBS, Argument, Verb
from ridgeline.facts.store import TableRow, read_tsv
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS, Field
from ridgeline.scenario.post_training_fields import POST_FLAGS
from ridgeline.scenario.sampling_fields import PICTURE_FIELDS
from ridgeline.scenario.serving_fields import (
    BATCH_FIELDS,
    DEPLOYMENT_FIELDS,
    HOST_FIELDS,
    OFFLOAD_FIELDS,
    TRAFFIC_FIELDS,
)

_TYPES: Mapping[str, type] = {one.__name__: one for one in (str, int, float, bool, list)}


def _argument(row: TableRow) -> Argument:
    default = REQUIRED if row["default"] == "required" else json.loads(row["default"] or "null")
    least, most = (json.loads(row[end] or "null") for end in ("least", "most"))
    return Argument(
        kind=_TYPES[row["kind"]], flag=row["flag"], short=row["short"], help=row["help"], default=default, least=least,
        most=most, choices=tuple(row["choices"].split()), metavar=row["metavar"] or None, shown=row["shown"] != "no",
    )  # fmt: skip


def _verb(
    name: str,
    run: str,
    short: str,
    told: str,
    *,
    examples: str = "",
    fields: Mapping[str, tuple[Field, ...]] | None = None,
) -> None:
    own = {row["name"]: _argument(row) for row in read_tsv("options.tsv") if name in row["of"].split()}
    epilog = f"\b\nExamples:{examples}" if examples else None
    VERBS[name] = Verb(run=run, short_help=short, help=told, epilog=epilog, own=own, fields=fields or {})


_RUN_FLAGS = {
    "Training: the workload": WORKLOAD_FIELDS,
    "Training: the plan": PLAN_FIELDS,
    "Serving: the batch": BATCH_FIELDS,
    "Serving: the deployment": DEPLOYMENT_FIELDS,
}

_verb(
    "plan", "planning.plan", "Find the best plan for a workload.",
    "Find the best plan for a workload on a cluster; flags of a plan (--tp 8) are kept as given.",
    examples="""
  ridgeline plan llama-3.1-8b --on 8xH100-SXM --seq-len 8192 --tokens 100B
  ridgeline plan qwen3-32b --serve --on 8xH100-SXM --rate 8
      --prompt 2048 --output 256 --slo ttft=1s,tpot=50ms""",
    fields={
        "Training: the workload": WORKLOAD_FIELDS,
        "Training: the plan; what is given is kept": STATED_FIELDS,
        "Training: bounds of the search": LIMIT_FIELDS,
        "Serving: traffic and objective": TRAFFIC_FIELDS,
        "Serving: the deployment; what is given is kept": DEPLOYMENT_FIELDS,
        "Serving: weights in host memory": HOST_FIELDS,
        "Post-training": POST_FLAGS,
    },
)  # fmt: skip
_verb(
    "predict", "planning.predict", "Explain one plan to the operator.",
    "Explain one plan to the layer: time, memory, energy, money, and what limits it.",
    examples="""
  ridgeline predict llama-3.1-8b --on 8xH100-SXM --zero 3 --micro-batch 1
  ridgeline predict llama-3.1-8b --serve --on 1xH100-SXM --batch 32
  ridgeline predict flux.1-dev --on h100 --steps 28
  ridgeline predict qwen3-32b --on 64xH100-SXM --task grpo --prompts 64
  ridgeline predict resnet-50 --serve --on h100 --batch 32
  ridgeline predict mixtral-8x7b --serve --on 1xRTX-4090
      --offload computed --cpu Xeon-Gold-6454S --dram 512GB""",
    fields={
        **_RUN_FLAGS, "Serving: weights in host memory": OFFLOAD_FIELDS, "Pictures": PICTURE_FIELDS,
        "Post-training": POST_FLAGS,
    },
)  # fmt: skip
_verb(
    "simulate", "simulating.simulate", "Replay traffic on a deployment.",
    "Replay a trace, a rate or users on a deployment: latencies by quantile, goodput, cache, energy, money.",
    examples="""
  ridgeline simulate qwen3-32b --on 2xH100-SXM --tp 2 --rate 2
      --prompt 2048 --output 256 --slo ttft=1s,tpot=50ms
  ridgeline simulate qwen3-32b --on 2xH100-SXM --tp 2 --find rate
      --prompt 2048 --output 256 --slo ttft.p99=1s,itl.p95=60ms""",
    fields={"Traffic and objective": TRAFFIC_FIELDS, "Deployment": DEPLOYMENT_FIELDS},
)  # fmt: skip
_verb(
    "advise", "advising.advise", "Say which techniques would help, and by how much.",
    "Say what limits a scenario, which techniques and options would help alone and together, and at what cost.",
    examples="""
  ridgeline advise llama-3.1-8b --on 8xH100-SXM --zero 3 --micro-batch 1
  ridgeline advise gpt2 --on 1xH100-SXM --trace-file step.pt.trace.json.gz
  ridgeline advise qwen3-32b --serve --on 2xH100-SXM --tp 2 --rate 2
      --prompt 2048 --output 256 --slo ttft=1s,tpot=50ms
  ridgeline advise flux.1-dev --on 8xH100-SXM --pictures-per-minute 100""",
    fields={
        **_RUN_FLAGS, "Serving: traffic and objective": TRAFFIC_FIELDS, "Serving: weights in host memory": HOST_FIELDS,
        "Pictures": PICTURE_FIELDS,
    },
)  # fmt: skip
_verb(
    "export", "exporting.export", "Write the config that runs a plan.",
    "Write a plan as the config of an engine or framework, with what was predicted and what it cannot say.",
    examples="""
  ridgeline export qwen3-32b --on 2xH100-SXM --tp 2 --to vllm -o run
  ridgeline export llama-3.1-8b --on 8xH100-SXM --zero 3 --to deepspeed --around slurm""",
    fields=_RUN_FLAGS,
)  # fmt: skip
_verb(
    "init", "beginning.init", "Write a scenario file to start from.",
    "Write a scenario file with the usual values, what each word means and the alternatives.",
    examples="""
  ridgeline init llama-3.1-8b --on 8xH100-SXM
  ridgeline init qwen3-32b --serve --on 2xH100-SXM -o serving.toml""",
)  # fmt: skip
_verb(
    "sweep", "sweeping.sweep", "Ask one question for every case of a grid.",
    "Ask a question for every case of a TOML file's grid or list, by many processes; what was answered is kept in "
    "a journal, from which the same command goes on.",
    examples="""
  ridgeline sweep sweep.toml --out rows.csv
  ridgeline sweep sweep.toml --shard $SLURM_ARRAY_TASK_ID/16""",
)  # fmt: skip
_verb(
    "op", "operating.operate", "Price one operator on some machines.",
    "Price one product, attention, experts, stream of bytes or collective: time, rate, bytes, what binds it.",
)  # fmt: skip
_verb(
    "catalog", "catalog.catalog", "Show facts with source and evidence.",
    "Show models, accelerators, clusters, processors or benchmarks' recipes: facts with source and evidence.",
)  # fmt: skip
_verb(
    "techniques", "techniques.techniques", "Show techniques: optimizers, schedules, yours.",
    "Show techniques, built in or of an installed package: what each does, its parameters, seams and sources.",
)  # fmt: skip
_verb(
    "check", "checking.check", "Compare predictions with measurements.",
    "Predict every row of a table of measurements and say how wrong it was.",
)  # fmt: skip
_verb(
    "claims", "claiming.claims", "Compare predictions with what papers report.",
    "Show what papers report, how each claim is checked, the paper's number, ours with interval, and the verdict.",
    examples="""
  ridgeline claims --family train-parallel
  ridgeline claims --paper GPipe -v""",
)  # fmt: skip
_verb(
    "score", "scoring.score", "Compute a metric over results or traces.",
    "Compute a metric over tables of results (TSV, CSV, JSON, .npy) or profiler traces; alone it lists metrics.",
    examples="""
  ridgeline score cuda-l1 --metric 'speedups(missing=1)' --column speedup=default --by device
  ridgeline score bs1.json bs8.json bs64.json --metric tklqt""",
)  # fmt: skip
_verb(
    "numerics", "computing.compute", "Run an algorithm on arrays, with its error.",
    "Run an algorithm (rounding, preconditioning) on a weight and measure its error; alone it lists them.",
    examples="""
  ridgeline numerics 'gptq(bits=3)' --shape 512x512
  ridgeline numerics shampoo --weights layer.npy --inputs calibration.npy""",
)  # fmt: skip
_verb(
    "fit", "fitting.fit", "Refit the mechanisms from public operator tables.",
    "Refit every device, operator family and library version from the public tables of ridgeline[measured].",
)  # fmt: skip
_verb(
    "calibrate", "calibrating.calibrate", "Measure this machine and write its profile.",
    "Measure what this machine can do, for --on here and --on profile:FILE; needs ridgeline[measure].",
)  # fmt: skip
_verb(
    "measure", "measuring.measure", "Run a plan here, or judge a kernel.",
    "Run a training plan or a batch on local devices, predicted against measured; or judge a candidate kernel.",
    fields=_RUN_FLAGS,
)  # fmt: skip
