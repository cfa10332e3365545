"""An image on its way through a convolutional network: each step adds operators, a cut makes a block of them.

Letters: C channels, P x P pixels of what the image has become; an image counts as one token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from ridgeline.graph.model import Block, Model, network_of
from ridgeline.graph.ops import Op, elementwise
from ridgeline.graph.vision import CLASSES, Layers, head_ops, squeeze_ops


class Trunk:
    """Where an image stands: `channels` and `side` [pixel], and what has been done to it since the last cut."""

    def __init__(self, net: Layers, image: int) -> None:
        self.net, self.image = net, image
        self.channels, self.side = 3, image
        self._ops: list[Op] = []
        self._blocks: dict[str, Block] = {}
        self._order: list[str] = []

    @property
    def elements(self) -> int:
        """C P P, numbers of what one image has become [1]."""
        return self.channels * self.side**2

    def convolution(
        self,
        filters: int,
        size: int,
        *,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        across: int | None = None,
        padded: bool = True,
    ) -> None:
        """A convolution; one that is not `padded` loses the pixels whose filter would cross the edge."""
        out = ceil(self.side / stride) if padded else (self.side - size) // stride + 1
        self._ops += self.net.convolution(
            self._name("convolution"), self.channels, filters, size, self.side, stride=stride, groups=groups, bias=bias,
            across=across, out=out,
        )  # fmt: skip
        self.channels, self.side = filters, out

    def norm(self, *, active: bool = True) -> None:
        """A batch norm, with its activation."""
        self._ops.append(self.net.norm(self._name("norm"), self.channels, self.side, active=active))

    def unit(
        self,
        filters: int,
        size: int,
        *,
        stride: int = 1,
        groups: int = 1,
        across: int | None = None,
        padded: bool = True,
        active: bool = True,
    ) -> None:
        """A convolution, its norm and its activation."""
        self.convolution(filters, size, stride=stride, groups=groups, across=across, padded=padded)
        self.norm(active=active)

    def activation(self) -> None:
        """A function of each element in place; backward masks the gradient."""
        self.step("activation", self.elements, self.elements, 2 * self.elements)

    def pool(self, size: int = 3, stride: int = 2, *, padded: bool = True) -> None:
        """The largest or the mean of each window."""
        entering = self.elements
        self.side = ceil(self.side / stride) if padded else (self.side - size) // stride + 1
        self.step("pool", entering, self.elements)

    def squeeze(self, narrow: int) -> None:
        """Channels weighed by their means through a layer of `narrow` units."""
        suffix = self._name("squeeze")
        made = squeeze_ops(self.channels, self.side, narrow, fused=self.net.fused)
        self._ops += [replace(op, name=f"{suffix}.{op.name}") for op in made]

    def add(self, *, active: bool = False) -> None:
        """The shortcut added, and perhaps an activation."""
        elements = self.elements
        self.step("residual", 2 * elements, elements, (1 + active) * elements, elements, kernels=1 + active)

    def branches(self, *ways: Callable[[], object]) -> None:
        """Ways that start here, their channels copied beside each other at the end."""
        start, ends = (self.channels, self.side), 0
        for way in ways:
            self.channels, self.side = start
            way()
            ends += self.channels
        self.channels = ends
        self.step("join", self.elements, self.elements)

    def shortcut(self, filters: int, *, stride: int = 1) -> None:
        """What the shortcut of a block that ends here needs where its shape changes: call it before the block."""
        channels, side = self.channels, self.side
        self.unit(filters, 1, stride=stride, active=False)
        self.channels, self.side = channels, side

    def step(self, name: str, read: float, write: float, *backward: float, **more: Any) -> None:
        """A pass over memory, as `elementwise`."""
        self.take(elementwise(self._name(name), read, write, *backward, **more))

    def take(self, *ops: Op) -> None:
        """Operators made elsewhere."""
        self._ops += ops

    def cut(self, name: str) -> None:
        """A block of what was done since the last cut; one that was seen before is stored once."""
        made = tuple(self._ops)
        known = next((key for key, block in self._blocks.items() if block.ops == made), None)
        if known is None:
            known = f"{name}-{len(self._blocks) + 1}"
            self._blocks[known] = Block(name=known, ops=made)
        self._order.append(known)
        self._ops = []

    def model(self, name: str, kind: str, *, source: str, head: Sequence[Op] | None = None) -> Model:
        """The network: blocks so far, and a head (mean, classes, loss unless given)."""
        if self._ops:
            self.cut("last")
        return network_of(
            name, kind, [self._blocks[key] for key in self._order], hidden=self.elements, vocab=CLASSES, source=source,
            head=head_ops(self.channels, self.side) if head is None else head,
            dims={"classes": CLASSES, "image": self.image},
        )  # fmt: skip

    def _name(self, kind: str) -> str:
        """A name that no operator since the last cut has."""
        return f"{kind}{sum(op.name.rstrip('0123456789') == kind for op in self._ops) + 1}"
