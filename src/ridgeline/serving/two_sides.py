"""What a device and the processors beside it share in a static batch and in a replay: crossings, sizes, intervals."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.answer import interval
from ridgeline.cost.machine import Machine
from ridgeline.facts.cpus import cpu_constant
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Evidence
from ridgeline.lower.pieces import Experts

Array = NDArray[np.float64]


def crossing_s(tokens: Array, width: int, rate: float) -> Array:
    """Activations to the host and back, with the call of the processors [s]."""
    start = cpu_constant("copy.count") * cpu_constant("copy.start") + 2.0 * cpu_constant("host.callback")
    return start + 2.0 * 2.0 * width * tokens / rate


def host_link_bytes_per_s(machine: Machine) -> float:
    """What long copies from pinned memory reach over a device's link to its host [byte/s]."""
    link = machine.cluster.accelerator.host_bytes_per_s or machine.cluster.host.device_bytes_per_s
    return link * constant("efficiency.pcie.ring")


def expert_params(piece: Experts) -> float:
    """Weights of one routed expert [1]."""
    return (2.0 + piece.gated) * piece.hidden * piece.inner


SIDES = ("device", "host", "link", "sync", "disk")


@cache
def spread() -> Mapping[str, tuple[float, float]]:
    """Times of the parts of an iteration over the prediction: low and high end of an 80 % interval, by side [1]."""
    host, link, start = (
        (constant(f"interval.both_sides.{name}.low"), constant(f"interval.both_sides.{name}.high"))
        for name in ("host", "link", "start")
    )
    return {"device": interval(1.0, Evidence.DERIVED), "host": host, "link": link, "sync": start, "disk": start}
