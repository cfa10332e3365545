"""The record of one training program's conventions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The conventions of one training program.

    `pattern` is looked for in the engine cell, case ignored. `precision` is the recipe when the row
    is silent, `half` what its plain 'fp16' or 'bf16' means: '' a half-precision copy beside an fp32
    master, '-amp' fp32 weights under autocast, '-pure' no fp32 at all. `zero` None leaves the
    sharding to be chosen. `accounting` is how its FLOP rates count attention and recompute: 'full'
    (all S positions), 'causal' (attended positions), 'hardware' (recompute counted, all positions).
    `whole_job_batch` marks tables whose micro-batch cell is that of all devices together.
    `mebibytes` marks programs that print MiB under the name MB; `tf32` those whose fp32 multiplies in
    TF32; `devices` is the count when a row does not say; `data_only` those that only divide
    data and sharded states; `interleaving_open` tables of tuned runs that leave out the virtual
    pipeline, `chunk_layers` the layers of a virtual stage where the program's paper tells; `framework` names the
    habits of holding memory, copying and launching kernels; `fused_optimizer` says
    whether an update is one pass; `single_micro_batch` runs
    without accumulation; `step_tokens` the batch [token] that
    the program's paper gives. `reason` says where this is known from.
    """

    name: str
    pattern: str
    reason: str
    precision: str = "bf16"
    half: str = ""
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
    step_tokens: int | None = None
    framework: str = "megatron"
    fused_optimizer: bool = True
