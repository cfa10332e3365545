"""Casts of 16-bit activations to a narrower format, with a scale that is known or one that the cast finds first.

Shape letters: T rows, D elements of a row.
"""

from __future__ import annotations

import math

from ridgeline.compiled import kernel
from ridgeline.cost.families.gemm import MEMORY, START, fourth, norm4
from ridgeline.cost.mechanism import Array, Mechanism, like, parameter


@kernel
def _quantize(sizes: Array, device: Array, values: Array, out: Array) -> None:
    """Elements over the SMs, or bytes through memory beyond what L2 keeps; a scale to be found reads them twice."""
    sms, memory, l2 = device[0], device[2], device[3]
    start, memory_share, row_s, element_s, kept, cached = (
        values[0], values[1], values[2], values[3], values[4], values[5],
    )  # fmt: skip
    for i in range(sizes.shape[0]):
        rows, width = sizes[i, 0], sizes[i, 1]
        reads = 2.0 if sizes[i, 2] > 0.0 else 1.0
        moved = rows * width * (2.0 * reads + sizes[i, 3])
        share = moved / (kept * l2)
        fifth = share * fourth(share)
        missed = fifth / (1.0 + fifth)
        dram = moved * (missed + (1.0 - missed) / cached) / (memory * memory_share)
        busy = math.ceil(rows / sms) * (row_s + width * element_s)
        out[i, 0], out[i, 1], out[i, 2] = start + norm4(busy, dram), 0.0, dram


QUANTIZE = Mechanism(
    family="quantize",
    sizes=("rows", "width", "dynamic", "input_bytes"),
    defaults={"dynamic": 0.0},
    kernel=_quantize,
    parameters=(
        like(START, low=3e-7, high=3e-5, start=2e-6),
        like(MEMORY, low=0.02, start=0.7),
        parameter("row_s_", "s", 1e-10, 1e-5, 1e-7, "one SM's time for a row"),
        parameter("element_s_", "s", 1e-13, 1e-8, 1e-11, "one SM's time for an element"),
        parameter("l2_kept_", "1", 0.02, 1, 0.3, "share of L2 that stays warm between calls"),
        parameter("l2_rate_", "1", 1.5, 20, 4, "rate of L2 against the memory's"),
    ),
)
