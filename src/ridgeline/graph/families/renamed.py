"""Decoders of Llama's build under other keys or with a twist: ChatGLM, Qwen (first), Baichuan, Hunyuan's experts."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.graph.config import Fields
from ridgeline.graph.families.decoder import Traits, decoder
from ridgeline.graph.families.sparse import Sparse
from ridgeline.graph.families.stack import Stack
from ridgeline.graph.spec import Attention, Mlp

_CHATGLM = Traits(
    qkv_bias="add_qkv_bias",
    out_bias="add_bias_linear",
    mlp_bias="add_bias_linear",
    merged_qkv=True,
    merged_gate=True,
    rotary=0.5,
)
CHATGLM_KEYS = {
    "num_hidden_layers": "num_layers",
    "intermediate_size": "ffn_hidden_size",
    "vocab_size": "padded_vocab_size",
    "head_dim": "kv_channels",
    "num_key_value_heads": "multi_query_group_num",
    "max_position_embeddings": "seq_length",
}


def chatglm(fields: Fields) -> Stack:
    """ChatGLM2, ChatGLM3 and GLM-4-9B in their first form: multi-query groups, half of the head rotates."""
    if not fields.flag("multi_query_attention", default=True):
        kept = {key: name for key, name in fields.renamed.items() if key != "num_key_value_heads"}
        fields.renamed = kept
    return decoder(fields, _CHATGLM)


QWEN_KEYS = {"head_dim": "kv_channels", "max_position_embeddings": "seq_length"}


def qwen(fields: Fields) -> Stack:
    """Qwen (first): q, k, v biases; `intermediate_size` is the sum of gate and up."""
    stack = decoder(fields, Traits(qkv_bias=True, merged_qkv=True))
    double = fields.count("intermediate_size")
    ffn = fields.divide("intermediate_size", double, "gate and up", 2)
    layers = tuple(
        replace(layer, feed=replace(layer.feed, ffn=ffn) if isinstance(layer.feed, Mlp) else layer.feed)
        for layer in stack.layers
    )
    return replace(stack, layers=layers)


def baichuan(fields: Fields) -> Stack:
    """Baichuan and Baichuan 2: 7B rotates; 13B, whose config gives `model_max_length` alone, uses ALiBi."""
    stack = decoder(fields, Traits(merged_qkv=True))
    if fields.values.get("max_position_embeddings") is not None:
        return stack
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, rotary_dim=0)) if isinstance(layer.mixer, Attention) else layer
        for layer in stack.layers
    )
    return replace(stack, layers=layers)


def hunyuan_moe(fields: Fields) -> Stack:
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
    sparse = Sparse(where="first", shared="count")
    return decoder(fields, Traits(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True, sparse=sparse))
