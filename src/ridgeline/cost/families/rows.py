"""Passes over rows: casts of 16-bit activations to a narrower format, and hyper-connections.

A cast's scale is known, or it finds it first. Hyper-connections mix a residual of several streams into a layer's input,
and its output back into them.

Shape letters: T rows, D elements of a row, N streams.
"""

from __future__ import annotations

import math

from ridgeline.compiled import kernel
from ridgeline.cost.families.gemm import missed, norm4
from ridgeline.cost.mechanism import Array, formula


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
        cold = missed(moved, kept * l2)
        dram = moved * (cold + (1.0 - cold) / cached) / (memory * memory_share)
        busy = math.ceil(rows / sms) * (row_s + width * element_s)
        out[i, 0], out[i, 1], out[i, 2] = start + norm4(busy, dram), 0.0, dram


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
        cold = missed(moved, kept * l2)
        dram = moved * (cold + (1.0 - cold) / cached) / (memory * memory_share)
        busy = math.ceil(rows / sms) * row_s
        out[i, 0], out[i, 1], out[i, 2] = start + norm4(norm4(busy, worked), dram), worked, dram


QUANTIZE = formula("quantize", _quantize)
HYPER_CONNECTION = formula("hyper_connection", _mixed)
