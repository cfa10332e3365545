"""Convolutions of two dimensions: an implicit product, or fewer multiplications between transforms.

Shape letters: N images, C channels in, K out, H x W in, P x Q out, R x S the filter, G groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ridgeline.cost.answer import Cost, together
from ridgeline.cost.compute import depthwise, direct_seconds, stream_cost, tile_seconds
from ridgeline.cost.formats import Form
from ridgeline.cost.machine import Device
from ridgeline.lower.work import Phase, Stream

_TILE = 4.0  # outputs of a tile along each side, F(4 x 4, 3 x 3). Source: Lavin and Gray (arXiv:1509.09308), section 4
_POINTS = 36.0  # of a tile that are multiplied, (4 + 3 - 1)^2
_FILTER = 9.0  # points of a filter of 3 x 3
IMPLICIT = "implicit product, input read once"
TRANSFORMED = "36 products of transformed tiles of 4 x 4 outputs"


@dataclass(frozen=True, kw_only=True)
class Images:
    """A convolution's sizes [1]: N images of C channels and H x W pixels, K filters of R x S, P x Q pixels out."""

    count: float
    channels: float
    height: float
    width: float
    filters: float
    filter_height: float
    filter_width: float
    rows: float
    columns: float
    groups: float = 1.0

    @property
    def flop(self) -> float:
        """Useful work, 2 N P Q K C R S / G [FLOP]."""
        return 2.0 * self._outputs * self.filters * self._depth

    @property
    def _outputs(self) -> float:
        return self.count * self.rows * self.columns

    @property
    def _depth(self) -> float:
        return self.channels * self.filter_height * self.filter_width / self.groups

    @property
    def _inputs(self) -> float:
        return self.count * self.height * self.width * self.channels

    def cost(self, form: Form, device: Device) -> Cost:
        """All kernels of the faster way, one after another [s]."""
        return together(self.costs(form, device)[0])

    def costs(self, form: Form, device: Device) -> tuple[list[Cost], str]:
        """The kernels of the faster way [s], and which it is: `IMPLICIT` or `TRANSFORMED`.

        G implicit products of m = N P Q, n = K / G, k = C R S / G. Filters of 3 x 3 at stride 1 on vector units may
        also be multiplied point by point between transforms, 36 products for 16 outputs in place of 144: matrix units
        have no such kernels. With a group for each channel nothing is multiplied but each output's own points.
        """
        weights, results = self._depth * self.filters, self._outputs * self.filters
        moved = self._inputs * form.input_bytes + weights * form.weight_bytes + results * form.output_bytes
        groups = self.groups
        found = [_products(self._outputs, self.filters / groups, self._depth, groups, moved, form, device, whole=True)]
        square = self.filter_height == self.filter_width == 3 and self.groups == 1
        if form.matrix == "fp32" and square and {self.rows, self.columns} == {self.height, self.width}:
            other = self._transformed(form, device)
            if _seconds(other) < _seconds(found):
                return other, TRANSFORMED
        return found, IMPLICIT

    def _transformed(self, form: Form, device: Device) -> list[Cost]:
        """Input and filter transforms, 36 products of tiles, output transform: each call transforms its filters."""
        tiles = self.count * math.ceil(self.rows / _TILE) * math.ceil(self.columns / _TILE)
        spread = _POINTS * tiles * self.channels * form.input_bytes
        result = _POINTS * tiles * self.filters * form.output_bytes
        each = self.channels * self.filters * form.weight_bytes
        inside = spread + _POINTS * each + result
        return [
            _stream(self._inputs * form.input_bytes + spread, device),
            _stream((_FILTER + _POINTS) * each, device),
            _products(tiles, self.filters, self.channels, _POINTS, inside, form, device),
            _stream(result + self._outputs * self.filters * form.output_bytes, device),
        ]


def _products(
    m: float, n: float, k: float, count: float, moved: float, form: Form, device: Device, *, whole: bool = False
) -> Cost:
    """`count` products whose operands and results are `moved` bytes, or the `whole` of a convolution [s]."""
    compute = tile_seconds(
        (m, n, k), count, rate_flop_per_s=device.matrix_rate(form.matrix),
        element_bytes=(form.input_bytes + form.weight_bytes) / 2, device=device, convolution=whole,
    )  # fmt: skip
    memory = moved / device.memory_bytes_per_s
    if whole and depthwise(n, count):
        compute, memory = direct_seconds(m * n * k * count, device), memory / device.stream_share
    return Cost(
        seconds=np.maximum(compute, memory), flop=2.0 * m * n * k * count, bytes=moved, compute_s=compute,
        memory_s=memory, kernels=1.0,
    )  # fmt: skip


def _stream(size_bytes: float, device: Device) -> Cost:
    return stream_cost(Stream(name="transform", phase=Phase.FORWARD, bytes=size_bytes), device, dtype="")


def _seconds(costs: list[Cost]) -> float:
    return sum(float(np.asarray(cost.seconds)) for cost in costs)
