"""Seconds of kernels on one device, from mechanisms: tiles, waves, memory traffic, launch.

Every formula broadcasts over NumPy arrays. Shape letters: m, n, k of a product (m, k) x (k, n).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.answer import Cost
from ridgeline.cost.formats import Form
from ridgeline.cost.machine import Device
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import OWN_HOST
from ridgeline.lower.work import Gemm, Number, Phase, Stream

# Thread-block tiles (rows, columns) of the common matrix libraries, largest first.
TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
# Tiles (pixels, filters) of convolutions that no kernel splits over k: names of cuDNN's kernels, as scudnn_128x64.
CONVOLUTION_TILES = ((256, 128), (256, 64), (128, 128), (128, 64), (128, 32))
# Pairs of SMs that work on one tile together and read each operand once (tensor memory, CTA pairs).
PAIRED_TILES = ((256, 256), (256, 128), (128, 128))
PAIRED_ARCHITECTURES = frozenset({"blackwell"})


def tile_seconds(
    size: tuple[Number, Number, Number],
    count: Number,
    *,
    rate_flop_per_s: float,
    element_bytes: float,
    device: Device,
    result_bytes: float = 2.0,
    convolution: bool = False,
    uneven: bool = False,
) -> Number:
    """Time of `count` products of a size (m, n, k) when tiles are spread over the SMs in waves [s].

    For each tile shape: waves = ceil(tiles / SMs); a tile takes the longer of its FLOP at one SM's
    share of the rate and its operands at one SM's share of the L2 bandwidth; each wave pays one
    memory latency to fill and the store of its tiles (`result_bytes` per element, read and written
    when accumulated) at one SM's share of the memory rate. When tiles leave SMs idle, k is split
    over them, but not that of a `convolution`, which has tiles of its own. Products whose rows are `uneven`, m on
    average, end in a tile that is half full on average: m / rows + 1/2 tiles of each. The fastest shape wins.
    Lower bound: no instruction overhead. Source: NVIDIA, Matrix Multiplication Background User's
    Guide (tile and wave quantization). Evidence: derived.
    """
    (m, n, k), sms = size, device.sm_count
    if device.accelerator.architecture == OWN_HOST:  # vectors of 16 values or fewer: no tile to fill
        return 2.0 * np.asarray(m) * n * k * count / rate_flop_per_s
    if sms <= 1:  # one systolic unit: padding to 128 x 128 only
        padded = np.ceil(np.asarray(m) / 128) * 128 * np.ceil(np.asarray(n) / 128) * 128
        return 2 * padded * k * count / rate_flop_per_s
    sm_rate = rate_flop_per_s / sms
    supply = constant("sm.l2_bytes_per_cycle") * device.clock_hz
    paired = device.accelerator.architecture in PAIRED_ARCHITECTURES
    dimensions = max(np.ndim(m), np.ndim(n), np.ndim(k), np.ndim(count))
    rows, columns, width = _shapes(convolution, paired, dimensions)
    high = np.asarray(m) / rows
    high = np.maximum(high + 0.5, 1.0) if uneven else np.ceil(high)
    tiles = high * np.ceil(np.asarray(n) / columns) * count
    slots = sms // width
    most = 1.0 if convolution else np.maximum(1, np.asarray(k) / 256)
    splits = np.minimum(np.maximum(np.floor(slots / tiles), 1), most)
    waves = np.ceil(tiles * splits / slots)
    per_k = np.maximum(2 * rows * columns / (width * sm_rate), (rows + columns) * element_bytes / (width * supply))
    store = rows * columns * result_bytes * slots / device.memory_bytes_per_s
    found: Number = (waves * (per_k * k / splits + device.memory_latency_s + store)).min(axis=0)
    return found


@cache
def _shapes(convolution: bool, paired: bool, dimensions: int) -> NDArray[np.int64]:
    """Rows, columns and SMs of each tile, (3, tiles, 1, ...) to stand before so many dimensions."""
    found = [(*tile, 1) for tile in (CONVOLUTION_TILES if convolution else TILES)]
    found += [(*tile, 2) for tile in PAIRED_TILES] if paired else []
    return np.array(found).T.reshape(3, -1, *[1] * dimensions)


def gemm_cost(work: Gemm, device: Device, what: Form) -> Cost:
    """Time of a (grouped) product in a number format: the longer of its tiles and its HBM traffic [s].

    Weights that are stored smaller than inputs are expanded on the way, tiles run at the rate of the wider format. HBM
    traffic is each element of an operand once and the result once (twice when accumulated), plus, for formats cast on
    the fly, a read at 2 bytes and a write of both layouts of the cast operand. One kernel for all `routed` products
    reaches a share of the rate of plain ones; products that run so many `together` fill waves of their own.
    """
    m, n, k, count = work.m, work.n, work.k, work.count
    operands = np.asarray(m) * k / work.taps * what.input_bytes + np.asarray(k) * n * what.weight_bytes
    result_bytes = work.output_bytes * (2 if work.accumulate else 1)
    result = np.asarray(m) * n * result_bytes
    cast_bytes = 2 + work.cast_layouts * what.input_bytes if work.quantized and work.cast_layouts else 0.0
    cast = np.asarray(m) * k / work.taps * cast_bytes
    dequantized = np.asarray(work.weight_rows) * (0.5 + 2.0)
    traffic = (operands + result) * count
    flop = 2.0 * np.asarray(m) * n * k * count
    beside = np.minimum(count, work.together) if work.routed and work.together else np.asarray(count)
    grouped = work.routed & (beside > 1) & (not work.together)
    compute = tile_seconds(
        (m, n, k), beside, rate_flop_per_s=device.matrix_rate(what.matrix), device=device, result_bytes=result_bytes,
        element_bytes=(what.input_bytes + what.weight_bytes) / 2,
        uneven=work.uneven and work.phase is not Phase.BACKWARD_WEIGHT,
    ) * (count / beside) / np.where(grouped, constant("matrix.grouped_"), 1.0)  # fmt: skip
    memory = traffic / device.memory_bytes_per_s
    if work.taps > 1 or work.direct:
        alone = depthwise(n, count) | work.direct
        compute = np.where(alone, direct_seconds(flop / 2 * _loads(work), device), compute)
        memory = np.where(alone, memory / device.stream_share, memory)
    extra = (cast * count + dequantized) / (device.memory_bytes_per_s * device.stream_share)
    steps = work.steps
    return Cost(
        seconds=(np.maximum(compute, memory) + extra) * steps,
        flop=flop * steps,
        bytes=(traffic + cast * count + dequantized) * steps,
        compute_s=compute * steps,
        memory_s=(memory + extra) * steps,
        kernels=work.kernels + (2 if work.quantized and work.cast_layouts else 0),
    )


def _loads(work: Gemm) -> float:
    """Loads for each multiplication of a convolution without a product [1]; filters' gradients take longer."""
    if not work.direct:
        return work.loads
    return 2.0 * (constant("convolution.direct_filters") if work.phase is Phase.BACKWARD_WEIGHT else 1.0)


