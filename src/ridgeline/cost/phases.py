"""What the phases of a layer cost, and what their seconds are made of. Every number may be an array over plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ridgeline.lower.work import Number

if TYPE_CHECKING:
    from ridgeline.cost.paired import PairedLayer

PARTS = ("matrix", "attention", "memory", "launch", "tensor link", "context link", "expert link")


@dataclass(frozen=True, kw_only=True)
class PhaseCost:
    """Time of one phase of one layer [s] and the parts that add up to it.

    `hosts` is its launch part on the quickest and on the slowest host that was measured, `ahead` what the device still
    works once its host has issued all [s].
    """

    seconds: Number = 0.0
    parts: dict[str, Number] = field(default_factory=dict)
    hosts: tuple[Number, Number] = (0.0, 0.0)
    ahead: Number = 0.0
    flop: Number = 0.0
    bytes: Number = 0.0

    def times(self, factor: Number) -> PhaseCost:
        """The same, `factor` times over [s]."""
        return PhaseCost(
            seconds=self.seconds * factor,
            parts={name: value * factor for name, value in self.parts.items()},
            hosts=(self.hosts[0] * factor, self.hosts[1] * factor),
            ahead=self.ahead * factor,
            flop=self.flop * factor,
            bytes=self.bytes * factor,
        )

    def __add__(self, other: PhaseCost) -> PhaseCost:
        names = {**self.parts, **other.parts}
        return PhaseCost(
            seconds=self.seconds + other.seconds,
            parts={name: self.parts.get(name, 0.0) + other.parts.get(name, 0.0) for name in names},
            hosts=(self.hosts[0] + other.hosts[0], self.hosts[1] + other.hosts[1]),
            ahead=self.ahead + other.ahead,
            flop=self.flop + other.flop,
            bytes=self.bytes + other.bytes,
        )


@dataclass(frozen=True, kw_only=True)
class BlockCost:
    """What one layer costs in each phase; `again` is what backward repeats of its forward, by the rule of recompute.

    `pairing` says what it saves beside another micro-batch's, where ranks share its experts.
    """

    forward: PhaseCost
    backward_input: PhaseCost
    backward_weight: PhaseCost
    again: Mapping[str, PhaseCost]
    pairing: Callable[[], PairedLayer] | None = None

    def forwards_alone(self, times: int) -> BlockCost:
        """The same in a step of so many forwards and no backward."""
        none = PhaseCost()
        again = dict.fromkeys(self.again, none)
        return BlockCost(forward=self.forward.times(times), backward_input=none, backward_weight=none, again=again)

    def multiplied_again(self, times: Number) -> BlockCost:
        """The same where the backward of inputs makes forward's products once more, so many times over."""
        made = self.forward.parts["matrix"]
        products = PhaseCost(seconds=made, parts={"matrix": made}, flop=self.forward.flop).times(times)
        return replace(self, backward_input=self.backward_input + products)
