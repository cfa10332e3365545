"""Where requests go and when: what is on its way, the choice of instance and rank, and what an end sets free."""

from __future__ import annotations

from numba import njit

from ridgeline.serving.queues import resident
from ridgeline.serving.state import (
    DONE,
    LEAST_LOADED,
    LONGEST_PREFIX,
    NOBODY,
    ROUND_ROBIN,
    Fleet,
    Instances,
    Pending,
    Ranks,
    Record,
    Requests,
    Rules,
)

_IMBALANCE, _IMBALANCE_SHARE = 32, 1.1  # beyond both, a prefix-aware router takes the least loaded (SGLang's defaults)


@njit(cache=True)
def push(pending: Pending, at_s: float, request: int) -> None:
    """Notes that a request arrives, or that its cache does, at a time."""
    place = pending.counts[0]
    pending.counts[0] += 1
    number = pending.counts[1]
    pending.counts[1] += 1
    while place > 0:
        above = (place - 1) // 2
        if pending.at_s[above] <= at_s:
            break
        pending.at_s[place], pending.number[place] = pending.at_s[above], pending.number[above]
        pending.request[place] = pending.request[above]
        place = above
    pending.at_s[place], pending.number[place], pending.request[place] = at_s, number, request


@njit(cache=True)
def pop(pending: Pending) -> int:
    """The request that is next to arrive."""
    found = int(pending.request[0])
    pending.counts[0] -= 1
    size = pending.counts[0]
    at_s, number, request = pending.at_s[size], pending.number[size], pending.request[size]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        other = below + 1
        if other < size and (
            pending.at_s[other] < pending.at_s[below]
            or (pending.at_s[other] == pending.at_s[below] and pending.number[other] < pending.number[below])
        ):
            below = other
        if at_s < pending.at_s[below] or (at_s == pending.at_s[below] and number < pending.number[below]):
            break
        pending.at_s[place], pending.number[place] = pending.at_s[below], pending.number[below]
        pending.request[place] = pending.request[below]
        place = below
    pending.at_s[place], pending.number[place], pending.request[place] = at_s, number, request
    return found


@njit(cache=True)
def _least_loaded(instances: Instances, pool: int) -> tuple[int, int, int]:
    """The instance of a pool with the fewest requests, or nobody; the fewest and the most [1]."""
    least, most, chosen = -1, -1, NOBODY
    for index in range(instances.next_s.size):
        if instances.up[index] > 0 and instances.takes[index] == pool:
            load = int(instances.load[index])
            if chosen == NOBODY or load < least:
                least, chosen = load, index
            most = max(most, load)
    return chosen, least, most


@njit(cache=True)
def choose_instance(
    ranks: Ranks, requests: Requests, instances: Instances, rules: Rules, fleet: Fleet, pool: int, request: int
) -> int:
    """The instance that a request goes to, by the router's rule; nobody when no instance of the pool is up."""
    count = instances.next_s.size
    chosen, least, most = _least_loaded(instances, pool)
    if chosen == NOBODY or fleet.router == LEAST_LOADED:
        return chosen
    if fleet.router == ROUND_ROBIN:
        for ahead in range(count):
            index = int((fleet.turns[pool] + ahead) % count)
            if instances.up[index] > 0 and instances.takes[index] == pool:
                fleet.turns[pool] = index + 1
                return index
    if most - least > _IMBALANCE and most > _IMBALANCE_SHARE * least:
        return chosen
    longest = 0
    for rank in range(ranks.used.size):
        index = int(ranks.instance[rank])
        if instances.up[index] > 0 and instances.takes[index] == pool:
            found = resident(ranks, requests, rules, rank, request)
            if found > longest:
                longest, chosen = found, index
    return chosen


@njit(cache=True)
def choose_rank(
    ranks: Ranks, requests: Requests, instances: Instances, rules: Rules, fleet: Fleet, instance: int, request: int
) -> int:
    """The rank of an instance with the longest prefix of the request, then the fewest requests."""
    first = int(instances.first_rank[instance])
    chosen, fewest, longest = first, -1, 0
    for rank in range(first, first + rules.ranks):
        load = ranks.waiting[rank] + ranks.running[rank]
        found = resident(ranks, requests, rules, rank, request) if fleet.router == LONGEST_PREFIX else 0
        if fewest < 0 or found > longest or (found == longest and load < fewest):
            chosen, fewest, longest = rank, load, found
    return chosen


@njit(cache=True)
def ended(requests: Requests, pending: Pending, fleet: Fleet, record: Record, request: int, now_s: float) -> None:
    """Lets what waited for the end of a request arrive: its session's next turn, or a closed loop's next request."""
    record.counts[DONE] += 1
    child = requests.first_child[request]
    while child != NOBODY:
        push(pending, max(now_s + requests.think_s[child], requests.arrival_s[child]), child)
        child = requests.next_child[child]
    if fleet.concurrency > 0 and pending.counts[2] < requests.prompt.size:
        push(pending, max(now_s, requests.arrival_s[pending.counts[2]]), pending.counts[2])
        pending.counts[2] += 1
