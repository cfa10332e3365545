"""The feed-forward of one rank's experts: two grouped products over uneven rows, and the small kernels around them.

Shape letters: T tokens of the expert-parallel group, D hidden, F feed-forward of one expert on this rank, E experts.
"""

from __future__ import annotations

import math

import numpy as np

from ridgeline.compiled import kernel
from ridgeline.cost.families.gemm import issued, norm4
from ridgeline.cost.families.routing import TILE_ROWS, routed
from ridgeline.cost.mechanism import Array, formula

_COLUMNS = np.array([64, 128, 256], dtype=np.float64)
_LARGEST_TILE = 32_768.0  # rows x columns: sums in fp32 in half of an SM's 256 KiB of registers (derived)
_STATED = 13  # sizes of the formula
_CHOICES = [0, 3, 4, 5, 6]  # where tokens, choices of each, experts, ranks and skew are among the sizes


def derive(sizes: Array) -> Array:
    """The stated sizes with the statistics of the rows that reach the rank."""
    return np.concatenate([sizes, routed(np.ascontiguousarray(sizes[:, _CHOICES]))], axis=1)


@kernel
def _grouped(
    row: Array, n: float, k: float, dram_share: float, sms: float, rate: float, dram_s: float, v: Array
) -> tuple[float, float, float]:
    """One grouped product: (together, compute, memory) [s]; tiles of every expert share the SMs."""
    fill, sm_memory, sm_l2, edge = v[3], v[4], v[5], v[7]
    input_bytes, weight_bytes = row[8], row[9]
    rows, reached, fullest = row[_STATED], row[_STATED + 1], row[_STATED + 2]
    mean = rows / max(reached, 1e-9)
    dram = (reached * n * k * weight_bytes + rows * (k * input_bytes + 2.0 * n)) * dram_share
    best, best_compute, best_memory = math.inf, 0.0, 0.0
    for index in range(TILE_ROWS.size):
        a = TILE_ROWS[index]
        if a < row[10] or a > row[11]:
            continue
        if a > row[10] and TILE_ROWS[index - 1] >= fullest:
            break
        for b in _COLUMNS:
            if a * b > _LARGEST_TILE:
                continue
            tiles = row[_STATED + 3 + index] * math.ceil(n / b)
            matrix = 2.0 * a * b * k / (rate / sms) * (1.0 + edge * (1.0 / a + 1.0 / b))
            supply = (min(a, mean) * input_bytes + b * weight_bytes) * k / sm_l2
            compute = max(1.0, math.ceil(tiles / sms)) * (max(matrix, supply) + fill)
            memory = norm4(dram * dram_s, dram / (max(1.0, min(tiles, sms)) * sm_memory))
            together = norm4(compute, memory)
            if together < best:
                best, best_compute, best_memory = together, compute, memory
    return best, best_compute, best_memory


@kernel
def _experts(sizes: Array, device: Array, values: Array, out: Array) -> None:
    sms, rate, memory, l2 = device[0], device[1], device[2], device[3]
    dram_s = 1.0 / (memory * values[2])
    for i in range(sizes.shape[0]):
        row = sizes[i]
        tokens, hidden, inner, top_k, experts, ranks = row[0], row[1], row[2], row[3], row[4], row[5]
        gate, input_bytes, weight_bytes = 1.0 + row[7], row[8], row[9]
        rows, reached = row[_STATED], row[_STATED + 1]
        seconds = values[0] + values[8] * tokens * top_k + values[9] * experts / ranks
        seconds += values[10] if ranks > 1.0 else 0.0
        compute = moved_s = 0.0
        if rows > 0.0:
            weights = reached * (gate + 1.0) * hidden * inner * weight_bytes
            kept = (weights + rows * (hidden * (input_bytes + 2.0) + inner * (2.0 * gate + input_bytes))) / (
                l2 * values[6]
            )
            missed = kept * kept / (1.0 + kept * kept)
            for product in range(2):
                n, k = (gate * inner, hidden) if product == 0 else (hidden, inner)
                together, worked, moved = _grouped(row, n, k, missed, sms, rate * values[1], dram_s, values)
                seconds += together
                compute += worked
                moved_s += moved
            small = tokens * top_k if row[12] > 0.0 else rows
            passed = 4.0 * tokens * hidden + rows * hidden * input_bytes
            passed += small * (inner * (2.0 * gate + input_bytes) + 2.0 * hidden)
            passed = passed * passed / (passed + values[6] * l2) / (memory * values[11])
            seconds += passed
            moved_s += passed
        out[i, 0], out[i, 1], out[i, 2] = issued(seconds, values[12]), compute, moved_s


EXPERTS = formula("experts", _experts, derive=derive)
