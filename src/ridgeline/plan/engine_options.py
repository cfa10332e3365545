"""What an engine may be told for itself, whatever the model's degrees and formats. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import PlanError

_AT_LEAST_ONE = ("token_budget", "max_seqs", "cache_tokens", "graph_max")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Switches and limits of an engine; None and '' leave one to its policy file (`serving.policy_in_force`).

    `token_budget` [token] bounds one iteration, `max_seqs` [sequence] the running batch of one attention rank, prompts
    are cut to the budget where `chunked`. Where iterations are `mixed` prompts are computed beside running sequences,
    else before them. `memory_fraction` [1] is the share of device memory that the engine may fill, `cache_tokens`
    [token] the KV capacity of one attention rank where it is known from a run, in blocks of `block_tokens` [token],
    which `prefix_cache` finds again. Decode batches replay captured `graphs` up to `graph_max` [sequence]; with
    `prefill_graphs` iterations with prompts replay captured pieces up to the token budget, without they are launched
    kernel by kernel. Whether the host prepares an iteration while the one before it runs is `overlap`.
    `expert_backend` is the engine's word for the kernels that compute experts, `product_backend` that for plain
    products, which with `tf32` multiply numbers in 32 bits in 19 bits by the matrix units. Where requests are `alike`,
    copies of one whose likeliest tokens are taken, all of a step's tokens choose the same experts. With
    `fresh_kernels` the engine finds no kernel compiled by an earlier run.
    """

    token_budget: int | None = None
    max_seqs: int | None = None
    chunked: bool | None = None
    mixed: bool | None = None
    prefix_cache: bool | None = None
    graphs: bool | None = None
    graph_max: int | None = None
    prefill_graphs: bool | None = None
    memory_fraction: float | None = None
    cache_tokens: int | None = None
    block_tokens: int | None = None
    overlap: bool | None = None
    expert_backend: str = ""
    product_backend: str = ""
    tf32: bool = False
    alike: bool = False
    fresh_kernels: bool = False

    def __post_init__(self) -> None:
        """Refuses what cannot be."""
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PlanError(f"deployment: {name} = {value}, needs >= 1")
        if self.memory_fraction is not None and not 0 < self.memory_fraction <= 1:
            raise PlanError(f"deployment: memory_fraction = {self.memory_fraction}, needs 0 < memory_fraction <= 1")
