"""What a person left out of a training scenario, and words that would change nothing in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ridgeline.errors import PlanError, WorkloadError
from ridgeline.facts.frameworks import framework_policy
from ridgeline.graph.model import SAMPLE
from ridgeline.graph.workload import PRECISIONS, Task, Workload, instead, without_rate
from ridgeline.plan.plan import Plan
from ridgeline.seams.recompute import recompute_rule

if TYPE_CHECKING:
    from ridgeline.facts.records import Cluster
    from ridgeline.graph.model import Model

_SEQ_LEN, _STEP_TOKENS, _TUNE_BATCH, _SAMPLES = (
    4_096,
    4_194_304,
    64,
    256,
)  # assumed where not given; source in `fill_workload`
_OF_ADAPTERS = ("lora_rank", "lora_targets", "lora_dropout")
_OF_EXPERTS = ("expert_capacity", "expert_choice", "expert_dispatch", "expert_modules", "captured")


def fill_workload(values: dict[str, Any], model: Model) -> Iterator[str]:
    """Puts a sequence length and a batch where the person gave none, and says so, as where sequences are too long.

    Llama 2 (arXiv:2307.09288): pretraining at S = 4096 and 4M tokens per step (section 2.2),
    fine-tuning at 64 sequences per step (section 3.1). Of images and other samples a step takes 256 (arXiv:1512.03385,
    section 3.4), of which each is as many tokens as its network counts.
    """
    most = model.max_positions
    policy = framework_policy(values["framework"]) if values.get("framework") else None
    if policy is not None and policy.default_execution and "execution" not in values:
        values["execution"] = policy.default_execution
        yield f"execution = {values['execution']}, as {policy.name} runs"
    if SAMPLE in model.dims:
        values["seq_len"] = most
        if "global_batch" not in values:
            values["global_batch"] = _SAMPLES
            yield f"global_batch = {_SAMPLES} samples, as none was given"
        return
    if "seq_len" not in values:
        values["seq_len"] = min(_SEQ_LEN, most or _SEQ_LEN)
        yield f"seq_len = {values['seq_len']} tokens, as none was given"
    if "global_batch" not in values:
        pretrain = values.get("task", Task.PRETRAIN) is Task.PRETRAIN
        values["global_batch"] = max(1, _STEP_TOKENS // values["seq_len"]) if pretrain else _TUNE_BATCH
        yield f"global_batch = {values['global_batch']} sequences, as none was given"
    if most is not None and values["seq_len"] > most:
        yield f"sequences of {values['seq_len']:,} tokens are trained although {model.name} has {most:,} positions"


def fill_precision(values: dict[str, Any], cluster: Cluster) -> Iterator[str]:
    """Puts fp16 (with fp32 masters and scaled losses) where none was given and a device has no bf16, and says so.

    Devices without either get fp32. Raises `WorkloadError` for a precision that was given and the device lacks.
    """
    policy = framework_policy(values["framework"]) if values.get("framework") else None
    formats = {one.name: {"fp32", *one.peak_flop_per_s} for one in cluster.accelerators}  # fp32 on vector units
    name, known = min(formats.items(), key=lambda item: len(item[1]))
    known = known.intersection(*formats.values())
    if "precision" in values:
        asked = PRECISIONS[values["precision"]].compute
        if asked not in known:
            raise WorkloadError(without_rate(name, asked, known))
    elif policy is not None and policy.default_precision and PRECISIONS[policy.default_precision].compute in known:
        values["precision"] = policy.default_precision
        yield f"precision = {values['precision']}, as {policy.name} runs where none is given"
    elif "bf16" not in known:
        values["precision"] = instead("bf16", known)
        mixed = "mixed precision" if values["precision"] == "fp16" else "single precision"
        yield f"precision = {values['precision']} ({mixed}), as none was given and {name} multiplies no bf16"


def complete_plan(values: dict[str, Any], model: Model, cluster: Cluster, workload: Workload) -> Iterator[str]:
    """Puts data parallelism where the plan leaves devices, and tensor parallelism inside experts, and says the latter.

    Programs divide experts as everything else where nothing else is said: docs/decisions/0005-experts-are-divided.md.
    Raises `PlanError` where the other degrees do not divide the devices.
    """
    tp, others = values.get("tp", 1), values.get("tp", 1) * values.get("pp", 1) * values.get("cp", 1)
    if "dp" not in values:
        if cluster.count % others:
            raise PlanError(
                f"tp * pp * cp = {others} does not divide the {cluster.count} devices of {cluster.name};"
                " change one of them, or give dp to leave devices idle"
            )
        values["dp"] = cluster.count // others
    if SAMPLE in model.dims and "micro_batch" not in values and workload.global_batch % values["dp"] == 0:
        values["micro_batch"] = workload.global_batch // values["dp"]
        yield f"micro_batch = {values['micro_batch']} samples, all of a device's in one, as none was given"
    if "etp" in values or tp == 1 or not _has_experts(model):
        return
    ep, ranks = values.get("ep", 1), tp * values.get("cp", 1) * values["dp"]
    follows = ep == 1 or workload.policy.expert_tensor_default == "tp"
    values["etp"] = tp if follows and ranks % (ep * tp) == 0 else 1
    why = "as none was given"
    if follows and values["etp"] != tp:
        why = f"as ep * tp = {ep * tp} does not divide {ranks}"
    yield f"etp = {values['etp']} (tensor parallelism inside an expert), {why}"


def idle_words(workload: Mapping[str, Any], plan: Mapping[str, Any], model: Model) -> Iterator[tuple[str, str, str]]:
    """Words that would change nothing, each by section and name, and what to say instead."""
    task = workload.get("task", Task.PRETRAIN)
    if task not in (Task.LORA, Task.QLORA):
        for name in _OF_ADAPTERS:
            yield "workload", name, f"is of adapters, and {task.value} has none; say task = 'lora', or leave it out"
    if SAMPLE in model.dims:
        told = f"is of language models: a sample of {model.name} is {model.dims[SAMPLE]} tokens; leave it out"
        yield "workload", "seq_len", told
    if not any(block.encoder for block in model.graph.blocks.values()):
        yield "workload", "encoder_seq_len", f"is of encoder-decoders, and {model.name} has no encoder; leave it out"
    if not _has_experts(model):
        for name in _OF_EXPERTS:
            yield "workload", name, f"is of experts, and {model.name} has none; leave it out"
    if not workload.get("lengths") and plan.get("length_balance", Plan.length_balance) != Plan.length_balance:
        told = "divides sequences of unlike lengths, and all have one; say lengths as well, or leave it out"
        yield "plan", "length_balance", told
    if plan.get("zero", 0) == 0:
        yield "plan", "zero_group", "divides what ZeRO shards; say zero = 1, 2 or 3 as well, or leave it out"
    if not recompute_rule(plan.get("recompute", Plan.recompute), Plan.recompute).by_layer:
        yield "plan", "recompute_layers", "is of full recompute; say recompute = 'full' as well, or leave it out"


def _has_experts(model: Model) -> bool:
    return any(block.experts for block in model.graph.blocks.values())
