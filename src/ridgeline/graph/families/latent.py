"""DeepSeek-V2, V3 and Kimi K2: multi-head latent attention over fine-grained experts.

Letters: D hidden, H heads, E experts.
"""

from __future__ import annotations

from ridgeline.graph.config import Fields
from ridgeline.graph.families.decoder import RMS, activation, skipped_layers
from ridgeline.graph.families.sparse import Sparse, feed_of
from ridgeline.graph.families.stack import Stack
from ridgeline.graph.spec import Attention, Ends, Latent, Layer, Mlp

_SPARSE = Sparse(where="first", shared="count", bias=False)


def read(fields: Fields) -> Stack:
    """DeepSeek's config keys; its multi-token-prediction layers are left out, with a note."""
    count = fields.layers("num_hidden_layers")
    attention = _attention(fields)
    dense = Mlp(
        ffn=fields.count("intermediate_size"),
        gated=True,
        activation=activation(fields),
        bias=fields.flag("mlp_bias"),
    )
    layers = tuple(
        Layer(norm=RMS, mixer=attention, feed=feed_of(fields, _SPARSE, dense, index, count)) for index in range(count)
    )
    ends = Ends(
        vocab=fields.count("vocab_size"),
        hidden=fields.count("hidden_size"),
        tied=fields.flag("tie_word_embeddings"),
        norm=RMS,
    )
    limit = fields.maybe("max_position_embeddings")
    return Stack(ends=ends, layers=layers, max_positions=limit, notes=skipped_layers(fields))


def _attention(fields: Fields) -> Attention:
    heads = fields.count("num_attention_heads")
    latent = Latent(
        q_rank=fields.maybe("q_lora_rank"),
        kv_rank=fields.count("kv_lora_rank"),
        nope_dim=fields.count("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
    )
    bias = fields.flag("attention_bias")
    return Attention(
        heads=heads,
        kv_heads=heads,
        qk_dim=latent.nope_dim + latent.rope_dim,
        v_dim=fields.count("v_head_dim"),
        qkv_bias=bias,
        out_bias=bias,
        rotary_dim=latent.rope_dim,
        latent=latent,
    )
