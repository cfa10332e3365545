"""GPT-2 and others with config keys of their own: learned positions, ALiBi, parallel blocks; Llama's layout renamed.

Letters: D hidden, H heads, K kv heads, F ffn, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ridgeline.graph.config import Fields
from ridgeline.graph.families.decoder import (
    LAYER,
    SCALE_ONLY,
    Stack,
    Traits,
    activation,
    decoder,
    has_dropout,
    rotary_share,
    stack_of,
)
from ridgeline.graph.spec import AttentionSpec, LayerSpec, Mlp, Norm

_FFN_RATIO = 4  # F = 4 D in every one of these when the config does not say


@dataclass(frozen=True, kw_only=True)
class ClassicShape:
    """The dimensions that these families share, under whatever keys."""

    count: int
    hidden: int
    heads: int
    head_dim: int

    def attention(self, *, bias: bool, kv_heads: int | None = None, rotary_dim: int = 0) -> AttentionSpec:
        """Plain attention, merged q, k, v."""
        return AttentionSpec(
            heads=self.heads,
            kv_heads=kv_heads or self.heads,
            qk_dim=self.head_dim,
            v_dim=self.head_dim,
            qkv_bias=bias,
            out_bias=bias,
            merged_qkv=True,
            rotary_dim=rotary_dim,
        )

    def mlp(self, fields: Fields, *ffn_keys: str, bias: bool, kind: str = "gelu") -> Mlp:
        """Up, activation, down; F = 4 D by default."""
        ffn = (fields.maybe(*ffn_keys) if ffn_keys else None) or _FFN_RATIO * self.hidden
        return Mlp(ffn=ffn, gated=False, activation=kind, bias=bias)


def _shape(fields: Fields, layers: tuple[str, ...], hidden: tuple[str, ...], heads: tuple[str, ...]) -> ClassicShape:
    width, number = fields.count(*hidden), fields.count(*heads)
    return ClassicShape(
        count=fields.layers(*layers),
        hidden=width,
        heads=number,
        head_dim=fields.divide(hidden[0], width, heads[0], number),
    )


_GPT2 = (("n_layer", "num_hidden_layers"), ("n_embd", "hidden_size"), ("n_head", "num_attention_heads"))


def gpt2(fields: Fields) -> Stack:
    """GPT-2, and GPT-BigCode, which adds multi-query attention."""
    shape = _shape(fields, *_GPT2)
    limit = fields.count("n_positions", "max_position_embeddings")
    dropout = has_dropout(fields, "resid_pdrop")
    layer = LayerSpec(
        norm=LAYER,
        mixer=shape.attention(bias=True, kv_heads=1 if fields.flag("multi_query") else None),
        feed=shape.mlp(fields, "n_inner", bias=True, kind=activation(fields)),
        dropout=dropout,
    )
    return _stack(fields, shape, layer, limit=limit, positions=limit, dropout=dropout)


def gptj(fields: Fields) -> Stack:
    """GPT-J: one norm, attention and MLP side by side; bias in the MLP and the head alone."""
    shape = _shape(fields, *_GPT2)
    rotary = fields.maybe("rotary_dim", high=shape.head_dim) or shape.head_dim
    layer = LayerSpec(
        norm=LAYER,
        mixer=replace(shape.attention(bias=False, rotary_dim=rotary), merged_qkv=False),
        feed=shape.mlp(fields, "n_inner", bias=True, kind=activation(fields)),
        parallel="one",
        dropout=has_dropout(fields, "resid_pdrop"),
    )
    limit = fields.maybe("n_positions", "max_position_embeddings")
    return _stack(fields, shape, layer, limit=limit, head_bias=True)


def gpt_neo(fields: Fields) -> Stack:
    """GPT-Neo: every other layer sees a window of 256; only the output projection has a bias."""
    shape = _shape(fields, ("num_layers", "num_hidden_layers"), ("hidden_size",), ("num_heads", "num_attention_heads"))
    limit = fields.count("max_position_embeddings")
    attention = replace(shape.attention(bias=False), out_bias=True, merged_qkv=False)
    window = fields.maybe("window_size")
    mlp = shape.mlp(fields, "intermediate_size", bias=True, kind=activation(fields))
    layers = (
        LayerSpec(norm=LAYER, mixer=replace(attention, window=window if index % 2 else None), feed=mlp)
        for index in range(shape.count)
    )
    return _stack(fields, shape, *layers, limit=limit, positions=limit)


def gpt_neox(fields: Fields) -> Stack:
    """GPT-NeoX and Pythia: two norms, attention and MLP side by side, a quarter of the head rotates."""
    shape = _shape(fields, ("num_hidden_layers",), ("hidden_size",), ("num_attention_heads",))
    rotary = int(shape.head_dim * rotary_share(fields, 0.25))
    layer = LayerSpec(
        norm=LAYER,
        mixer=shape.attention(bias=fields.flag("attention_bias", default=True), rotary_dim=rotary),
        feed=shape.mlp(fields, "intermediate_size", bias=True, kind=activation(fields)),
        parallel="two" if fields.flag("use_parallel_residual", default=True) else "",
        dropout=has_dropout(fields, "hidden_dropout"),
    )
    return _stack(fields, shape, layer, limit=fields.maybe("max_position_embeddings"))


def phi(fields: Fields) -> Stack:
    """Phi-1, 1.5 and 2: GPT-J's layout with biases everywhere, half or 0.4 of the head rotates."""
    shape = _shape(fields, ("num_hidden_layers",), ("hidden_size",), ("num_attention_heads",))
    rotary = int(shape.head_dim * rotary_share(fields, 0.5))
    kv_heads = fields.grouped(shape.heads, fields.maybe("num_key_value_heads") or shape.heads)
    attention = replace(shape.attention(bias=True, kv_heads=kv_heads, rotary_dim=rotary), merged_qkv=False)
    layer = LayerSpec(
        norm=LAYER,
        mixer=replace(attention, qk_norm=LAYER) if fields.flag("qk_layernorm") else attention,
        feed=shape.mlp(fields, "intermediate_size", bias=True, kind=activation(fields)),
        parallel="one",
        dropout=has_dropout(fields, "resid_pdrop"),
    )
    return _stack(fields, shape, layer, limit=fields.maybe("max_position_embeddings"), head_bias=True)


