"""The moments of a step at which a device may hold most, and the one that wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.memory.shares import Array

TRANSIENT = ("gradients", "activations", "logits", "buffers")


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Bytes of what comes and goes during a step, at one moment [byte]."""

    gradients: Array
    activations: Array
    logits: Array
    buffers: Array

    @property
    def total(self) -> Array:
        """Sum of the four [byte]."""
        return self.gradients + self.activations + self.logits + self.buffers


def greatest(moments: Sequence[Moment]) -> dict[str, Array]:
    """The bytes by category of the greatest moment of each plan [byte]; the earliest wins a tie."""
    best = moments[0].total
    chosen = {name: getattr(moments[0], name) for name in TRANSIENT}
    for moment in moments[1:]:
        more = moment.total > best
        best = np.where(more, moment.total, best)
        chosen = {name: np.where(more, getattr(moment, name), chosen[name]) for name in TRANSIENT}
    return chosen
