"""What training programs do where a published result does not say: records of `data/programs.toml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache

from ridgeline.errors import InputError
from ridgeline.facts import store
from ridgeline.facts.benchmarks import model_day
from ridgeline.facts.readings import tell_recipe

TABLE = "programs.toml"


@dataclass(frozen=True, kw_only=True)
class TrainingProgram:
    """The conventions of one training program.

    `pattern` is looked for in its name, case ignored; `told_by` holds patterns of `engine` and `source` that name it
    before; `models_since` is the day [date] from which models are its own: a result is no older than its model.
    `precision` is the recipe when a result is silent, `half` what its plain 'fp16' or 'bf16' means: '' a
    half-precision copy beside an fp32 master, '-amp' fp32 weights under autocast, '-pure' no fp32 at all. `zero` None
    leaves the sharding to be chosen. `accounting` is how its FLOP rates count attention and recompute: 'full' (all S
    positions), 'causal' (attended positions), 'hardware' (recompute counted, all positions). `whole_job_batch` marks
    tables whose micro-batch is that of all devices together, `mebibytes` programs that print MiB under the name MB,
    `tf32` those whose fp32 multiplies in TF32, `data_only` those that divide data and sharded states alone,
    `interleaving_open` tables of tuned runs that leave out the virtual pipeline. `devices` is the count when a result
    does not say [1], `chunk_layers` the layers of a virtual stage [1], `step_tokens` the batch of the program's paper
    [token]. `framework` names how memory is held and kernels are launched; `fused_optimizer` says whether an update
    is one pass; `single_micro_batch` runs without
    accumulation. `amp_is_autocast` says that 'amp' in a cell means fp32 weights under autocast, `local_batch` that a
    micro-batch cell holds all micro-batches of a step, one a stage. `reason` says where this is known from.
    """

    name: str
    pattern: str
    reason: str
    told_by: Mapping[str, str] = field(default_factory=dict)
    models_since: str | None = None
    precision: str = "bf16"
    half: str = ""
    amp_is_autocast: bool = True
    attention_kernel: str = "flash"
    execution: str = "eager"
    optimizer: str = "adamw"
    zero: int | None = None
    sequence_parallel: bool = False
    overlap_gradients: bool = True
    overlap_weights: bool = True
    overlap_tensor: bool = False
    recompute: str | None = None
    accounting: str = "full"
    whole_job_batch: bool = False
    mebibytes: bool = False
    tf32: bool = False
    devices: int | None = None
    data_only: bool = False
    interleaving_open: bool = False
    chunk_layers: int | None = None
    single_micro_batch: bool = False
    local_batch: bool = False
    step_tokens: int | None = None
    framework: str = "megatron"
    fused_optimizer: bool = True


@cache
def training_programs() -> tuple[TrainingProgram, ...]:
    """All programs in the order of the table; the last is that of no name. Raises `InputError` for an unknown field."""
    known = {each.name for each in fields(TrainingProgram)}
    found = store.read_toml(TABLE)["program"]
    for row in found:
        if unknown := row.keys() - known:
            raise InputError(f"'{min(unknown)}' is no convention of a program", file=TABLE, field=min(unknown))
    return tuple(TrainingProgram(**row) for row in found)


def training_program(name: str, source: str = "", *, model: str = "") -> TrainingProgram:
    """The conventions of the program that a name means in results of a source, for a model.

    >>> training_program("Megatron-LM", "arXiv:2104.04473").name
    'Megatron-LM (2021)'
    """
    for program in training_programs():
        told = program.told_by
        if told and re.search(told["engine"], name, re.IGNORECASE) and re.search(told["source"], source):
            tell_recipe(told["source"], source, f"program = {program.name} ({program.reason})")
            return program
    day = model_day(model) or ""
    named = (each for each in training_programs() if re.search(each.pattern, name, re.IGNORECASE))
    return next(each for each in named if each.models_since is None or day >= each.models_since)


def before_flash_attention(source: str) -> bool:
    """Whether results of a source are from before FlashAttention was in training programs."""
    early: str = store.read_toml(TABLE)["early_sources"]
    if re.search(early, source) is None:
        return False
    tell_recipe(early, source, "attention_kernel = unfused: results from before FlashAttention")
    return True
