"""Hyper-connections: a residual of several streams is mixed into a layer's input, and its output back into them.

Shape letters: T rows, D hidden, N streams.
"""

from __future__ import annotations

import math

from ridgeline.compiled import kernel
from ridgeline.cost.families.gemm import MEMORY, START, fourth, norm4
from ridgeline.cost.mechanism import Array, Mechanism, like, parameter


@kernel
def _mixed(sizes: Array, device: Array, values: Array, out: Array) -> None:
    """All streams read before a layer, and the products that weigh them; after it read and written again."""
    sms, memory, l2, plain = device[0], device[2], device[3], device[6]
    start, memory_share, product_share, row_s, kept, cached = (
        values[0], values[1], values[2], values[3], values[4], values[5],
    )  # fmt: skip
    for i in range(sizes.shape[0]):
        rows, width, streams = sizes[i, 0], sizes[i, 1], sizes[i, 2]
        before = sizes[i, 3] > 0.0
        moved = rows * width * 2.0 * (streams + 1.0 if before else 2.0 * streams + 1.0)
        worked = 2.0 * rows * streams * width * streams * (streams + 2.0) / (plain * product_share) if before else 0.0
        share = moved / (kept * l2)
        fifth = share * fourth(share)
        missed = fifth / (1.0 + fifth)
        dram = moved * (missed + (1.0 - missed) / cached) / (memory * memory_share)
        busy = math.ceil(rows / sms) * row_s
        out[i, 0], out[i, 1], out[i, 2] = start + norm4(norm4(busy, worked), dram), worked, dram


HYPER_CONNECTION = Mechanism(
    family="hyper_connection",
    sizes=("rows", "width", "streams", "before"),
    defaults={"streams": 4.0},
    kernel=_mixed,
    parameters=(
        like(START, low=3e-7, high=1e-4, start=6e-6),
        like(MEMORY, low=0.02, start=0.7),
        parameter("product_share_", "1", 0.005, 1, 0.1, "share of the 16-bit matrix rate of the mixing weights"),
        parameter("row_s_", "s", 1e-10, 1e-4, 1e-7, "one SM's time for a row"),
        parameter("l2_kept_", "1", 0.02, 1, 0.3, "share of L2 that stays warm between calls"),
        parameter("l2_rate_", "1", 1.5, 20, 4, "rate of L2 against the memory's"),
    ),
    selectors=("before",),
)
