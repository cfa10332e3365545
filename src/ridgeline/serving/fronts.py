"""Front ends of a fleet: where each hands out requests in turn, and none knows what the others have sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.errors import PlanError
from ridgeline.serving.compiling import clocked
from ridgeline.serving.state import Records, Whole

_POOLS = 3  # nobody, new requests, caches on their way


@dataclass(frozen=True, kw_only=True)
class Fronts:
    """Front ends that requests come in through, any of them each; where routing is round-robin each takes turns of its
    own among the instances of a pool. Whose turns they begin with is drawn from a seed."""

    count: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise PlanError(f"fronts: {self.count}, needs >= 1: requests come in through one front end at least")

    def first_turns(self, instances: Records) -> Whole:
        """Whose turn it is first in each pool, by each of F front ends (3, F): of one the first, of others anyone."""
        turns = np.zeros((_POOLS, self.count), dtype=np.int64)
        rng = np.random.default_rng(self.seed)
        for pool in np.unique(instances["takes"]):
            members = np.flatnonzero(instances["takes"] == pool)
            turns[pool] = members[0]
            turns[pool, 1:] = rng.choice(members, self.count - 1)
        return turns


@clocked
def drawn_of(request: int, ranks: int) -> int:
    """The attention rank that a request draws in every pool: the remainder of a hash of its number (MurmurHash3's)."""
    mixed = request % 4294967296
    mixed = ((mixed ^ (mixed >> 16)) * 2246822507) % 4294967296
    mixed = ((mixed ^ (mixed >> 13)) * 3266489909) % 4294967296
    return int((mixed ^ (mixed >> 16)) % ranks)


@clocked
def front_of(request: int, fronts: int) -> int:
    """The front end that a request comes in through: any, by a hash of its number (Knuth's multiplicative one)."""
    mixed = (request * 2654435761) % 4294967296
    return int((mixed ^ (mixed >> 16)) % fronts)
