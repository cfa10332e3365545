"""`predict --serve --offload`: one static batch of a model larger than its devices."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from ridgeline.errors import InputError
from ridgeline.scenario.serving import ServingScenario
from ridgeline.scenario.serving_fields import OFFLOAD_FIELDS

_HOST = ("offload", "cpu", "dram", "storage")
_USUAL = {"prompt": (1024, 1024), "output": (256, 256)}  # tokens, where nothing is said
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
    _refuse_unused(asked, _USED)
    technique = TECHNIQUES[stated["offload"]]
    deployment = replace(asked.deployments[0], instances=1)
    alone = technique.name in ("HOST", "DISK")
    if not alone and not {"tp", "pp"} & stated.keys():
        degree = "pp" if technique.name == "LAYERS" else "tp"
        deployment = replace(deployment, **{degree: asked.cluster.count})  # type: ignore[arg-type]
    prompt, output = (round(sum(asked.traffic.get(name, usual)) / 2) for name, usual in _USUAL.items())
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
        prompt_tokens=prompt,
        output_tokens=output,
        assumed=(*asked.assumed, *_unsaid(asked, batch)),
    )
    if as_json:
        print(json.dumps(offload_as_dict(report), indent=1, allow_nan=False))
    else:
        show(offload_blocks(report), sys.stdout)


def plan_offloaded(asked: ServingScenario, *, as_json: bool) -> None:
    """Prints the best placement of streamed weights; raises NoPlanError where not one sequence fits."""
    from ridgeline.predict.offloaded import Offload
    from ridgeline.report.blocks import show
    from ridgeline.report.offloaded import policy_as_dict, policy_blocks
    from ridgeline.search.offload_policy import best_policy
    from ridgeline.serving.hybrid_placement import Technique

    stated = asked.stated
    _refuse_unused(asked, ("weights", *_HOST))
    if stated["offload"] != "streamed":
        raise InputError("a search places streamed weights alone; ask predict --serve of others", field="--offload")
    prompt, output = (round(sum(asked.traffic.get(name, usual)) / 2) for name, usual in _USUAL.items())
    report = best_policy(
        asked.model,
        asked.cluster,
        asked.deployments[0],
        Offload(
            technique=Technique.STREAMED, processors=stated.get("cpu", ""), dram_bytes=stated.get("dram"),
            storage=stated.get("storage", ""),
        ),
        prompt_tokens=prompt,
        output_tokens=output,
        assumed=(*asked.assumed, *_unsaid(asked, 1)),
    )  # fmt: skip
    if as_json:
        print(json.dumps(policy_as_dict(report), indent=1, allow_nan=False))
    else:
        show(policy_blocks(report), sys.stdout)


def _refuse_unused(asked: ServingScenario, used: tuple[str, ...]) -> None:
    """Raises for words of a deployment that weights in host memory are not modelled with."""
    for name in asked.stated:
        if name not in used:
            field = "--" + name.replace("_", "-") if asked.file is None else f"plan.{name}"
            raise InputError("is not modelled with offload; leave it out", field=field, file=asked.file)


def _unsaid(asked: ServingScenario, batch: int | None) -> list[str]:
    """What was put where nothing was said."""
    said: list[Any] = [] if batch else ["a batch of 1, as none was given"]
    said += [] if "prompt" in asked.traffic else ["prompt of 1024 tokens, as none was given"]
    return said + ([] if "output" in asked.traffic else ["output of 256 tokens, as none was given"])
