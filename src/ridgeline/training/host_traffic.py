"""Time of what a step moves to host memory and back under its compute.

Shape letters: P stages, v chunks per stage; leading axes are plans.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.lower.work import Number
from ridgeline.training.stages import StageTimes

Floats = NDArray[np.float64]


def with_moved_activations(
    times: StageTimes, kept_bytes: Floats, counts: NDArray[np.int64], *, on: Number, host_bytes_per_s: float
) -> StageTimes:
    """Times when what forward keeps, (..., P) [byte], goes to the host and comes back under the compute [s].

    A chunk's forward takes the longer of its compute and its copy out, its backward the longer of its compute and
    its copy in, at the device's own host link. `on` (...) says which plans do so; counts (P, v, kinds).
    """
    share = counts.sum(axis=-1) / np.maximum(counts.sum(axis=(1, 2)), 1)[:, None]
    copy_s = np.asarray(on)[..., None, None] * kept_bytes[..., None] * share / host_bytes_per_s
    out = np.maximum(0.0, copy_s - times.forward_s)
    back = np.maximum(0.0, copy_s - times.backward_input_s - times.backward_weight_s)
    return replace(
        times,
        forward_s=times.forward_s + out,
        backward_input_s=times.backward_input_s + back,
        host_copy_s=copy_s,
        host_wait_s=out,
        host_back_wait_s=back,
    )
