"""DeepSeek-V2 to V3.2, Kimi K2 and GLM-5: multi-head latent attention, dense or sparse, over fine-grained experts.

Letters: D hidden, H heads, E experts.
"""

from __future__ import annotations

from ridgeline.graph.config import Fields
from ridgeline.graph.families.decoder import RMS, activation, skipped_layers
from ridgeline.graph.families.sparse import Sparse, feed_of
from ridgeline.graph.families.stack import Stack
from ridgeline.graph.spec import Attention, Chosen, Ends, Latent, Layer, Mlp

_SPARSE = Sparse(where="first", shared="count", bias=False)


def read(fields: Fields) -> Stack:
    """DeepSeek's config keys; its multi-token-prediction layers are left out, with a note."""
    count = fields.layers("num_hidden_layers")
    own_choice = _indexers(fields, count)
    dense = Mlp(
        ffn=fields.count("intermediate_size"),
        gated=True,
        activation=activation(fields),
        bias=fields.flag("mlp_bias"),
    )
    layers = tuple(
        Layer(
            norm=RMS,
            mixer=_attention(fields, indexer=own_choice[index]),
            feed=feed_of(fields, _SPARSE, dense, index, count),
        )
        for index in range(count)
    )
    return stack_of(fields, layers)


def stack_of(fields: Fields, layers: tuple[Layer, ...]) -> Stack:
    """Layers between an embedding and a head, as configs of this kind state them; what is left out has a note."""
    ends = Ends(
        vocab=fields.count("vocab_size"),
        hidden=fields.count("hidden_size"),
        tied=fields.flag("tie_word_embeddings"),
        norm=RMS,
    )
    limit = fields.maybe("max_position_embeddings")
    return Stack(ends=ends, layers=layers, max_positions=limit, notes=skipped_layers(fields))


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


def _attention(fields: Fields, *, indexer: bool) -> Attention:
    heads = fields.count("num_attention_heads")
    latent = Latent(
        q_rank=fields.maybe("q_lora_rank"),
        kv_rank=fields.count("kv_lora_rank"),
        nope_dim=fields.count("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
        chosen=_chosen(fields, indexer=indexer),
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
