"""Policies of training frameworks: what a version can run, and how it holds memory and launches kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from ridgeline.facts.policies import FRAMEWORKS, ReleasePolicy

SHARDINGS = ("none", "optimizer", "gradients", "weights")
"""What data-parallel ranks may divide, as ZeRO stages 0 to 3: nothing, and each time more."""


@dataclass(frozen=True, kw_only=True)
class MemoryKeys:
    """Memory behaviour of a training framework; meaning, unit and limits of each key: `data/policy_keys.tsv`."""

    logit_copies: float = 0.0
    logit_fp32_copies: float = 3.0
    persistent_gradients: bool = True
    weight_bytes: float | None = None
    gradient_bytes: float | None = None
    gradient_copies: float = 0.0
    fused_gradients: bool = True
    gathered_layers: float = 2.0
    unreduced_layers: float = 1.0
    live_numbers: float = 0.0
    bucket_numbers: float = 0.0
    gathered_ends: bool = False
    selective: str = "core-attention"
    transformer_engine: bool = False
    deterministic: bool = False
    gradient_passes: float = 3.0
    update_fp32_copies: float = 0.0
    update_numbers: float = 0.0
    mlp_input_bytes: float | None = None
    quantized_bytes: float | None = None
    quantized_head: bool = False
    dequantized_copies: float = 1.0
    held_inputs: float = 0.0
    whole_constants: bool = False
    ties_embeddings: bool = True
    context_bytes: float = 2.0**30
    reserved_share: float = 0.0
    frozen_as_trained: bool = False
    autocast: bool = False
    wide_scores: bool = False


@dataclass(frozen=True, kw_only=True)
class FrameworkPolicy(MemoryKeys, ReleasePolicy):
    """What one version of a training framework can run and how it does, by the keys of `data/policy_keys.tsv`."""

    peaks_measured: bool = False
    tasks: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    data_parallel: bool = True
    sharding: tuple[str, ...] = ("none",)
    sharding_in_pipelines: tuple[str, ...] = ()
    sharding_with_experts: tuple[str, ...] = ()
    sharding_in_groups: tuple[str, ...] = ()
    replicas_alone: bool = False
    tensor_parallel: bool = False
    sequence_parallel: bool = False
    tensor_overlap: bool = False
    schedules: tuple[str, ...] = ()
    most_chunks: int = 1
    layer_splits: str = "equal"
    chunk_splits: str = "equal"
    context_styles: tuple[str, ...] = ()
    expert_parallel: bool = False
    expert_tensor: tuple[str, ...] = ("one",)
    dispatchers: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ("none",)
    recompute_some_layers: bool = False
    offload: tuple[str, ...] = ()
    offload_in_pipelines: tuple[str, ...] = ()
    optimizer_offload_sharding: tuple[str, ...] = SHARDINGS
    activation_offload_recompute: tuple[str, ...] = ("none", "selective", "full")
    optimizer_in_backward: bool = False
    losses: tuple[str, ...] = ("whole",)
    adapters_divided: bool = False
    quantized_base_alone: bool = False
    default_precision: str = ""
    default_execution: str = ""
    expert_tensor_default: str = "one"
    merged_adapters: str = "none"
    hand_fused: bool = False
    chained_loss: bool = False
    host_modules: bool = False
    gathered_activation_copies: float = 0.0
    reduced_activation_copies: float = 0.0
    reduced_gradient_copies: float = 0.0
    copies_widened: bool = False
    copies_each_micro_batch: bool = False
    host_s: Mapping[str, float] = field(default_factory=dict)
    launches: Mapping[str, float] = field(default_factory=dict)
    looped_experts: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What `framework_policy` finds a shipped policy by: NAME or NAME@VERSION."""
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def label(self) -> str:
        """Name and version in one phrase for people."""
        return f"{self.name} {self.version}".rstrip()


@cache
def framework_policy(name: str) -> FrameworkPolicy:
    """The policy of a framework: `NAME` (its newest) or `NAME@VERSION`; a NAME that ends in .toml is a person's file.

    Raises `UnknownNameError` for an unknown name and `InputError` for a defective file.

    >>> framework_policy("megatron@0.10").schedules
    ('1f1b', 'interleaved')
    """
    word, version = name, ""
    if "@" in name and not name.endswith(".toml"):
        word, _, version = name.rpartition("@")
    program = FRAMEWORKS.from_file(word) if word.endswith(".toml") else FRAMEWORKS.named(word)
    values, facts = FRAMEWORKS.in_force(program, version, lambda conditions: True)
    return FrameworkPolicy(name=program.name, version=version, facts=facts, **values)
