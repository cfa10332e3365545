"""Least squares on the logarithm of times within the bounds of each parameter, and intervals from residuals.

Parameters are shrunk to their starts, but for switch points, which are tried one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.mechanism import Array, Mechanism
from ridgeline.errors import DomainError
from ridgeline.facts.fits import BANDS_S
from ridgeline.facts.mechanisms import Parameter

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
    least_squares, parameters = solver(), mechanism.parameters
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


def solver() -> Callable[..., Any]:
    """SciPy's least squares; raises `DomainError` where it is not installed."""
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise DomainError("fitting needs SciPy: pip install 'ridgeline[fit]'") from error
    found: Callable[..., Any] = least_squares
    return found


def held_errors(priced: Array, seconds: Array) -> dict[str, Any]:
    """Median and 90 % quantile of relative errors and the median with its sign, as fields of a fit [1]."""
    error = priced / seconds - 1
    size = np.abs(error)
    return {
        "held_median": float(np.median(size)), "held_p90": float(np.quantile(size, 0.9)),
        "held_bias": float(np.median(error)),
    }  # fmt: skip


def named_values(parameters: Sequence[Parameter], values: Array, figures: int) -> dict[str, float]:
    """Values by the names of their parameters, to so many figures."""
    return {one.name: float(f"{value:.{figures}g}") for one, value in zip(parameters, values, strict=True)}


_TAIL = 0.1  # beyond each end of an 80 % interval
FEWEST_OF_BAND = 30
FEWEST = 9  # rows apart that tell an interval at all: its ends are then their least and their greatest


def effective_rows(values: Array, blocks: NDArray[np.int64]) -> float:
    """How many independent rows those of some blocks are worth [1]: n / (1 + (m - 1) r).

    m rows in a block on average, r the correlation of rows of one block, from the variance between blocks and within
    them. From the number of blocks, where rows of a block are all alike, to the number of rows, where blocks say
    nothing. Source: Kish 1965, Survey Sampling, section 5.4 (design effect); r by one-way analysis of variance.

    >>> effective_rows(np.array([1.0, 1.0, 3.0, 3.0]), np.array([0, 0, 1, 1]))
    2.0
    """
    _, block = np.unique(blocks, return_inverse=True)
    sizes = np.bincount(block)
    rows, count = len(values), len(sizes)
    if count < 2 or rows <= count:
        return float(count)
    means = np.bincount(block, values) / sizes
    within = float(((values - means[block]) ** 2).sum() / (rows - count))
    between = float((sizes * (means - values.mean()) ** 2).sum() / (count - 1))
    each = (rows - float((sizes**2).sum()) / rows) / (count - 1)
    whole = between + (each - 1) * within
    alike = max(0.0, (between - within) / whole) if whole > 0 else 0.0
    return float(rows / (1 + (each - 1) * alike))


def shared_moments(logs: Array, blocks: NDArray[np.int64], beside: NDArray[np.int64]) -> tuple[float, float] | None:
    """What errors of one kernel's shapes have in common, and all of them: second moments [1].

    Of logarithms of measured / predicted: the mean product of two rows of different blocks, which are `beside` each
    other in a model (as many tokens), and the mean square. A sum over blocks keeps the first and averages the rest.
    None where no two blocks are beside each other. Source: Kish 1965, Survey Sampling, section 5.4 (components).

    >>> shared_moments(np.array([0.5, 0.0, 0.5, 0.0]), np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1]))
    (0.0, 0.125)
    """
    _, cell = np.unique(beside, return_inverse=True)
    _, both = np.unique(cell * (int(blocks.max(initial=0)) + 1) + blocks, return_inverse=True)
    products = float((np.bincount(cell, logs) ** 2).sum() - (np.bincount(both, logs) ** 2).sum())
    pairs = float((np.bincount(cell) ** 2).sum() - (np.bincount(both) ** 2).sum())
    return (products / pairs, float((logs**2).mean())) if pairs else None


def residual_bands(
    ratios: Array,
    priced: Array,
    blocks: NDArray[np.int64] | None = None,
    weights: Array | None = None,
    reach: Array | None = None,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Ends of the 80 % interval of measured / predicted by band of predicted time, the answer itself always between.

    Quantiles 0.1 - 0.9 / n and 0.9 + 0.9 / n of the ratios, n the rows that they are worth: what holds a new row with
    80 % chance after n (Vovk et al. 2005, Algorithmic Learning in a Random World, conformal prediction). Without
    `blocks` rows are independent. `weights` are how many rows each stands for, where they were drawn with unequal
    chances; they are worth sum(w)^2 / sum(w^2) at most (Kish 1965, section 11.7). `reach` are factors by which both
    ends of a row's interval will be moved out, and which the ends found are without. Bands with few rows take all.
    """
    one = np.ones(len(ratios))
    weighed, moved = one if weights is None else weights, one if reach is None else reach
    edges = (0.0, *BANDS_S, np.inf)
    low, high = [], []
    for a, b in pairwise(edges):
        inside = (priced >= a) & (priced < b)
        if inside.sum() < FEWEST_OF_BAND:
            inside = np.ones(len(ratios), dtype=bool)
        chosen, each = ratios[inside], weighed[inside]
        count = float(each.sum() ** 2 / (each**2).sum())
        if blocks is not None:
            count = min(count, effective_rows(np.log(chosen), blocks[inside]))
        ends = max(0.0, _TAIL - (1 - _TAIL) / count), min(1.0, (1 - _TAIL) * (1 + 1 / count))
        low.append(min(1.0, round(_quantile(chosen * moved[inside], each, ends[0]), 4)))
        high.append(max(1.0, round(_quantile(chosen / moved[inside], each, ends[1]), 4)))
    return tuple(low), tuple(high)


def _quantile(values: Array, weights: Array, level: float) -> float:
    """A quantile of weighted values [1]; of equal weights that of NumPy, linear between the values."""
    order = np.argsort(values)
    each = weights[order]
    before = np.cumsum(each) - each  # from 0 for the least to the whole but one row for the greatest
    ends = before * (each.sum() / before[-1]) if before[-1] > 0 else before
    return float(np.interp(level * each.sum(), ends, values[order]))
