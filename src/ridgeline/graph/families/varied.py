"""Decoders whose layers differ from each other: Gemma 4, searched Llama (Nemotron), Granite 4 and Bamba.

Letters: D hidden, H heads, K kv heads, F ffn, E experts, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ridgeline.graph.config import Fields
from ridgeline.graph.families.decoder import RMS, Traits, activation, attention_of, ends_of
from ridgeline.graph.families.sparse import Sparse, feed_of
from ridgeline.graph.families.stack import Stack
from ridgeline.graph.spec import Attention, Layer, Mlp, Moe, StateSpace


def gemma4(fields: Fields) -> Stack:
    """Gemma 4: windowed layers and full ones of wider heads and fewer keys; experts beside a dense feed-forward.

    Embeddings for each layer and caches that layers share are refused: the smallest ones have them.
    """
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        shared = fields.maybe(key, low=0)  # where it is left out, what its class takes
        if shared:
            raise fields.fail(key, shared, "0: parts that layers share are not known")
    count = fields.layers("num_hidden_layers")
    kinds = _listed(fields, "layer_types", count, ("sliding_attention", "full_attention"))
    near = attention_of(fields, Traits(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True))
    mixers = {
        "sliding_attention": replace(near, window=fields.count("sliding_window")),
        "full_attention": _wide(fields, near),
    }
    feed = _beside(fields)
    layers = tuple(Layer(norm=RMS, mixer=mixers[kind], feed=feed, placement="sandwich") for kind in kinds)
    return Stack(ends=ends_of(fields), layers=layers, max_positions=fields.maybe("max_position_embeddings"))


def _wide(fields: Fields, near: Attention) -> Attention:
    """The attention of a layer that sees everything; its values may be its keys before norm and rotation."""
    dim = fields.maybe("global_head_dim") or near.qk_dim
    kv_heads = fields.maybe("num_global_key_value_heads") or near.kv_heads
    kv_heads = fields.grouped(near.heads, kv_heads, "num_global_key_value_heads")
    same = fields.flag("attention_k_eq_v")
    return replace(near, kv_heads=kv_heads, qk_dim=dim, v_dim=dim, rotary_dim=dim // 4, values_are_keys=same)


def _beside(fields: Fields) -> Mlp | Moe:
    dense = Mlp(ffn=fields.count("intermediate_size"), gated=True, activation=activation(fields))
    if not fields.flag("enable_moe_block"):
        return dense
    experts = fields.count("num_experts")
    return Moe(
        experts=experts,
        top_k=fields.top_k(fields.count("top_k_experts"), experts, "top_k_experts"),
        expert=replace(dense, ffn=fields.count("moe_intermediate_size"), merged_gate=True),
        shared=dense,
        shared_count=1,
    )


def searched(fields: Fields) -> Stack:
    """Llama whose blocks a search has cut: each keeps its attention or none, and a feed-forward of its own width.

    F = 2 m D / 3, up to a multiple of 256, where m is the block's `ffn_mult`. Source: the modeling file that NVIDIA
    publishes beside Llama-3.3-Nemotron-Super-49B.
    """
    count, hidden = fields.layers("num_hidden_layers"), fields.count("hidden_size")
    heads = fields.count("num_attention_heads")
    blocks = fields.items("block_configs")
    if blocks is None or len(blocks) != count or not all(isinstance(block, Mapping) for block in blocks):
        raise fields.fail("block_configs", blocks, f"one table for each of the {count} layers")
    layers = []
    for number, block in enumerate(blocks):
        mixer, feed = _part(fields, block, "attention", number), _part(fields, block, "ffn", number)
        group, times = mixer.get("n_heads_in_group"), feed.get("ffn_mult")
        attention = None
        if mixer.get("no_op") is not True:
            attention = _grouped(fields, hidden, heads, fields.whole("n_heads_in_group", group, low=1))
        mlp = None
        if feed.get("no_op") is not True:
            if isinstance(times, bool) or not isinstance(times, int | float) or not 0 < times <= 100:
                raise fields.fail("ffn_mult", times, "a number above 0, to 100")
            mlp = Mlp(ffn=-(-int(2 * times * hidden / 3) // 256) * 256, gated=True, activation=activation(fields))
        layers.append(Layer(norm=RMS, mixer=attention, feed=mlp))
    return Stack(ends=ends_of(fields), layers=tuple(layers), max_positions=fields.maybe("max_position_embeddings"))


def _part(fields: Fields, block: Mapping[str, Any], name: str, number: int) -> Mapping[str, Any]:
    found = block.get(name)
    if not isinstance(found, Mapping):
        raise fields.fail(f"block_configs[{number}].{name}", found, "a table")
    if found.get("replace_with_linear") or found.get("sparsify"):
        raise fields.fail(f"block_configs[{number}].{name}", "replaced", "attention, a feed-forward or none of it")
    return found


def _grouped(fields: Fields, hidden: int, heads: int, group: int) -> Attention:
    dim = fields.divide("hidden_size", hidden, "num_attention_heads", heads)
    kv_heads = fields.divide("num_attention_heads", heads, "n_heads_in_group", group)
    return Attention(heads=heads, kv_heads=kv_heads, qk_dim=dim, v_dim=dim, rotary_dim=dim)


def granite_hybrid(fields: Fields) -> Stack:
    """Granite 4: Mamba-2 or attention, then experts beside a shared feed-forward, or that one alone."""
    count = fields.layers("num_hidden_layers")
    names = {"mamba": "mamba", "attention": "attention", "full_attention": "attention"}
    kinds = [names[kind] for kind in _listed(fields, "layer_types", count, tuple(names))]
    width = fields.count("shared_intermediate_size")
    dense = Mlp(ffn=width, gated=True, activation=activation(fields), merged_gate=True)
    if fields.maybe("num_local_experts", low=0):
        sparse = Sparse(ffn_key="intermediate_size", shared="width", merged_gate=True)
        feeds = [feed_of(fields, sparse, dense, index, count) for index in range(count)]
    else:
        feeds = [dense] * count
    return _mixed(fields, kinds, feeds, rotary=0.0 if fields.word("position_embedding_type") == "nope" else 1.0)


def bamba(fields: Fields) -> Stack:
    """Bamba: Mamba-2, attention in the layers of `attn_layer_indices`, a feed-forward in each."""
    count = fields.layers("num_hidden_layers")
    attentive = fields.indices("attn_layer_indices", count=count) or frozenset()
    kinds = ["attention" if index in attentive else "mamba" for index in range(count)]
    dense = Mlp(ffn=fields.count("intermediate_size"), gated=True, activation=activation(fields))
    return _mixed(fields, kinds, [dense] * count, rotary=0.5)


def _mixed(fields: Fields, kinds: list[str], feeds: list[Mlp | Moe], *, rotary: float) -> Stack:
    mixers: dict[str, Attention | StateSpace] = {}
    if "attention" in kinds:
        mixers["attention"] = attention_of(
            fields, Traits(qkv_bias="attention_bias", out_bias="attention_bias", rotary=rotary)
        )
    if "mamba" in kinds:
        mixers["mamba"] = _state(fields)
    layers = tuple(Layer(norm=RMS, mixer=mixers[kind], feed=feed) for kind, feed in zip(kinds, feeds, strict=True))
    return Stack(ends=ends_of(fields), layers=layers, max_positions=fields.maybe("max_position_embeddings"))


def _state(fields: Fields) -> StateSpace:
    heads = fields.count("mamba_n_heads")
    return StateSpace(
        heads=heads,
        head_dim=fields.count("mamba_d_head"),
        state=fields.count("mamba_d_state"),
        groups=fields.grouped(heads, fields.count("mamba_n_groups"), "mamba_n_groups"),
        conv_kernel=fields.count("mamba_d_conv"),
        chunk=fields.count("mamba_chunk_size"),
        bias=fields.flag("mamba_proj_bias"),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
    )


def _listed(fields: Fields, key: str, count: int, known: tuple[str, ...]) -> list[str]:
    listed = fields.items(key)
    if listed is None or len(listed) != count or any(one not in known for one in listed):
        raise fields.fail(key, listed, f"one of {', '.join(known)} for each of the {count} layers")
    return [str(one) for one in listed]
