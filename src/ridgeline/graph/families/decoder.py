"""Decoders that share Llama's config keys, told apart by `Traits`.

Letters: D hidden, H heads, K kv heads, F ffn, E experts, L layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.graph.config import Fields
from ridgeline.graph.families.pattern import EVERYTHING, Reach, reach_of
from ridgeline.graph.families.sparse import Sparse, feed_of
from ridgeline.graph.families.stack import Family, Stack
from ridgeline.graph.spec import Attention, Ends, Layer, Mlp, Norm

Switch = bool | str  # a constant, or the config flag that decides

RMS = Norm(kind="rms")
LAYER = Norm(kind="layer", bias=True)
SCALE_ONLY = Norm(kind="layer")


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
    reach: Reach = EVERYTHING
    sparse: Sparse | None = None


def switch(fields: Fields, value: Switch) -> bool:
    """A trait's value for this config."""
    return fields.flag(value) if isinstance(value, str) else value


def reader(traits: Traits) -> Callable[[Fields], Stack]:
    """The reader of a family with these traits."""

    def read(fields: Fields) -> Stack:
        return decoder(fields, traits)

    return read


def family(traits: Traits, **defaults: Any) -> Family:
    """A family of this layout, with the defaults of its configuration class."""
    return Family(read=reader(traits), defaults=defaults)


def decoder(fields: Fields, traits: Traits) -> Stack:
    """A decoder under Llama's config keys."""
    count = fields.layers("num_hidden_layers")
    hidden = fields.count("hidden_size")
    attention = attention_of(fields, traits)
    dense = Mlp(
        ffn=fields.count("intermediate_size"),
        gated=traits.gated,
        activation=activation(fields),
        bias=switch(fields, traits.mlp_bias),
        merged_gate=traits.merged_gate,
    )
    layers = tuple(
        Layer(
            norm=traits.norm,
            mixer=_with_reach(fields, traits, attention, index, count),
            feed=feed_of(fields, traits.sparse, dense, index, count),
            placement=traits.placement,
            parallel="one" if switch(fields, traits.parallel) else "",
            dropout=has_dropout(fields, "attention_dropout", "hidden_dropout", "resid_pdrop"),
        )
        for index in range(count)
    )
    ends = Ends(
        vocab=fields.count("vocab_size"),
        hidden=hidden,
        tied=fields.flag("tie_word_embeddings"),
        norm=traits.norm,
        head_bias=switch(fields, traits.head_bias),
    )
    limit = fields.maybe("max_position_embeddings", "model_max_length")
    return Stack(ends=ends, layers=layers, max_positions=limit, notes=skipped_layers(fields))


def ends_of(fields: Fields) -> Ends:
    """Embedding, last norm (RMS) and head of a decoder without biases in them."""
    return Ends(
        vocab=fields.count("vocab_size"),
        hidden=fields.count("hidden_size"),
        tied=fields.flag("tie_word_embeddings"),
        norm=RMS,
    )


def attention_of(fields: Fields, traits: Traits) -> Attention:
    """The attention of a layer that sees everything."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    given = fields.maybe("head_dim") if traits.head_dim_given else None
    head_dim = given or fields.divide("hidden_size", hidden, "num_attention_heads", heads)
    kv_heads = fields.maybe("num_key_value_heads") or heads
    return Attention(
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


def _with_reach(fields: Fields, traits: Traits, attention: Attention, index: int, count: int) -> Attention:
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
