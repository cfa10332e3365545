"""Priorities that change while requests run: every so many iterations of an instance each request draws another.

As FastSwitch tests context switches (Shen and others, 2024, arXiv:2411.18424): priorities come from elsewhere, by a
policy that is fair over time, and who loses its own is displaced. Compiled; the same words draw the same priorities.
"""

from __future__ import annotations

from ridgeline.serving.compiling import clocked
from ridgeline.serving.state import NOBODY, Clock, Record

_STEP, _MIX = 2654435761, 40503  # Source: Knuth's multiplicative hashing, golden sections of 2^32 and 2^16
_WHOLE, _ROUNDS = 4294967296, 4  # 2^32; rounds of mixing


@clocked
def drawn_priority(rule: Record, request: int, epoch: int) -> int:
    """The priority of a request in the given epoch of its instance, evenly one of the levels [1]."""
    value = ((request + 1) * _STEP + (epoch + 1) * _MIX) % _WHOLE
    for _ in range(_ROUNDS):
        value = ((value ^ (value >> 15)) * _MIX + _STEP) % _WHOLE
    return int((value >> 16) % rule.levels)


@clocked
def epoch_of(clock: Clock, rule: Record, instance: int) -> int:
    """How often the priorities of an instance have changed [1]."""
    return int(clock.instances[instance].iterations // rule.redraws)


@clocked
def redraw(clock: Clock, rule: Record, instance: int) -> None:
    """Gives every request of an instance the priority of a new epoch, where one has begun; queues follow.

    Those as urgent as each other keep their order.
    """
    if rule.redraws == 0 or clock.instances[instance].epoch == epoch_of(clock, rule, instance):
        return
    epoch = epoch_of(clock, rule, instance)
    clock.instances[instance].epoch = epoch
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        request = int(clock.ranks[rank].run_first)
        while request != NOBODY:
            clock.requests[request].priority = drawn_priority(rule, request, epoch)
            request = int(clock.requests[request].after)
        _sort_queue(clock, rule, rank, epoch)


@clocked
def _sort_queue(clock: Clock, rule: Record, rank: int, epoch: int) -> None:
    """Draws the priorities of who waits, and puts each behind those who are as urgent or more."""
    request, last = int(clock.ranks[rank].wait_first), NOBODY
    clock.ranks[rank].wait_first = NOBODY
    while request != NOBODY:
        following = int(clock.requests[request].after)
        clock.requests[request].priority = drawn_priority(rule, request, epoch)
        before, after = last, NOBODY
        while before != NOBODY and clock.requests[before].priority > clock.requests[request].priority:
            before, after = int(clock.requests[before].before), before
        clock.requests[request].before, clock.requests[request].after = before, after
        if before == NOBODY:
            clock.ranks[rank].wait_first = request
        else:
            clock.requests[before].after = request
        if after == NOBODY:
            last = request
        else:
            clock.requests[after].before = request
        request = following
    clock.ranks[rank].wait_last = last
