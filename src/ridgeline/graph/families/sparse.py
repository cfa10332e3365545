"""Mixture-of-experts fields of a config. Letters: E experts, F ffn, L layers, i index from 0."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.graph.config import Fields
from ridgeline.graph.spec import Mlp, Moe

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_k")


@dataclass(frozen=True, kw_only=True)
class Sparse:
    """How a family's experts differ.

    `where`: 'all' layers; 'first' all but the first `first_k_dense_replace`; 'step' every
    `decoder_sparse_step`-th but `mlp_only_layers` (Qwen); 'interleave' every
    `interleave_moe_layer_step`-th or those of `moe_layers` (Llama 4). `ffn_key` holds the expert's
    F. `shared`: '' none, 'count' of experts (`n_shared_experts`), 'width' of their sum
    (`shared_expert_intermediate_size`), 'one' more expert. `dense_key` holds the F of dense layers.
    `router_wide`: engines keep the router's weight in 32 bits (vllm and sglang, models/minimax_m2.py:
    `params_dtype=torch.float32`).
    """

    where: str = "all"
    ffn_key: str = "moe_intermediate_size"
    shared: str = ""
    shared_gate: bool = False
    router_bias: bool = False
    router_wide: bool = False
    bias: bool | None = None  # of the experts; None as the dense layers
    merged_gate: bool = False
    dense_key: str | None = None


def feed_of(fields: Fields, sparse: Sparse | None, dense: Mlp, index: int, count: int) -> Mlp | Moe:
    """The feed-forward of layer `index` of `count`."""
    if sparse is None:
        return dense
    if not _is_sparse(fields, sparse, index, count):
        return dense if sparse.dense_key is None else replace(dense, ffn=fields.count(sparse.dense_key))
    experts = fields.count(*_EXPERTS)
    ffn = fields.count(sparse.ffn_key)
    bias = dense.bias if sparse.bias is None else sparse.bias
    expert = replace(dense, ffn=ffn, bias=bias, merged_gate=sparse.merged_gate)
    shared, number = _shared(fields, sparse, replace(dense, ffn=ffn))
    return Moe(
        experts=experts,
        top_k=fields.top_k(fields.count(*_TOP_K), experts),
        expert=expert,
        router_bias=sparse.router_bias,
        router_wide=sparse.router_wide,
        shared=shared,
        shared_count=number,
        shared_gate=sparse.shared_gate and shared is not None,
    )


def _shared(fields: Fields, sparse: Sparse, one: Mlp) -> tuple[Mlp | None, int]:
    if sparse.shared == "one":
        return one, 1
    if sparse.shared == "count":
        number = fields.maybe("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", low=0) or 0
        return (replace(one, ffn=one.ffn * number), number) if number else (None, 0)
    if sparse.shared == "width":
        width = fields.maybe("shared_expert_intermediate_size", "shared_intermediate_size", low=0) or 0
        return (replace(one, ffn=width), max(1, width // one.ffn)) if width else (None, 0)
    return None, 0


def _is_sparse(fields: Fields, sparse: Sparse, index: int, count: int) -> bool:
    if sparse.where == "first":
        interval = fields.maybe("moe_layer_freq") or 1
        return index >= (fields.maybe("first_k_dense_replace", low=0) or 0) and index % interval == 0
    if sparse.where == "step":
        step = fields.maybe("decoder_sparse_step") or 1
        dense = fields.indices("mlp_only_layers", count=count) or frozenset()
        return index not in dense and (index + 1) % step == 0
    if sparse.where == "interleave":
        named = fields.indices("moe_layers", count=count)
        if named is not None:
            return index in named
        step = fields.count("interleave_moe_layer_step", low=0)
        return step > 0 and (index + 1) % step == 0
    return True
