"""How many rows reach each expert of one rank, balanced or by a power law, and how they fill tiles.

Shape letters: T tokens of the expert-parallel group, E experts, e experts of a rank.
The power law is that of the public operator tables (ai-dynamo/aiconfigurator, collector/helper.py): experts' rows are
drawn from a truncated power law, scaled to T top_k, clamped at T, the rest filled from the bottom; the rank priced is
the most loaded one. Here the draws are replaced by their quantiles.
"""

from __future__ import annotations

import math

import numpy as np

from ridgeline.compiled import kernel, run
from ridgeline.cost.mechanism import Array

TILE_ROWS = np.array([8, 16, 32, 64, 128, 256], dtype=np.float64)
STATISTICS = 3 + 6
"""Rows of the rank, experts reached, rows of the fullest, and row tiles for each tile height."""
_LIFT, _LIFT_OTHERS = (
    0.48,
    1.0,
)  # how much the fullest of several ranks exceeds the mean; fitted to draws, see docs/experts.md
_QUANTILES = 64
_EXPERTS_A_ROW = 16.0  # whose rows are counted in the time that a product takes
_LOGARITHMIC = 1e-9  # distance of the exponent from 1 within which the law is 1 / rows


@kernel
def _count(rows: Array, own: int, found: Array) -> None:
    for index in range(own):
        value = rows[index]
        if value > 0:
            found[0] += value
            found[1] += 1
            found[2] = max(found[2], value)
            for tile in range(TILE_ROWS.size):
                found[3 + tile] += math.ceil(value / TILE_ROWS[tile])


@kernel
def _balanced(tokens: int, top_k: int, experts: int, own: int, rows: Array) -> None:
    """Rows of each of the rank's experts when token i takes experts i, i + E / top_k, i + 2 E / top_k ..."""
    stride = math.ceil(experts / top_k)
    for expert in range(own):
        rows[expert] = 0.0
    if tokens < stride:
        for token in range(tokens):
            for pick in range(top_k):
                expert = int(token * stride / tokens + pick * stride) % experts
                if expert < own:
                    rows[expert] = min(rows[expert] + 1, tokens)
        return
    for expert in range(own):
        for pick in range(top_k):
            first = (expert - pick * stride) % experts
            if first < tokens:
                rows[expert] += (tokens - 1 - first) // experts + 1
        rows[expert] = min(rows[expert], tokens)


@kernel
def _spread(rows: Array, experts: int, rest: float, ceiling: float) -> None:
    """Adds `rest` rows from the emptiest expert up, or takes them from the fullest down; `rows` is sorted."""
    at = 0 if rest > 0 else experts - 1
    left = abs(rest)
    while left > 0:
        if rest > 0:
            level = rows[at + 1] if at + 1 < experts else ceiling
            width, last = at + 1, at + 1 >= experts
        else:
            level = rows[at - 1] if at > 0 else 0.0
            width, last = experts - at, at == 0
        gap = abs(level - rows[at]) * width
        first, end = (0, at + 1) if rest > 0 else (at, experts)
        if gap >= left or last:
            whole = math.floor(left / width)
            more = left - whole * width
            base = rows[at]
            for index in range(first, end):
                extra = 1.0 if (end - index <= more if rest > 0 else index - first < more) else 0.0
                rows[index] = base + (whole + extra) * (1.0 if rest > 0 else -1.0)
            return
        for index in range(first, end):
            rows[index] = level
        left -= gap
        at += 1 if rest > 0 else -1


