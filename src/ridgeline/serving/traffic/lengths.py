"""Lengths of prompts and answers [token]: laws to draw from, never below 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import WorkloadError
from ridgeline.facts.trace_file import LARGEST_TOKENS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class LengthLaw(Protocol):
    """A law of lengths: whole numbers >= 1 from a generator."""

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Independent lengths [token]."""
        ...


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Every length the same [token]."""

    tokens: int

    def __post_init__(self) -> None:
        _ordered(self.tokens, self.tokens)

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """The same length [token]."""
        return np.full(count, self.tokens, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Each whole length from `low` to `high`, both included, equally likely [token]."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _ordered(self.low, self.high)

    @classmethod
    def around(cls, tokens: int, ratio: float) -> Uniform:
        """From `ratio` of a nominal length up to it, as benchmarks of engines do [token].

        >>> Uniform.around(1000, 0.8)
        Uniform(low=800, high=1000)
        """
        return cls(low=max(1, round(tokens * ratio)), high=tokens)

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Independent lengths [token]."""
        return rng.integers(self.low, self.high, count, endpoint=True)


@dataclass(frozen=True, kw_only=True)
class Normal:
    """Normal of `mean` and standard deviation `deviation`, rounded, held to [low, high] [token]."""

    mean: float
    deviation: float
    low: int = 1
    high: int = LARGEST_TOKENS

    def __post_init__(self) -> None:
        _ordered(self.low, self.high)
        _spread(self.mean, self.deviation)

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Independent lengths [token]."""
        return _whole(rng.normal(self.mean, self.deviation, count), self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class LogNormal:
    """Lognormal of `mean` and coefficient of variation `cv` before it is held to [low, high] [token].

    With s**2 = ln(1 + cv**2) the logarithm has mean ln(mean) - s**2 / 2 and standard deviation s.
    """

    mean: float
    cv: float
    low: int = 1
    high: int = LARGEST_TOKENS

    def __post_init__(self) -> None:
        _ordered(self.low, self.high)
        _spread(self.mean, self.cv)

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Independent lengths [token]."""
        variance = math.log1p(self.cv**2)
        drawn = rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count)
        return _whole(drawn, self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class LengthQuantiles:
    """A law known by quantiles: `tokens[j]` is not exceeded with probability `levels[j]` [token]."""

    levels: tuple[float, ...]
    tokens: tuple[float, ...]

    def __post_init__(self) -> None:
        known = len(self.levels) == len(self.tokens) > 0
        if not known or min(self.levels) < 0 or max(self.levels) > 1 or (np.diff(self.levels) <= 0).any():
            raise WorkloadError(f"quantile levels {self.levels}; need one a length, increasing, within 0 and 1")
        if not min(self.tokens) >= 1 or max(self.tokens) > LARGEST_TOKENS or (np.diff(self.tokens) < 0).any():
            raise WorkloadError(f"quantiles {self.tokens}; need 1 to {LARGEST_TOKENS}, none below its left")

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Independent lengths [token]."""
        return interpolated(rng.random(count), np.array(self.levels), np.array(self.tokens, dtype=np.float64))


@dataclass(frozen=True, kw_only=True, eq=False)
class Empirical:
    """Lengths drawn with replacement from those seen [token]."""

    seen: Ints

    def __post_init__(self) -> None:
        if not len(self.seen):
            raise WorkloadError("an empirical law needs at least one length")
        _ordered(int(self.seen.min()), int(self.seen.max()))

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Independent lengths [token]."""
        return self.seen[rng.integers(0, len(self.seen), count)]


def interpolated(share: Floats, levels: Floats, tokens: Floats) -> Ints:
    """Lengths at shares of a law known by quantiles, rounded [token].

    Geometric between neighbours, since lengths spread over decades; outside the outermost levels their length holds.
    """
    return _whole(np.exp(np.interp(share, levels, np.log(np.maximum(tokens, 1.0)))), 1, LARGEST_TOKENS)


def _whole(values: Floats, low: int, high: int) -> Ints:
    return np.clip(np.rint(values), low, high).astype(np.int64)


def _ordered(low: int, high: int) -> None:
    if not 1 <= low <= high <= LARGEST_TOKENS:
        raise WorkloadError(f"lengths from {low} to {high} tokens; needs 1 <= low <= high <= {LARGEST_TOKENS}")


def _spread(mean: float, spread: float) -> None:
    if not (0 < mean < math.inf and 0 <= spread < math.inf):
        raise WorkloadError(f"lengths of mean {mean} and spread {spread}; needs finite mean > 0 and spread >= 0")
