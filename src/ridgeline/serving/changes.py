"""Instances that come and go: failures with repair, and scaling by load; compiled."""

from __future__ import annotations

import math

from ridgeline.serving.compiling import clocked
from ridgeline.serving.queues import drop_end, leave_queue, leave_running
from ridgeline.serving.routing import push
from ridgeline.serving.sequences import release, stop_decoding
from ridgeline.serving.state import (
    COMES_IN,
    DECODING,
    IDLE,
    MOVING,
    NOBODY,
    Fleet,
    Lists,
    Record,
    Records,
)


@clocked
def next_change(instances: Records, fleet: Fleet) -> float:
    """When an instance starts or fails next, or the load is looked at next [s]."""
    if fleet.system[0].period_s <= 0.0 and fleet.failures_s.shape[1] == 0:
        return math.inf
    found = fleet.system[0].look_s if fleet.system[0].period_s > 0.0 else math.inf
    for index in range(instances.size):
        found = min(found, instances[index].starts_s)
        if instances[index].up:
            found = min(found, instances[index].fails_s)
    return float(found)


@clocked
def next_start(instances: Records, pool: int) -> float:
    """When an instance of a pool starts next; inf when none is on its way [s]."""
    found = math.inf
    for index in range(instances.size):
        if instances[index].takes == pool:
            found = min(found, instances[index].starts_s)
    return float(found)


@clocked
def change(instances: Records, fleet: Fleet, now_s: float) -> None:
    """Everything that changes now: instances that are up again, that fail, and those that the load asks for or not."""
    for index in range(instances.size):
        one = instances[index]
        if one.starts_s <= now_s:
            one.starts_s, one.up, one.up_since_s = math.inf, 1, now_s
            one.fails_s = now_s + _gap(fleet, index, 2 * one.failures)
            one.stirred = 1
        elif one.up and one.fails_s <= now_s:
            one.up, one.failing, one.stirred = 0, 1, 1
            one.up_s += now_s - one.up_since_s
            one.starts_s = now_s + _gap(fleet, index, 2 * one.failures + 1)
            one.fails_s = math.inf
            one.failures += 1
            fleet.system[0].failures += 1
    if fleet.system[0].period_s > 0.0 and fleet.system[0].look_s <= now_s:
        fleet.system[0].look_s = now_s + fleet.system[0].period_s
        for pool in (1, 2):  # of requests that arrive, and of those that another pool sends on
            _scale(instances, fleet, pool, now_s)


@clocked
def _gap(fleet: Fleet, index: int, place: int) -> float:
    return float(fleet.failures_s[index, place]) if place < fleet.failures_s.shape[1] else math.inf


@clocked
def _scale(instances: Records, fleet: Fleet, pool: int, now_s: float) -> None:
    """Starts an instance of a pool when those up or starting have more than the high load each, stops one below low."""
    load, ready, working = 0.0, 0, 0
    last_up, first_down = NOBODY, NOBODY
    for index in range(instances.size):
        if instances[index].takes != pool:
            continue
        load += instances[index].load
        if instances[index].up or instances[index].starts_s < math.inf:
            ready += 1
            if instances[index].up:
                working, last_up = working + 1, index
        elif first_down == NOBODY and not instances[index].failing:
            first_down = index
    wanted = load / max(ready, 1)
    if wanted > fleet.system[0].high and ready < fleet.system[0].most and first_down != NOBODY:
        instances[first_down].starts_s = now_s + fleet.system[0].start_s
        fleet.system[0].starts += 1
    elif wanted < fleet.system[0].low and working > fleet.system[0].fewest and last_up != NOBODY:
        instances[last_up].up = 0  # it takes no more, and ends what it has
        instances[last_up].up_s += now_s - instances[last_up].up_since_s


@clocked
def evacuate(
    ranks: Records,
    lists: Lists,
    requests: Records,
    instances: Records,
    fleet: Fleet,
    rule: Record,
    index: int,
    now_s: float,
) -> None:
    """A failed instance gives back its requests: their caches are lost, the tokens that were streamed are not."""
    for rank in range(instances[index].first_rank, instances[index].first_rank + rule.ranks):
        while ranks[rank].waiting > 0:
            request = int(ranks[rank].wait_first)
            leave_queue(ranks, lists, requests, rule, rank, request)
            _send_back(requests, fleet, request, now_s, False)
        while ranks[rank].run_first != NOBODY:
            request = int(ranks[rank].run_first)
            moving = requests[request].stage == MOVING
            decoded = requests[request].stage == DECODING
            if decoded:
                drop_end(ranks, lists, rank, request)
                stop_decoding(ranks, lists, requests, rule, rank, request)
            release(ranks, lists, requests, rule, rank, request, decoded)
            ranks[rank].running += moving and not rule.moving_holds
            leave_running(ranks, requests, rank, request)
            _send_back(requests, fleet, request, now_s, moving)
        ranks[rank].partial, ranks[rank].chunks = NOBODY, 0
        ranks[rank].oldest, ranks[rank].newest, ranks[rank].idle_blocks = NOBODY, NOBODY, 0
        lists.use[rank, :, :] = NOBODY
        lists.adapters[rank, :, :] = 0
        ranks[rank].loaded, ranks[rank].pinned = 0, 0
    instances[index].load, instances[index].failing, instances[index].at = 0, 0, IDLE
    instances[index].next_s = math.inf


@clocked
def _send_back(requests: Records, fleet: Fleet, request: int, now_s: float, on_its_way: bool) -> None:
    requests[request].needed = requests[request].prompt + requests[request].made
    requests[request].ready, requests[request].stage = 0, COMES_IN
    requests[request].preempted += 1
    if not on_its_way:  # a cache that was to be sent is lost, but its arrival is noted already
        push(fleet, now_s, request)