def depthwise(filters: Number, groups: Number) -> NDArray[np.bool_]:
    """Whether each group of a convolution has one filter: there is nothing to tile, and memory streams."""
    return (np.asarray(filters) <= 1) & (np.asarray(groups) > 1)


def direct_seconds(loads: Number, device: Device) -> Number:
    """Time of a convolution without a product [s]: each thread loads and multiplies the points of its own output.

    t = loads / (SMs x loads of one SM a cycle x clock): one load for a multiplication where a filter stays in
    registers, two where a group's filters are too many. Devices with one large array use their vector units. Lower
    bound: no index arithmetic, no edges. Evidence: derived.
    """
    if device.sm_count <= 1:
        return 2 * np.asarray(loads) / device.vector_flop_per_s
    return np.asarray(loads) / (device.sm_count * constant("sm.loads_per_cycle") * device.clock_hz)


def under_load(cost: Cost, device: Device, *, dtype: str) -> Cost:
    """The same product in a stream of products without pauses: at most the rate that the power limit leaves [s].

    A short product in a benchmark ends before the power limit acts; a training step runs for hours. t >= FLOP / rate,
    with the device's loaded rate of the format; the same where none is known.
    """
    rate = device.loaded.get(dtype)
    if rate is None:
        return cost
    held = np.asarray(cost.flop) / rate
    return replace(cost, seconds=np.maximum(cost.seconds, held), compute_s=np.maximum(cost.compute_s, held))


def stream_cost(work: Stream, device: Device, *, dtype: str) -> Cost:
    """Time of memory-bound work: bytes at the sustained stream rate, or FLOP on their units [s]."""
    memory = np.asarray(work.bytes) / (device.memory_bytes_per_s * device.stream_share)
    rate = device.matrix_rate(dtype) if work.matrix else device.vector_flop_per_s
    compute = np.asarray(work.flop) / rate
    return Cost(
        seconds=np.maximum(memory, compute),
        flop=work.flop,
        bytes=work.bytes,
        compute_s=compute,
        memory_s=memory,
        kernels=work.kernels,
    )
