"""What programs hold in memory beside the usual habits of their framework: rules by program and flag, with reasons."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.facts.programs import TrainingProgram
from ridgeline.validate.published_plans import published_configuration
from ridgeline.validate.rows import Row

Fields = Mapping[str, float | bool | str]
EVERYTHING = math.inf  # a whole stage stays gathered, however many layers it has


@dataclass(frozen=True, kw_only=True)
class Habit:
    """One rule: rows of programs whose name matches `program` and whose words match `says` hold memory so.

    `fields` replace those of `ridgeline.memory.runtime.Runtime`. The words are the engine, model,
    recompute, notes and place cells. `pipelined` limits a rule to rows of several pipeline stages.
    """

    program: str
    says: str = ""
    pipelined: bool = False
    fields: Fields = field(default_factory=dict)
    reason: str


TITAN_2025 = r"_202[5-9]\d\d_"
"""torchtitan's tables since 2025, by their file names: whole runs are compiled, the loss with them."""

HABITS: tuple[Habit, ...] = (
    Habit(
        program=r"Megatron-Core \(CI\)",
        says=r"deterministic-mode",
        fields={"deterministic": True},
        reason="deterministic-mode: such tests set CUBLAS_WORKSPACE_CONFIG=:4096:8",
    ),
    Habit(
        program=r"Megatron-Core \(CI\)",
        says=r"\+ local\b",
        fields={"transformer_engine": False},
        reason="transformer-impl local: no Transformer Engine, so none of its scratch",
    ),
    Habit(
        program=r"Megatron-Core \(CI\)",
        says=r"cross_entropy_loss_fusion",
        fields={"logit_fp32_copies": 2},
        reason="cross-entropy-loss-fusion: the compiled loss writes its fp32 probabilities beside the logits",
    ),
    Habit(
        program=r"^NeMo$|MLPerf",
        fields={"gradient_bytes": 2},
        reason="NeMo's performance recipes: grad_reduce_in_fp32 = False, gradients in bf16",
    ),
    Habit(
        program=r"^torchtitan$",
        pipelined=True,
        fields={"gathered_layers": EVERYTHING, "unreduced_layers": EVERYTHING},
        reason="reshard_after_forward is off in pipelines: a stage stays gathered and is reduced after the last"
        " micro-batch",
    ),
    Habit(
        program=r"^torchtitan$",
        says=TITAN_2025,
        fields={"logit_copies": 1, "logit_fp32_copies": 1},
        reason="since 2025 the loss is compiled with the model: one fp32 tensor beside the logits",
    ),
    Habit(
        program=r"^torchtune \(recipes\)$",
        says=r"cpu offload",
        fields={"gathered_ends": False},
        reason="70B_full.yaml shards the embedding and the head as units of their own (custom_sharded_layers)",
    ),
    Habit(
        program=r"BMTrain|Megatron-DeepSpeed|ZeRO-Infinity",
        fields={"gradient_bytes": 2},
        reason="DeepSpeed's and BMTrain's fp16 engines keep gradients in fp16",
    ),
    Habit(
        program=r"PaddlePaddle",
        fields={"gradient_bytes": 2, "logit_fp32_copies": 2},
        reason="O2 keeps fp16 gradients; softmax_with_cross_entropy returns its fp32 softmax beside the fp32 logits",
    ),
    Habit(
        program=r"Galvatron",
        fields={"persistent_gradients": True},
        reason="its FSDP units keep their gradient shards, which its profiler counts among the states",
    ),
    Habit(
        program="",
        says=r"squad",
        fields={"logit_copies": 0, "logit_fp32_copies": 0},
        reason="SQuAD's head marks a span: no tensors of tokens x vocabulary",
    ),
)
"""Every rule that matches applies; of two that set one field the later wins."""

BYTES_PRECISION: tuple[tuple[str, str, str, str], ...] = (
    (
        r"^torchtitan$",
        r"bf16|fp8",
        "bf16-amp",
        "FSDP2 shards fp32 weights and gathers them in bf16; float8 products keep 16-bit inputs (torchao)",
    ),
)
"""Recipes whose bytes are another recipe's: (program, its recipe, whose bytes, why)."""


def read_habits(row: Row, engine: TrainingProgram, *, stages: int, said: list[str]) -> Fields:
    """Fields of `Runtime` that the row's program and flags replace; each rule's reason goes to `said`."""
    words = "; ".join(row.text(name) for name in ("engine", "model", "recompute", "notes", "offload", "source_where"))
    found: dict[str, float | bool | str] = {}
    for habit in HABITS:
        if habit.pipelined and stages == 1:
            continue
        if re.search(habit.program, engine.name) and re.search(habit.says, words, re.IGNORECASE):
            found |= habit.fields
            said.append(habit.reason)
    published = published_configuration(row)
    if published is not None and published.mlp_input_bytes is not None:
        found["mlp_input_bytes"] = published.mlp_input_bytes
        said.append(f"activation functions keep their inputs in 8 bits, as the published code ({published.name})")
    if published is not None and published.weight_bytes is not None:
        found["weight_bytes"] = published.weight_bytes
        said.append(
            f"weights are held in {8 * published.weight_bytes:g} bits, as the published code ({published.name})"
        )
    return found


def bytes_precision(row: Row, engine: TrainingProgram, precision: str, said: list[str]) -> str:
    """The recipe whose bytes a row that asks for bytes is counted in; other rows keep theirs."""
    if not row.asks_bytes:
        return precision
    for program, recipe, bytes_of, reason in BYTES_PRECISION:
        if re.search(program, engine.name) and re.fullmatch(recipe, precision):
            said.append(reason)
            return bytes_of
    return precision
