"""Models given by their dimensions alone, with the choices of Megatron-LM's GPT and BERT as defaults.

Letters: D hidden, H heads, K kv heads, F ffn, E experts, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict

from ridgeline.errors import ModelError, UnknownNameError
from ridgeline.graph.config import Fields
from ridgeline.graph.families.decoder import Stack
from ridgeline.graph.spec import AttentionSpec, EmbeddingHead, LayerSpec, Mlp, Moe, Norm

ACTIVATIONS = ("gelu", "silu", "relu", "relu2")
POSITIONS = ("rope", "learned", "alibi", "none")
PLACEMENTS = ("pre", "post", "sandwich", "output")


class Dimensions(TypedDict, total=False):
    """Dimensions of a decoder or encoder; layers, hidden, heads and vocab are needed."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    kv_heads: int | None  # default H
    head_dim: int | None  # default D / H
    ffn: int | None  # default 4 D
    gated: bool  # act(gate) * up, not act(up)
    activation: str  # 'gelu', 'silu', 'relu' or 'relu2'
    norm: str  # 'rms' or 'layer'
    placement: str  # 'pre', 'post' (BERT), 'sandwich' or 'output'
    bias: bool | Mapping[str, bool]  # one flag, or one each for 'qkv', 'out' (attention output) and 'mlp'
    tied: bool
    positions: str  # 'rope', 'learned' (a table of `max_positions` rows), 'alibi' or 'none'
    max_positions: int | None
    experts: int  # in place of the MLP in every `expert_interval`-th layer from `dense_layers_first` on
    top_k: int | None
    expert_ffn: int | None
    expert_interval: int
    shared_experts: int
    shared_ffn: int | None  # the summed width of the shared experts
    dense_layers_first: int
    window: int | None  # tokens that a query sees
    global_every: int | None  # every so many-th layer sees all
    parallel: bool
    qk_norm: bool  # a norm on each head's query and key, of the kind `norm`
    encoder: bool  # attention in both directions and a masked-language head
    causal: bool | None
    dropout: bool  # masks on both residuals, the embeddings and, when unfused, the attention core
    type_vocab: int
    embed_norm: bool | None
    head_bias: bool | None
    pooler: bool


FIELDS = tuple(Dimensions.__annotations__)
_SHOWN = 60  # characters of an unknown field that an error repeats
_BESIDE = ("model_type", "source", "parameters")  # what a file may hold besides dimensions
_FFN_RATIO = 4  # F = 4 D where no ffn is given, as in Vaswani et al. 2017


def explicit(fields: Fields) -> Stack:
    """Explicit dimensions; the fields are the parameters of `from_dims`."""
    _refuse_unknown(fields)
    layers = fields.layers("layers")
    encoder = fields.flag("encoder")
    norm_kind = fields.word("norm", choices=("rms", "layer"), default="layer")
    norm = Norm(kind=norm_kind, bias=norm_kind == "layer")
    attention = _attention(fields, causal=fields.flag("causal", default=not encoder))
    attention = replace(attention, qk_norm=norm if fields.flag("qk_norm") else None)
    positions = fields.word("positions", choices=POSITIONS, default="learned")
    limit = fields.maybe("max_positions")
    if positions == "learned" and limit is None:
        raise fields.fail("max_positions", limit, "a whole number, because positions = 'learned' keeps a table")
    placement = fields.word("placement", choices=PLACEMENTS, default="pre")
    stack = tuple(
        LayerSpec(
            norm=norm,
            mixer=_windowed(fields, attention, index),
            feed=_feed(fields, index),
            placement=placement,
            parallel="one" if fields.flag("parallel") else "",
            dropout=fields.flag("dropout"),
        )
        for index in range(layers)
    )
    embedding_head = EmbeddingHead(
        vocab=fields.count("vocab"),
        hidden=fields.count("hidden"),
        tied=fields.flag("tied", default=True),
        norm=None if placement == "post" else norm,
        positions=limit if positions == "learned" and limit else 0,
        token_types=fields.maybe("type_vocab", low=0) or 0,
        embed_norm=norm if fields.flag("embed_norm", default=placement == "post") else None,
        head="mlm" if encoder else "lm",
        head_bias=fields.flag("head_bias", default=encoder),
        pooler=fields.flag("pooler"),
        dropout=fields.flag("dropout"),
    )
    return Stack(embedding_head=embedding_head, layers=stack, max_positions=limit)


def _refuse_unknown(fields: Fields) -> None:
    """A misspelt dimension would otherwise be a silent default."""
    for key in fields.values:
        if key not in FIELDS and key not in _BESIDE:
            text = UnknownNameError("field", str(key)[:_SHOWN], FIELDS, hint="known: " + ", ".join(FIELDS))
            raise ModelError(f"{fields.where}: {text}")


def _bias(fields: Fields, part: str) -> bool:
    value = fields.values.get("bias", False)
    if isinstance(value, Mapping):
        unknown = set(value) - {"qkv", "out", "mlp"}
        if unknown:
            raise fields.fail("bias", dict(value), "only the parts 'qkv', 'out' and 'mlp'")
        return Fields(values=value, where=f"{fields.where}: bias", family=fields.family).flag(part)
    return fields.flag("bias")


def _attention(fields: Fields, *, causal: bool) -> AttentionSpec:
    hidden, heads = fields.count("hidden"), fields.count("heads")
    head_dim = fields.maybe("head_dim") or fields.divide("hidden", hidden, "heads", heads)
    kv_heads = fields.grouped(heads, fields.maybe("kv_heads") or heads, "kv_heads")
    rope = fields.word("positions", choices=POSITIONS, default="learned") == "rope"
    return AttentionSpec(
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=head_dim,
        v_dim=head_dim,
        qkv_bias=_bias(fields, "qkv"),
        out_bias=_bias(fields, "out"),
        merged_qkv=True,
        rotary_dim=head_dim if rope else 0,
        causal=causal,
    )


def _windowed(fields: Fields, attention: AttentionSpec, index: int) -> AttentionSpec:
    window = fields.maybe("window")
    every = fields.maybe("global_every")
    if window is None or (every and (index + 1) % every == 0):
        return attention
    return replace(attention, window=window)


def _feed(fields: Fields, index: int) -> Mlp | Moe:
    gated = fields.flag("gated")
    activation = fields.word("activation", choices=ACTIVATIONS, default="gelu")
    bias = _bias(fields, "mlp")

    def mlp(ffn: int) -> Mlp:
        return Mlp(ffn=ffn, gated=gated, activation=activation, bias=bias, merged_gate=True)

    ffn = fields.maybe("ffn") or _FFN_RATIO * fields.count("hidden")
    experts = fields.maybe("experts", low=0) or 0
    interval = fields.maybe("expert_interval") or 1
    first = fields.maybe("dense_layers_first", low=0) or 0
    if not experts or index < first or (index + 1) % interval:
        return mlp(ffn)
    expert_ffn = fields.maybe("expert_ffn") or ffn
    shared = fields.maybe("shared_experts", low=0) or 0
    shared_ffn = fields.maybe("shared_ffn") or shared * expert_ffn
    return Moe(
        experts=experts,
        top_k=fields.top_k(fields.count("top_k"), experts, "top_k"),
        expert=mlp(expert_ffn),
        shared=mlp(shared_ffn) if shared else None,
        shared_count=shared,
    )
