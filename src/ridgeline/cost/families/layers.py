"""Attention of a whole layer: projections, the indexer that picks keys where there is one, scores, output.

Latent layers, and those whose far keys are compressed or chosen in blocks: DeepSeek-V4 keeps one entry for every 4
keys, of which an indexer chooses some (CSA), or one for every 128, all of which are seen (HCA), and the last 128 keys
as they are; MiniMax-M3 chooses 16 blocks of 128 keys (MSA).
Shape letters: B sequences, S new tokens of each, P cached ones, H heads on this device, D hidden, Q rank of queries,
R = 512 rank of keys and values, r = 64 rotary, n and v widths of a head's keys and values, I index heads of width 128.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ridgeline.compiled import helper, kernel
from ridgeline.cost.families.gemm import issued, norm4
from ridgeline.cost.mechanism import Array, formula

_RANK, _ROTARY = 512.0, 64.0  # DeepSeek-V3 (arXiv:2412.19437), section 4.2
INDEX = (
    128.0  # width of an index key. Source: config.json of deepseek-ai/DeepSeek-V3.2-Exp, -V4-Pro, MiniMaxAI/MiniMax-M3
)


@helper
def keys_seen(tokens: float, cached: float, most: float) -> float:
    """Keys that the queries of one sequence see together, each `most` of them at best [1]."""
    whole = min(max(most - cached, 0.0), tokens)  # queries that see fewer than `most`
    return whole * (cached + (whole + 1.0) / 2.0) + (tokens - whole) * most


@helper
def _attended(size: Array, device: Array, values: Array) -> tuple[float, float, float]:
    """Time of the scores and values, and how long they keep the matrix units and the memory busy [s].

    Absorbed scores fill tiles of `head_tile_` heads whatever the device holds; chosen keys are gathered query by query.
    """
    batch, tokens, cached, heads, nope, value, top = size[0], size[1], size[2], size[3], size[6], size[7], size[9]
    longest = cached + tokens
    most = min(longest, top) if top > 0.0 else longest
    keys = batch * keys_seen(tokens, cached, most)
    absorbed = max(heads, values[10]) * (2.0 * _RANK + _ROTARY)
    of_pair = 2.0 * (absorbed if size[10] > 0.0 else heads * (nope + _ROTARY + value))
    scores = keys * of_pair / (device[6] * values[3])
    held = batch * min(most if tokens == 1.0 else longest, longest) * (_RANK + _ROTARY) * size[11]
    cache = held / (device[2] * values[2])
    if top > 0.0:
        cache = norm4(cache, keys * (_RANK + _ROTARY) * size[11] / (device[2] * values[9]))
    chain = most * values[6] * max(1.0, batch * math.ceil(tokens * heads / 128.0) / device[0])
    return norm4(norm4(scores, cache), chain), scores, cache


@helper
def _picked(size: Array, device: Array, values: Array) -> tuple[float, float, float]:
    """Time of the indexer's scores of all keys and of its pick, and of matrix units and memory in it [s].

    While there are no more keys than it may choose, it scores none.
    """
    batch, tokens, cached, index = size[0], size[1], size[2], size[8]
    longest = cached + tokens
    if longest <= size[9]:
        return values[8], 0.0, 0.0
    pairs = batch * keys_seen(tokens, cached, longest)
    scored = 2.0 * pairs * index * INDEX / (device[6] * values[4])
    listed = (batch * longest * INDEX + 8.0 * pairs) / (device[2] * values[2])
    picked = longest * values[7] * max(1.0, batch * tokens / device[0])
    return values[8] + norm4(scored, listed) + picked, scored, listed + picked


@helper
def _index_elements(size: Array) -> float:
    """Elements of the indexer's projections [1]."""
    return size[5] * size[8] * INDEX + size[4] * (INDEX + size[8]) if size[8] > 0.0 else 0.0


@kernel
def _chosen_core(sizes: Array, device: Array, values: Array, out: Array) -> None:
    """What of `_latent` is no product that dense layers have: scores, values, the indexer whole."""
    for i in range(sizes.shape[0]):
        size = sizes[i]
        seconds, compute, memory = _attended(size, device, values)
        seconds += size[0] * size[1] * values[12]
        if size[8] > 0.0:
            elements = _index_elements(size)
            worked = 2.0 * size[0] * size[1] * elements / (device[1] * values[1])
            read = elements * size[12] / (device[2] * values[2])
            more, scored, listed = _picked(size, device, values)
            seconds += norm4(worked, read) + more
            compute, memory = compute + worked + scored, memory + read + listed
        out[i, 0], out[i, 1], out[i, 2] = seconds, compute, memory


