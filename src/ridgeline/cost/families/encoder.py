"""Attention of encoders: every token sees every other, tiles of queries over the SMs.

Shape letters: B sequences, S tokens of each, H heads, D head size.
"""

from __future__ import annotations

import math

from ridgeline.compiled import kernel
from ridgeline.cost.families.attention import CACHE_RATE, KEYS, PREFILL, power_norm
from ridgeline.cost.families.gemm import fourth
from ridgeline.cost.mechanism import Array, Mechanism, parameter


@kernel
def _encoder(sizes: Array, device: Array, values: Array, out: Array) -> None:
    """Tiles of 64 or 128 queries, each over all S keys; the last tiles run alone for `tail` of their time."""
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
        share = moved / (kept * l2)
        fifth = share * fourth(share)
        missed = fifth / (1.0 + fifth)
        dram = moved * (missed / memory_share + (1.0 - missed) / CACHE_RATE) / memory
        out[i, 0] = start + power_norm(core, dram, memory_overlap)
        out[i, 1], out[i, 2] = core, dram


_NAMES = (
    "start_s_", "matrix_share_", "memory_share_", "fill_s_", "exponents_per_clock_", "softmax_overlap_", "tail_",
    "l2_kept_",
)  # fmt: skip
_OF_PREFILL = {parameter.name: parameter for parameter in PREFILL.parameters}
ENCODER = Mechanism(
    family="encoder",
    sizes=("batch", "tokens", "heads", "head_dim", "padded"),
    defaults={"padded": 0.0},
    kernel=_encoder,
    parameters=(
        *(_OF_PREFILL[name] for name in _NAMES),
        parameter("small_tile_", "1", 1.0, 2.5, 1.3, "cost of a score in a tile of 64 query rows, against 128"),
        _OF_PREFILL["memory_overlap_"],
    ),
)
