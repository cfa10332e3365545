"""Decoders that share Llama's config keys, told apart by `Traits`: which layers see what, and which have experts.

Letters: D hidden, H heads, K kv heads, F ffn, E experts, L layers, i a layer's index from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.graph.config import Fields
from ridgeline.graph.spec import AttentionSpec, EmbeddingHead, LayerSpec, Mlp, Moe, Norm

Switch = bool | str  # a constant, or the config flag that decides

RMS = Norm(kind="rms")
LAYER = Norm(kind="layer", bias=True)
SCALE_ONLY = Norm(kind="layer")
NORMS = {"rms": RMS, "layer": LAYER, "scale": SCALE_ONLY, "plain": Norm(kind="layer", scale=False)}


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A whole model as specs: its embedding and head, its layers in order, and what should be said of it."""

    embedding_head: EmbeddingHead
    layers: tuple[LayerSpec, ...]
    max_positions: int | None
    notes: tuple[str, ...] = ()


_REACHES = ("full_attention", "sliding_attention", "chunked_attention")


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_k")


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How a family spreads windows over its layers.

    `rule`: 'none'; 'all' layers are windowed; 'late' those from `max_window_layers` on when
    `use_sliding_window` is set (Qwen); 'period' all but every N-th (`period_key`, else `period`);
    'norope' chunked attention with rotary, but every N-th layer full and without (Llama 4).
    A `layer_types` list in the config goes before any rule.
    """

    rule: str = "none"
    period: int = 0
    period_key: str = "sliding_window_pattern"
    full_rotates: bool = True  # Cohere 2 rotates only where a window is


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


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What sets one family apart from Llama; a `Switch` names a flag of the config or is constant.

    `reach` says which layers see a window, a chunk or everything. `rotary` is the share of the
    head that rotates when the config does not say.
    """

    norm: Norm = RMS
    placement: str = "pre"
    parallel: Switch = False
    gated: bool = True
    qkv_bias: Switch = False
    out_bias: Switch = False
    mlp_bias: Switch = False
    head_bias: Switch = False
    qk_norm: Switch = False
    qk_norm_over: str = "head"
    qk_norm_kind: Norm = RMS
    merged_qkv: bool = False
    merged_gate: bool = False
    head_dim_given: bool = True  # False where the config class has no head_dim and ignores one
    rotary: float = 1.0
    sinks: bool = False
    parts: int = 1  # linear layers in the input projection of a delta rule
    reach: Reach = Reach()
    sparse: Sparse | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Traits:
        """The traits of a row of `data/families.toml`."""
        found: dict[str, Any] = {
            key: NORMS[value] if key in ("norm", "qk_norm_kind") else value for key, value in row.items()
        }
        if "reach" in row:
            found["reach"] = Reach(**row["reach"])
        if "sparse" in row:
            found["sparse"] = Sparse(**row["sparse"])
        return cls(**found)


def switch(fields: Fields, value: Switch) -> bool:
    """A trait's value for this config."""
    return fields.flag(value) if isinstance(value, str) else value


def decoder(fields: Fields, traits: Traits) -> Stack:
    """A decoder under Llama's config keys."""
    count = fields.layers("num_hidden_layers")
    attention = attention_of(fields, traits)
    dense = Mlp(
        ffn=fields.count("intermediate_size"),
        gated=traits.gated,
        activation=activation(fields),
        bias=switch(fields, traits.mlp_bias),
        merged_gate=traits.merged_gate,
    )
    layers = tuple(
        LayerSpec(
            norm=traits.norm,
            mixer=_with_reach(fields, traits, attention, index, count),
            feed=feed_of(fields, traits.sparse, dense, index, count),
            placement=traits.placement,
            parallel="one" if switch(fields, traits.parallel) else "",
            dropout=has_dropout(fields, "attention_dropout", "hidden_dropout", "resid_pdrop"),
        )
        for index in range(count)
    )
    head: dict[str, Any] = {"norm": traits.norm, "head_bias": switch(fields, traits.head_bias)}
    return stack_of(fields, layers, limit=fields.maybe("max_position_embeddings", "model_max_length"), **head)


def stack_of(fields: Fields, layers: Iterable[LayerSpec], *, noted: bool = True, **more: Any) -> Stack:
    """Layers between the embedding and the head that a config states, with an RMS norm unless `more` says another.

    What is left out of the model has a note where it is `noted`.
    """
    limit = more.pop("limit") if "limit" in more else fields.maybe("max_position_embeddings")
    hidden = more.pop("hidden") if "hidden" in more else fields.count("hidden_size")
    tied = fields.flag("tie_word_embeddings")
    head = EmbeddingHead(vocab=fields.count("vocab_size"), hidden=hidden, tied=tied, **{"norm": RMS, **more})
    notes = skipped_layers(fields) if noted else ()
    return Stack(embedding_head=head, layers=tuple(layers), max_positions=limit, notes=notes)


