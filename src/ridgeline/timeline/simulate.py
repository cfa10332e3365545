"""The exact timeline of a task graph: when every task starts and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Start and end of every task [s], and the end of the last one."""

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    makespan_s: float