@kernel
def _latent(sizes: Array, device: Array, values: Array, out: Array) -> None:
    rate, memory = device[1], device[2]
    start, matrix_share, memory_share, moved_share, issue = values[0], values[1], values[2], values[5], values[11]
    for i in range(sizes.shape[0]):
        size = sizes[i]
        heads, hidden, rank, nope, value = size[3], size[4], size[5], size[6], size[7]
        rows, wide = size[0] * size[1], nope + _ROTARY
        elements = hidden * (rank + _RANK + _ROTARY) + rank * heads * wide
        elements += heads * (_RANK * (nope + value) + value * hidden)
        indexed = _index_elements(size)
        worked = 2.0 * rows * (elements + indexed) / (rate * matrix_share)
        read = (elements + indexed) * size[12] / (memory * memory_share)
        seconds = start + norm4(worked, read) + rows * values[12]
        core_s, scores, cache = _attended(size, device, values)
        seconds += core_s
        if size[8] > 0.0:
            more, scored, listed = _picked(size, device, values)
            seconds += more
            worked += scored
            read += listed
        passed = rows * 2.0 * (6.0 * hidden + 4.0 * heads * (wide + value)) / (memory * moved_share)
        out[i, 0], out[i, 1], out[i, 2] = issued(seconds + passed, issue), worked + scores, read + cache + passed


@helper
def _scored(size: Array, device: Array, values: Array) -> tuple[float, float, float]:
    """Time of the scores and values, and how long they keep the matrix units and the memory busy [s]."""
    batch, tokens, cached, heads, width, ratio = size[0], size[1], size[2], size[3], size[4], size[8]
    window, top = size[9], size[10]
    longest = cached + tokens
    far = min(longest, top * ratio) if top > 0.0 else longest
    entries = batch * (keys_seen(tokens, cached, far) / ratio + keys_seen(tokens, cached, min(window, longest)))
    scores = entries * 4.0 * max(heads, values[11]) * width / (device[6] * values[3])
    held = batch * ((far if tokens == 1.0 else longest) / ratio + min(window, longest)) * size[11] * size[13]
    gathered = entries * size[11] * size[13] / (device[2] * values[9])
    chain = far / ratio * values[6] * max(1.0, batch * math.ceil(tokens * heads / 128.0) / device[0])
    memory = norm4(held / (device[2] * values[2]), gathered)
    return norm4(norm4(scores, memory), chain), scores, memory


@helper
def _picked_entries(size: Array, device: Array, values: Array) -> tuple[float, float, float]:
    """Time of the indexer's scores of all entries and of its pick, and of matrix units and memory in it [s].

    While there are no more entries than it may choose, it scores none.
    """
    batch, tokens, cached, index, ratio = size[0], size[1], size[2], size[7], size[8]
    longest = (cached + tokens) / ratio
    if longest <= size[10]:
        return values[8], 0.0, 0.0
    pairs = batch * keys_seen(tokens, cached, cached + tokens) / ratio
    scored = 2.0 * pairs * index * INDEX / (device[6] * values[4])
    listed = (batch * longest * INDEX + 8.0 * pairs) / (device[2] * values[2])
    picked = longest * values[7] * max(1.0, batch * tokens / device[0])
    return values[8] + norm4(scored, listed) + picked, scored, listed + picked


@kernel
def _compressed(sizes: Array, device: Array, values: Array, out: Array) -> None:
    rate, memory = device[1], device[2]
    for i in range(sizes.shape[0]):
        size = sizes[i]
        rows, heads, width, hidden, elements = size[0] * size[1], size[3], size[4], size[5], size[6]
        worked = 2.0 * rows * elements / (rate * values[1])
        read = elements * size[12] / (memory * values[2])
        seconds = values[0] + norm4(worked, read) + rows * values[10]
        core_s, scores, cache = _scored(size, device, values)
        seconds += core_s
        if size[7] > 0.0:
            more, scored, listed = _picked_entries(size, device, values)
            seconds += more
            worked += scored
            read += listed
        passed = rows * 2.0 * (6.0 * hidden + 8.0 * heads * width) / (memory * values[5])
        out[i, 0] = issued(seconds + passed, values[12])
        out[i, 1], out[i, 2] = worked + scores, read + cache + passed


LATENT_LAYER = formula("latent_layer", _latent)
"""Every family of a whole layer: dense or sparse, prompts or one token of each sequence."""
CHOSEN_CORE = replace(LATENT_LAYER, kernel=_chosen_core)
"""A sparse layer without start, elementwise passes and the projections of queries, latents and output."""
COMPRESSED_LAYER = formula("compressed_layer", _compressed)
"""Every family of a layer with compressed or block-chosen keys: prompts or one token of each sequence."""