def attention_of(fields: Fields, traits: Traits) -> AttentionSpec:
    """The attention of a layer that sees everything."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    given = fields.maybe("head_dim") if traits.head_dim_given else None
    head_dim = given or fields.divide("hidden_size", hidden, "num_attention_heads", heads)
    kv_heads = fields.maybe("num_key_value_heads") or heads
    return AttentionSpec(
        heads=heads,
        kv_heads=fields.grouped(heads, kv_heads),
        qk_dim=head_dim,
        v_dim=head_dim,
        qkv_bias=switch(fields, traits.qkv_bias),
        out_bias=switch(fields, traits.out_bias),
        merged_qkv=traits.merged_qkv,
        rotary_dim=int(head_dim * rotary_share(fields, traits.rotary)),
        qk_norm=traits.qk_norm_kind if switch(fields, traits.qk_norm) else None,
        qk_norm_over=traits.qk_norm_over,
        sinks=traits.sinks,
    )


def _with_reach(fields: Fields, traits: Traits, attention: AttentionSpec, index: int, count: int) -> AttentionSpec:
    window, chunk, rotary = reach_of(fields, traits.reach, index, count)
    return replace(attention, window=window, chunk=chunk, rotary_dim=attention.rotary_dim if rotary else 0)


def rotary_share(fields: Fields, default: float) -> float:
    """The share of each head that rotates [1]."""
    nested = fields.inner("rope_parameters", "rope_scaling")
    if "partial_rotary_factor" in nested.values:
        return nested.share("partial_rotary_factor", default=default)
    return fields.share("partial_rotary_factor", "rotary_pct", "rope_pct", default=default)


def activation(fields: Fields, *keys: str) -> str:
    """The activation's name in this package's words."""
    name = fields.word(*(keys or ("hidden_act", "hidden_activation", "activation_function")), default="silu")
    if name in ("relu", "relu2", "silu"):
        return name
    if name in ("swish", "xielu"):  # one pass over the same values
        return "silu"
    return "gelu" if name.startswith("gelu") or name == "quick_gelu" else name


def has_dropout(fields: Fields, *keys: str) -> bool:
    """Whether any of the dropout probabilities is above zero."""
    return any(fields.share(key, default=0.0) > 0 for key in keys)


def skipped_layers(fields: Fields) -> tuple[str, ...]:
    """A note when the config names multi-token-prediction layers, which are left out."""
    count = fields.maybe("num_nextn_predict_layers", "num_mtp_modules", "num_mtp_layers", low=0) or 0
    if not count:
        return ()
    return (f"{count} multi-token-prediction layer(s) of the config are left out: not part of the main model",)


def reach_of(fields: Fields, reach: Reach, index: int, count: int) -> tuple[int | None, int | None, bool]:
    """Window, chunk and whether q and k rotate, of layer `index` of `count` [token, token]."""
    if reach.rule == "norope":
        return _norope(fields, index, count)
    if reach.rule == "none":
        return None, None, True
    if _kind(fields, reach, index, count) == "sliding_attention":
        window = fields.maybe("sliding_window")
        if window is not None:
            return window, None, True
    return None, None, reach.full_rotates


def _listed(fields: Fields, key: str, index: int, count: int) -> object | None:
    listed = fields.items(key)
    if not listed:
        return None
    if len(listed) != count:
        raise fields.fail(key, listed, f"one entry for each of the {count} layers")
    return listed[index]  # type: ignore[no-any-return]


def _kind(fields: Fields, reach: Reach, index: int, count: int) -> str:
    listed = _listed(fields, "layer_types", index, count)
    if listed is not None:
        if listed not in _REACHES:
            raise fields.fail("layer_types", listed, "entries " + ", ".join(_REACHES))
        return str(listed)
    if reach.rule == "all":
        windowed = True
    elif reach.rule == "late":
        windowed = fields.flag("use_sliding_window") and index >= (fields.maybe("max_window_layers", low=0) or 0)
    else:
        period = fields.maybe(reach.period_key) or reach.period
        windowed = (index + 1) % period != 0
    return "sliding_attention" if windowed else "full_attention"


def _norope(fields: Fields, index: int, count: int) -> tuple[int | None, int | None, bool]:
    listed = _listed(fields, "no_rope_layers", index, count)
    if listed is None:
        interval = fields.maybe("no_rope_layer_interval") or count + 1
        rotates = (index + 1) % interval != 0
    else:
        rotates = bool(fields.whole("no_rope_layers", listed, high=1))
    chunk = fields.maybe("attention_chunk_size")
    kind = _listed(fields, "layer_types", index, count)
    chunked = rotates if kind is None else kind == "chunked_attention"
    return None, chunk if chunked else None, rotates


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
        groups_chosen=_groups_chosen(fields),
    )


def _groups_chosen(fields: Fields) -> float:
    """Share of the groups of experts that one token may choose from [1]: DeepSeek-V3's `topk_group` of `n_group`."""
    groups = fields.maybe("n_group") or 1
    return (fields.maybe("topk_group", high=groups) or groups) / groups


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
