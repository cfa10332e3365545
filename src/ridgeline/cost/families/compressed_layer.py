"""Attention of a whole layer whose far keys are compressed, or chosen in blocks: projections, indexer, scores, output.

DeepSeek-V4 keeps one entry for every 4 keys, of which an indexer chooses some (CSA), or one for every 128, all of
which are seen (HCA), and the last 128 keys as they are; MiniMax-M3 chooses 16 blocks of 128 keys (MSA).
Shape letters: B sequences, S new tokens of each, P cached ones, H heads on this device, I index heads of width 128.
"""

from __future__ import annotations

import math

from ridgeline.compiled import helper, kernel
from ridgeline.cost.families.gemm import ISSUE, issued, norm4
from ridgeline.cost.families.latent_layer import INDEX, PICK, SHARES, keys_seen
from ridgeline.cost.mechanism import Array, Mechanism, like, parameter


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
def _indexed(size: Array, device: Array, values: Array) -> tuple[float, float, float]:
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
def _layer(sizes: Array, device: Array, values: Array, out: Array) -> None:
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
            more, scored, listed = _indexed(size, device, values)
            seconds += more
            worked += scored
            read += listed
        passed = rows * 2.0 * (6.0 * hidden + 8.0 * heads * width) / (memory * values[5])
        out[i, 0] = issued(seconds + passed, values[12])
        out[i, 1], out[i, 2] = worked + scores, read + cache + passed


COMPRESSED_LAYER = Mechanism(
    family="compressed_layer",
    sizes=(
        "batch", "tokens", "cached", "heads", "head_dim", "hidden", "elements", "index_heads", "ratio", "window",
        "top", "entry_bytes", "weight_bytes", "key_heads",
    ),
    defaults={
        "tokens": 1.0, "cached": 0.0, "index_heads": 0.0, "ratio": 1.0, "window": 0.0, "top": 0.0, "key_heads": 1.0,
    },
    kernel=_layer,
    parameters=(
        *SHARES,
        parameter("key_s_", "s", 1e-11, 1e-7, 1e-9, "one entry of the longest chain, beyond its products"),
        *PICK,
        parameter("gather_share_", "1", 0.2, 20, 3, "rate at which entries are gathered, against the memory's"),
        parameter("row_s_", "s", 1e-12, 3e-6, 1e-9, "one more row, beyond its products and bytes"),
        parameter("head_tile_", "1", 1, 128, 16, "heads of a tile of scores"),
        like(ISSUE, high=5e-3, start=2e-5),
    ),
)  # fmt: skip
"""Every family of a layer with compressed or block-chosen keys: prompts or one token of each sequence."""
