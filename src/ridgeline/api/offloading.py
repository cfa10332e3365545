"""`predict --serve --offload`: one static batch of a model larger than its devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ridgeline.api.answer import Answer
from ridgeline.api.asking import said_as
from ridgeline.errors import InputError
from ridgeline.scenario.serving import ServingScenario
from ridgeline.scenario.serving_fields import OFFLOAD_FIELDS

if TYPE_CHECKING:
    from ridgeline.predict.offloaded import Offload

_HOST = ("offload", "cpu", "dram", "storage")
_USUAL = {"prompt": (1024, 1024), "output": (256, 256)}  # tokens, where nothing is said
_USED = (
    "engine",
    "tp",
    "pp",
    "weights",
    "attention_weights",
    "technique",
    "kv",
    *(field.name for field in OFFLOAD_FIELDS),
)


def refuse_offload(asked: ServingScenario) -> None:
    """Raises where weights in host memory are asked for in traffic, which is not modelled."""
    if "offload" in asked.stated:
        raise InputError(
            "weights in host memory are modelled for a static batch; ask `ridgeline predict --serve`, or leave it out",
            field=said_as(asked, "plan", "offload"), file=asked.file,
        )  # fmt: skip


def predict_offloaded(asked: ServingScenario, *, batch: int | None) -> Answer:
    """Prints the times of one static batch; raises NoPlanError where its weights fit in no memory."""
    from ridgeline.predict.offloaded import ORDERS, TECHNIQUES, offloaded
    from ridgeline.report.offloaded import offload_as_dict

    stated = asked.stated
    _refuse_unused(asked, _USED)
    technique = TECHNIQUES[stated["offload"]]
    deployment = replace(asked.deployments[0], instances=1)
    alone = technique.name in ("HOST", "DISK")
    if not alone and not {"tp", "pp"} & stated.keys():
        degree = "pp" if technique.name == "LAYERS" else "tp"
        deployment = replace(deployment, **{degree: asked.cluster.count})  # type: ignore[arg-type]
    prompt, output = _lengths(asked)
    report = offloaded(
        asked.model, asked.cluster, deployment,
        _offload(
            asked,
            engine=str(stated.get("engine", "")),
            share=stated.get("device_share"),
            hot_neurons=stated.get("hot_neurons"),
            active_neurons=stated.get("active_neurons"),
            order=ORDERS[stated["device_order"]] if "device_order" in stated else None,
            layerwise=stated.get("layerwise", False),
        ),
        batch=batch or 1, prompt_tokens=prompt, output_tokens=output,
        assumed=(*asked.assumed, *_unsaid(asked, batch)),
    )  # fmt: skip
    return Answer(lambda: offload_as_dict(report), report.blocks, value=report)


def plan_offloaded(asked: ServingScenario) -> Answer:
    """Prints the best placement of streamed weights; raises NoPlanError where not one sequence fits."""
    from ridgeline.report.offloaded import policy_as_dict
    from ridgeline.search.offload_placement import best_policy

    _refuse_unused(asked, ("weights", *_HOST))
    if asked.stated["offload"] != "streamed":
        raise InputError("a search places streamed weights alone; ask predict --serve of others", field="--offload")
    prompt, output = _lengths(asked)
    report = best_policy(
        asked.model, asked.cluster, asked.deployments[0], _offload(asked), prompt_tokens=prompt, output_tokens=output,
        assumed=(*asked.assumed, *_unsaid(asked, 1)),
    )  # fmt: skip
    return Answer(lambda: policy_as_dict(report), report.blocks, value=report)


def _lengths(asked: ServingScenario) -> tuple[int, int]:
    """Mean prompt and output [token]."""
    prompt, output = (round(sum(asked.traffic.get(name, usual)) / 2) for name, usual in _USUAL.items())
    return prompt, output


def _offload(asked: ServingScenario, **said: Any) -> Offload:
    """Where weights lie, as a person said it."""
    from ridgeline.predict.offloaded import TECHNIQUES, Offload

    stated = asked.stated
    return Offload(
        technique=TECHNIQUES[stated["offload"]], processors=stated.get("cpu", ""), dram_bytes=stated.get("dram"),
        storage=stated.get("storage", ""), **said,
    )  # fmt: skip


def _refuse_unused(asked: ServingScenario, used: tuple[str, ...]) -> None:
    """Raises for words of a deployment that weights in host memory are not modelled with."""
    for name in asked.stated:
        if name not in used:
            field = said_as(asked, "plan", name)
            raise InputError("is not modelled with offload; leave it out", field=field, file=asked.file)


def _unsaid(asked: ServingScenario, batch: int | None) -> list[str]:
    """What was put where nothing was said."""
    said: list[Any] = [] if batch else ["a batch of 1, as none was given"]
    said += [] if "prompt" in asked.traffic else ["prompt of 1024 tokens, as none was given"]
    return said + ([] if "output" in asked.traffic else ["output of 256 tokens, as none was given"])
