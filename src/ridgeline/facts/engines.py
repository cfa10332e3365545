"""Policies of serving engines: how a version batches, what memory it holds, what its host costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import DomainError
from ridgeline.facts.policies import ENGINES, Program, ReleasePolicy, folded
from ridgeline.facts.records import Evidence


@dataclass(frozen=True, kw_only=True)
class EnginePolicy(ReleasePolicy):
    """How one version of an engine batches, holds memory and spends host time.

    Meaning, unit and limits of each key are a row of `data/policy_keys.tsv`.
    """

    scheduler: str = "mixed"
    chunked: bool = False
    chunks_mix: bool = False
    token_budget: int = 8192
    budget_covers_context: bool = False
    max_seqs: int = 256
    block_tokens: int = 16
    memory_fraction: float = 0.9
    memory_of: str = "total"
    reserved_bytes: float = 0.0
    reserved_rank_bytes: float = 0.0
    watermark: float = 0.0
    admits: str = "prompt"
    output_estimate_floor: float = 1.0
    preemption: str = "recompute"
    ends_at_context: bool = False
    prefix_cache: bool = False
    graph_sizes: tuple[int, ...] = ()
    graph_max: int = 0
    graph_doubling: bool = False
    graphs: bool = True
    graph_prefill: bool = False
    step_host_s: float = 0.0
    seq_host_s: float = 0.0
    in_process_seq_host_s: float = 0.0
    group_host_s: float = 0.0
    exposed_host_s: float = 0.0
    request_host_s: float = 0.0
    prompt_token_host_s: float = 0.0
    overlapped_host: bool = False
    late_results: bool = False
    grammar: str = "xgrammar"
    masks_overlap: bool = False
    mask_threads: int = 1
    mask_threads_above: int = 0
    compile_s: float = 0.0
    drafts_overlap: bool = True
    python_host: bool = False
    eager_kernel_host_s: float = 0.0
    all_reduce: str = "nccl"
    graph_reduce_s: float = 0.0
    apart_reduce_s: float = 0.0
    choice_wait_s: float = 0.0
    scan_kernels: int = 0
    scan_build_s: float = 0.0
    own_kernels: bool = False
    keys_per_query: bool = False
    whole_cache: bool = False
    compiled_tokens: int = 0
    tuned_share: float = 1.0
    tuned_share_least: float = 1.0
    tuned_share_most: float = 1.0
    skinny_share: float = 1.0
    skinny_share_least: float = 1.0
    skinny_share_most: float = 1.0
    vector_rows: int = 0
    wide_products: str = ""
    score_bytes: float = 0.0
    pass_bytes: float = 2.0
    half_sums: bool = False
    pipelined: bool = False
    chunks_follow: bool = False
    even_parts: bool = False
    pads_prompts: bool = False
    whole_blocks: bool = False
    part_tokens: int = 0
    decode_groups: tuple[int, ...] = ()
    earlier_attention: str = ""
    block_heads: int = 0
    graph_context: int = 0
    decode_splits: bool = True
    layer_kernels: int = 0
    whole_groups: bool = False
    static_scales: bool = False
    fused_norm: bool = True
    fused_all_reduce_norm: bool = False
    merged_latents: bool = False
    shared_beside_tokens: int = 0
    drawn_ranks: str = ""
    prompt_pools_overlap: bool = True
    moving_holds_place: bool = True
    narrow_inputs: str = ""
    without_rate: str = ""
    prompts_meet: bool = False
    taking_in_stands: bool = False
    narrow_kv: str = ""
    expert_backend: str = ""
    wide_backend: str = ""
    wide_prompt_backend: str = ""
    expert_backend_alone: bool = False
    prompt_widths: float = 0.0
    prompt_shards: float = 0.0
    held_score_bytes: float = 0.0
    held_logit_bytes: float = 0.0
    own_head: bool = False
    context_bytes: float = 0.0
    group_context_bytes: float = 0.0

    @property
    def evidence(self) -> Evidence:
        """The lowest rung that the policy's times and bytes rest on."""
        measured = (key.name for key in ENGINES.keys.values() if key.measured and key.name in self.facts)
        return min((self.facts[name].evidence for name in measured), default=Evidence.ASSUMED)


@dataclass(frozen=True, kw_only=True)
class ModelTraits:
    """What a policy may ask of a model: its name, whether it routes tokens to experts, its hidden size [1].

    Of the model that stands for none no condition holds.
    """

    name: str = ""
    experts: bool | None = None
    hidden: float = float("inf")


