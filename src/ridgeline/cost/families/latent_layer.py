"""Attention of a whole latent layer: projections, the indexer that picks keys where there is one, scores, output.

Shape letters: B sequences, S new tokens of each, P cached ones, H heads on this device, D hidden, Q rank of queries,
R = 512 rank of keys and values, r = 64 rotary, n and v widths of a head's keys and values, I index heads of width 128.
"""

from __future__ import annotations

import math

from numba import njit

from ridgeline.cost.families.gemm import MATRIX, MEMORY, START, norm4
from ridgeline.cost.mechanism import Array, Mechanism, like, parameter

_RANK, _ROTARY, _INDEX = 512.0, 64.0, 128.0  # DeepSeek-V3 (arXiv:2412.19437), section 4.2; V3.2 for the indexer


@njit(cache=True, error_model="numpy", inline="always")
def _seen(tokens: float, cached: float, most: float) -> float:
    """Keys that the queries of one sequence see together, each `most` of them at best [1]."""
    whole = min(max(most - cached, 0.0), tokens)  # queries that see fewer than `most`
    return whole * (cached + (whole + 1.0) / 2.0) + (tokens - whole) * most


@njit(cache=True, nogil=True, error_model="numpy")
def _layer(sizes: Array, device: Array, values: Array, out: Array) -> None:
    sms, rate, memory, plain = device[0], device[1], device[2], device[6]
    start, matrix_share, memory_share, score_share, index_share, moved_share = (
        values[0], values[1], values[2], values[3], values[4], values[5],
    )  # fmt: skip
    key_s, pick_s, index_start, row_s = values[6], values[7], values[8], values[9]
    for i in range(sizes.shape[0]):
        batch, tokens, cached, heads = sizes[i, 0], sizes[i, 1], sizes[i, 2], sizes[i, 3]
        hidden, rank, nope, value = sizes[i, 4], sizes[i, 5], sizes[i, 6], sizes[i, 7]
        index, top, absorbed, cache_bytes = sizes[i, 8], sizes[i, 9], sizes[i, 10], sizes[i, 11]
        rows, wide = batch * tokens, nope + _ROTARY
        elements = hidden * (rank + _RANK + _ROTARY) + rank * heads * wide
        elements += heads * (_RANK * (nope + value) + value * hidden)
        indexed = rank * index * _INDEX + hidden * (_INDEX + index) if index > 0.0 else 0.0
        worked = 2.0 * rows * (elements + indexed) / (rate * matrix_share)
        read = (elements + indexed) * sizes[i, 12] / (memory * memory_share)
        seconds = start + norm4(worked, read) + rows * row_s
        longest = cached + tokens
        most = min(longest, top) if top > 0.0 else longest
        keys = batch * _seen(tokens, cached, most)
        of_pair = 2.0 * heads * (2.0 * _RANK + _ROTARY if absorbed > 0.0 else wide + value)
        scores = keys * of_pair / (plain * score_share)
        held = batch * min(most if tokens == 1.0 else longest, longest) * (_RANK + _ROTARY) * cache_bytes
        cache = held / (memory * memory_share)
        chain = most * key_s * max(1.0, batch * math.ceil(tokens * heads / 128.0) / sms)
        seconds += norm4(norm4(scores, cache), chain)
        if index > 0.0:
            pairs = batch * _seen(tokens, cached, longest)
            scored = 2.0 * pairs * index * _INDEX / (plain * index_share)
            listed = (batch * longest * _INDEX + 8.0 * pairs) / (memory * memory_share)
            picked = longest * pick_s * max(1.0, rows / sms)
            seconds += index_start + norm4(scored, listed) + picked
            worked += scored
            read += listed + picked
        passed = rows * 2.0 * (6.0 * hidden + 4.0 * heads * (wide + value)) / (memory * moved_share)
        out[i, 0], out[i, 1], out[i, 2] = seconds + passed, worked + scores, read + cache + passed


LATENT_LAYER = Mechanism(
    family="latent_layer",
    sizes=(
        "batch", "tokens", "cached", "heads", "hidden", "rank", "nope", "value", "index_heads", "top", "absorbed",
        "cache_bytes", "weight_bytes",
    ),
    defaults={
        "tokens": 1.0, "cached": 0.0, "hidden": 7168.0, "rank": 1536.0, "nope": 128.0, "value": 128.0,
        "index_heads": 0.0, "top": 0.0, "absorbed": 0.0, "cache_bytes": 2.0,
    },
    kernel=_layer,
    parameters=(
        like(START, low=3e-6, high=3e-3, start=4e-5, meaning="launches of the layer's kernels"),
        like(MATRIX, low=0.02, start=0.5),
        like(MEMORY, low=0.05, start=0.7),
        parameter("score_share_", "1", 0.01, 1.5, 0.4, "share of the 16-bit matrix rate of scores and values"),
        parameter("index_share_", "1", 0.01, 4, 0.5, "share of the 16-bit matrix rate of the indexer's scores"),
        parameter("elementwise_share_", "1", 0.02, 4, 0.4, "share of memory bandwidth of norms, rotary and casts"),
        parameter("key_s_", "s", 1e-11, 1e-7, 1e-9, "one key of the longest chain, beyond its products"),
        parameter("pick_s_", "s", 1e-13, 1e-8, 1e-11, "one SM's time to look at one score for the pick"),
        parameter("index_start_s_", "s", 1e-7, 3e-3, 1e-5, "launches of the indexer's kernels"),
        parameter("row_s_", "s", 1e-12, 1e-6, 1e-9, "one more row, beyond its products and bytes"),
    ),
)  # fmt: skip
"""Every family of a whole layer: dense or sparse, prompts or one token of each sequence."""
