"""Least squares on the logarithm of times, inside the bounds of each parameter, shrunk to its start.

Switch points are not shrunk: they are tried one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.mechanism import Array, Mechanism
from ridgeline.errors import DomainError
from ridgeline.facts.formulas import Parameter

SCALE = 0.08  # residuals beyond 8 % count less and less (soft L1)
PRIOR = 0.3  # a parameter one unit of the bounded scale from its start costs as much as 0.3 rows at SCALE
ROWS = 2500  # of one fit; more change nothing
EVALUATIONS = 40
_EDGE = 1e-3


def to_values(points: Array, parameters: Sequence[Parameter]) -> Array:
    """Values between their bounds, for points of the real line: logistic in the logarithm."""
    low = np.array([parameter.low for parameter in parameters])
    high = np.array([parameter.high for parameter in parameters])
    share = 1 / (1 + np.exp(-np.clip(points, -40, 40)))
    found: Array = low * (high / low) ** share
    return found


def to_points(values: Array, parameters: Sequence[Parameter]) -> Array:
    """Points of the real line for values; the inverse of `to_values`, a little inside the bounds."""
    low = np.array([parameter.low for parameter in parameters])
    high = np.array([parameter.high for parameter in parameters])
    share = np.clip(np.log(values / low) / np.log(high / low), _EDGE, 1 - _EDGE)
    found: Array = np.log(share / (1 - share))
    return found


def fit_values(
    mechanism: Mechanism, table: Array, device: Array, seconds: Array, *, starts: Sequence[Array], free: Sequence[bool]
) -> Array:
    """The values of a mechanism that fit measured seconds best, from the best of several starts.

    Parameters that are not `free` stay at their start. Deterministic: the rows are drawn with a fixed seed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise DomainError("fitting needs SciPy: pip install 'ridgeline[fit]'") from error
    parameters = mechanism.parameters
    mask = np.asarray(free)
    rows = np.random.default_rng(0).permutation(len(seconds))[:ROWS]
    sizes, measured = np.ascontiguousarray(table[rows]), seconds[rows]
    sizes = sizes if mechanism.derive is None else mechanism.derive(sizes)
    home = to_points(mechanism.start, parameters)
    weight = np.array([0.0 if parameter.grid else PRIOR * SCALE for parameter in parameters])

    def residuals(points: NDArray[Any], start: Array) -> Array:
        whole = start.copy()
        whole[mask] = points
        priced = mechanism.priced(sizes, device, to_values(whole, parameters))[:, 0]
        error = np.log(priced / measured)
        soft = SCALE * np.sqrt(2 * (np.sqrt(1 + (error / SCALE) ** 2) - 1))
        return np.concatenate([np.copysign(soft, error), weight[mask] * (points - home[mask])])

    best, least = mechanism.start, np.inf
    for values in starts:
        start = to_points(values, parameters)
        found = least_squares(residuals, start[mask], args=(start,), diff_step=1e-3, max_nfev=EVALUATIONS)
        if found.cost < least:
            start[mask] = found.x
            best, least = to_values(start, parameters), float(found.cost)
    return best
