"""Attention to latents, entries or chosen keys, over fine-grained experts: DeepSeek, Kimi, GLM-5 and MiniMax-M3.

Letters: D hidden, H heads, E experts.
"""

from __future__ import annotations

from ridgeline.graph.config import Fields
from ridgeline.graph.families.decoder import RMS, Sparse, Stack, activation, feed_of, stack_of
from ridgeline.graph.spec import AttentionSpec, Chosen, Entries, Latent, LayerSpec, Mlp, Moe

_SPARSE = Sparse(where="first", shared="count", bias=False)


def deepseek(fields: Fields) -> Stack:
    """DeepSeek's config keys; its multi-token-prediction layers are left out, with a note."""
    count = fields.layers("num_hidden_layers")
    own_choice = _indexers(fields, count)
    dense = Mlp(
        ffn=fields.count("intermediate_size"), gated=True, activation=activation(fields), bias=fields.flag("mlp_bias")
    )
    layers = tuple(
        LayerSpec(
            norm=RMS,
            mixer=_latent_attention(fields, indexer=own_choice[index]),
            feed=feed_of(fields, _SPARSE, dense, index, count),
        )
        for index in range(count)
    )
    return stack_of(fields, layers)


def _indexers(fields: Fields, count: int) -> list[bool]:
    """Whether each layer chooses keys itself, by `indexer_types`, or takes the choice of the one before it."""
    listed = fields.items("indexer_types")
    if listed is None:
        return [True] * count
    if len(listed) < count or any(one not in ("full", "shared") for one in listed) or listed[0] != "full":
        raise fields.fail("indexer_types", listed, f"'full' or 'shared' for each of the {count} layers, the first full")
    return [one == "full" for one in listed[:count]]


def _chosen(fields: Fields, *, indexer: bool) -> Chosen | None:
    top = fields.maybe("index_topk")
    if top is None:
        return None
    heads, dim = fields.count("index_n_heads"), fields.count("index_head_dim")
    return Chosen(top=top, heads=heads if indexer else 0, dim=dim)


def _latent_attention(fields: Fields, *, indexer: bool) -> AttentionSpec:
    heads = fields.count("num_attention_heads")
    latent = Latent(
        q_rank=fields.maybe("q_lora_rank"),
        kv_rank=fields.count("kv_lora_rank"),
        nope_dim=fields.count("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
        chosen=_chosen(fields, indexer=indexer),
    )
    bias = fields.flag("attention_bias")
    return AttentionSpec(
        heads=heads,
        kv_heads=heads,
        qk_dim=latent.nope_dim + latent.rope_dim,
        v_dim=fields.count("v_head_dim"),
        qkv_bias=bias,
        out_bias=bias,
        rotary_dim=latent.rope_dim,
        latent=latent,
    )


_RATIOS = (0, 4, 128)  # tokens of an entry: there are none, chosen and overlapping ones, and those that all see
_SHARED = Sparse(shared="count", bias=False)


def deepseek_v4(fields: Fields) -> Stack:
    """`compress_ratios` says for each layer what its far keys are; streams of the residual are mixed (`hc_mult`)."""
    count = fields.layers("num_hidden_layers")
    ratios = fields.items("compress_ratios")
    if ratios is None or len(ratios) < count or any(one not in _RATIOS for one in ratios):
        raise fields.fail("compress_ratios", ratios, f"0, 4 or 128 for each of the {count} layers")
    expert = Mlp(ffn=fields.count("moe_intermediate_size"), gated=True, activation=activation(fields))
    streams = fields.count("hc_mult")
    layers = tuple(
        LayerSpec(
            norm=RMS,
            mixer=_entries(fields, ratios[index]),
            feed=feed_of(fields, _SHARED, expert, index, count),
            streams=streams,
        )
        for index in range(count)
    )
    return stack_of(fields, layers)


def _entries(fields: Fields, ratio: int) -> AttentionSpec:
    heads, groups = fields.count("num_attention_heads"), fields.count("o_groups")
    fields.divide("num_attention_heads", heads, "o_groups", groups)
    width = fields.count("head_dim")
    chosen = None
    if ratio == _RATIOS[1]:
        chosen = Chosen(
            top=fields.count("index_topk"), heads=fields.count("index_n_heads"), dim=fields.count("index_head_dim")
        )
    return AttentionSpec(
        heads=heads,
        kv_heads=1,
        qk_dim=width,
        v_dim=width,
        rotary_dim=fields.count("qk_rope_head_dim"),
        sinks=True,
        entries=Entries(
            ratio=ratio,
            window=fields.count("sliding_window"),
            q_rank=fields.count("q_lora_rank"),
            out_groups=groups,
            out_rank=fields.count("o_lora_rank"),
            chosen=chosen,
        ),
    )


def minimax_m3(fields: Fields) -> Stack:
    """Grouped queries with normed heads; after the first layers, blocks of keys are chosen and experts take over."""
    count = fields.layers("num_hidden_layers")
    config = fields.inner("sparse_attention_config")
    sparse, routed = _by_layer(config, "sparse_attention_freq", count), _by_layer(fields, "moe_layer_freq", count)
    heads = fields.count("num_attention_heads")
    kv_heads = fields.grouped(heads, fields.count("num_key_value_heads"))
    act = activation(fields)
    dense = Mlp(ffn=fields.count("dense_intermediate_size"), gated=True, activation=act)
    blocks = Chosen(
        top=config.count("sparse_topk_blocks") * config.count("sparse_block_size"),
        heads=config.count("sparse_num_index_heads"),
        dim=config.count("sparse_index_dim"),
    )
    expert = Mlp(ffn=fields.count("moe_intermediate_size", "intermediate_size"), gated=True, activation=act)
    experts = fields.count("num_local_experts")
    shared = fields.maybe("n_shared_experts", low=0) or 0
    moe = Moe(
        experts=experts,
        top_k=fields.top_k(fields.count("num_experts_per_tok"), experts),
        expert=expert,
        router_bias=fields.flag("use_routing_bias"),
        shared=Mlp(ffn=fields.count("shared_intermediate_size") * shared, gated=True, activation=act)
        if shared
        else None,
        shared_count=shared,
    )
    head = fields.count("head_dim")
    layers = tuple(
        LayerSpec(
            norm=RMS,
            mixer=AttentionSpec(
                heads=heads,
                kv_heads=kv_heads,
                qk_dim=head,
                v_dim=head,
                qk_norm=RMS if fields.flag("use_qk_norm") else None,
                rotary_dim=fields.maybe("rotary_dim") or head,
                blocks=blocks if sparse[index] else None,
            ),
            feed=moe if routed[index] else dense,
        )
        for index in range(count)
    )
    return stack_of(fields, layers)


def _by_layer(fields: Fields, key: str, count: int) -> list[bool]:
    """A list of 0 and 1 for each layer."""
    listed = fields.items(key)
    if listed is None or len(listed) < count or any(one not in (0, 1) for one in listed):
        raise fields.fail(key, listed, f"0 or 1 for each of the {count} layers")
    return [bool(one) for one in listed[:count]]
