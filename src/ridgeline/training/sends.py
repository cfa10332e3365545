"""Which pipeline boundary crosses which link: times to hand activations on, and gradients back.

Shape letters: P stages, v chunks per stage; dots stand for axes of plans.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.machine import Machine
from ridgeline.cost.network import between
from ridgeline.lower.work import Number

Floats = NDArray[np.float64]


def send_tables(
    place: NDArray[np.int64], ranks: Number, machine: Machine, seconds: Callable[[float], Number], *, chains: int = 1
) -> tuple[Floats, Floats]:
    """Time to hand activations from each chunk to the next, and gradients to the one before, (..., P, v) [s].

    Each stage fills `ranks` devices in a row, tp * cp * dp. A message from one to another goes over the innermost tier
    that holds the farthest pair of ranks that talk; from the last stage back to the first, as interleaved chunks do,
    that is the tier over all of them. Chunks that follow each other on one stage send nothing.

    Parameters
    ----------
    place : (P, v)
        Place of each chunk in the model's chain, or in `chains` of them end to end, of `PipelineSchedule.places`.
    ranks : number or (...)
        Devices of a stage.
    seconds : stride -> number or (...)
        Time of one message between devices so far apart [s].
    """
    here = np.arange(place.shape[0])
    there = (here + 1) % here.size
    each = np.asarray(ranks)[..., None]
    low, high = np.minimum(here, there) * each, np.maximum(here, there) * each + each - 1
    strides = between(low, high, machine)
    hop = np.zeros(here.size)  # from each stage to the one after it, the first after the last
    for stride in np.unique(strides) if here.size > 1 else ():
        hop = np.where(strides == stride, np.asarray(seconds(float(stride)))[..., None], hop)
    stage_at = np.empty(place.size, dtype=np.int64)
    stage_at[place] = here[:, None]

    def toward(neighbour: NDArray[np.int64]) -> Floats:
        length = place.size // chains
        inside = (neighbour >= 0) & (neighbour < place.size) & (neighbour // length == place // length)
        target = stage_at[np.where(inside, neighbour, place)]
        boundary = np.where(target == there[:, None], here[:, None], target)
        return np.asarray(np.where(target != here[:, None], hop[..., boundary], 0.0))

    return toward(place + 1), toward(place - 1)
