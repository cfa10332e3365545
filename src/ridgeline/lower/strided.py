"""Strided data in one form: blocks of bytes, repeated at strides, whatever nested types describe them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


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
