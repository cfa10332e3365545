"""Products and attention of engines that bring their own kernels, without a table: widened weights, integers, scores.

Letters: T tokens of a prompt, P tokens cached before it, M the memory's rate.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.compute import tile_seconds
from ridgeline.cost.formats import WIDENED_BYTES, Form
from ridgeline.cost.machine import Device
from ridgeline.facts.mechanisms import constant
from ridgeline.lower.pieces import Product

Array = NDArray[np.float64]
_TILE_ROWS, _TILE_STEP = 128.0, 8.0  # Source: llama-cpp, ggml/src/ggml-cuda/mmq.cuh, mul_mat_q_case
_INTEGER_BYTES = 1.125  # of an 8-bit integer and its part of a scale of 32. Source: llama-cpp, block_q8_1


def widened_bytes(elements: Array | float, what: Form) -> Array:
    """Memory traffic of a pass that widens weights of a format to 16 bits before their product [byte]."""
    return np.asarray(elements * (what.weight_bytes + WIDENED_BYTES))


def operand_bytes(rows: Array | float, k: float, n: float, *, wide: str, pass_bytes: float) -> Array:
    """Memory traffic around a product (rows, k) x (k, n) whose operands are kept in `pass_bytes` an element [byte].

    Inputs are read and written again, as 8-bit integers with scales or in 16 bits; results are written, where the
    product is in 16 bits after another pass that widens them. Nothing where operands are in 16 bits themselves.
    Source: llama-cpp, ggml/src/ggml-cuda/ggml-cuda.cu: quantize_mmq_q8_1, ggml_cuda_op_mul_mat_cublas.

    >>> float(operand_bytes(1.0, 16.0, 8.0, wide="int8", pass_bytes=4.0))  # 16 x (4 + 9/8) + 8 x 4
    114.0
    """
    if pass_bytes <= WIDENED_BYTES:
        return np.asarray(0.0 * np.asarray(rows))
    cast, results = (_INTEGER_BYTES, 0.0) if wide == "int8" else (WIDENED_BYTES, 2.0 * WIDENED_BYTES)
    return np.asarray(rows * (k * (pass_bytes + cast) + n * (pass_bytes + results)))


def tiled_rows(tokens: Array, top_k: float, experts: Array) -> Array:
    """Rows that `experts` compute when each of `tokens` takes `top_k`: whole tiles, half a tile more on average [1].

    Tiles are as wide as the tokens, in eights, up to 128. Source: llama-cpp, ggml/src/ggml-cuda/mmq.cuh,
    mul_mat_q_case.

    >>> float(tiled_rows(np.array(16.0), 4.0, np.array(32.0)))  # 32 experts, each a tile of 16
    512.0
    """
    tile = np.minimum(_TILE_ROWS, _TILE_STEP * np.ceil(tokens / _TILE_STEP))
    return np.asarray(experts * np.maximum(tile, tokens * top_k / experts + tile / 2))


def integer_seconds(flop: Array, weight_bytes: Array, kernels: float, device: Device) -> tuple[Array, Array, Array]:
    """Products of weights of few bits by 8-bit inputs, and of it the arithmetic's and the memory's time [s].

    t = kernels (launch + 2 latency) + max(flop / R + flop c / (SMs clock), weights / M)

    R is the matrix rate of 8-bit integers. Between its instructions sums of each block are converted and scaled, c
    cycles of a multiprocessor for an operation (`int8.sm_cycles`). Domain: devices with such a rate. Evidence: derived.
    """
    scaled = flop * constant("int8.sm_cycles") / (device.sm_count * device.clock_hz)
    compute = flop / device.matrix_rate("int8") + scaled
    memory = weight_bytes / device.memory_bytes_per_s
    started = kernels * device.kernel_s
    return started + np.maximum(compute, memory), compute, memory


def wide_seconds(rows: Array, piece: Product, what: Form, device: Device) -> tuple[Array, Array, Array]:
    """Products of numbers in 32 bits over `rows`, and of it the arithmetic's and the memory's time [s].

    t = launch + 2 latency + max(tiles in waves at the format's rate, operands and results / M)

    The rate of fp32 is that of the vector units, of tf32 that of the matrix units. No public table of operators holds
    either. Domain: as `tile_seconds`. Evidence: derived.
    """
    n, k, count = piece.n, piece.k, piece.count
    compute = tile_seconds(
        rows, n, k, count, rate_flop_per_s=device.matrix_rate(what.matrix), element_bytes=what.weight_bytes,
        device=device, result_bytes=what.output_bytes,
    )  # fmt: skip
    moved = count * (rows * k * what.input_bytes + n * k * what.weight_bytes + rows * n * what.output_bytes)
    memory = moved / device.memory_bytes_per_s
    started = constant("launch.device") + 2.0 * device.memory_latency_s
    return np.asarray(started + np.maximum(compute, memory)), np.asarray(compute), np.asarray(memory)


def score_seconds(
    batch: float, tokens: Array, cached: Array, heads: float, head_dim: float, score_bytes: float, device: Device
) -> tuple[Array, Array, Array]:
    """Attention of prompts whose scores pass through memory, and of it the arithmetic's and the memory's time [s].

    t = two products of batch x heads matrices, T x (P + T) scores each, unmasked + scores x score_bytes / stream rate

    Source: as `unfused_attention_cost`, with the bytes that an engine's operators move for a score. Evidence: derived.
    """
    keys = tokens + cached
    shapes = ((tokens, keys, head_dim), (tokens, head_dim, keys))
    compute = sum(
        tile_seconds(
            m, n, k, batch * heads, rate_flop_per_s=device.half_rate, element_bytes=2, device=device,
            result_bytes=0.0,
        )
        for m, n, k in shapes
    )  # fmt: skip
    memory = batch * heads * tokens * keys * score_bytes / (device.memory_bytes_per_s * device.stream_share)
    started = 4.0 * device.kernel_s
    return np.asarray(started + compute + memory), np.asarray(compute), np.asarray(memory)
