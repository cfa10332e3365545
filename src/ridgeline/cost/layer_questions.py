"""Operators around products and attention as questions of the ladder: casts, encoders, whole layers, recurrences.

Shape letters: B sequences, S tokens, H heads on this device, D width or hidden; R = 512 rank of latent keys and values,
r = 64 rotary, Q rank of queries.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ridgeline.cost.answer import Question
from ridgeline.cost.families.layers import INDEX
from ridgeline.cost.formats import form
from ridgeline.cost.questions import LATENT, ROTARY, Asked, asked_of
from ridgeline.facts.mechanisms import compressed_widths, latent_widths
from ridgeline.lower.work import Number

_STATE_BYTES = 4.0  # states are kept in fp32


def quantize(rows: Number, width: Number, *, dynamic: bool = False, dtype: str = "fp8") -> Asked:
    """16-bit rows cast to a format; `dynamic` finds the scale first, with another pass: bytes in and out once."""
    what = form(dtype)
    count = np.asarray(rows, dtype=float) * width
    moved = count * (2.0 * (1.0 + dynamic) + what.input_bytes)
    return asked_of("quantize", dtype, 0.0, moved, rows=rows, width=width, dynamic=float(dynamic))


def encoder(batch: Number, tokens: Number, heads: Number, head_dim: Number, *, dtype: str = "bf16") -> Asked:
    """Attention in which every token sees every other: 4 B S^2 H D FLOP; queries, keys, values and result once."""
    size = np.asarray(tokens, dtype=float)
    flop, moved = 4.0 * batch * size * size * heads * head_dim, 8.0 * batch * size * heads * head_dim
    return asked_of("encoder", dtype, flop, moved, batch=batch, tokens=tokens, heads=heads, head_dim=head_dim)


def mla_bmm(tokens: Number, heads: Number, n: Number, k: Number, *, dtype: str = "bf16") -> Asked:
    """Products of every head that latent attention absorbs: (tokens, k) x (k, n), 2 tokens n k FLOP a head."""
    what = form(dtype)
    a, b, c = (np.asarray(x, dtype=float) for x in (tokens, n, k))
    moved = (a * c * what.input_bytes + b * c * what.weight_bytes + a * b * what.output_bytes) * heads
    return asked_of("mla_bmm", dtype, 2.0 * a * b * c * heads, moved, m=tokens, n=n, k=k, count=heads)


def latent_layer(
    batch: Number,
    tokens: Number,
    heads: Number,
    *,
    cached: Number = 0.0,
    decode: bool = False,
    model: str = "DeepSeek-V3",
    sparse: bool = False,
    dtype: str = "bf16",
    cache_dtype: str = "",
) -> Asked:
    """A whole attention layer of latent keys and values: projections, the indexer of sparse ones, scores and output.

    `tokens` new tokens after `cached`, on a device that holds `heads` heads. With `decode` one new token a sequence
    and products absorbed; `sparse` layers score every key with a narrow indexer and attend to the best.
    """
    widths = latent_widths(model, sparse=sparse)
    what, cache_bytes = form(dtype), form(cache_dtype or "bf16").weight_bytes
    narrow = 1.0 if cache_bytes < 2 else 2.0
    size, past = np.asarray(1.0 if decode else tokens, dtype=float), np.asarray(cached, dtype=float)
    sizes: dict[str, Number] = {
        "batch": batch, "tokens": size, "cached": cached, "heads": heads, "absorbed": float(decode or sparse),
        "cache_bytes": narrow, **widths,
    }  # fmt: skip
    hidden, rank, nope, value = (widths[name] for name in ("hidden", "rank", "nope", "value"))
    elements = hidden * (rank + LATENT + ROTARY) + np.asarray(heads) * (
        rank * (nope + ROTARY) + LATENT * (nope + value) + value * hidden
    )
    index = widths["index_heads"]
    elements = elements + (rank * index * INDEX + hidden * (INDEX + index) if sparse else 0.0)
    pairs = batch * size * (past + (size + 1.0) / 2.0)
    most = widths["top"] if sparse else np.inf
    attended = np.minimum(pairs, batch * size * most) if sparse else pairs
    pair_flop = 2.0 * np.asarray(heads) * (2.0 * LATENT + ROTARY if decode or sparse else nope + ROTARY + value)
    keys = batch * np.minimum(past + size, most if decode else np.inf)
    moved = elements * what.weight_bytes + 4.0 * batch * size * hidden + keys * (LATENT + ROTARY) * narrow
    family = f"{'dsa' if sparse else 'mla'}_layer_{'decode' if decode else 'prefill'}"
    flop = 2.0 * batch * size * elements + attended * pair_flop + 2.0 * pairs * index * INDEX
    return asked_of(family, dtype, flop, moved, **sizes)


def chosen_core(
    batch: Number,
    tokens: Number,
    cached: Number,
    heads: Number,
    widths: Mapping[str, float],
    *,
    decode: bool = False,
    dtype: str = "bf16",
    cache_dtype: str = "",
) -> Question:
    """The part of a sparse layer that its keys decide, as a question to the whole layer's kernels.

    `tokens` new tokens of each of `batch` sequences after `cached`; `widths` as `latent_widths` names them, with no
    index heads where the layer takes the keys of the one before it.
    """
    narrow = 1.0 if form(cache_dtype or "bf16").weight_bytes < 2 else 2.0
    return Question(
        family=f"dsa_layer_{'decode' if decode else 'prefill'}",
        sizes={
            "batch": batch, "tokens": tokens, "cached": cached, "heads": heads, "absorbed": 1.0,
            "cache_bytes": narrow, **widths,
        },
        form=dtype,
    )  # fmt: skip


_DELTA_KERNELS = (  # of one gate a head; those of one gate a key channel (KDA) are others
    "chunk_gated_delta_rule chunk_gated_delta_rule_flashinfer chunk_gated_delta_rule_triton "
    "fused_recurrent_gated_delta_rule fused_recurrent_gated_delta_rule_packed_decode"
)


def delta_rule(
    batch: Number,
    tokens: Number,
    heads: Number,
    key_heads: Number,
    key_dim: Number,
    value_dim: Number,
    *,
    decode: bool = False,
) -> Asked:
    """A gated delta rule over `tokens` of each sequence, or one token with `decode`.

    6 K V FLOP a token and head; keys, queries, values and result in 16 bits, states read and written once in fp32.
    """
    each = 1.0 if decode else tokens
    total = np.asarray(batch, dtype=float) * each
    state = 2.0 * _STATE_BYTES * batch * heads * key_dim * value_dim
    moved = total * 4.0 * (key_heads * key_dim + heads * value_dim) + state
    asked = asked_of(
        f"delta_{'decode' if decode else 'prefill'}", "any", 6.0 * total * heads * key_dim * value_dim, moved,
        batch=batch, tokens=each, heads=heads, key_heads=key_heads, key_dim=key_dim, value_dim=value_dim,
    )  # fmt: skip
    return asked.by("", kernel=_DELTA_KERNELS)


def convolution(batch: Number, tokens: Number, channels: Number, *, window: Number = 4.0) -> Asked:
    """A causal convolution of `window` tokens over each channel: 2 window FLOP an element, in and out once."""
    count = np.asarray(batch, dtype=float) * tokens * channels
    one = np.asarray(np.asarray(tokens) == 1, dtype=float)
    moved = 4.0 * count + 4.0 * batch * channels * window
    return asked_of(
        "convolution", "any", 2.0 * count * window, moved, batch=batch, tokens=tokens, channels=channels, window=window,
        stepwise=one,
    )  # fmt: skip


RATIOS: Mapping[str, float] = {"csa": 4.0, "hca": 128.0, "msa": 1.0}
"""Keys of one entry by kind of layer: DeepSeek-V4's two and MiniMax-M3's. Source: deepseek-ai/DeepSeek-V4-Pro,
config.json: compress_ratios."""
_SCALES = 8.0  # bytes of the scales of an entry kept in fp8. Source: vllm, cache dtype fp8_ds_mla: 584 bytes


def layer_sizes(kind: str, model: str | Mapping[str, float], heads: Number, cache_bytes: Number) -> dict[str, Number]:
    """The sizes that a model's widths and the heads on this device decide: weights, entries, indexer.

    Widths are known by the model's name, or given as `compressed_widths` names them.

    DeepSeek-V4 projects queries over a rank, one key for all heads, a compressor (two where entries overlap) with its
    gates, and the output by groups of heads; MiniMax-M3 as grouped attention does, an index head for each key head.
    """
    width = compressed_widths(model) if isinstance(model, str) else model
    hidden, rank, dim, group = (width[name] for name in ("hidden", "rank", "head_dim", "group"))
    count, narrow = np.asarray(heads, dtype=float), np.asarray(cache_bytes, dtype=float)
    keys = np.maximum(count / group, 1.0) if kind == "msa" else np.ones(count.shape)
    if kind == "msa":
        elements = hidden * dim * (2.0 * count + 2.0 * keys) + hidden * INDEX * (keys + 1.0)
        entry, index = 2.0 * dim * narrow, keys * width["index_heads"]
    else:
        overlapping = 2.0 if kind == "csa" else 1.0
        out = count * dim * width["out_rank"] + np.maximum(count / group, 1.0) * width["out_rank"] * hidden
        elements = hidden * rank + rank * count * dim + hidden * dim * (1.0 + 2.0 * overlapping) + out
        index = np.full(count.shape, width["index_heads"] if kind == "csa" else 0.0)
        indexer = rank * width["index_heads"] * INDEX + hidden * (width["index_heads"] + 4.0 * INDEX)
        elements = elements + (indexer if kind == "csa" else 0.0)
        entry = np.where(narrow < 2.0, dim + ROTARY + _SCALES, 2.0 * dim)
    return {
        "heads": count, "key_heads": keys, "head_dim": dim, "hidden": hidden, "elements": elements,
        "index_heads": index, "ratio": RATIOS[kind], "window": width["window"], "entry_bytes": entry,
        "top": 0.0 if kind == "hca" else width["top"],
    }  # fmt: skip


def compressed_layer(
    kind: str,
    batch: Number,
    tokens: Number,
    heads: Number,
    *,
    cached: Number = 0.0,
    decode: bool = False,
    model: str | Mapping[str, float] = "",
    dtype: str = "bf16",
    cache_dtype: str = "",
) -> Asked:
    """A whole attention layer whose far keys are compressed ('csa', 'hca') or chosen in blocks ('msa').

    `tokens` new tokens after `cached`, on a device that holds `heads` heads; with `decode` one of each sequence. The
    widths are those of `model`, by name or as `compressed_widths` names them ('' DeepSeek-V4-Pro's and MiniMax-M3's).
    """
    what = form(dtype)
    narrow = 1.0 if form(cache_dtype or "bf16").weight_bytes < 2 else 2.0
    sizes = layer_sizes(kind, model or ("MiniMax-M3" if kind == "msa" else "DeepSeek-V4-Pro"), heads, narrow)
    size, past = np.asarray(1.0 if decode else tokens, dtype=float), np.asarray(cached, dtype=float)
    ratio, window, top = (np.asarray(sizes[name], dtype=float) for name in ("ratio", "window", "top"))
    pairs = size * (past + (size + 1.0) / 2.0)
    most = np.where(top > 0.0, size * np.minimum(top, (past + size) / ratio), pairs / ratio)
    entries = batch * (np.minimum(most, pairs / ratio) + np.minimum(pairs, size * window))
    flop = 2.0 * batch * size * sizes["elements"] + entries * 4.0 * np.asarray(heads) * sizes["head_dim"]
    read = np.where(decode, most, (past + size) / ratio) + np.minimum(window, past + size)
    moved = batch * (4.0 * size * sizes["hidden"] + read * np.asarray(sizes["key_heads"]) * sizes["entry_bytes"])
    return asked_of(
        f"{kind}_layer_{'decode' if decode else 'prefill'}", dtype,
        flop + 2.0 * batch * pairs / ratio * np.asarray(sizes["index_heads"]) * INDEX,
        np.asarray(sizes["elements"]) * what.weight_bytes + moved, batch=batch, tokens=size, cached=cached, **sizes,
    )  # fmt: skip


def hyper_connection(rows: Number, width: Number, *, before: bool, streams: Number = 4.0) -> Asked:
    """Mixes the streams of a residual into a layer's input (`before`), or its output into them: 16-bit rows once."""
    count = np.asarray(rows, dtype=float) * width
    each = np.asarray(streams, dtype=float)
    flop = 2.0 * count * each * each * (each + 2.0) if before else 0.0 * count
    moved = 2.0 * count * (each + 1.0 if before else 2.0 * each + 1.0)
    return asked_of(
        "hyper_connection", "bf16", flop, moved, rows=rows, width=width, streams=streams, before=float(before)
    )
