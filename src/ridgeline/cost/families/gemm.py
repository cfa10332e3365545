"""Matrix products: tiles over the SMs in waves, operands through L2 and memory, casts and starts around them.

Shape letters: m, n, k of `count` products (m, k) x (k, n).
"""

from __future__ import annotations

import math

import numpy as np

from ridgeline.compiled import helper, kernel
from ridgeline.cost.mechanism import Array, formula

# Thread-block tiles (rows, columns) that matrix libraries choose from; powers of two, so that their inverse is exact.
_TILES = (
    (128, 256), (256, 128), (128, 128), (64, 256), (256, 64), (64, 128), (128, 64), (64, 64),
    (64, 32), (32, 64), (64, 16), (16, 64),
)  # fmt: skip
_ROWS = np.array([rows for rows, _ in _TILES], dtype=np.float64)
_COLUMNS = np.array([columns for _, columns in _TILES], dtype=np.float64)
_BY_ROWS, _BY_COLUMNS = 1 / _ROWS, 1 / _COLUMNS
_SHORTEST_K = 64.0  # of one part of a split product
_HIDDEN = 0.03  # tolerance: share of the kernels' time below which the host's adds less than rounding


@helper
def norm4(a: float, b: float) -> float:
    """(a^4 + b^4)^(1/4): two things that overlap almost fully take little more than the longer."""
    return math.sqrt(math.sqrt(a * a * a * a + b * b * b * b))


@helper
def fourth(a: float) -> float:
    """a^4."""
    return (a * a) * (a * a)


@helper
def power_norm(a: float, b: float, power: float) -> float:
    """(a^p + b^p)^(1/p): two things that overlap, the more fully the higher the power p."""
    longer = max(a, b)
    if longer <= 0.0:
        return 0.0
    found: float = longer * ((a / longer) ** power + (b / longer) ** power) ** (1.0 / power)
    return found


@helper
def missed(moved: float, kept: float) -> float:
    """Share of the traffic of a repeated kernel that misses L2 [1]: a cliff at the part of it that stays warm."""
    share = moved / kept
    fifth = share * fourth(share)
    return fifth / (1.0 + fifth)


@kernel
def product_time(size: Array, dram_bytes: float, device: Array, values: Array) -> tuple[float, float, float]:
    """Time of products over the best tile and split: (together, compute, memory) [s].

    For each tile (a, b): waves = ceil(tiles / SMs); a step of k takes the longest of its FLOP at one SM's share of the
    rate (edges of small tiles cost `edge` rows more), its operands at one SM's share of L2, and `step_s`, in which the
    loop turns once however little it has to do; a wave fills and drains in `fill_s`. Memory takes `dram_bytes` at the
    lower of the device's rate (1 / `dram_s` bytes/s) and what the SMs whose tiles share no operand can ask for.
    Splitting k into `most` parts at most keeps more SMs busy and pays `split_s` and the partial sums. Units that wait
    for a turn of the loop are not busy: `compute` is what is left without it.
    """
    m, n, k, count, input_bytes, weight_bytes = size[0], size[1], size[2], size[3], size[4], size[5]
    sms, rate, dram_s = device[0], device[1] * values[1], 1.0 / (device[2] * values[2])
    fill_s, sm_bytes_per_s, sm_l2_bytes_per_s, split_s, edge = values[3], values[4], values[5], values[6], values[7]
    most, step_s = np.rint(values[8]), values[9]
    best4, compute, asked, extra = math.inf, 0.0, 0.0, 0.0  # fourth powers are compared: one root a product
    flop_s, supply_s, by_sms = 2.0 * sms / rate, 1.0 / sm_l2_bytes_per_s, 1.0 / sms
    floor, asked_s, partial_s = dram_bytes * dram_s, dram_bytes / sm_bytes_per_s, m * n * count * 4.0 * dram_s
    floor4, whole_k = fourth(floor), np.ceil(k / 64.0) * 64.0
    for index in range(_ROWS.size):
        a, b, by_a, by_b = _ROWS[index], _COLUMNS[index], _BY_ROWS[index], _BY_COLUMNS[index]
        down, across = np.ceil(m * by_a), np.ceil(n * by_b)
        tiles = down * across * count
        supply = (min(a, m) * input_bytes + min(b, n) * weight_bytes) * supply_s
        work = max(a * b * flop_s * (1.0 + edge * (by_a + by_b)), supply)
        per_k = max(work, step_s)
        busy = per_k * k * max(tiles * by_sms, 1.0 / most)
        if fourth(busy) + floor4 >= best4:
            continue  # not even with every SM busy to the end
        apart = max(down, across) * count  # blocks that share no operand
        split, steps, more = 1.0, whole_k, 0.0
        while True:
            working = np.ceil(tiles * split / sms) * (per_k * steps + fill_s)
            asking = asked_s / min(apart * split, sms)
            together4 = fourth(working) + floor4 + fourth(asking)
            if together4 < best4 and more > 0.0:
                together4 = fourth(math.sqrt(math.sqrt(together4)) + more)
            if together4 < best4:
                best4, compute, asked, extra = together4, working * (work / per_k), asking, more
            split *= 2.0
            steps = np.ceil(k / (split * 64.0)) * 64.0
            more = split_s + partial_s * split
            if split > most or k < split * _SHORTEST_K or tiles * split > 2.0 * sms:
                break
            if fourth(max(busy, floor) + more) >= best4:
                break  # sums of parts cost more than idle SMs
    return math.sqrt(math.sqrt(best4)), compute, norm4(floor, asked) + extra


