"""Levers of training that are words of a plan or workload, not techniques: degrees, sharding, formats, micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from types import MappingProxyType
from typing import Any

from ridgeline.advise.cases import Change
from ridgeline.errors import PlanError, WorkloadError
from ridgeline.facts.records import Cluster, Evidence, Fact
from ridgeline.graph.model import Model
from ridgeline.graph.workload import PRECISIONS, Task, Workload
from ridgeline.plan.plan import Plan
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS
from ridgeline.seams.technique import EXACT, accuracy

_HELP = {each.name: each.help for each in (*PLAN_FIELDS, *WORKLOAD_FIELDS)}
_DEGREES = ("tp", "pp", "cp", "dp")
_ADAPTED = accuracy("that of fine-tuning in 16 bits on academic benchmarks, abstract", "qlora-2023")
UNSEEN = Fact(
    value=float("nan"), unit="", source="none", conditions="not known here: measure it on your data",
    evidence=Evidence.ASSUMED,
)  # fmt: skip
_TUNED = "adapters are trained, not the weights"
_FORMATS = {
    "fp8": accuracy("that of 16 bits, language models of up to 175B parameters, abstract", "fp8-formats-2022"),
    "mxfp8": accuracy("that of bf16, models of up to 8B on 15T tokens, abstract", "mxfp8-recipes-2025"),
    "nvfp4": accuracy("about that of fp8, a 12B model on 10T tokens, abstract", "nvfp4-pretraining-2025"),
}


@dataclass(frozen=True, kw_only=True)
class TrainedChoice:
    """What is trained and how: a choice of training."""

    workload: Workload
    plan: Plan


def levered(plan: Mapping[str, Any], workload: Mapping[str, Any], on: TrainedChoice) -> TrainedChoice:
    """A choice with other fields; raises `PlanError` for those that it cannot have."""
    try:
        return TrainedChoice(workload=replace(on.workload, **workload), plan=replace(on.plan, **plan))
    except WorkloadError as error:
        raise PlanError(str(error)) from None


def _lever(
    slot: str, what: str, *, plan: Mapping[str, Any] = MappingProxyType({}), base: Plan | None = None,
    workload: Mapping[str, Any] = MappingProxyType({}), quality: Fact = EXACT,
) -> Change[TrainedChoice]:  # fmt: skip
    """Other values of fields of a plan and its workload; of degrees those that a person wrote, `base`, are not told."""
    told = {name: value for name, value in {**plan, **workload}.items() if value is not None}
    words = " ".join(flag(name, value) for name, value in told.items() if not base or getattr(base, name) != value)
    return Change(words=words, slot=slot, what=what, quality=quality, put=partial(levered, plan, workload))


def flag(name: str, value: object) -> str:
    """A field with its value as a flag."""
    word = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{word}" if value else f"--no-{word}"
    return f"--{word} {getattr(value, 'value', value)}"


def levers(model: Model, cluster: Cluster, job: Workload, plan: Plan, base: Plan) -> Iterator[Change[TrainedChoice]]:
    """Other values of every word that a plan of this job may have, against what a person wrote, `base`."""
    yield from _degrees(model, cluster, plan, base)
    yield from _sharding(cluster, plan)
    for name in ("offload_optimizer", "offload_activations", "offload_weights", "optimizer_in_backward"):
        yield _switched(plan, name)
    if plan.tp > 1:
        yield _switched(plan, "sequence_parallel")
        yield _switched(plan, "overlap_tensor")
    for name in ("overlap_gradients", "overlap_weights"):
        if not getattr(plan, name):
            yield _switched(plan, name)
    for size in (plan.micro_batch * 2, plan.micro_batch * 4, plan.micro_batch // 2, 1):
        if size and size != plan.micro_batch and job.global_batch % (size * plan.dp) == 0:
            yield _lever("micro_batch", _HELP["micro_batch"], plan={"micro_batch": size})
    yield from _of_recompute(model, plan)
    yield from _of_workload(cluster, job)


def _switched(plan: Plan, name: str) -> Change[TrainedChoice]:
    changes: dict[str, Any] = {name: not getattr(plan, name)}
    if name == "offload_weights" and changes[name]:
        changes |= {"zero": 3} | ({"offload_optimizer": False} if plan.offload_optimizer else {})
    return _lever(name, _HELP[name], plan=changes)


def _degrees(model: Model, cluster: Cluster, plan: Plan, base: Plan) -> Iterator[Change[TrainedChoice]]:
    """A factor of two from one degree to another, and of experts over ranks."""
    now = {name: getattr(plan, name) for name in _DEGREES}
    for more, less in permutations(_DEGREES, 2):
        if now[less] % 2 == 0:
            yield _shape(plan, base, {**now, more: now[more] * 2, less: now[less] // 2})
    for more in _DEGREES:
        if plan.devices * 2 <= cluster.count:
            yield _shape(plan, base, {**now, more: now[more] * 2})
    if any(block.experts for block in model.graph.blocks.values()):
        for ep in (plan.ep * 2, plan.ep // 2):
            if ep:
                yield _lever("ep", _HELP["ep"], plan={"ep": ep})
        if plan.etp > 1:
            yield _lever("etp", _HELP["etp"], plan={"etp": 1})


def _shape(plan: Plan, base: Plan, degrees: dict[str, Any]) -> Change[TrainedChoice]:
    if plan.etp > degrees["tp"]:
        degrees["etp"] = degrees["tp"]
    return _lever("degrees", "parallel degrees on the same devices", plan=degrees, base=base)


def _sharding(cluster: Cluster, plan: Plan) -> Iterator[Change[TrainedChoice]]:
    node = cluster.host.devices
    for zero in (0, 1, 2, 3):
        if zero != plan.zero:
            yield _lever("zero", _HELP["zero"], plan={"zero": zero, "zero_group": None})
        if zero and 1 < node < plan.dp * plan.cp and plan.zero_group != node:
            yield _lever("zero", _HELP["zero_group"], plan={"zero": zero, "zero_group": node})


def _of_recompute(model: Model, plan: Plan) -> Iterator[Change[TrainedChoice]]:
    """Full recompute of some layers of a stage."""
    per_stage = max(1, len(model.graph.layers) // plan.pp)
    for layers in sorted({per_stage * part // 4 for part in (1, 2, 3)} - {0, per_stage}):
        yield _lever("recompute", _HELP["recompute_layers"], plan={"recompute": "full", "recompute_layers": layers})


def _of_workload(cluster: Cluster, job: Workload) -> Iterator[Change[TrainedChoice]]:
    """Number formats that the devices multiply, kernels and launches; adapters of a fine-tune."""
    rates = cluster.accelerator.peak_flop_per_s
    for name, recipe in PRECISIONS.items():
        if name != job.precision and recipe.compute in rates and recipe.compute not in ("fp32", "tf32"):
            quality = _FORMATS.get(name, UNSEEN)
            yield _lever("precision", _HELP["precision"], workload={"precision": name}, quality=quality)
    if job.attention_kernel == "unfused":
        yield _lever("attention_kernel", _HELP["attention_kernel"], workload={"attention_kernel": "flash"})
    for way in ("compiled", "graph"):
        if way != job.execution:
            yield _lever("execution", _HELP["execution"], workload={"execution": way})
    if not job.fused_optimizer:
        yield _lever("fused_optimizer", _HELP["fused_optimizer"], workload={"fused_optimizer": True})
    smaller: Mapping[Task, tuple[Task, ...]] = {Task.FULL: (Task.LORA, Task.QLORA), Task.LORA: (Task.QLORA,)}
    for task in smaller.get(job.task, ()):
        yield _lever("task", _TUNED, workload={"task": task}, quality=_ADAPTED)
