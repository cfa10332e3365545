"""Attention of serving engines: prefill over whole prompts, decode of one token a sequence, keys split over idle SMs.

Shape letters: B sequences, S tokens of a prompt, P cached tokens before it, K kv heads, G query heads of each
(H = G K), D head size, W window.
"""

from __future__ import annotations

import math

from ridgeline.compiled import helper, kernel
from ridgeline.cost.families.gemm import FILL, MATRIX, MEMORY, SM_MEMORY, START
from ridgeline.cost.mechanism import Array, Mechanism, like, parameter

KEYS = 64.0  # keys of one step of a kernel's loop (assumed)
_BLOCKS_A_SM = 6.0  # beyond which splitting keys keeps no more SMs busy (assumed)
_FEWEST_KEYS = 32.0  # of one part (assumed)
_SMALL_TILE = 1.3  # of a score in a tile of 64 query rows over one of 128: half the operands are reused (assumed)
CACHE_RATE = 4.0  # L2 over memory bandwidth (derived: 5,120 bytes a clock of an A100, its whitepaper, are 3.5 to 4.6)


@helper
def power_norm(a: float, b: float, power: float) -> float:
    """(a^p + b^p)^(1/p): two things that overlap, the more fully the higher the power p."""
    longer = max(a, b)
    if longer <= 0.0:
        return 0.0
    found: float = longer * ((a / longer) ** power + (b / longer) ** power) ** (1.0 / power)
    return found


@helper
def _missed(moved: float, kept: float) -> float:
    """Share of the traffic of a repeated kernel that misses L2 [1]: a cliff at the part of it that stays warm."""
    share = moved / kept
    x = share * share * share * share * share
    return x / (1.0 + x)


@kernel
def _tiles_time(
    batch: float,
    tokens: float,
    cached: float,
    heads: float,
    blocks_of: float,
    pack: float,
    rows: float,
    window: float,
    sms: float,
    step: float,
    fill: float,
    tail: float,
    masked_keys: float,
) -> float:
    """Time of score tiles of `rows` query rows, `pack` heads in a tile, over the SMs [s].

    A tile visits the keys that its last row may see (and pays for those masked on the diagonal); blocks are spread
    over the SMs, the last of them alone for `tail` of its time.
    """
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
    last = (math.ceil(longest / KEYS) * KEYS + masked) * step + fill
    if batch * blocks_of * tiles <= sms:
        return last
    return max(last, batch * blocks_of * (keys * step + tiles * fill) / sms + tail * last)


@kernel
def _prefill(sizes: Array, device: Array, values: Array, out: Array) -> None:
    sms, rate, memory, l2, clock = device[0], device[1], device[2], device[3], device[4]
    start, matrix_share, memory_share, fill, exponents = values[0], values[1], values[2], values[3], values[4]
    overlap, tail, kept, auxiliary, wide = values[5], values[6], values[7], values[8], values[9]
    masked_keys, memory_overlap = values[10], values[11]
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
            core = min(
                core,
                _tiles_time(
                    batch, tokens, cached, heads, blocks_of, pack, rows, window, sms, step, fill, tail, masked_keys
                ),
            )
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


_L2_KEPT = parameter("l2_kept_", "1", 0.02, 1, 0.3, "share of L2 that stays warm between calls")
_TAIL = parameter("tail_", "1", 0.01, 1.2, 0.3, "part of the last block's time in which it runs alone")
_OVERLAP = parameter("memory_overlap_", "1", 1, 8, 2, "norm in which the core and its memory traffic overlap")

PREFILL = Mechanism(
    family="prefill",
    sizes=(
        "batch",
        "tokens",
        "cached",
        "kv_heads",
        "group",
        "head_dim",
        "window",
        "kv_bytes",
        "padded",
        "packed",
        "packs_one",
        "writes_cache",
        "query_pass_bytes",
        "eager",
    ),
    defaults={
        "cached": 0.0,
        "group": 1.0,
        "window": 0.0,
        "padded": 0.0,
        "packed": 1.0,
        "packs_one": 1.0,
        "writes_cache": 0.0,
        "query_pass_bytes": 0.0,
        "eager": 0.0,
    },
    kernel=_prefill,
    parameters=(
        like(START, low=1e-6, high=2e-4, start=9e-6),
        like(MATRIX, low=0.03, start=0.6),
        like(MEMORY, low=0.2, start=0.8),
        like(FILL, high=3e-5, start=1e-6),
        parameter("exponents_per_clock_", "1/cycle", 1, 64, 14, "exponentials of one SM"),
        parameter("softmax_overlap_", "1", 1, 12, 2, "norm in which products and exponentials overlap"),
        _TAIL,
        _L2_KEPT,
        parameter("rotary_share_", "1", 0.05, 1, 0.6, "share of L2 bandwidth of the cache write and query pass"),
        parameter("wide_", "1", 1e-3, 3, 0.1, "loss of the matrix rate for each 128 of head size beyond 128"),
        parameter("masked_keys_", "1", 0.01, 20, 1, "keys paid for each query row that a tile spans"),
        _OVERLAP,
    ),
)
DECODE = Mechanism(
    family="decode",
    sizes=(
        "batch",
        "context",
        "kv_heads",
        "group",
        "head_dim",
        "window",
        "kv_bytes",
        "padded",
        "per_query",
        "most_splits",
        "layout_copies",
        "window_unsplit",
        "eager",
        "block_heads",
        "always_splits",
    ),
    defaults={
        "group": 1.0,
        "window": 0.0,
        "padded": 0.0,
        "per_query": 0.0,
        "most_splits": 128.0,
        "layout_copies": 0.0,
        "window_unsplit": 0.0,
        "eager": 0.0,
        "block_heads": 0.0,
        "always_splits": 0.0,
    },
    kernel=_decode,
    parameters=(
        like(START, low=1e-6, high=2e-4, start=6e-6),
        like(MATRIX, low=0.01, start=0.4),
        like(MEMORY, low=0.2, start=0.8),
        like(FILL, high=3e-5, start=1e-6),
        like(SM_MEMORY, low=1e9, high=3e11, start=3e10),
        parameter("tile_s_", "s", 1e-9, 5e-6, 1e-7, "one step over 64 keys, beyond its traffic and products"),
        like(_TAIL, start=0.4),
        parameter("split_s_", "s", 1e-8, 2e-5, 2e-6, "combining the parts of split keys"),
        _L2_KEPT,
        parameter("fill_per_width_s_", "s", 1e-10, 1e-7, 1e-8, "fill of a block, for each element of the head"),
        parameter("split_each_s_", "s", 1e-10, 1e-6, 5e-8, "combining one more part"),
        parameter("window_fill_s_", "s", 1e-9, 2e-5, 1e-7, "fill of a block when a window cuts its keys"),
        parameter("wide_", "1", 1e-3, 3, 0.05, "loss of an SM's traffic for each 64 of head size beyond 64"),
        like(_OVERLAP, start=3),
    ),
)
