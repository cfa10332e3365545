"""The questions and what each takes: its arguments and options, the tables of its fields, its help and its examples."""

from __future__ import annotations

from typing import Any

from ridgeline.api.flags import LIMIT_FIELDS, STATED_FIELDS
from ridgeline.api.verb import REQUIRED, VERBS, Argument, Verb
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS
from ridgeline.scenario.post_training_fields import POST_FLAGS
from ridgeline.scenario.sampling_fields import PICTURE_FIELDS
from ridgeline.scenario.serving_fields import (
    BATCH_FIELDS,
    DEPLOYMENT_FIELDS,
    HOST_FIELDS,
    OFFLOAD_FIELDS,
    TRAFFIC_FIELDS,
)

KINDS = ("models", "accelerators", "clusters", "processors", "recipes")
OBJECTIVES = ("time", "memory", "goodput", "dollars", "joules")
SERVING_AIMS = ("goodput", "time", "dollars", "joules", "carbon")
CAPACITY = ("rate", "devices", "slo")
EVIDENCE = ("measured", "datasheet")
OPERATOR_EVIDENCE = ("measured", "fitted", "borrowed", "datasheet")


def _argument(kind: type, help_: str, default: Any = REQUIRED, **more: Any) -> Argument:
    return Argument(kind=kind, help=help_, default=default, **more)


def _option(kind: type, flag: str, help_: str, default: Any = None, **more: Any) -> Argument:
    return Argument(kind=kind, help=help_, flag=flag, default=default, **more)


_SUBJECT = _argument(
    str, "catalog name, config.json (file or folder), or a scenario", None, metavar="MODEL|SCENARIO.toml"
)
_CONFIG = _option(
    str, "--from-config", "a program's own config, its words under those said here: vllm.yaml, deepspeed:ds.json",
    metavar="FILE",
)  # fmt: skip
_ON = _option(str, "--on", "e.g. 64xH100-SXM, or a cluster's TOML file", metavar="CLUSTER")
_REGION = _option(str, "--region", "where it stands, for its carbon: FR, Germany ...", metavar="NAME")
_PRICE = _option(
    str,
    "--price",
    "your own price of a device of --on for an hour [USD]: 1.99, or spot; of groups 2.5,0.8",
    metavar="USD",
)
_CAP = _option(str, "--power-cap", "a limit of each board [W]: 500W", metavar="W")
_ASKED = {"subject": _SUBJECT, "on": _ON, "from_config": _CONFIG, "region": _REGION, "price": _PRICE, "power_cap": _CAP}
_NAMED = _argument(str, "one entry, with all that is known of it", None)
_RUNG = _option(str, "--evidence", "rates that others measured, or the datasheet's alone", "measured", choices=EVIDENCE)
_OPERATOR_RUNG = _option(
    str, "--evidence", "best rung: measured tables, fits, fits of other devices, or the datasheet alone", "measured",
    choices=OPERATOR_EVIDENCE,
)  # fmt: skip
_QUICK = _option(bool, "--quick", "without what a tenth more of each resource would change", False)
_TRAIN = _option(bool, "--train", "the workload is training, unless --serve", True, shown=False)
_SERVE = _option(bool, "--serve", "the workload is serving: say traffic and an objective", False)
_RUN_FLAGS = {
    "Training: the workload": WORKLOAD_FIELDS,
    "Training: the plan": PLAN_FIELDS,
    "Serving: the batch": BATCH_FIELDS,
    "Serving: the deployment": DEPLOYMENT_FIELDS,
}

