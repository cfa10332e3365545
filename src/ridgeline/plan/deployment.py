"""How a model is served: degrees, formats, batching and KV policy of one engine. Pure data.

Degrees: tp tensor, pp pipeline, dp attention data-parallel ranks of one instance (they share its experts), ep
expert-parallel ranks, over which the experts of an instance are divided. An instance uses tp * pp * dp devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ridgeline.plan.deployment_ranges import check_ranges
from ridgeline.plan.deployment_rules import check_together


class Role(Enum):
    """What an instance does for a request."""

    WHOLE = "whole"  # prefill and decode
    PREFILL = "prefill"  # the prompt and its first token; the cache is then sent on
    DECODE = "decode"  # every token after the first


class Router(Enum):
    """How requests choose among instances."""

    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"  # fewest requests that have not ended
    PREFIX = "prefix"  # the longest cached prefix, then least loaded


EVEN_LOADS = "experts' loads are even, for which replicas are placed; expert_loads, a file, says others"


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One way to serve a model with one engine; None leaves a choice to the engine's policy file.

    `weights` and `kv` are number formats; '' is the checkpoint's own (`with_formats`) and a cache of 16 bits,
    'bf16' asks for 16 bits. `other_weights` is the format of attention's products where it differs from that of the
    experts and feed-forwards, `out_weights` that of the last of them where it differs again. With `tf32` products
    of numbers in 32 bits are multiplied in 19 bits by the matrix units. `token_budget` [token] bounds one
    iteration, `max_seqs` [sequence] the running batch of one attention rank, `memory_fraction` [1] the share of
    device memory that the engine may fill, `cache_tokens` [token] the KV capacity of one attention rank where it is
    known from a run. Decode graphs are captured up to `graph_max` [sequence]; with `prefill_graphs` iterations with
    prompts replay captured pieces up to the token budget, without they are launched kernel by kernel. Where
    iterations are `mixed` prompts are computed beside running sequences, else before them.
    Whether the host prepares an iteration while the one before it runs is `overlap`. `expert_skew` is the power of
    the law of experts' loads [1]: 0 even, None what measured models showed; `expert_backend` the engine's word for
    the kernels that compute experts ('' those that it was measured with), `product_backend` that for plain
    products. Where requests are `alike`, copies of one whose likeliest tokens are taken, all of a step's tokens
    choose the same experts. With `fresh_kernels` the engine finds no kernel compiled by an earlier run.

    Every context is divided over `kv_ranks` of the tensor-parallel ranks, token by token, which send each other
    queries and what their parts add up to; a cache that ranks would hold in common is so held once.

    Caches and adapters are copied to and from the host after an iteration or, with `swap_beside`, beside it.

    With `expert_devices` the experts are divided over so many devices of their own; the tp * dp devices hold the
    rest, and an iteration goes back and forth between them in `micro_batches`. In a fleet of two kinds of devices
    `kind` is the accelerator of the instance, '' for that of the cluster, and `expert_kind` that of the experts'
    devices where it is the other one. Where experts are placed for known loads the fullest rank has
    `expert_imbalance` [1] times the rows of the mean one (None: what `expert_skew` says), with `expert_redundant`
    replicas in each layer (for even loads where `expert_imbalance` is None). Where `tokens_stay` with their experts
    from layer to layer, on ranks that all hold all caches, the busiest rank sends `expert_inside` rows [1] of each
    token of the mean rank and layer to ranks of its node and `expert_between` to others (None: those of ranks that
    are alike).
    """

    engine: str = "vLLM"
    version: str = ""  # '' the newest that the policy file knows
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    kv_ranks: int = 1
    instances: int = 1
    weights: str = ""
    other_weights: str = ""
    out_weights: str = ""
    tf32: bool = False
    kv: str = ""
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
    router: Router = Router.ROUND_ROBIN
    role: Role = Role.WHOLE
    expert_skew: float | None = None
    expert_backend: str = ""
    product_backend: str = ""
    overlap: bool | None = None
    alike: bool = False
    fresh_kernels: bool = False
    block_tokens: int | None = None
    swap_beside: bool = False
    expert_devices: int | None = None
    micro_batches: int = 3
    expert_imbalance: float | None = None
    expert_redundant: int = 0
    tokens_stay: bool = False
    expert_inside: float | None = None
    expert_between: float | None = None
    kind: str = ""
    expert_kind: str = ""
    technique: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)
        check_together(self)

    @property
    def expert_ranks(self) -> int:
        """Devices over which the experts of an instance are divided [1]."""
        return self.expert_devices or self.ep

    @property
    def instance_devices(self) -> int:
        """Devices of one instance [1], those of its experts among them."""
        return self.tp * self.pp * self.dp + (self.expert_devices or 0)

    @property
    def own_devices(self) -> int:
        """Devices of one instance that are of its own kind [1]."""
        return self.tp * self.pp * self.dp + (0 if self.expert_kind else self.expert_devices or 0)

    @property
    def other_devices(self) -> int:
        """Devices of one instance that are of the other kind [1]."""
        return self.instance_devices - self.own_devices

    @property
    def devices(self) -> int:
        """Devices of all instances [1]."""
        return self.instance_devices * self.instances
