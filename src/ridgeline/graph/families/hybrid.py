"""Stacks that mix attention with a recurrent state: MiniMax-Text-01, Qwen3-Next, Nemotron-H, Mamba-2.

Letters: D hidden, H heads, N state, L layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ridgeline.graph.config import LAYER_LIMIT, Fields
from ridgeline.graph.families.decoder import RMS, Traits, activation, attention_of, ends_of, skipped_layers
from ridgeline.graph.families.sparse import Sparse, feed_of
from ridgeline.graph.families.stack import Stack
from ridgeline.graph.spec import Attention, GatedDelta, Layer, Lightning, Mlp, Moe, StateSpace

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
        Layer(
            norm=RMS,
            mixer=softmax if _is_softmax(fields, index, count) else lightning,
            feed=feed_of(fields, sparse, dense, index, count),
        )
        for index in range(count)
    )
    return Stack(ends=ends_of(fields), layers=layers, max_positions=fields.maybe("max_position_embeddings"))


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


def qwen_delta(sparse: Sparse | None, parts: int) -> Callable[[Fields], Stack]:
    """Qwen3-Next and Qwen3.5: three gated delta layers to one of gated attention.

    `parts` is the number of linear layers in the delta's input projection.
    """

    def read(fields: Fields) -> Stack:
        count = fields.layers("num_hidden_layers")
        traits = Traits(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True, rotary=0.25)
        attention = replace(attention_of(fields, traits), output_gate=True)
        delta = _delta(fields, parts)
        dense_key = "moe_intermediate_size" if sparse and sparse.where == "all" else "intermediate_size"
        dense = Mlp(ffn=fields.count(dense_key), gated=True, activation=activation(fields))
        layers = tuple(
            Layer(
                norm=RMS,
                mixer=attention if _is_full(fields, index, count) else delta,
                feed=feed_of(fields, sparse, dense, index, count),
            )
            for index in range(count)
        )
        limit = fields.maybe("max_position_embeddings")
        return Stack(ends=ends_of(fields), layers=layers, max_positions=limit, notes=skipped_layers(fields))

    return read


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
        Layer(norm=RMS, feed=part) if isinstance(part, Mlp | Moe) else Layer(norm=RMS, mixer=part)
        for part in (parts[kind] for kind in kinds)
    )
    return Stack(ends=ends_of(fields), layers=layers, max_positions=fields.maybe("max_position_embeddings"))


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


def _part(fields: Fields, kind: str) -> Attention | StateSpace | Mlp | Moe:
    if kind == "mamba":
        return _mixer(fields, "mamba_num_heads", "mamba_head_dim", "ssm_state_size")
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
    layer = Layer(norm=RMS, mixer=_mixer(fields, "num_heads", "head_dim", "state_size"))
    return Stack(ends=ends_of(fields), layers=(layer,) * fields.layers("num_hidden_layers"), max_positions=None)


def _mixer(fields: Fields, heads_key: str, dim_key: str, state_key: str) -> StateSpace:
    heads, groups = fields.count(heads_key), fields.count("n_groups", "mamba_n_groups")
    return StateSpace(
        heads=heads,
        head_dim=fields.count(dim_key),
        state=fields.count(state_key),
        groups=fields.grouped(heads, groups, "n_groups"),
        conv_kernel=fields.count("conv_kernel", "mamba_d_conv"),
        chunk=fields.count("chunk_size", "mamba_chunk_size"),
        bias=fields.flag("use_bias"),
        conv_bias=fields.flag("use_conv_bias", "mamba_conv_bias", default=True),
    )