@kernel
def _skewed(tokens: float, top_k: float, experts: int, skew: float, rows: Array) -> None:
    """Rows of all experts, sorted, at equal quantiles of the truncated power law."""
    total = tokens * top_k
    low, high = (1.0, tokens * 0.8) if total > experts else (0.01, 2.0)
    power = 1.0 - skew
    drawn = 0.0
    for index in range(experts):
        share = (index + 0.5) / experts
        if abs(power) < _LOGARITHMIC:
            rows[index] = low * (high / low) ** share
        else:
            rows[index] = ((high**power - low**power) * share + low**power) ** (1.0 / power)
        drawn += rows[index]
    scale, placed = total / drawn, 0.0
    for index in range(experts):
        rows[index] = min(tokens, float(np.rint(rows[index] * scale)))
        placed += rows[index]
    _spread(rows, experts, total - placed, tokens)


@kernel
def _fullest_rank(rows: Array, experts: int, ranks: int, tokens: float, total: float, found: Array) -> None:
    """Statistics of the most loaded of `ranks`: its experts' quantiles are lifted, u -> u^(1/g)."""
    own = experts // ranks
    lift = ranks ** (1.0 / (1.0 + _LIFT_OTHERS * (own - 1)) ** _LIFT)
    drawn = max(1, _QUANTILES // own)
    weight = 1.0 / drawn
    for index in range(own * drawn):
        at = min(experts - 1, int(((index + 0.5) / (own * drawn)) ** (1.0 / lift) * experts))
        value = rows[at]
        if value > 0:
            found[0] += weight * value
            found[1] += weight
            found[2] = max(found[2], value)
            for tile in range(TILE_ROWS.size):
                found[3 + tile] += weight * math.ceil(value / TILE_ROWS[tile])
    least = math.ceil(total / ranks)  # the fullest rank is never below the mean
    if found[0] < least:
        grown = least / found[0] if found[0] > 1e-3 else 1.0
        found[1] = max(1.0, min(found[1] * grown, min(float(own), float(least))))
        found[0] = least
        found[2] = min(tokens, max(found[2], math.ceil(least / found[1])))
        for tile in range(TILE_ROWS.size):
            found[3 + tile] = max(found[3 + tile], math.ceil(least / TILE_ROWS[tile]), found[1])


@kernel
def _routed(choices: Array, rows: Array, out: Array) -> None:
    for i in range(choices.shape[0]):
        tokens, top_k, count = choices[i, 0], choices[i, 1], max(1, int(choices[i, 2]))
        shared = max(1, min(int(choices[i, 3]), count))
        found = out[i]
        for at in range(STATISTICS):
            found[at] = 0.0
        if choices[i, 4] <= 0.0:
            _balanced(int(tokens), max(1, int(top_k)), count, count // shared, rows)
            _count(rows, count // shared, found)
            continue
        _skewed(tokens, top_k, count, choices[i, 4], rows)
        if shared == 1:
            _count(rows, count, found)
        else:
            _fullest_rank(rows, count, shared, tokens, tokens * top_k, found)


def routed(choices: Array) -> Array:
    """Statistics of one rank (N, `STATISTICS`) [1] for tokens, choices of each, experts, ranks and skew (N, 5).

    A skew of 0 is balanced; any other is the exponent of the power law.
    """
    out = np.empty((len(choices), STATISTICS))
    experts = np.maximum(1.0, choices[:, 2])
    run(_routed, int((experts / _EXPERTS_A_ROW).sum()), choices, np.empty(int(experts.max(initial=1.0))), out)
    return out


def experts_reached(tokens: Array, top_k: float, experts: float, skew: float) -> Array:
    """Experts that some token chose, of all E of a layer [1], by the law above; `tokens` (T,) share them.

    Source: as `routed`. Domain: T >= 1, skew >= 0.

    >>> [float(count) for count in experts_reached(np.array([1.0, 32.0, 512.0]), 4.0, 128.0, 1.01)]
    [4.0, 66.0, 114.0]
    """
    size = np.maximum(np.asarray(tokens, dtype=np.float64), 1.0)
    columns = (size, top_k, experts, 1.0, skew)
    choices = np.stack([np.broadcast_to(np.float64(one), size.shape).ravel() for one in columns], axis=1)
    return routed(choices)[:, 1].reshape(size.shape)