@dataclass(frozen=True, kw_only=True)
class EngineUse:
    """What an engine runs on and for, as the conditions of policies ask it; raises `DomainError` for what cannot be.

    `memory_bytes` of the device [byte]; `offline`: requests are known beforehand; `context_tokens`: the model's longest
    context [token]; `ranks`: devices of an instance [1]; `device`: the accelerator's name; `architecture`: its vendor
    and architecture; `model`: what is known of the model, without which no rule about models holds.
    """

    memory_bytes: float
    offline: bool = False
    context_tokens: int = 0
    ranks: int = 1
    device: str = ""
    architecture: str = ""
    model: ModelTraits = ModelTraits()

    def __post_init__(self) -> None:
        """Refuses what no instance has."""
        if not 0 < self.memory_bytes < float("inf"):
            raise DomainError(f"memory_bytes = {self.memory_bytes:g}, needs > 0 byte of device memory")
        if self.ranks < 1 or self.context_tokens < 0:
            told = f"ranks = {self.ranks}, context_tokens = {self.context_tokens}"
            raise DomainError(f"{told}; needs ranks >= 1, context_tokens >= 0")

    def meets(self, version: str, conditions: Mapping[str, Any]) -> bool:
        """Whether every condition of a case is met by a version of the engine."""
        met: Mapping[str, Callable[[Any], bool]] = {
            "memory_above_bytes": lambda least: self.memory_bytes >= least,
            "memory_below_bytes": lambda most: self.memory_bytes < most,
            "offline": lambda wanted: self.offline is wanted,
            "context_above_tokens": lambda most: self.context_tokens > most,
            "ranks_at_least": lambda least: self.ranks >= least,
            "device": lambda words: any(folded(word) in folded(self.device) for word in words.split(",")),
            "architecture": lambda word: word.casefold() in self.architecture.casefold().split(),
            "build": lambda word: word.casefold() in version.casefold(),
            "model": lambda word: bool(self.model.name) and self.model.name.casefold().startswith(word.casefold()),
            "experts": lambda wanted: self.model.experts is wanted,
            "hidden_up_to": lambda most: self.model.hidden <= most,
        }
        return all(met[name](wanted) for name, wanted in conditions.items())


def engine_known(name: str) -> bool:
    """Whether an engine of that name has a policy in the catalog."""
    return ENGINES.find(name) is not None


def engine_named(name: str) -> str:
    """The name under which the catalog has an engine that people also call otherwise; `name` itself of no known one.

    >>> engine_named("trtllm")
    'TensorRT-LLM'
    """
    return ENGINES.canonical(name)


def newest_policy(name: str) -> str:
    """The version from which the newest policy of a known engine holds."""
    return ENGINES.named(name).starts[-1]


def engine_policy(name: str, version: str, use: EngineUse) -> EnginePolicy:
    """The policy that version `version` of an engine has in a use.

    An empty version, a nightly build and a date count as the newest.

    >>> engine_policy("vllm", "0.8.5", EngineUse(memory_bytes=80e9)).token_budget
    8192
    """
    return _resolve(ENGINES.named(name), version, use)


def engine_policy_from_file(path: str | Path, version: str, use: EngineUse) -> EnginePolicy:
    """The policy that a person's own TOML file describes; every defect of the file is an InputError."""
    return _resolve(ENGINES.from_file(path), version, use)


def _resolve(engine: Program, version: str, use: EngineUse) -> EnginePolicy:
    """Later policies and later cases override earlier ones; rules become numbers."""
    values, facts = ENGINES.in_force(engine, version, lambda conditions: use.meets(version, conditions))
    policy = EnginePolicy(name=engine.name, version=version, facts=facts, **values)
    if policy.budget_covers_context:
        values["token_budget"] = max(policy.token_budget, use.context_tokens)
    if not policy.graphs:
        values["graph_sizes"] = ()
    elif policy.graph_max:
        values["graph_sizes"] = tuple(size for size in policy.graph_sizes if size <= policy.graph_max)
    reserved = policy.reserved_bytes + policy.reserved_rank_bytes * use.ranks
    if policy.reserved_bytes:
        if reserved >= use.memory_bytes:
            raise DomainError(
                f"{engine.name} leaves {reserved:.3g} byte free of {use.memory_bytes:.3g}; set a memory fraction"
            )
        values["memory_fraction"] = 1 - reserved / use.memory_bytes
    return EnginePolicy(name=engine.name, version=version, facts=facts, **values)
