"""Instances that merge for the prefill of a long prompt and part again for its answer, compiled.

Whoever is idle when a long prompt's turn comes computes a part of its tokens; parts of the cache go round among them
while attention is computed, and stay with the instance that decodes, so that nothing is moved afterwards. Source:
LoongServe (Wu and others, SOSP 2024, arXiv:2404.09526).
"""

from __future__ import annotations

import math

from ridgeline.serving.compiling import clocked
from ridgeline.serving.state import HELPS, IDLE, Clock, Record


@clocked
def is_free(clock: Clock, instance: int) -> bool:
    """Whether an instance has nothing to do."""
    rank = clock.instances[instance].first_rank
    return bool(
        clock.instances[instance].at == IDLE and clock.ranks[rank].waiting == 0 and clock.ranks[rank].running == 0
    )


@clocked
def free_beside(clock: Clock, instance: int) -> int:
    """Other instances that have nothing to do [1]."""
    count = 0
    for other in range(clock.instances.size):
        count += other != instance and is_free(clock, other)
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
def merge(clock: Clock, instance: int, count: int) -> None:
    """The first `count` free instances help one until its iteration ends."""
    clock.system.merges += count > 0
    for other in range(clock.instances.size):
        if count > 0 and other != instance and is_free(clock, other):
            clock.instances[other].at, clock.instances[other].peer = HELPS, instance
            clock.instances[other].next_s = math.inf
            count -= 1


@clocked
def part(clock: Clock, instance: int, seconds: float) -> None:
    """Who helped an instance is free again."""
    for other in range(clock.instances.size):
        if clock.instances[other].at == HELPS and clock.instances[other].peer == instance:
            clock.instances[other].at, clock.instances[other].peer, clock.instances[other].dirty = IDLE, -1, 1
            clock.instances[other].busy_s += seconds