VERBS["plan"] = Verb(
    run="planning.plan",
    short_help="Find the best plan for a workload.",
    help="Find the best plan for a workload on a cluster; flags of a plan (--tp 8) are kept as given.",
    epilog="""\b
Examples:
  ridgeline plan llama-3.1-8b --on 8xH100-SXM --seq-len 8192 --tokens 100B
  ridgeline plan qwen3-32b --serve --on 8xH100-SXM --rate 8
      --prompt 2048 --output 256 --slo ttft=1s,tpot=50ms""",
    own={
        **_ASKED, "train": _TRAIN, "serve": _SERVE,
        "quantize": _option(
            bool, "--quantize", "with --serve: also try weights and caches narrower than the model's", False
        ),
        "pools": _option(bool, "--pools/--no-pools", "with --serve: also try prefill and decode pools", True),
        "min_devices": _option(
            bool, "--min-devices", "with --serve: the fewest devices that keep to the objective", False
        ),
        "aim": _option(
            str, "--for", "less of what: time, dollars, joules, carbon; with --serve of what keeps the objective, or"
            " goodput; by default time, with --serve goodput", choices=SERVING_AIMS
        ),
        "rent": _option(str, "--rent", "with --serve: rent the cheapest of H100-SXM=16,L40S", metavar="OFFERS"),
        "evidence": _RUNG,
        "exhaustive": _option(bool, "--exhaustive", "try every schedule, sharding and micro-batch", False),
        "layerwise": _option(bool, "--layerwise", "also search a strategy for each layer", False),
        "top": _option(int, "--top", "plans to show", 5, least=1, most=100),
    },
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
VERBS["predict"] = Verb(
    run="planning.predict",
    short_help="Explain one plan to the operator.",
    help="Explain one plan to the layer: time, memory, energy, money, and what limits it.",
    epilog="""\b
Examples:
  ridgeline predict llama-3.1-8b --on 8xH100-SXM --zero 3 --micro-batch 1
  ridgeline predict llama-3.1-8b --serve --on 1xH100-SXM --batch 32
  ridgeline predict flux.1-dev --on h100 --steps 28
  ridgeline predict qwen3-32b --on 64xH100-SXM --task grpo --prompts 64
  ridgeline predict resnet-50 --serve --on h100 --batch 32
  ridgeline predict mixtral-8x7b --serve --on 1xRTX-4090
      --offload computed --cpu Xeon-Gold-6454S --dram 512GB""",
    own={
        **_ASKED, "train": _TRAIN, "serve": _SERVE,
        "evidence": _RUNG,
        "trace": _option(str, "--trace", "write the timeline as a Chrome trace, for Perfetto", metavar="FILE"),
        "longest": _option(bool, "--longest", "also the longest sequence of training that fits in memory", False),
        "quick": _QUICK,
    },
    fields={
        **_RUN_FLAGS, "Serving: weights in host memory": OFFLOAD_FIELDS, "Pictures": PICTURE_FIELDS,
        "Post-training": POST_FLAGS,
    },
)  # fmt: skip
VERBS["simulate"] = Verb(
    run="simulating.simulate",
    short_help="Replay traffic on a deployment.",
    help="Replay a trace, a rate or users on a deployment: latencies by quantile, goodput, cache, energy, money.",
    epilog="""\b
Examples:
  ridgeline simulate qwen3-32b --on 2xH100-SXM --tp 2 --rate 2
      --prompt 2048 --output 256 --slo ttft=1s,tpot=50ms
  ridgeline simulate qwen3-32b --on 2xH100-SXM --tp 2 --find rate
      --prompt 2048 --output 256 --slo ttft.p99=1s,itl.p95=60ms""",
    own={
        **_ASKED,
        "quick": _QUICK,
        "find": _option(
            str,
            "--find",
            "the highest rate, the fewest devices, or the tightest objective that is kept",
            choices=CAPACITY,
        ),
    },
    fields={"Traffic and objective": TRAFFIC_FIELDS, "Deployment": DEPLOYMENT_FIELDS},
)
VERBS["advise"] = Verb(
    run="advising.advise",
    short_help="Say which techniques would help, and by how much.",
    help="Say what limits a scenario, which techniques and options would help alone and together, and at what cost.",
    epilog="""\b
Examples:
  ridgeline advise llama-3.1-8b --on 8xH100-SXM --zero 3 --micro-batch 1
  ridgeline advise gpt2 --on 1xH100-SXM --trace-file step.pt.trace.json.gz
  ridgeline advise qwen3-32b --serve --on 2xH100-SXM --tp 2 --rate 2
      --prompt 2048 --output 256 --slo ttft=1s,tpot=50ms
  ridgeline advise flux.1-dev --on 8xH100-SXM --pictures-per-minute 100""",
    own={
        **_ASKED, "train": _TRAIN, "serve": _SERVE,
        "objective": _option(
            str, "--for", "less of what: time, memory, dollars, joules; more goodput of serving", choices=OBJECTIVES
        ),
        "evidence": _RUNG,
        "trace_file": _option(
            list, "--trace-file", "beside a trace of PyTorch's profiler (Kineto, Chrome JSON, gzipped or not);"
            " repeated: from the smallest batch up", metavar="FILE",
        ),
        "trace_step": _option(
            str, "--trace-step", "how names of the trace's steps begin", "ProfilerStep#", metavar="TEXT"
        ),
    },
    fields={
        **_RUN_FLAGS, "Serving: traffic and objective": TRAFFIC_FIELDS, "Serving: weights in host memory": HOST_FIELDS,
        "Pictures": PICTURE_FIELDS,
    },
)  # fmt: skip
VERBS["export"] = Verb(
    run="exporting.export",
    short_help="Write the config that runs a plan.",
    help="Write a plan as the config of an engine or framework, with what was predicted and what it cannot say.",
    epilog="""\b
Examples:
  ridgeline export qwen3-32b --on 2xH100-SXM --tp 2 --to vllm -o run
  ridgeline export llama-3.1-8b --on 8xH100-SXM --zero 3 --to deepspeed --around slurm""",
    own={
        **_ASKED,
        "to": _option(str, "--to", "the program: vllm, sglang, deepspeed, torchtitan ...", REQUIRED, metavar="TARGET"),
        "release": _option(str, "--release", "of the program; the newest that is known", metavar="X.Y"),
        "around": _option(
            str, "--around", "what runs it on a cluster, beside it: a script or manifest", metavar="slurm|kubernetes"
        ),
        "out": _option(str, "--out", "where files are written; printed when absent", metavar="FOLDER", short="-o"),
    },
    fields=_RUN_FLAGS,
)  # fmt: skip
VERBS["init"] = Verb(
    run="beginning.init",
    short_help="Write a scenario file to start from.",
    help="Write a scenario file with the usual values, what each word means and the alternatives.",
    epilog="""\b
Examples:
  ridgeline init llama-3.1-8b --on 8xH100-SXM
  ridgeline init qwen3-32b --serve --on 2xH100-SXM -o serving.toml""",
    own={
        "subject": _argument(str, "catalog name of the model", "llama-3.1-8b", metavar="[MODEL]"),
        "on": _option(str, "--on", "e.g. 8xH100-SXM", "8xH100-SXM", metavar="CLUSTER"),
        "serve": _option(bool, "--serve", "the workload is serving", False),
        "out": _option(str, "--out", "the file to write", "scenario.toml", metavar="FILE.toml", short="-o"),
        "force": _option(bool, "--force", "replace a file that is there", False),
    },
)
VERBS["sweep"] = Verb(
    run="sweeping.sweep",
    short_help="Ask one question for every case of a grid.",
    help="Ask a question for every case of a TOML file's grid or list, by many processes; what was answered is kept in "
    "a journal, from which the same command goes on.",
    epilog="""\b
Examples:
  ridgeline sweep sweep.toml --out rows.csv
  ridgeline sweep sweep.toml --shard $SLURM_ARRAY_TASK_ID/16""",
    own={
        "file": _argument(str, "the question, its words, and which of them vary", metavar="SWEEP.toml"),
        "out": _option(str, "--out", "table of all rows in the journal", metavar="FILE.csv|.parquet", short="-o"),
        "journal": _option(
            str, "--journal", "where answers are kept, also those of other machines; SWEEP.journal by default",
            metavar="FOLDER",
        ),
        "shard": _option(str, "--shard", "only each Nth case, from the Kth on, e.g. 3/16", metavar="K/N"),
        "processes": _option(
            int, "--processes", "questions at a time; by default one a processor", least=1, most=4096
        ),
        "limit_case": _option(str, "--limit-case", "the most time of one case, e.g. 60s or 5min", metavar="TIME"),
        "ray": _option(str, "--ray", "by a Ray cluster: its address, auto or local", metavar="ADDRESS"),
    },
)  # fmt: skip
VERBS["op"] = Verb(
    run="operating.operate",
    short_help="Price one operator on some machines.",
    help="Price one product, attention, experts, stream of bytes or collective: time, rate, bytes, what binds it.",
    own={
        "kind": _argument(str, "gemm, prefill, decode, mla_decode, experts, stream, all_reduce, ..."),
        "shape": _argument(str, "4096x4096x14336, 4x4096x32x8x128, or a size such as 256MiB"),
        "dtype": _argument(str, "bf16 (else fp16, fp32), fp8, fp8_block, nvfp4, int4_wo, ...", ""),
        "on": _option(
            str, "--on", "e.g. H100-SXM,MI300X or 8xH100-SXM", "H100-SXM", metavar="MACHINE[,MACHINE]"
        ),
        "full": _option(bool, "--full", "attention without the causal mask", False),
        "backward": _option(bool, "--backward", "attention's backward", False),
        "window": _option(int, "--window", "sliding window of attention [token]; 0 none", 0, least=0),
        "kv_dtype": _option(str, "--kv-dtype", "format of the KV cache, if narrower: fp8", ""),
        "skew": _option(float, "--skew", "power law of rows per expert; 0 balanced", 0.0, least=0, most=4),
        "technique": _option(
            str, "--technique", "how flows go over switches (ecmp, spraying, ...), or blocks are packed (tempi)", ""
        ),
        "library": _option(
            str, "--library", "whose kernels: vllm, sglang, trtllm, nccl", "", metavar="ENGINE [VERSION]"
        ),
        "evidence": _OPERATOR_RUNG,
        "picture": _option(str, "--picture", "draw the roofline of the machines", metavar="FILE.svg"),
    },
)  # fmt: skip
VERBS["catalog"] = Verb(
    run="catalog.catalog",
    short_help="Show facts with source and evidence.",
    help="Show models, accelerators, clusters, processors or benchmarks' recipes: facts with source and evidence.",
    own={"kind": _argument(str, "what to list", choices=KINDS), "name": _NAMED},
)
VERBS["techniques"] = Verb(
    run="techniques.techniques",
    short_help="Show techniques: optimizers, schedules, yours.",
    help="Show techniques, built in or of an installed package: what each does, its parameters, seams and sources.",
    own={
        "name": _NAMED,
        "tag": _option(str, "--tag", "only those of a tag, or all tags of a taxonomy: moe-inference", metavar="NAME"),
    },
)  # fmt: skip
VERBS["check"] = Verb(
    run="checking.check",
    short_help="Compare predictions with measurements.",
    help="Predict every row of a table of measurements and say how wrong it was.",
    own={
        "table": _argument(
            str, "table of measurements, or results of vLLM, SGLang, AIPerf, GuideLLM", metavar="FILE.tsv|RESULTS.json"
        ),
        "on": _option(str, "--on", "where results were measured, which their files do not say", metavar="CLUSTER"),
        "model": _option(str, "--model", "the model of results that do not say it", metavar="NAME"),
        "tp": _option(int, "--tp", "tensor-parallel degree of results; else all devices", least=1, most=4096),
        "engine": _option(str, "--engine", "the engine of results: 'vllm 0.11'", metavar="NAME"),
        "weights": _option(str, "--weights", "number format of results' weights: bf16, fp8 ...", metavar="FORMAT"),
        "evidence": _OPERATOR_RUNG,
        "recipe": _option(str, "--recipe", "of rows that name none: `ridgeline catalog recipes`", metavar="NAME"),
        "blind": _option(bool, "--blind", "use nothing that a row does not say: no recipe of its source", False),
    },
)  # fmt: skip
VERBS["claims"] = Verb(
    run="claiming.claims",
    short_help="Compare predictions with what papers report.",
    help="Show what papers report, how each claim is checked, the paper's number, ours with interval, and the verdict.",
    epilog="""\b
Examples:
  ridgeline claims --family train-parallel
  ridgeline claims --paper GPipe -v""",
    own={
        "family": _option(str, "--family", "only papers of this family, e.g. moe-serve", metavar="NAME"),
        "paper": _option(str, "--paper", "only this paper, by its number or system", metavar="N|SYSTEM"),
        "verbose": _option(bool, "-v", "show the derivation: commands, values, settings and sources", False),
    },
)  # fmt: skip
VERBS["score"] = Verb(
    run="scoring.score",
    short_help="Compute a metric over results or traces.",
    help="Compute a metric over tables of results (TSV, CSV, JSON, .npy) or profiler traces; alone it lists metrics.",
    epilog="""\b
Examples:
  ridgeline score cuda-l1 --metric 'speedups(missing=1)' --column speedup=default --by device
  ridgeline score bs1.json bs8.json bs64.json --metric tklqt""",
    own={
        "tables": _argument(list, "files, or names of published results", None, metavar="[FILE ...]"),
        "metric": _option(str, "--metric", "which, with parameters: 'fast-p(p=1/2)'", metavar="NAME"),
        "columns": _option(list, "--column", "NAME=COLUMN where a table calls it otherwise; repeated"),
        "by": _option(str, "--by", "also each part of a table by this column", metavar="COLUMN"),
    },
)  # fmt: skip
VERBS["numerics"] = Verb(
    run="computing.compute",
    short_help="Run an algorithm on arrays, with its error.",
    help="Run an algorithm (rounding, preconditioning) on a weight and measure its error; alone it lists them.",
    epilog="""\b
Examples:
  ridgeline numerics 'gptq(bits=3)' --shape 512x512
  ridgeline numerics shampoo --weights layer.npy --inputs calibration.npy""",
    own={
        "name": _argument(str, "which, with parameters: 'gptq(bits=3,group=128)'", None, metavar="[NAME]"),
        "weights": _option(str, "--weights", "a matrix, outputs x inputs; made up when absent", metavar="FILE.npy"),
        "inputs": _option(str, "--inputs", "samples x inputs; made up when absent", metavar="FILE.npy"),
        "shape": _option(str, "--shape", "of a made-up weight", "256x256", metavar="ROWSxCOLUMNS"),
        "samples": _option(int, "--samples", "made-up samples", 1024, least=1, most=1_000_000),
        "seed": _option(int, "--seed", "of what is made up", 0, least=0, most=2**31),
    },
)  # fmt: skip
VERBS["fit"] = Verb(
    run="fitting.fit",
    short_help="Refit the mechanisms from public operator tables.",
    help="Refit every device, operator family and library version from the public tables of ridgeline[measured].",
    own={
        "out": _option(str, "--out", "where the tables of fits are written", "fits", metavar="FOLDER"),
        "families": _option(list, "--family", "only this family; may be repeated"),
        "processes": _option(int, "--processes", "fits at a time", 2, least=1, most=256),
        "rungs": _option(
            bool, "--rungs", "judge the shipped fits on rows that no fit used, instead of refitting", False
        ),
    },
)  # fmt: skip
VERBS["calibrate"] = Verb(
    run="calibrating.calibrate",
    short_help="Measure this machine and write its profile.",
    help="Measure what this machine can do, for --on here and --on profile:FILE; needs ridgeline[measure].",
    own={
        "budget": _option(str, "--budget", "time to spend, e.g. 30s or 5min", "2min", metavar="TIME"),
        "out": _option(str, "--out", "where the profile is written; for --on here by default", metavar="FILE"),
        "force": _option(bool, "--force", "replace a profile that exists", False),
        "device": _option(str, "--device", "cuda, mps or cpu; default the best", "", metavar="KIND"),
    },
)  # fmt: skip
VERBS["measure"] = Verb(
    run="measuring.measure",
    short_help="Run a plan here, or judge a kernel.",
    help="Run a training plan or a batch on local devices, predicted against measured; or judge a candidate kernel.",
    own={
        "subject": _argument(str, "what to run for real, as for predict", None, metavar="[MODEL|SCENARIO.toml]"),
        "on": _ON,
        "train": _TRAIN,
        "serve": _option(bool, "--serve", "run a static batch: prompts, then token by token", False),
        "kernel": _option(str, "--kernel", "judge kernels: files, modules, rows of JSON", metavar="FILE|FOLDER"),
        "solutions": _option(str, "--solutions", "with --kernel: candidates in files apart", metavar="FILE|FOLDER"),
        "candidate": _option(
            str, "--candidate", "with --kernel: which function is judged", "candidate", metavar="NAME"
        ),
        "compiled": _option(bool, "--compile", "with --kernel: also time torch.compile on the reference", False),
        "device": _option(str, "--device", "where it runs", "cpu", metavar="cpu|cuda"),
        "repeats": _option(
            int, "--repeats", "timed steps (5) or calls (20)", least=1, most=10_000, shown=False
        ),
        "limit": _option(float, "--limit", "seconds before a run is stopped", 900, least=1),
        "append": _option(str, "--append", "add the measured rows to your own table", metavar="FILE.tsv"),
    },
    fields=_RUN_FLAGS,
)  # fmt: skip
