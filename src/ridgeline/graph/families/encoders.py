"""Encoders of the BERT kind and encoder-decoders of the T5 and BART kind.

Letters: D hidden, H heads, F ffn, L layers.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.graph.config import LAYER_LIMIT, Fields
from ridgeline.graph.families.decoder import LAYER, RMS, Stack, activation, has_dropout
from ridgeline.graph.spec import AttentionSpec, EmbeddingHead, LayerSpec, Mlp

_BART_OFFSET = 2  # BartLearnedPositionalEmbedding keeps two rows in front


def _attention(heads: int, head_dim: int, *, bias: bool, causal: bool = False) -> AttentionSpec:
    return AttentionSpec(
        heads=heads, kv_heads=heads, qk_dim=head_dim, v_dim=head_dim, qkv_bias=bias, out_bias=bias, causal=causal
    )


def bert(fields: Fields) -> Stack:
    """BERT with both pre-training heads; without the pooler when `architectures` names the masked LM."""
    named = fields.items("architectures") or ()
    only_masked = "BertForMaskedLM" in [str(one) for one in named]
    stack = _bert_like(fields)
    return replace(stack, embedding_head=replace(stack.embedding_head, pooler=not only_masked))


def roberta(fields: Fields) -> Stack:
    """RoBERTa, XLM-RoBERTa and DistilBERT, which has no token types, with the masked-language head."""
    return _bert_like(fields)


def electra(fields: Fields) -> Stack:
    """ELECTRA's discriminator; its generator is a second, smaller model."""
    stack = _bert_like(fields)
    width = fields.count("embedding_size")
    embedding_head = replace(
        stack.embedding_head,
        embed_dim=width,
        embed_project="" if width == stack.embedding_head.hidden else "in",
        head="discriminator",
        head_bias=False,
    )
    return replace(
        stack,
        embedding_head=embedding_head,
        notes=("the discriminator alone: ELECTRA's generator is a model of its own",),
    )


def _bert_like(fields: Fields) -> Stack:
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    dropout = has_dropout(fields, "hidden_dropout_prob")
    layer = LayerSpec(
        norm=LAYER,
        mixer=_attention(heads, fields.divide("hidden_size", hidden, "num_attention_heads", heads), bias=True),
        feed=Mlp(ffn=fields.count("intermediate_size"), gated=False, activation=activation(fields), bias=True),
        placement="post",
        dropout=dropout,
    )
    limit = fields.count("max_position_embeddings")
    embedding_head = EmbeddingHead(
        vocab=fields.count("vocab_size"),
        hidden=hidden,
        tied=fields.flag("tie_word_embeddings", default=True),
        norm=None,
        positions=limit,
        token_types=fields.maybe("type_vocab_size", low=0) or 0,
        embed_norm=LAYER,
        head="mlm",
        head_bias=True,
        dropout=dropout,
    )
    return Stack(
        embedding_head=embedding_head, layers=(layer,) * fields.layers("num_hidden_layers"), max_positions=limit
    )


def t5(fields: Fields) -> Stack:
    """T5 (ReLU) and T5 v1.1, mT5, FLAN-T5 (gated GELU): relative biases in each stack's first layer."""
    hidden, heads = fields.count("d_model"), fields.count("num_heads")
    dropout = has_dropout(fields, "dropout_rate")
    words = fields.word("feed_forward_proj", default="relu").split("-")
    kind = "gelu" if words[-1].startswith("gelu") else words[-1]
    mlp = Mlp(ffn=fields.count("d_ff"), gated=words[0] == "gated", activation=kind)
    own = _attention(heads, fields.count("d_kv"), bias=False)
    first = replace(own, relative_buckets=fields.count("relative_attention_num_buckets"))
    encoders = fields.layers("num_layers")
    decoders = fields.maybe("num_decoder_layers", high=LAYER_LIMIT) or encoders
    base = LayerSpec(norm=RMS, feed=mlp, dropout=dropout)
    stack = [
        replace(base, mixer=own if index else first, encoder=True, encoder_end=last, closing_norm=last)
        for index, last in _marked(encoders)
    ]
    cross = replace(own, cross=True)
    stack += [
        replace(base, mixer=replace(own if index else first, causal=True), cross=cross) for index in range(decoders)
    ]
    embedding_head = EmbeddingHead(
        vocab=fields.count("vocab_size"),
        hidden=hidden,
        tied=fields.flag("tie_word_embeddings"),
        norm=RMS,
        dropout=dropout,
    )
    return Stack(embedding_head=embedding_head, layers=tuple(stack), max_positions=fields.maybe("n_positions"))


def bart(fields: Fields) -> Stack:
    """BART: post-norm encoder and decoder, learned positions and an embedding norm in both."""
    hidden, limit = fields.count("d_model"), fields.count("max_position_embeddings")
    dropout = has_dropout(fields, "dropout")
    kind = activation(fields)

    def layer(side: str) -> LayerSpec:
        key = f"{side}_attention_heads"
        heads = fields.count(key)
        own = _attention(heads, fields.divide("d_model", hidden, key, heads), bias=True, causal=side == "decoder")
        return LayerSpec(
            norm=LAYER,
            mixer=own,
            cross=replace(own, cross=True, causal=False) if side == "decoder" else None,
            feed=Mlp(ffn=fields.count(f"{side}_ffn_dim"), gated=False, activation=kind, bias=True),
            placement="post",
            dropout=dropout,
            encoder=side == "encoder",
        )

    encoders, decoders = fields.layers("encoder_layers"), fields.layers("decoder_layers")
    left = [replace(layer("encoder"), encoder_end=last) for _, last in _marked(encoders)]
    embedding_head = EmbeddingHead(
        vocab=fields.count("vocab_size"),
        hidden=hidden,
        tied=fields.flag("tie_word_embeddings", default=True),
        norm=None,
        positions=limit + _BART_OFFSET,
        decoder_positions=limit + _BART_OFFSET,
        embed_norm=LAYER,
        embed_norms=2,
        dropout=dropout,
    )
    return Stack(embedding_head=embedding_head, layers=(*left, *[layer("decoder")] * decoders), max_positions=limit)


def _marked(count: int) -> list[tuple[int, bool]]:
    """Layer indices, and which is the last: there the encoder's output is kept for the decoder."""
    return [(index, index == count - 1) for index in range(count)]
