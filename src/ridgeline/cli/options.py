"""What several commands take: their arguments and options, and the examples and flags of their help."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS
from ridgeline.scenario.serving_fields import BATCH_FIELDS, DEPLOYMENT_FIELDS


class Kind(StrEnum):
    """What the catalog lists."""

    MODELS = "models"
    ACCELERATORS = "accelerators"
    CLUSTERS = "clusters"
    PROCESSORS = "processors"


class Evidence(StrEnum):
    """The best rung of evidence that a prediction may use."""

    MEASURED = "measured"
    DATASHEET = "datasheet"


class OperatorEvidence(StrEnum):
    """The best rung that may answer for an operator."""

    MEASURED = "measured"  # tables of measured kernels, when they are installed
    FITTED = "fitted"  # mechanisms with values fitted to the device's kernels
    BORROWED = "borrowed"  # with values of other devices only
    DATASHEET = "datasheet"


Subject = Annotated[
    str, typer.Argument(metavar="MODEL|SCENARIO.toml", help="catalog name, config.json (file or folder), or a scenario")
]
On = Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="e.g. 64xH100-SXM, or a cluster's TOML file")]
Region = Annotated[
    str | None,
    typer.Option("--region", metavar="NAME", help="where it stands, for its carbon: FR, Germany ..."),
]
Kinds = Annotated[Kind, typer.Argument(help="what to list")]
Named = Annotated[str | None, typer.Argument(help="one entry, with all that is known of it")]
Json = Annotated[bool, typer.Option("--json", help="print JSON with stable keys and SI numbers")]
Rung = Annotated[Evidence, typer.Option("--evidence", help="rates that others measured, or the datasheet's alone")]
Blind = Annotated[bool, typer.Option("--blind", help="use nothing that a row does not say: no recipe of its source")]

OperatorRung = Annotated[
    OperatorEvidence,
    typer.Option("--evidence", help="best rung: measured tables, fits, fits of other devices, or the datasheet alone"),
]
Train = Annotated[bool, typer.Option("--train", help="the workload is training, unless --serve", show_default=False)]
Serve = Annotated[bool, typer.Option("--serve", help="the workload is serving: say traffic and an objective")]

PLAN_EXAMPLES = """\b
Examples:
  ridgeline plan llama-3.1-8b --on 8xH100-SXM --seq-len 8192 --tokens 100B
  ridgeline plan qwen3-32b --serve --on 8xH100-SXM --rate 8
      --prompt 2048 --output 256 --slo ttft=1s,tpot=50ms"""
PREDICT_EXAMPLES = """\b
Examples:
  ridgeline predict llama-3.1-8b --on 8xH100-SXM --zero 3 --micro-batch 1
  ridgeline predict llama-3.1-8b --serve --on 1xH100-SXM --batch 32
  ridgeline predict mixtral-8x7b --serve --on 1xRTX-4090
      --offload computed --cpu Xeon-Gold-6454S --dram 512GB"""
SIMULATE_EXAMPLES = """\b
Example:
  ridgeline simulate qwen3-32b --on 2xH100-SXM --tp 2 --rate 2
      --prompt 2048 --output 256 --slo ttft=1s,tpot=50ms"""
RUN_FLAGS = {
    "Training: the workload": WORKLOAD_FIELDS,
    "Training: the plan": PLAN_FIELDS,
    "Serving: the batch": BATCH_FIELDS,
    "Serving: the deployment": DEPLOYMENT_FIELDS,
}
