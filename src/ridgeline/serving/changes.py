"""Instances that come and go: failures with repair, and scaling by a rule; compiled."""

from __future__ import annotations

import math

from ridgeline.serving.compiling import clocked
from ridgeline.serving.hooks import books, scales
from ridgeline.serving.loading import HOLDERS, USED
from ridgeline.serving.queues import drop_end, leave_queue, leave_running, stop_keeping
from ridgeline.serving.routing import push
from ridgeline.serving.sequences import release, stop_decoding
from ridgeline.serving.state import BOOKS, COMES_IN, DECODING, IDLE, MOVING, NOBODY, SCALES, Clock, Record


@clocked
def next_change(clock: Clock) -> float:
    """When an instance starts or fails next, or the load is looked at next [s]."""
    if clock.system.period_s <= 0.0 and clock.failures_s.shape[1] == 0:
        return math.inf
    found = clock.system.look_s if clock.system.period_s > 0.0 else math.inf
    for index in range(clock.instances.size):
        found = min(found, clock.instances[index].starts_s)
        if clock.instances[index].up:
            found = min(found, clock.instances[index].fails_s)
    return float(found)


@clocked
def next_start(clock: Clock, pool: int) -> float:
    """When an instance of a pool starts next; inf when none is on its way [s]."""
    found = math.inf
    for index in range(clock.instances.size):
        if clock.instances[index].takes == pool:
            found = min(found, clock.instances[index].starts_s)
    return float(found)


@clocked
def change(clock: Clock, now_s: float) -> None:
    """Everything that changes now: instances that are up again, that fail, and those that the load asks for or not."""
    for index in range(clock.instances.size):
        one = clock.instances[index]
        if one.starts_s <= now_s:
            one.starts_s, one.up, one.up_since_s = math.inf, 1, now_s
            if one.paid_since_s < 0.0:
                one.paid_since_s = now_s
            one.fails_s = now_s + _gap(clock, index, 2 * one.failures)
            one.dirty = 1
        elif one.up and one.fails_s <= now_s:
            one.up, one.failing, one.dirty = 0, 1, 1
            one.up_s += now_s - one.up_since_s
            one.paid_s += now_s - one.paid_since_s
            one.paid_since_s = -1.0
            one.starts_s = now_s + _gap(clock, index, 2 * one.failures + 1)
            one.fails_s = math.inf
            one.failures += 1
            clock.system.failures += 1
    if clock.system.period_s > 0.0 and clock.system.look_s <= now_s:
        clock.system.look_s = now_s + clock.system.period_s
        books(clock.hooks[BOOKS], clock, now_s)
        for index in range(clock.instances.size):
            one = clock.instances[index]
            if not one.up and one.starts_s == math.inf and one.load == 0 and one.paid_since_s >= 0.0:  # it is drained
                one.paid_s += now_s - one.paid_since_s
                one.paid_since_s = -1.0
        for pool in range(1, 3):  # of requests that arrive, and of those that another pool sends on
            for _ in range(clock.system.scale_step):
                _scale(clock, pool, now_s)


@clocked
def _gap(clock: Clock, index: int, place: int) -> float:
    return float(clock.failures_s[index, place]) if place < clock.failures_s.shape[1] else math.inf


@clocked
def _scale(clock: Clock, pool: int, now_s: float) -> None:
    """Starts an instance of a pool, or stops one, as the rule says."""
    ready, working = 0, 0
    last_up, first_down = NOBODY, NOBODY
    for index in range(clock.instances.size):
        if clock.instances[index].takes != pool:
            continue
        if clock.instances[index].up or clock.instances[index].starts_s < math.inf:
            ready += 1
            if clock.instances[index].up:
                working, last_up = working + 1, index
        elif first_down == NOBODY and not clock.instances[index].failing:
            first_down = index
    may_start = ready < clock.system.most and first_down != NOBODY
    may_stop = working > clock.system.fewest and last_up != NOBODY
    wanted = scales(clock.hooks[SCALES], clock, pool, ready, now_s) if may_start or may_stop else 0
    if wanted > 0 and may_start:
        clock.instances[first_down].starts_s = now_s + clock.system.start_s
        if clock.instances[first_down].paid_since_s < 0.0:
            clock.instances[first_down].paid_since_s = now_s
        clock.system.starts += 1
    elif wanted < 0 and may_stop:
        clock.instances[last_up].up = 0  # it takes no more, and ends what it has
        clock.instances[last_up].up_s += now_s - clock.instances[last_up].up_since_s


@clocked
def evacuate(clock: Clock, rule: Record, index: int, now_s: float) -> None:
    """A failed instance gives back its requests: their caches are lost, the tokens that were streamed are not."""
    for rank in range(clock.instances[index].first_rank, clock.instances[index].first_rank + rule.ranks):
        while clock.ranks[rank].waiting > 0:
            request = int(clock.ranks[rank].wait_first)
            leave_queue(clock, rule, rank, request)
            _send_back(clock, request, now_s, False)
        while clock.ranks[rank].run_first != NOBODY:
            request = int(clock.ranks[rank].run_first)
            moving = clock.requests[request].stage == MOVING
            decoded = clock.requests[request].stage == DECODING
            if decoded:
                drop_end(clock, rank, request)
                stop_decoding(clock, rule, rank, request)
            release(clock, rule, rank, request, decoded)
            clock.ranks[rank].running += moving and not rule.moving_holds
            leave_running(clock, rank, request)
            _send_back(clock, request, now_s, moving)
        while clock.ranks[rank].keep_first != NOBODY:
            stop_keeping(clock, rule, rank, int(clock.ranks[rank].keep_first))
        clock.ranks[rank].host_oldest, clock.ranks[rank].host_newest, clock.ranks[rank].host_idle = NOBODY, NOBODY, 0
        clock.ranks[rank].partial, clock.ranks[rank].chunks = NOBODY, 0
        clock.ranks[rank].oldest, clock.ranks[rank].newest, clock.ranks[rank].idle_blocks = NOBODY, NOBODY, 0
        for block in range(clock.use.shape[1]):
            for place in range(3):
                clock.use[rank, block, place] = NOBODY
        for adapter in range(clock.adapters.shape[1]):
            clock.adapters[rank, adapter, USED] = clock.adapters[rank, adapter, HOLDERS] = 0
        clock.ranks[rank].loaded, clock.ranks[rank].pinned = 0, 0
    clock.instances[index].load, clock.instances[index].failing, clock.instances[index].at = 0, 0, IDLE
    clock.instances[index].next_s = math.inf


@clocked
def _send_back(clock: Clock, request: int, now_s: float, on_its_way: bool) -> None:
    clock.requests[request].needed = clock.requests[request].prompt + clock.requests[request].made
    clock.requests[request].ready, clock.requests[request].stage = 0, COMES_IN
    clock.requests[request].preempted += 1
    if not on_its_way:  # a cache that was to be sent is lost, but its arrival is noted already
        push(clock, now_s, request)
