"""DeepSeek-V4 and MiniMax-M3: attention to entries that stand for far keys, or to blocks of keys, over experts.

Letters: D hidden, H heads, E experts.
"""

from __future__ import annotations

from ridgeline.graph.config import Fields
from ridgeline.graph.families.decoder import RMS, activation
from ridgeline.graph.families.latent import stack_of
from ridgeline.graph.families.sparse import Sparse, feed_of
from ridgeline.graph.families.stack import Stack
from ridgeline.graph.spec import Attention, Chosen, Entries, Layer, Mlp, Moe

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
        Layer(
            norm=RMS,
            mixer=_entries(fields, ratios[index]),
            feed=feed_of(fields, _SHARED, expert, index, count),
            streams=streams,
        )
        for index in range(count)
    )
    return stack_of(fields, layers)


def _entries(fields: Fields, ratio: int) -> Attention:
    heads, groups = fields.count("num_attention_heads"), fields.count("o_groups")
    fields.divide("num_attention_heads", heads, "o_groups", groups)
    width = fields.count("head_dim")
    chosen = None
    if ratio == _RATIOS[1]:
        chosen = Chosen(
            top=fields.count("index_topk"), heads=fields.count("index_n_heads"), dim=fields.count("index_head_dim")
        )
    return Attention(
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
        Layer(
            norm=RMS,
            mixer=Attention(
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
