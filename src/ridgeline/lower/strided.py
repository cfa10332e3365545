"""Strided data in one form: blocks of bytes, repeated at strides, whatever nested types describe them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

ROW_BYTES = 512  # to which rows of an array in device memory are padded; source: tempi-repo, cudaMalloc3D on V100


@dataclass(frozen=True, kw_only=True)
class StridedType:
    """Blocks of `block` bytes from `start`, repeated by each of `dims` (count, stride in bytes), outermost first."""

    block: int
    dims: tuple[tuple[int, int], ...] = ()
    start: int = 0

    @property
    def blocks(self) -> int:
        """Blocks [1], as they are written."""
        return prod(count for count, _ in self.dims)

    @property
    def bytes(self) -> int:
        """Bytes of data."""
        return self.block * self.blocks

    def repeated(self, count: int, stride: int) -> StridedType:
        """The type `count` times, `stride` bytes apart: MPI's hvector of it; a vector counts strides in extents."""
        return StridedType(block=self.block, dims=((count, stride), *self.dims), start=self.start)

    def canonical(self) -> StridedType:
        """The same bytes in the form that all descriptions of them share.

        Repetitions of one are dropped; larger strides go outward; blocks that follow each other without a gap are one;
        of two repetitions whose inner one fills the outer one's stride one is made.
        """
        dims = sorted(((c, s) for c, s in self.dims if c > 1), key=lambda pair: (-pair[1], -pair[0]))
        block = self.block
        while dims and dims[-1][1] == block:
            block *= dims.pop()[0]
        found: list[tuple[int, int]] = []
        for count, stride in dims:
            if found and found[-1][1] == count * stride:
                found[-1] = (found[-1][0] * count, stride)
            else:
                found.append((count, stride))
        return StridedType(block=block, dims=tuple(found), start=self.start)


@dataclass(frozen=True, kw_only=True)
class Halo:
    """One process's halo exchange on a periodic grid: `local` points along x, y and z of `element` bytes, to `radius`.

    `places` are processes along x, y and z, numbered with x innermost.
    """

    local: tuple[int, int, int]
    places: tuple[int, int, int]
    radius: int
    element: int

    @classmethod
    def of(cls, grid: Sequence[int], processes: int, *, radius: int, element: int) -> Halo:
        """The grid cut among processes: its longest side by each prime factor in turn, the largest factor first.

        Of equal sides the one along z is cut before y and x. Source: tempi-repo, bin/bench_halo_exchange.cpp.
        """
        local, places = list(grid), [1, 1, 1]
        for factor in reversed(_prime_factors(processes)):
            side = max((2, 1, 0), key=lambda one: local[one])
            local[side], places[side] = local[side] // factor, places[side] * factor
        x, y, z = local
        return cls(local=(x, y, z), places=(places[0], places[1], places[2]), radius=radius, element=element)

    def messages(self) -> Iterator[tuple[StridedType, NDArray[np.int64]]]:
        """What is sent in each of 26 directions, and to which process by each (processes,) [index]."""
        x, y, _ = self.local
        row = -(-(x + 2 * self.radius) * self.element // ROW_BYTES) * ROW_BYTES
        plane = row * (y + 2 * self.radius)
        ranks = np.arange(prod(self.places))
        at = np.unravel_index(ranks, self.places[::-1])[::-1]
        for way in product((-1, 0, 1), repeat=3):
            if way == (0, 0, 0):
                continue
            wide, high, deep = (side if not one else self.radius for side, one in zip(self.local, way, strict=True))
            moved = [(one + step) % many for one, step, many in zip(at, way, self.places, strict=True)]
            to = (moved[2] * self.places[1] + moved[1]) * self.places[0] + moved[0]
            box = StridedType(block=wide * self.element).repeated(high, row).repeated(deep, plane)
            yield box.canonical(), np.asarray(to)


def _prime_factors(number: int) -> list[int]:
    """Prime factors of a number, the smallest first [1]."""
    found, factor = [], 2
    while factor * factor <= number:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return [*found, number] if number > 1 else found
