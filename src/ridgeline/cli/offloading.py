"""`predict --serve --offload`: one static batch of a model larger than its devices."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from ridgeline.errors import InputError
from ridgeline.plan.serving_fields import OFFLOAD_FIELDS
from ridgeline.plan.serving_scenario import ServingScenario

_USED = ("engine", "tp", "pp", "weights", "attention_weights", "kv", *(field.name for field in OFFLOAD_FIELDS))


def refuse_offload(asked: ServingScenario) -> None:
    """Raises where weights in host memory are asked for in traffic, which is not modelled."""
    if "offload" in asked.stated:
        raise InputError(
            "weights in host memory are modelled for a static batch; ask `ridgeline predict --serve`, or leave it out",
            field="--offload" if asked.file is None else "plan.offload", file=asked.file,
        )  # fmt: skip


def predict_offloaded(asked: ServingScenario, *, batch: int | None, as_json: bool) -> None:
    """Prints the times of one static batch; raises NoPlanError where its weights fit in no memory."""
    from ridgeline.predict.offloaded import ORDERS, TECHNIQUES, Offload, offloaded
    from ridgeline.report.blocks import show
    from ridgeline.report.offloaded import offload_as_dict, offload_blocks

    stated = asked.stated
    for name in stated:
        if name not in _USED:
            field = "--" + name.replace("_", "-") if asked.file is None else f"plan.{name}"
            raise InputError("is not modelled with offload; leave it out", field=field, file=asked.file)
    technique = TECHNIQUES[stated["offload"]]
    deployment = replace(asked.deployments[0], instances=1)
    alone = technique.name in ("HOST", "DISK")
    if not alone and not {"tp", "pp"} & stated.keys():
        degree = "pp" if technique.name == "LAYERS" else "tp"
        deployment = replace(deployment, **{degree: asked.cluster.count})  # type: ignore[arg-type]
    usual = {name: (1024, 1024) if name == "prompt" else (256, 256) for name in ("prompt", "output")}
    lengths = {name: asked.traffic.get(name, usual[name]) for name in usual}
    report = offloaded(
        asked.model,
        asked.cluster,
        deployment,
        Offload(
            technique=technique,
            processors=stated.get("cpu", ""),
            dram_bytes=stated.get("dram"),
            share=stated.get("device_share"),
            order=ORDERS[stated["device_order"]] if "device_order" in stated else None,
            storage=stated.get("storage", ""),
            layerwise=stated.get("layerwise", False),
        ),
        engine=str(stated.get("engine", "")),
        batch=batch or 1,
        prompt_tokens=round(sum(lengths["prompt"]) / 2),
        output_tokens=round(sum(lengths["output"]) / 2),
        assumed=(*asked.assumed, *_unsaid(asked, batch)),
    )
    if as_json:
        print(json.dumps(offload_as_dict(report), indent=1, allow_nan=False))
    else:
        show(offload_blocks(report), sys.stdout)


def _unsaid(asked: ServingScenario, batch: int | None) -> list[str]:
    """What was put where nothing was said."""
    said: list[Any] = [] if batch else ["a batch of 1, as none was given"]
    said += [] if "prompt" in asked.traffic else ["prompt of 1024 tokens, as none was given"]
    return said + ([] if "output" in asked.traffic else ["output of 256 tokens, as none was given"])