def opt(fields: Fields) -> Stack:
    """OPT: ReLU, learned positions with an offset of 2; OPT-350m is post-norm with a narrow table."""
    shape = _shape(fields, ("num_hidden_layers",), ("hidden_size",), ("num_attention_heads",))
    affine = fields.flag("layer_norm_elementwise_affine", default=True)
    norm = Norm(kind="layer", scale=affine, bias=affine)
    bias = fields.flag("enable_bias", default=True)
    before = fields.flag("do_layer_norm_before", default=True)
    limit = fields.count("max_position_embeddings")
    dropout = has_dropout(fields, "dropout")
    layer = LayerSpec(
        norm=norm,
        mixer=replace(shape.attention(bias=bias), merged_qkv=False),
        feed=shape.mlp(fields, "ffn_dim", bias=bias, kind=activation(fields)),
        placement="pre" if before else "post",
        dropout=dropout,
    )
    width = fields.maybe("word_embed_proj_dim") or shape.hidden
    return _stack(
        fields, shape, layer, limit=limit, positions=limit + 2, embed_dim=width,
        norm=norm if before and not fields.flag("_remove_final_layer_norm") else None,
        embed_project="" if width == shape.hidden else "in_out",
    )  # fmt: skip


def bloom(fields: Fields) -> Stack:
    """BLOOM: ALiBi, biases, a norm on the embeddings."""
    heads = ("n_head", "num_attention_heads")
    shape = _shape(fields, ("n_layer", "num_hidden_layers"), ("n_embed", "hidden_size"), heads)
    dropout = has_dropout(fields, "hidden_dropout")
    layer = LayerSpec(norm=LAYER, mixer=shape.attention(bias=True), feed=shape.mlp(fields, bias=True), dropout=dropout)
    return _stack(fields, shape, layer, limit=fields.maybe("seq_length"), embed_norm=LAYER)


def falcon(fields: Fields) -> Stack:
    """Falcon: 7B (multi-query, one norm), 40B and 180B (grouped-query, two norms), RW (ALiBi)."""
    heads = ("num_attention_heads", "n_head")
    shape = _shape(fields, ("num_hidden_layers", "n_layer"), ("n_embed", "hidden_size"), heads)
    new = fields.flag("new_decoder_architecture")
    kv_heads = shape.heads
    if new:
        kv_heads = fields.grouped(shape.heads, fields.maybe("num_kv_heads", "n_head_kv") or shape.heads, "num_kv_heads")
    elif fields.flag("multi_query", default=True):
        kv_heads = 1
    bias = fields.flag("bias")
    norms = fields.maybe("num_ln_in_parallel_attn", high=2) or (2 if new else 1)
    parallel = fields.flag("parallel_attn", default=True)
    layer = LayerSpec(
        norm=LAYER,
        mixer=shape.attention(bias=bias, kv_heads=kv_heads, rotary_dim=0 if fields.flag("alibi") else shape.head_dim),
        feed=shape.mlp(fields, "ffn_hidden_size", bias=bias, kind=activation(fields, "activation")),
        parallel=("two" if norms == 2 else "one") if parallel else "",
        dropout=has_dropout(fields, "hidden_dropout"),
    )
    return _stack(fields, shape, layer, limit=fields.maybe("max_position_embeddings"))


