"""Priorities that change while requests run: every so many iterations of an instance each request draws another.

As FastSwitch tests context switches (Shen and others, 2024, arXiv:2411.18424): priorities come from elsewhere, by a
policy that is fair over time, and who loses its own is displaced. Compiled; the same words draw the same priorities.
"""

from __future__ import annotations

from ridgeline.serving.compiling import clocked
from ridgeline.serving.state import NOBODY, Record, Records

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
def epoch_of(instances: Records, rule: Record, instance: int) -> int:
    """How often the priorities of an instance have changed [1]."""
    return int(instances[instance].iterations // rule.redraws)


@clocked
def redraw(ranks: Records, requests: Records, instances: Records, rule: Record, instance: int) -> None:
    """Gives every request of an instance the priority of a new epoch, where one has begun; queues follow.

    Those as urgent as each other keep their order.
    """
    if rule.redraws == 0 or instances[instance].epoch == epoch_of(instances, rule, instance):
        return
    epoch = epoch_of(instances, rule, instance)
    instances[instance].epoch = epoch
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        request = int(ranks[rank].run_first)
        while request != NOBODY:
            requests[request].priority = drawn_priority(rule, request, epoch)
            request = int(requests[request].after)
        _sort_queue(ranks, requests, rule, rank, epoch)


@clocked
def _sort_queue(ranks: Records, requests: Records, rule: Record, rank: int, epoch: int) -> None:
    """Draws the priorities of who waits, and puts each behind those who are as urgent or more."""
    request, last = int(ranks[rank].wait_first), NOBODY
    ranks[rank].wait_first = NOBODY
    while request != NOBODY:
        following = int(requests[request].after)
        requests[request].priority = drawn_priority(rule, request, epoch)
        before, after = last, NOBODY
        while before != NOBODY and requests[before].priority > requests[request].priority:
            before, after = int(requests[before].before), before
        requests[request].before, requests[request].after = before, after
        if before == NOBODY:
            ranks[rank].wait_first = request
        else:
            requests[before].after = request
        if after == NOBODY:
            last = request
        else:
            requests[after].before = request
        request = following
    ranks[rank].wait_last = last
