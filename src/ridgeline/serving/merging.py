"""Instances that merge for the prefill of a long prompt and part again for its answer, compiled.

Whoever is idle when a long prompt's turn comes computes a part of its tokens; parts of the cache go round among them
while attention is computed, and stay with the instance that decodes, so that nothing is moved afterwards. Source:
LoongServe (Wu and others, SOSP 2024, arXiv:2404.09526).
"""

from __future__ import annotations

import math

from ridgeline.serving.compiling import clocked
from ridgeline.serving.state import HELPS, IDLE, Fleet, Record, Records


@clocked
def is_free(ranks: Records, instances: Records, instance: int) -> bool:
    """Whether an instance has nothing to do."""
    rank = instances[instance].first_rank
    return bool(instances[instance].at == IDLE and ranks[rank].waiting == 0 and ranks[rank].running == 0)


@clocked
def free_beside(ranks: Records, instances: Records, instance: int) -> int:
    """Other instances that have nothing to do [1]."""
    count = 0
    for other in range(instances.size):
        count += other != instance and is_free(ranks, instances, other)
    return count


@clocked
def parted(tokens: float, instances: float) -> float:
    """Tokens of the largest of equal parts [token]."""
    return math.ceil(tokens / instances)


@clocked
def ring_s(rule: Record, tokens: float, instances: float) -> float:
    """Time in which parts of the cache of so many tokens have gone round [s]: beside attention.

    t = (k - 1) (layers x latency + tokens / k x cache of a token / bandwidth)
    """
    return float((instances - 1.0) * (rule.ring_start_s + parted(tokens, instances) * rule.move_token_s))


@clocked
def merge(ranks: Records, instances: Records, fleet: Fleet, instance: int, count: int) -> None:
    """The first `count` free instances help one until its iteration ends."""
    fleet.system[0].merges += count > 0
    for other in range(instances.size):
        if count > 0 and other != instance and is_free(ranks, instances, other):
            instances[other].at, instances[other].mate = HELPS, instance
            instances[other].next_s = math.inf
            count -= 1


@clocked
def part(instances: Records, instance: int, seconds: float) -> None:
    """Who helped an instance is free again."""
    for other in range(instances.size):
        if instances[other].at == HELPS and instances[other].mate == instance:
            instances[other].at, instances[other].mate, instances[other].stirred = IDLE, -1, 1
            instances[other].busy_s += seconds
