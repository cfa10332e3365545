"""Transformers that translate: an encoder and a decoder that share one table of words.

Source: Vaswani et al. 2017 (arXiv:1706.03762, table 3); norms before each part and sinusoids for positions, as
`transformer_wmt_en_de_big_t2t` of fairseq.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.errors import UnknownNameError
from ridgeline.facts.store import toml_records
from ridgeline.graph.layers import graph_of
from ridgeline.graph.model import Model
from ridgeline.graph.spec import AttentionSpec, EmbeddingHead, LayerSpec, Mlp, Norm


@dataclass(frozen=True, kw_only=True)
class TranslationSize:
    """Layers each way, D, F, heads, words."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocab: int


TRANSLATORS = toml_records("networks.toml", "translators", TranslationSize)


def translator(name: str) -> Model:
    """A translation transformer by name.

    >>> translator("transformer-translation-big").graph.params
    210808832
    """
    if name not in TRANSLATORS:
        raise UnknownNameError("translation transformer", name, TRANSLATORS)
    size, norm = TRANSLATORS[name], Norm(kind="layer", bias=True)
    wide = size.hidden // size.heads
    own = AttentionSpec(heads=size.heads, kv_heads=size.heads, qk_dim=wide, v_dim=wide, causal=False, merged_qkv=True)
    feed = Mlp(ffn=size.ffn, gated=False, activation="relu", bias=True)
    encoder = LayerSpec(norm=norm, mixer=own, feed=feed, dropout=True, encoder=True)
    decoder = LayerSpec(
        norm=norm, mixer=replace(own, causal=True), cross=replace(own, cross=True, merged_qkv=False), feed=feed,
        dropout=True,
    )  # fmt: skip
    layers = [encoder] * (size.layers - 1) + [replace(encoder, encoder_end=True, closing_norm=True)]
    embedding_head = EmbeddingHead(vocab=size.vocab, hidden=size.hidden, tied=True, norm=norm, dropout=True)
    graph = graph_of(embedding_head, [*layers, *[decoder] * size.layers])
    dims = {"layers": 2 * size.layers, "hidden": size.hidden, "vocab": size.vocab}
    return Model(name=name, model_type="translation", graph=graph, max_positions=None, source="table 3", dims=dims)