@kernel
def cast_time(
    rows: float, width: float, moved_bytes: float, sms: float, dram_s: float, row_s: float, element_s: float
) -> float:
    """Time to cast `rows` x `width` activations to a narrower format [s]: memory traffic, or one block a row."""
    return norm4(moved_bytes * dram_s, math.ceil(rows / sms) * (row_s + width * element_s))


@kernel
def issued(kernels_s: float, issue_s: float) -> float:
    """Time of kernels that a host issues in `issue_s` [s]: the longer, with a narrow knee (8-norm)."""
    if issue_s < _HIDDEN * kernels_s:
        return kernels_s
    a = kernels_s / max(kernels_s, issue_s)
    b = issue_s / max(kernels_s, issue_s)
    a2, b2 = a * a, b * b
    a4, b4 = a2 * a2, b2 * b2
    return max(kernels_s, issue_s) * math.sqrt(math.sqrt(math.sqrt(a4 * a4 + b4 * b4)))


@kernel
def _gemm(sizes: Array, device: Array, values: Array, out: Array) -> None:
    sms, l2 = device[0], device[3]
    result_kept, input_kept, issue = values[10], values[11], values[12]
    cast_start, cast_row, cast_element = values[13], values[14], values[15]
    dram_s = 1.0 / (device[2] * values[2])
    for i in range(sizes.shape[0]):
        m, n, k, count, input_bytes = sizes[i, 0], sizes[i, 1], sizes[i, 2], sizes[i, 3], sizes[i, 4]
        result = m * n * sizes[i, 6] * count
        inputs = (m * k * input_bytes + k * n * sizes[i, 5]) * count
        dram = result * result / (result + result_kept * l2) + inputs * inputs / (inputs + input_kept * l2)
        together, compute, moved = product_time(sizes[i], dram, device, values)
        seconds = values[0] + together
        if sizes[i, 7] > 0.0:
            seconds += cast_start + cast_time(
                m * count, k, m * k * count * (2.0 + input_bytes), sms, dram_s, cast_row, cast_element
            )
        out[i, 0], out[i, 1], out[i, 2] = issued(seconds, issue), compute, moved


@kernel
def _casts(sizes: Array, device: Array, values: Array, out: Array) -> None:
    for i in range(sizes.shape[0]):
        m, k = sizes[i, 0], sizes[i, 1]
        out[i, 0] = values[0] + cast_time(
            m, k, m * k * (2.0 + sizes[i, 2]), device[0], 1.0 / device[2], values[1], values[2]
        )
        out[i, 1], out[i, 2] = 0.0, out[i, 0]


GEMM = formula("gemm", _gemm)
CASTS = formula("casts", _casts, family="gemm")
"""The cast alone, before a product."""
