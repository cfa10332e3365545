"""Random numbers that a counter and a key name, so that any thread can make any of them: Philox, and tests of it.

Shape letters: N numbers of 32 bits, S streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import erfc, sqrt
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.seams.technique import param

Words = NDArray[np.uint64]
"""Numbers of 32 bits, in 64 so that products fit."""
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_MASK, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_STATE_BYTES = 64.0  # of a Philox generator that cuRAND keeps for each thread (sizeof(curandStatePhilox4_32_10_t))


def philox(counter: Words, key: Words, rounds: int = 10) -> Words:
    """Philox4x32: four numbers of 32 bits for each counter (N, 4) under each key (N, 2) or (2,).

    A round multiplies the first and third word by constants, swaps halves of the products across, and adds the other
    words and the key, which moves on by a Weyl sequence. Source: Salmon et al. 2011, section 3.3.
    """
    first, second, third, fourth = np.moveaxis(np.asarray(counter, dtype=np.uint64), -1, 0)
    low, high = np.moveaxis(np.asarray(key, dtype=np.uint64), -1, 0)
    for _ in range(rounds):
        left, right = _MULTIPLIERS[0] * first, _MULTIPLIERS[1] * third
        first, second, third, fourth = (
            (right >> _HALF) ^ second ^ low, right & _MASK, (left >> _HALF) ^ fourth ^ high, left & _MASK,
        )  # fmt: skip
        low, high = (low + _WEYL[0]) & _MASK, (high + _WEYL[1]) & _MASK
    return np.stack((first, second, third, fourth), axis=-1)


def streams(count: int, numbers: int, rounds: int, seed: int = 0) -> Words:
    """`numbers` of each of `count` streams (S, N): the key is the stream's number and the seed, the counter runs."""
    counter = np.zeros((count, -(-numbers // 4), 4), dtype=np.uint64)
    counter[..., 0] = np.arange(counter.shape[1], dtype=np.uint64)
    key = np.stack(np.broadcast_arrays(np.arange(count, dtype=np.uint64)[:, None], np.uint64(seed)), axis=-1)
    return philox(counter, key, rounds).reshape(count, -1)[:, :numbers]


def tail(deviations: float) -> float:
    """The chance that a normal number is as far from 0 as this many standard deviations [1]."""
    return erfc(abs(deviations) / sqrt(2.0))


def evenness(words: Words) -> float:
    """Standard deviations of chi-squared over the 256 values of each byte, from what it is of even bytes [1]."""
    data = words.astype("<u4").tobytes()
    counts = np.bincount(np.frombuffer(data, dtype=np.uint8), minlength=256)
    expected = len(data) / 256
    return float((np.sum((counts - expected) ** 2) / expected - 255.0) / sqrt(510.0))


def correlation(uniform: Floats, other: Floats) -> float:
    """Standard deviations of the correlation of two rows of numbers, from none [1]."""
    return float(np.corrcoef(uniform.ravel(), other.ravel())[0, 1] * sqrt(uniform.size))


def changed_bits(rounds: int, count: int) -> float:
    """Share of 128 bits that change where one bit of the counter does [1]: one half of a good generator."""
    draw = np.random.default_rng(0)
    counter = draw.integers(2**32, size=(count, 4), dtype=np.uint64)
    other = counter.copy()
    other[np.arange(count), draw.integers(4, size=count)] ^= np.uint64(1) << draw.integers(32, size=count).astype("u8")
    key = np.array([1, 2], dtype=np.uint64)
    different = philox(counter, key, rounds) ^ philox(other, key, rounds)
    return float(np.unpackbits(different.astype("<u4").view(np.uint8)).mean())


@dataclass(frozen=True, kw_only=True)
class CounterGenerator(ArrayAlgorithm):
    """Counter-based random numbers (OpenRAND's Philox): a stream for each thing simulated, and no state kept.

    What the paper adds: a generator is made where it is used from the number of a particle and that of a step, so a
    simulation gives the same numbers on any number of threads and reads and writes no state: 64 bytes a generator of
    cuRAND, both ways at each step. Measured: chances of tests of single streams (bytes even, no correlation of one
    number with the next), of numbers taken from all streams in turn, as a simulation takes them, and bits that a bit of
    the counter changes; and memory traffic of a particle's step with a kept state over that without.

    Checked: published answers of Philox4x32-10; too few rounds fail. Left out: Threefry, Squares and Tyche, long test
    suites, and the arithmetic of the ten rounds, about 60 integer operations for four numbers.
    """

    key: ClassVar[str] = "counter-random"
    source: ClassVar[tuple[str, ...]] = ("openrand-2023", "random123-2011")
    rounds: int = param(10, "rounds", "rounds of a number", low=1, high=16)
    count: int = param(256, "streams", "streams", low=2, high=1_000_000)
    numbers: int = param(1024, "numbers", "numbers of each stream", low=8, high=1_000_000)
    particle: float = param(32.0, "byte", "a particle, read and written at each step (assumed)", low=1.0, high=4096.0)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Chances that good numbers look as uneven or as correlated, and shares of bits and bytes."""
        words = streams(self.count, self.numbers, self.rounds, arrays.seed)
        uniform = words.astype(np.float64) / 2.0**32
        moved = 2.0 * self.particle
        return {
            "even_chance": tail(evenness(words)),
            "next_chance": tail(correlation(uniform[:, :-1], uniform[:, 1:])),
            "stream_chance": tail(correlation(uniform[:-1], uniform[1:])),
            "in_turn_chance": tail(evenness(np.ascontiguousarray(words.T[:, ::2]))),
            "mean": float(uniform.mean()),
            "changed_bits_share": changed_bits(self.rounds, 4096),
            "state_bytes": _STATE_BYTES,
            "traffic_ratio": (moved + 2.0 * _STATE_BYTES) / moved,
        }
