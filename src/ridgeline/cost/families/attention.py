"""Attention of serving engines: prefill over whole prompts, decode of one token a sequence with keys split over idle
SMs, and encoders.

Shape letters: B sequences, S tokens of a prompt, P cached tokens before it, K kv heads, G query heads of each
(H = G K), D head size, W window.
"""

from __future__ import annotations

import math

from ridgeline.compiled import helper, kernel
from ridgeline.cost.families.gemm import missed, power_norm
from ridgeline.cost.mechanism import Array, formula

KEYS = 64.0  # keys of one step of a kernel's loop (assumed)
_BLOCKS_A_SM = 6.0  # beyond which splitting keys keeps no more SMs busy (assumed)
_FEWEST_KEYS = 32.0  # of one part (assumed)
_SMALL_TILE = 1.3  # of a score in a tile of 64 query rows over one of 128: half the operands are reused (assumed)
CACHE_RATE = 4.0  # L2 over memory bandwidth (derived: 5,120 bytes a clock of an A100, its whitepaper, are 3.5 to 4.6)


@helper
def _missed(moved: float, kept: float) -> float:
    """Share of the traffic of a repeated kernel that misses L2 [1]: a cliff at the part of it that stays warm."""
    share = moved / kept
    x = share * share * share * share * share
    return x / (1.0 + x)


@kernel
def _tiles_time(
    size: Array, blocks_of: float, pack: float, rows: float, sms: float, step: float, values: Array
) -> float:
    """Time of score tiles of `rows` query rows, `pack` heads in a tile, over the SMs [s].

    A tile visits the keys that its last row may see (and pays for those masked on the diagonal); blocks are spread
    over the SMs, the last of them alone for `tail` of its time.
    """
    batch, tokens, cached, window = size[0], size[1], size[2], size[6]
    fill, tail, masked_keys = values[3], values[6], values[10]
    tiles = math.ceil(tokens * pack / rows)
    spanned = max(min(rows / pack, tokens), 1.0)
    visited = tiles * cached + spanned * (tiles - 1.0) * tiles / 2.0 + tokens
    longest = cached + tokens
    if window > 0.0 and longest > window + spanned:
        limit = window + spanned
        growing = min(max(math.floor((limit - cached) / spanned), 0.0), tiles - 1.0)
        visited = growing * cached + spanned * growing * (growing + 1.0) / 2.0 + (tiles - growing) * limit
        longest = limit
    masked = masked_keys * spanned * (2.0 if 0.0 < window < cached + tokens else 1.0)
    keys = max(visited, tiles * KEYS) + tiles * masked
    last: float = (math.ceil(longest / KEYS) * KEYS + masked) * step + fill
    if batch * blocks_of * tiles <= sms:
        return last
    found: float = max(last, batch * blocks_of * (keys * step + tiles * fill) / sms + tail * last)
    return found


@kernel
def _prefill(sizes: Array, device: Array, values: Array, out: Array) -> None:
    sms, rate, memory, l2, clock = device[0], device[1], device[2], device[3], device[4]
    start, matrix_share, memory_share, exponents, overlap = values[0], values[1], values[2], values[4], values[5]
    kept, auxiliary, wide, memory_overlap = values[7], values[8], values[9], values[11]
    for i in range(sizes.shape[0]):
        batch, tokens, cached, kv_heads, group = sizes[i, 0], sizes[i, 1], sizes[i, 2], sizes[i, 3], sizes[i, 4]
        head, window, kv_bytes = sizes[i, 5], sizes[i, 6], sizes[i, 7]
        heads = kv_heads * group
        width = 2.0 ** math.ceil(math.log2(head)) if sizes[i, 8] > 0.0 else head
        packs = group > 1.0 and (sizes[i, 9] > 0.0 or (tokens == 1.0 and sizes[i, 10] > 0.0))
        core = math.inf
        for variant in range(4 if packs else 2):
            small = variant % 2 == 1
            rows = 64.0 if small else 128.0
            product = 4.0 * rows * width * (1.0 + wide * max(0.0, width / 128.0 - 1.0)) / (rate / sms * matrix_share)
            step = power_norm(product * (_SMALL_TILE if small else 1.0), rows / (exponents * clock), overlap)
            pack, blocks_of = (group, kv_heads) if variant >= 2 else (1.0, heads)
            core = min(core, _tiles_time(sizes[i], blocks_of, pack, rows, sms, step, values))
        seen = cached + tokens
        if window > 0.0:
            seen = min(seen, tokens + window)
        moved = batch * tokens * heads * head * 4.0 + 2.0 * batch * seen * kv_heads * head * kv_bytes
        written = sizes[i, 11] * 2.0 * batch * tokens * kv_heads * head * (2.0 + kv_bytes)
        written += batch * tokens * heads * head * sizes[i, 12]
        missed = _missed(moved + written, kept * l2)
        dram = moved * missed / (memory * memory_share)
        extra = written * (missed / (memory * memory_share) + 1.0 / (CACHE_RATE * memory * auxiliary))
        seconds = power_norm(core, dram, memory_overlap) + extra
        out[i, 0] = max(start, seconds) if sizes[i, 13] > 0.0 else start + seconds
        out[i, 1], out[i, 2] = core, dram + extra


