"""Stacks whose layers differ: attention beside a recurrent state, searched blocks, windows of wider and narrower heads.

Letters: D hidden, H heads, K kv heads, F ffn, N state, E experts, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ridgeline.graph.config import LAYER_LIMIT, Fields
from ridgeline.graph.families.decoder import RMS, Sparse, Stack, Traits, activation, attention_of, feed_of, stack_of
from ridgeline.graph.spec import AttentionSpec, GatedDelta, LayerSpec, Lightning, Mlp, Moe, StateSpace

_PATTERN = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
_KINDS = {"linear_attention": "mamba", "full_attention": "attention"} | {word: word for word in _PATTERN.values()}


def minimax(fields: Fields) -> Stack:
    """MiniMax-Text-01: lightning attention, softmax attention in the layers that the config marks."""
    count = fields.layers("num_hidden_layers")
    softmax = attention_of(fields, Traits(rotary=_rotary(fields)))
    lightning = Lightning(heads=softmax.heads, head_dim=softmax.qk_dim)
    dense = Mlp(ffn=fields.count("intermediate_size"), gated=True, activation=activation(fields))
    sparse = Sparse(ffn_key="intermediate_size")
    layers = tuple(
        LayerSpec(
            norm=RMS,
            mixer=softmax if _is_softmax(fields, index, count) else lightning,
            feed=feed_of(fields, sparse, dense, index, count),
        )
        for index in range(count)
    )
    return stack_of(fields, layers, noted=False)


def _rotary(fields: Fields) -> float:
    """MiniMax gives the rotated width of a head, not its share [1]."""
    rotary, head = fields.maybe("rotary_dim"), fields.maybe("head_dim")
    return min(1.0, rotary / head) if rotary and head else 1.0


def _is_softmax(fields: Fields, index: int, count: int) -> bool:
    """`layer_types` by name, or `attn_type_list` with 1 for softmax and 0 for lightning."""
    for key, softmax in (("layer_types", "full_attention"), ("attn_type_list", 1)):
        listed = fields.items(key)
        if listed is not None:
            if len(listed) != count:
                raise fields.fail(key, listed, f"one entry for each of the {count} layers")
            return bool(listed[index] == softmax)
    return index % 2 == 0


def qwen_delta(fields: Fields, traits: Traits) -> Stack:
    """Qwen3-Next and Qwen3.5: three gated delta layers to one of gated attention."""
    count, sparse = fields.layers("num_hidden_layers"), traits.sparse
    own = Traits(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True, rotary=0.25)
    attention = replace(attention_of(fields, own), output_gate=True)
    delta = _delta(fields, traits.parts)
    dense_key = "moe_intermediate_size" if sparse and sparse.where == "all" else "intermediate_size"
    dense = Mlp(ffn=fields.count(dense_key), gated=True, activation=activation(fields))
    layers = tuple(
        LayerSpec(
            norm=RMS,
            mixer=attention if _is_full(fields, index, count) else delta,
            feed=feed_of(fields, sparse, dense, index, count),
        )
        for index in range(count)
    )
    return stack_of(fields, layers)


def _delta(fields: Fields, parts: int) -> GatedDelta:
    key_heads, value_heads = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    return GatedDelta(
        key_heads=fields.grouped(value_heads, key_heads, "linear_num_key_heads"),
        value_heads=value_heads,
        key_dim=fields.count("linear_key_head_dim"),
        value_dim=fields.count("linear_value_head_dim"),
        conv_kernel=fields.count("linear_conv_kernel_dim"),
        parts=parts,
    )


def _is_full(fields: Fields, index: int, count: int) -> bool:
    listed = fields.items("layer_types")
    if listed is None:
        return (index + 1) % fields.count("full_attention_interval") == 0
    if len(listed) != count:
        raise fields.fail("layer_types", listed, f"one entry for each of the {count} layers")
    return bool(listed[index] == "full_attention")


def nemotron_h(fields: Fields) -> Stack:
    """Nemotron-H: each layer is one part, a Mamba-2 mixer, attention, an MLP or experts."""
    kinds = _kinds(fields)
    parts = {kind: _part(fields, kind) for kind in dict.fromkeys(kinds)}
    layers = tuple(
        LayerSpec(norm=RMS, feed=part) if isinstance(part, Mlp | Moe) else LayerSpec(norm=RMS, mixer=part)
        for part in (parts[kind] for kind in kinds)
    )
    return stack_of(fields, layers, noted=False)


def _kinds(fields: Fields) -> list[str]:
    pattern = fields.word("hybrid_override_pattern")
    if pattern:
        if not set(pattern) <= set(_PATTERN) or len(pattern) > LAYER_LIMIT:
            raise fields.fail("hybrid_override_pattern", pattern, "letters " + " ".join(_PATTERN))
        return [_PATTERN[letter] for letter in pattern]
    key = "layers_block_type" if "layers_block_type" in fields.values else "layer_types"
    listed = fields.items(key)
    if not listed:
        raise fields.fail("hybrid_override_pattern", None, "a pattern such as 'M-M-M*-'")
    known = [_KINDS.get(kind) if isinstance(kind, str) else None for kind in listed]
    if None in known:
        raise fields.fail(key, listed, "entries " + ", ".join(_KINDS))
    return [kind for kind in known if kind]


def _part(fields: Fields, kind: str) -> AttentionSpec | StateSpace | Mlp | Moe:
    if kind == "mamba":
        return _state(fields, "mamba_num_heads", "mamba_head_dim", "ssm_state_size")
    if kind == "attention":
        return attention_of(fields, Traits(rotary=0.0))
    dense = Mlp(
        ffn=fields.count("intermediate_size"),
        gated=False,
        activation=activation(fields, "mlp_hidden_act"),
        bias=fields.flag("mlp_bias"),
    )
    if kind == "mlp":
        return dense
    experts = fields.count("n_routed_experts", "num_local_experts")
    number = fields.maybe("n_shared_experts", low=0) or 0

    def mlp(ffn: int) -> Mlp:
        return Mlp(ffn=ffn, gated=False, activation=dense.activation, bias=dense.bias)

    return Moe(
        experts=experts,
        top_k=fields.top_k(fields.count("num_experts_per_tok"), experts),
        expert=mlp(fields.count("moe_intermediate_size")),
        shared=mlp(fields.count("moe_shared_expert_intermediate_size")) if number else None,
        shared_count=number,
        latent=fields.maybe("moe_latent_size"),
    )


def mamba2(fields: Fields) -> Stack:
    """Mamba-2: one mixer a layer, no MLP."""
    layer = LayerSpec(norm=RMS, mixer=_state(fields, "num_heads", "head_dim", "state_size"))
    return stack_of(fields, (layer,) * fields.layers("num_hidden_layers"), limit=None, noted=False)


def gemma4(fields: Fields) -> Stack:
    """Gemma 4: windowed layers and full ones of wider heads and fewer keys; experts beside a dense feed-forward.

    The last layers of the smallest models borrow keys and values of a layer before, perhaps with feed-forwards of
    twice the width, and every layer has an embedding of its own.
    """
    width = fields.maybe("hidden_size_per_layer_input", low=0) or 0
    count = fields.layers("num_hidden_layers")
    kinds = _listed(fields, "layer_types", count, ("sliding_attention", "full_attention"))
    near = attention_of(fields, Traits(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True))
    mixers = {
        "sliding_attention": replace(near, window=fields.count("sliding_window")),
        "full_attention": _wide(fields, near),
    }
    feed = _beside(fields)
    late = replace(feed, ffn=2 * feed.ffn) if fields.flag("use_double_wide_mlp") and isinstance(feed, Mlp) else feed
    first = count - (fields.maybe("num_kv_shared_layers", low=0) or 0)
    layers = tuple(
        LayerSpec(
            norm=RMS, mixer=replace(mixers[kind], borrowed=number >= first), feed=feed if number < first else late,
            placement="sandwich", embedding=width,
        )
        for number, kind in enumerate(kinds)
    )  # fmt: skip
    rows = fields.maybe("vocab_size_per_layer_input") or fields.count("vocab_size")
    return stack_of(fields, layers, noted=False, layer_rows=rows if width else 0, layer_width=width * count)


def _wide(fields: Fields, near: AttentionSpec) -> AttentionSpec:
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
        mixer, feed = _block_part(fields, block, "attention", number), _block_part(fields, block, "ffn", number)
        group, times = mixer.get("n_heads_in_group"), feed.get("ffn_mult")
        attention = None
        if mixer.get("no_op") is not True:
            attention = _grouped_attention(fields, hidden, heads, fields.whole("n_heads_in_group", group, low=1))
        mlp = None
        if feed.get("no_op") is not True:
            if isinstance(times, bool) or not isinstance(times, int | float) or not 0 < times <= 100:
                raise fields.fail("ffn_mult", times, "a number above 0, to 100")
            mlp = Mlp(ffn=-(-int(2 * times * hidden / 3) // 256) * 256, gated=True, activation=activation(fields))
        layers.append(LayerSpec(norm=RMS, mixer=attention, feed=mlp))
    return stack_of(fields, layers, noted=False)


def _block_part(fields: Fields, block: Mapping[str, Any], name: str, number: int) -> Mapping[str, Any]:
    found = block.get(name)
    if not isinstance(found, Mapping):
        raise fields.fail(f"block_configs[{number}].{name}", found, "a table")
    if found.get("replace_with_linear") or found.get("sparsify"):
        raise fields.fail(f"block_configs[{number}].{name}", "replaced", "attention, a feed-forward or none of it")
    return found


def _grouped_attention(fields: Fields, hidden: int, heads: int, group: int) -> AttentionSpec:
    dim = fields.divide("hidden_size", hidden, "num_attention_heads", heads)
    kv_heads = fields.divide("num_attention_heads", heads, "n_heads_in_group", group)
    return AttentionSpec(heads=heads, kv_heads=kv_heads, qk_dim=dim, v_dim=dim, rotary_dim=dim)


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
    mixers: dict[str, AttentionSpec | StateSpace] = {}
    if "attention" in kinds:
        mixers["attention"] = attention_of(
            fields, Traits(qkv_bias="attention_bias", out_bias="attention_bias", rotary=rotary)
        )
    if "mamba" in kinds:
        mixers["mamba"] = _state(fields, "mamba_n_heads", "mamba_d_head", "mamba_d_state")
    layers = tuple(LayerSpec(norm=RMS, mixer=mixers[kind], feed=feed) for kind, feed in zip(kinds, feeds, strict=True))
    return stack_of(fields, layers, noted=False)


def _state(fields: Fields, heads_key: str, dim_key: str, state_key: str) -> StateSpace:
    heads, groups = fields.count(heads_key), fields.count("n_groups", "mamba_n_groups")
    return StateSpace(
        heads=heads,
        head_dim=fields.count(dim_key),
        state=fields.count(state_key),
        groups=fields.grouped(heads, groups, "n_groups"),
        conv_kernel=fields.count("conv_kernel", "mamba_d_conv"),
        chunk=fields.count("chunk_size", "mamba_chunk_size"),
        bias=fields.flag("use_bias", "mamba_proj_bias"),
        conv_bias=fields.flag("use_conv_bias", "mamba_conv_bias", default=True),
    )


def _listed(fields: Fields, key: str, count: int, known: tuple[str, ...]) -> list[str]:
    listed = fields.items(key)
    if listed is None or len(listed) != count or any(one not in known for one in listed):
        raise fields.fail(key, listed, f"one of {', '.join(known)} for each of the {count} layers")
    return [str(one) for one in listed]
