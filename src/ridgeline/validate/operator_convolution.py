"""Convolutions of two dimensions: an implicit product, or fewer multiplications between transforms.

Shape letters: N images, C channels in, K out, H x W in, P x Q out, R x S the filter, G groups.
"""

from __future__ import annotations

import math

import numpy as np

from ridgeline.cost.compute import KernelCost, depthwise, direct_seconds, tile_seconds
from ridgeline.cost.formats import Form
from ridgeline.errors import InputError
from ridgeline.validate.operator_cells import Ask, Priced, bill
from ridgeline.validate.operator_kernels import stream

_TILE = 4.0  # outputs of a tile along each side, F(4 x 4, 3 x 3). Source: Lavin and Gray (arXiv:1509.09308), section 4
_POINTS = 36.0  # of a tile that are multiplied, (4 + 3 - 1)^2
_FILTER = 9.0  # points of a filter of 3 x 3


def convolution(ask: Ask) -> Priced:
    """A convolution as G implicit products of m = N P Q, n = K / G, k = C R S / G, its input read once.

    Filters of 3 x 3 at stride 1 on vector units may also be multiplied point by point between transforms, 36 products
    for 16 outputs in place of 144, whichever is faster: matrix units have no such kernels. Without the filter's size,
    an output as large as the input means stride 1 and R = 2 pad + 1. With a group for each channel nothing is
    multiplied but each output's own points.
    """
    form = ask.format()
    batch, rows, columns = ask.size("n"), ask.size("p"), ask.size("q")
    notes = ["implicit product, input read once"]
    if {"r", "s"} <= ask.shape.keys():
        height, width = ask.size("r"), ask.size("s")
    elif {rows, columns} == {ask.size("h"), ask.size("w")}:
        height, width = 2 * ask.size("pad_h", default=0.0) + 1, 2 * ask.size("pad_w", default=0.0) + 1
        if 1 < height == width == rows == columns:  # (7 + 2 x 3 - 1) / 2 + 1 = 7 as well
            raise InputError(f"'{ask.words}' fits filters of {height:g} x {width:g} and of 1 x 1", field="shape")
        notes.append(f"filter {height:g} x {width:g}: the output is as large as the padded input allows at stride 1")
    else:
        raise InputError(f"'{ask.words}' states neither filter size nor stride", field="shape")
    channels, filters = ask.size("c"), ask.size("k")
    pixels = batch * ask.size("h", default=rows) * ask.size("w", default=columns)
    groups = ask.size("groups", "g", default=1.0)
    if groups < 1 or channels % groups or filters % groups:
        raise InputError(f"{groups:g} groups do not divide {channels:g} and {filters:g} channels", field="shape")
    m, k = batch * rows * columns, channels * height * width / groups
    moved = pixels * channels * form.input_bytes + k * filters * form.weight_bytes + m * filters * form.output_bytes
    costs = [_products(m, filters / groups, k, groups, moved, form, ask, whole=True)]
    whole = {rows, columns} == {ask.size("h", default=0.0), ask.size("w", default=0.0)}
    if form.matrix == "fp32" and height == width == 3 and whole and groups == 1:
        other = _transformed(batch, rows, columns, pixels, channels, filters, form, ask)
        if _seconds(other) < _seconds(costs):
            costs, notes = other, ["36 products of transformed tiles of 4 x 4 outputs"]
    return bill("conv2d", costs, ask, form.matrix, flop=2 * m * filters * k, notes=notes)


def _transformed(
    batch: float, rows: float, columns: float, pixels: float, channels: float, filters: float, form: Form, ask: Ask
) -> list[KernelCost]:
    """Input and filter transforms, 36 products of tiles, output transform: each call transforms its filters anew."""
    tiles = batch * math.ceil(rows / _TILE) * math.ceil(columns / _TILE)
    spread, result = _POINTS * tiles * channels * form.input_bytes, _POINTS * tiles * filters * form.output_bytes
    weights = _POINTS * channels * filters * form.weight_bytes
    return [
        stream(pixels * channels * form.input_bytes + spread, ask),
        stream(_FILTER * channels * filters * form.weight_bytes + weights, ask),
        _products(tiles, filters, channels, _POINTS, spread + weights + result, form, ask),
        stream(result + batch * rows * columns * filters * form.output_bytes, ask),
    ]


def _products(
    m: float, n: float, k: float, count: float, moved: float, form: Form, ask: Ask, *, whole: bool = False
) -> KernelCost:
    """`count` products whose operands and results are `moved` bytes, or the `whole` of a convolution [s]."""
    device = ask.device
    compute = tile_seconds(
        m, n, k, count, rate_flop_per_s=device.matrix_rate(form.matrix),
        element_bytes=(form.input_bytes + form.weight_bytes) / 2, device=device, convolution=whole,
    )  # fmt: skip
    memory = moved / device.memory_bytes_per_s
    if whole and depthwise(n, count):
        compute, memory = direct_seconds(m * n * k * count, device), memory / device.stream_share
    return KernelCost(
        seconds=np.maximum(compute, memory), flop=2.0 * m * n * k * count, bytes=moved, compute_s=compute,
        memory_s=memory, kernels=1.0,
    )  # fmt: skip


def _seconds(costs: list[KernelCost]) -> float:
    return sum(float(np.asarray(cost.seconds)) for cost in costs)