def mpt(fields: Fields) -> Stack:
    """MPT: no biases; ALiBi, or learned positions where `attn_config.alibi` is off."""
    shape = _shape(fields, ("n_layers",), ("d_model",), ("n_heads",))
    attention = fields.inner("attn_config")
    alibi = attention.flag("alibi", default=True)
    kind = attention.word("attn_type", default="multihead_attention")
    kv_heads = 1 if kind == "multiquery_attention" else attention.maybe("kv_n_heads") or shape.heads
    limit = fields.maybe("max_seq_len")
    learned = fields.flag("learned_pos_emb", default=True) and not alibi
    bias = not fields.flag("no_bias", default=True)
    ratio = fields.maybe("expansion_ratio") or _FFN_RATIO
    layer = LayerSpec(
        norm=LAYER if bias else SCALE_ONLY,
        mixer=shape.attention(bias=bias, kv_heads=fields.grouped(shape.heads, kv_heads, "kv_n_heads")),
        feed=Mlp(ffn=ratio * shape.hidden, gated=False, activation="gelu", bias=bias),
        dropout=has_dropout(fields, "resid_pdrop"),
    )
    positions = limit or 0 if learned else 0
    return _stack(fields, shape, layer, limit=limit, positions=positions, norm=layer.norm)


def _stack(fields: Fields, shape: ClassicShape, *layers: LayerSpec, limit: int | None, **head: Any) -> Stack:
    """One layer as often as the config says, or all of them, between an embedding and a head with layer norm."""
    all_layers = layers if len(layers) > 1 else layers * shape.count
    return stack_of(fields, all_layers, noted=False, limit=limit, **{"hidden": shape.hidden, "norm": LAYER, **head})


def chatglm(fields: Fields, traits: Traits) -> Stack:
    """ChatGLM2, ChatGLM3 and GLM-4-9B in their first form: multi-query groups, half of the head rotates."""
    if not fields.flag("multi_query_attention", default=True):
        kept = {key: name for key, name in fields.renamed.items() if key != "num_key_value_heads"}
        fields.renamed = kept
    return decoder(fields, traits)


def qwen(fields: Fields, traits: Traits) -> Stack:
    """Qwen (first): q, k, v biases; `intermediate_size` is the sum of gate and up."""
    stack = decoder(fields, traits)
    double = fields.count("intermediate_size")
    ffn = fields.divide("intermediate_size", double, "gate and up", 2)
    layers = tuple(
        replace(layer, feed=replace(layer.feed, ffn=ffn) if isinstance(layer.feed, Mlp) else layer.feed)
        for layer in stack.layers
    )
    return replace(stack, layers=layers)


def baichuan(fields: Fields, traits: Traits) -> Stack:
    """Baichuan and Baichuan 2: 7B rotates; 13B, whose config gives `model_max_length` alone, uses ALiBi."""
    stack = decoder(fields, traits)
    if fields.values.get("max_position_embeddings") is not None:
        return stack
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, rotary_dim=0)) if isinstance(layer.mixer, AttentionSpec) else layer
        for layer in stack.layers
    )
    return replace(stack, layers=layers)


def hunyuan_moe(fields: Fields, traits: Traits) -> Stack:
    """Hunyuan with experts: counts and widths may be lists with an entry for each layer, all alike."""
    if fields.flag("use_cla"):
        raise fields.fail("use_cla", True, "false: keys shared by neighbouring layers are not known")
    values = dict(fields.values)
    for key in ("moe_topk", "num_shared_expert", "moe_intermediate_size", "num_experts"):
        listed = values.get(key)
        if isinstance(listed, list):
            if not listed or any(one != listed[0] for one in listed):
                raise fields.fail(key, listed, "one value, or the same for each layer")
            values[key] = listed[0]
    fields.values = values
    return decoder(fields, traits)