@kernel
def _decode(sizes: Array, device: Array, values: Array, out: Array) -> None:
    sms, rate, memory, l2 = device[0], device[1], device[2], device[3]
    start, matrix_share, memory_share, fill, sm_memory = values[0], values[1], values[2], values[3], values[4]
    tile, tail, split_start, kept, by_width = values[5], values[6], values[7], values[8], values[9]
    each, window_fill, wide, overlap = values[10], values[11], values[12], values[13]
    for i in range(sizes.shape[0]):
        batch, context, kv_heads, group = sizes[i, 0], sizes[i, 1], sizes[i, 2], sizes[i, 3]
        head, window, kv_bytes = sizes[i, 4], sizes[i, 5], sizes[i, 6]
        heads = kv_heads * group
        width = 2.0 ** math.ceil(math.log2(head)) if sizes[i, 7] > 0.0 else head
        readers, most_splits = kv_heads if sizes[i, 8] == 0.0 else heads, sizes[i, 9]
        copied = sizes[i, 10] > 0.0 and batch > 1.0 and kv_heads > 1.0 and group > 1.0
        if sizes[i, 11] > 0.0 and window > 0.0:  # no grouping and no splitting once a window is set
            readers, most_splits, copied = heads, 1.0, False
        local = 0.0
        if 0.0 < window < context:
            context, local = window, window_fill
        if sizes[i, 13] > 0.0:  # a block has so many query heads at most, and reads the keys for them alone
            readers = kv_heads * math.ceil(group / sizes[i, 13])
        moved = 2.0 * batch * kv_heads * context * head * kv_bytes + batch * heads * head * 4.0
        missed = _missed(moved, kept * l2)
        dram = moved * missed / (memory * memory_share)
        rows = math.ceil(heads / readers / 16.0) * 16.0
        step = 2.0 * width * kv_bytes * (1.0 + wide * max(0.0, width / 64.0 - 1.0)) / sm_memory
        step += 4.0 * rows * width / (rate / sms * matrix_share) + tile / KEYS * (1.0 + missed)
        best, best_core, split = math.inf, 0.0, most_splits if sizes[i, 14] > 0.0 else 1.0
        while True:
            chunk = math.ceil(context / split / KEYS) * KEYS
            blocks = batch * readers * split
            waves = max(1.0, blocks / sms + tail) if blocks > sms else 1.0
            core = waves * (chunk * step + fill + width * by_width + local)
            combine = 0.0
            if split > 1.0:
                combine = split_start + split * each + batch * heads * head * split * 8.0 / (memory * memory_share)
            together = power_norm(core, dram, overlap) + combine
            if together < best:
                best, best_core = together, core
            split *= 2.0
            if split > most_splits or context / split < _FEWEST_KEYS or blocks * 2.0 > _BLOCKS_A_SM * sms:
                break
        seconds = start + best + (split_start if copied else 0.0)
        out[i, 0] = max(start, split_start + best) if sizes[i, 12] > 0.0 else seconds
        out[i, 1], out[i, 2] = best_core, dram


@kernel
def _encoder(sizes: Array, device: Array, values: Array, out: Array) -> None:
    """Encoders, whose every token sees every other: tiles of 64 or 128 queries, each over all S keys; the last tiles
    run alone for `tail` of their time."""
    sms, rate, memory, l2, clock = device[0], device[1], device[2], device[3], device[4]
    start, matrix_share, memory_share, fill, exponents = values[0], values[1], values[2], values[3], values[4]
    overlap, tail, kept, small_tile, memory_overlap = values[5], values[6], values[7], values[8], values[9]
    for i in range(sizes.shape[0]):
        batch, tokens, heads, head = sizes[i, 0], sizes[i, 1], sizes[i, 2], sizes[i, 3]
        width = 2.0 ** math.ceil(math.log2(head)) if sizes[i, 4] > 0.0 else math.ceil(head / 16.0) * 16.0
        core = math.inf
        for small in range(2):
            rows = 64.0 if small == 1 else 128.0
            slower = small_tile if small == 1 else 1.0
            product = 4.0 * rows * width * slower * sms / (rate * matrix_share)
            step = power_norm(product, rows / (exponents * clock), overlap)
            last = math.ceil(tokens / KEYS) * KEYS * step + fill
            waves = batch * heads * math.ceil(tokens / rows) / sms
            core = min(core, last if waves <= 1.0 else max(last, (waves + tail) * last))
        moved = 8.0 * batch * tokens * heads * head
        cold = missed(moved, kept * l2)
        dram = moved * (cold / memory_share + (1.0 - cold) / CACHE_RATE) / memory
        out[i, 0] = start + power_norm(core, dram, memory_overlap)
        out[i, 1], out[i, 2] = core, dram


PREFILL = formula("prefill", _prefill)
DECODE = formula("decode", _decode)
ENCODER = formula("encoder", _encoder)
