"""Matrix products: tiles over the SMs in waves, operands through L2 and memory, casts and starts around them.

Shape letters: m, n, k of `count` products (m, k) x (k, n).
"""

from __future__ import annotations

import math

import numpy as np

from ridgeline.compiled import helper, kernel
from ridgeline.cost.mechanism import Array, Mechanism, Parameter

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


@kernel
def product_time(
    m: float,
    n: float,
    k: float,
    count: float,
    input_bytes: float,
    weight_bytes: float,
    dram_bytes: float,
    sms: float,
    rate: float,
    dram_s: float,
    fill_s: float,
    sm_bytes_per_s: float,
    sm_l2_bytes_per_s: float,
    split_s: float,
    edge: float,
    most: float,
    step_s: float,
) -> tuple[float, float, float]:
    """Time of products over the best tile and split: (together, compute, memory) [s].

    For each tile (a, b): waves = ceil(tiles / SMs); a step of k takes the longest of its FLOP at one SM's share of the
    rate (edges of small tiles cost `edge` rows more), its operands at one SM's share of L2, and `step_s`, in which the
    loop turns once however little it has to do; a wave fills and drains in `fill_s`. Memory takes `dram_bytes` at the
    lower of the device's rate (1 / `dram_s` bytes/s) and what the SMs whose tiles share no operand can ask for.
    Splitting k into `most` parts at most keeps more SMs busy and pays `split_s` and the partial sums. Units that wait
    for a turn of the loop are not busy: `compute` is what is left without it.
    """
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
    sms, rate, memory, l2 = device[0], device[1], device[2], device[3]
    start, matrix_share, memory_share, fill = values[0], values[1], values[2], values[3]
    sm_memory, sm_l2, split, edge = values[4], values[5], values[6], values[7]
    most = np.rint(values[8])
    result_kept, input_kept, issue = values[10], values[11], values[12]
    cast_start, cast_row, cast_element = values[13], values[14], values[15]
    dram_s = 1.0 / (memory * memory_share)
    for i in range(sizes.shape[0]):
        m, n, k, count = sizes[i, 0], sizes[i, 1], sizes[i, 2], sizes[i, 3]
        input_bytes, weight_bytes = sizes[i, 4], sizes[i, 5]
        result = m * n * sizes[i, 6] * count
        inputs = (m * k * input_bytes + k * n * weight_bytes) * count
        dram = result * result / (result + result_kept * l2) + inputs * inputs / (inputs + input_kept * l2)
        together, compute, moved = product_time(
            m, n, k, count, input_bytes, weight_bytes, dram, sms, rate * matrix_share, dram_s, fill,
            sm_memory, sm_l2, split, edge, most, values[9],
        )  # fmt: skip
        seconds = start + together
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


START = Parameter(
    name="start_s_",
    unit="s",
    low=3e-7,
    high=3e-5,
    start=2.4e-6,
    meaning="launch, first loads and last stores of a kernel",
)
MATRIX = Parameter(
    name="matrix_share_",
    unit="1",
    low=0.2,
    high=1.0,
    start=0.8,
    meaning="share of the peak matrix rate in the steady loop",
)
MEMORY = Parameter(
    name="memory_share_", unit="1", low=0.3, high=1.0, start=0.88, meaning="share of the memory bandwidth"
)
FILL = Parameter(
    name="fill_s_", unit="s", low=1e-8, high=2e-5, start=8e-7, meaning="fill and drain of one wave of tiles"
)
SM_MEMORY = Parameter(
    name="sm_bytes_per_s_",
    unit="byte/s",
    low=3e9,
    high=2e11,
    start=2.2e10,
    meaning="memory traffic that one SM can ask for",
)
SM_L2 = Parameter(
    name="sm_l2_bytes_per_s_",
    unit="byte/s",
    low=1e10,
    high=1e12,
    start=8e10,
    meaning="operands that L2 supplies to one SM",
)
ISSUE = Parameter(name="issue_s_", unit="s", low=3e-7, high=3e-4, start=2e-6, meaning="host time to issue the kernels")

_CAST = (
    Parameter(name="cast_start_s_", unit="s", low=3e-7, high=6e-5, start=2e-6, meaning="start of the cast"),
    Parameter(name="cast_row_s_", unit="s", low=1e-9, high=1e-5, start=3e-7, meaning="one SM's time for a row to cast"),
    Parameter(
        name="cast_element_s_",
        unit="s",
        low=1e-12,
        high=1e-9,
        start=1e-10,
        meaning="one SM's time for an element to cast",
    ),
)

GEMM = Mechanism(
    family="gemm",
    sizes=("m", "n", "k", "count", "input_bytes", "weight_bytes", "output_bytes", "cast"),
    defaults={"count": 1.0, "cast": 0.0},
    kernel=_gemm,
    parameters=(
        START,
        MATRIX,
        MEMORY,
        FILL,
        SM_MEMORY,
        SM_L2,
        Parameter(name="split_s_", unit="s", low=1e-8, high=2e-5, start=2.5e-6, meaning="reduction over parts of k"),
        Parameter(name="edge_", unit="1", low=0.01, high=200, start=4, meaning="rows that the edges of a tile cost"),
        Parameter(
            name="most_parts_",
            unit="1",
            low=0.7,
            high=64,
            start=32,
            grid=(1.0, 2.0, 4.0, 8.0, 16.0),
            meaning="parts at most that the library splits k into",
        ),
        Parameter(
            name="step_s_",
            unit="s",
            low=1e-11,
            high=5e-8,
            start=5e-10,
            others=(2e-9, 8e-9),
            meaning="least time of one value of k in a tile",
        ),
        Parameter(
            name="result_kept_", unit="1", low=1e-3, high=1, start=0.02, meaning="share of L2 that keeps results"
        ),
        Parameter(name="input_kept_", unit="1", low=1e-3, high=1, start=0.01, meaning="share of L2 that keeps inputs"),
        ISSUE,
        *_CAST,
    ),
)

CASTS = Mechanism(
    family="gemm",
    sizes=("m", "k", "input_bytes"),
    defaults={},
    kernel=_casts,
    parameters=_CAST,
)
"""The cast alone, before a product."""
