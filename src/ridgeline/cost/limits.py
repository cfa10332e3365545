"""What a machine's datasheet allows at best: no answer, and no end of an interval, is quicker."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.formats import form
from ridgeline.cost.machine import Machine
from ridgeline.cost.mechanism import device_rates
from ridgeline.cost.network import path
from ridgeline.cost.seconds import Seconds
from ridgeline.facts.records import Accelerator
from ridgeline.lower.work import Number

Array = NDArray[np.float64]


def bare_links(machine: Machine) -> Machine:
    """A machine whose links carry all that their datasheets say, without latency or anything measured of them."""
    whole = (1.0,) * len(machine.tiers)
    tiers = tuple(replace(tier, latency_s=0.0) for tier in machine.tiers)
    return replace(machine, tiers=tiers, efficiency=whole, in_network_efficiency=whole, collectives=None)


def kernel_limit_s(part: Accelerator, dtype: str, flop: Number, moved_bytes: Number) -> Array:
    """The longer of FLOP at the peak rate of a format and of bytes at the peak of the memory [s]."""
    _, peak, memory, *_ = device_rates(part, form(dtype).matrix)
    return np.asarray(np.maximum(np.asarray(flop) / peak, np.asarray(moved_bytes) / memory), dtype=float)


def link_limit_s(machine: Machine, size_bytes: Number, ranks: Number, stride: Number = 1) -> Array:
    """What any collective takes whose ranks each need the others' parts of a buffer [s]: (N - 1) / N B / W.

    `machine` has `bare_links`.
    """
    count = np.asarray(ranks, dtype=float)
    rate = path(machine, ranks, stride).bytes_per_s
    return np.asarray(np.where(count > 1, (count - 1) / count * size_bytes / rate, 0.0), dtype=float)


def limited(time: Seconds, limit_s: Array | float) -> Seconds:
    """A time that is no shorter than what the machine allows at best, which it remembers [s]."""
    mid = np.maximum(time.mid, limit_s)
    return replace(time, mid=mid, high=np.maximum(time.high, mid), least=limit_s)
