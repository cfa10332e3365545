"""The request clock, compiled: arrivals, iterations of instances, caches on their way; events in order of time.

An instance that only decodes is at a run of steps that ends with the first request to end, or with the first step that
ends after a request arrives at it; everything between is advanced at once, exactly.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from ridgeline.serving.clock import Times
from ridgeline.serving.iterate import begin, commit, set_run
from ridgeline.serving.queues import blocks_of, join_queue, leave_running
from ridgeline.serving.routing import choose_instance, choose_rank, ended, pop
from ridgeline.serving.schedule import release
from ridgeline.serving.state import (
    DECODES,
    IDLE,
    MOVING,
    NOBODY,
    REFUSED,
    SAMPLES,
    WAITING,
    Fleet,
    Instances,
    Pending,
    Ranks,
    Record,
    Requests,
    Rules,
    Whole,
)


@njit(cache=True)
def _sample(ranks: Ranks, record: Record, now_s: float) -> None:
    """Keeps the most of cache in use, waiting and running requests in each stretch of time."""
    while now_s >= record.series_s[0] * SAMPLES:  # twice as wide stretches, half as many
        for place in range(SAMPLES // 2):
            for column in range(4):
                one, two = record.series[2 * place, column], record.series[2 * place + 1, column]
                record.series[place, column] = max(one, two)
        record.series[SAMPLES // 2 :] = 0.0
        record.series_s[0] *= 2.0
    place = int(now_s / record.series_s[0])
    used, waiting, running = 0.0, 0.0, 0.0
    for rank in range(ranks.used.size):
        used += ranks.used[rank]
        waiting += ranks.waiting[rank]
        running += ranks.running[rank]
    row = record.series[place]
    row[0], row[1], row[2], row[3] = max(row[0], used), max(row[1], waiting), max(row[2], running), 1.0


@njit(cache=True)
def _refuse(requests: Requests, pending: Pending, record: Record, fleet: Fleet, request: int, now_s: float) -> None:
    requests.stage[request], requests.end_s[request] = REFUSED, now_s
    ended(requests, pending, fleet, record, request, now_s)


@njit(cache=True)
def _arrive(
    ranks: Ranks,
    requests: Requests,
    instances: Instances,
    pending: Pending,
    record: Record,
    times: tuple[Times, ...],
    rules: tuple[Rules, ...],
    fleet: Fleet,
    request: int,
    now_s: float,
) -> None:
    """A request, or the cache of one, reaches the system: it joins a queue, and its instance takes note."""
    pool = 1
    if requests.stage[request] == MOVING:
        pool = 2
        rank = requests.rank[request]
        index = ranks.instance[rank]
        kind = instances.kind[index]
        release(ranks, requests, times[kind], rules[kind], rank, request, False)
        leave_running(ranks, requests, rank, request)
        instances.load[index] -= 1
        requests.needed[request] = requests.prompt[request] + requests.made[request] - 1
        requests.ready[request] = requests.needed[request]
        _wake(ranks, requests, instances, record, times[kind], rules[kind], index, now_s)
    else:
        requests.came_s[request] = now_s
    instance = choose_instance(ranks, requests, instances, rules[0], fleet, pool, request)
    if instance == NOBODY:
        _refuse(requests, pending, record, fleet, request, now_s)
        return
    kind = instances.kind[instance]
    longest = requests.prompt[request] + (requests.output[request] if instances.gives[instance] == 0 else 0)
    if blocks_of(longest, rules[kind].block_tokens) > rules[kind].capacity:
        _refuse(requests, pending, record, fleet, request, now_s)
        return
    rank = choose_rank(ranks, requests, instances, rules[kind], fleet, instance, request)
    requests.rank[request], requests.stage[request] = rank, WAITING
    instances.load[instance] += 1
    join_queue(ranks, requests, rank, request, False, fleet.by_priority)
    _wake(ranks, requests, instances, record, times[kind], rules[kind], instance, now_s)


@njit(cache=True)
def _wake(
    ranks: Ranks,
    requests: Requests,
    instances: Instances,
    record: Record,
    times: Times,
    rules: Rules,
    instance: int,
    now_s: float,
) -> None:
    """An instance learns of a change: an idle one begins, a run of decode steps is cut at its next step."""
    if instances.at[instance] == IDLE:
        begin(ranks, requests, instances, record, times, rules, instance, now_s)
    elif instances.at[instance] == DECODES:
        set_run(ranks, instances, record, times, rules, instance, instances.steps[instance], now_s)


@njit(cache=True, nogil=True)
def replay(
    ranks: Ranks,
    requests: Requests,
    instances: Instances,
    pending: Pending,
    record: Record,
    times: tuple[Times, ...],
    rules: tuple[Rules, ...],
    fleet: Fleet,
    arrivals: Whole,
    most_s: float,
) -> float:
    """Runs the clock until every request has ended, or until `most_s`; returns the time that it shows then [s]."""
    next_arrival, now = 0, 0.0
    while True:
        instance = int(np.argmin(instances.next_s))
        iteration_s = instances.next_s[instance]
        arrival_s = math.inf
        if next_arrival < arrivals.size:
            arrival_s = requests.arrival_s[arrivals[next_arrival]]
        pending_s = pending.at_s[0] if pending.counts[0] > 0 else math.inf
        event_s = min(iteration_s, arrival_s, pending_s)
        if event_s == math.inf or event_s > most_s:
            return now
        now = event_s
        if iteration_s <= now:
            kind = instances.kind[instance]
            commit(ranks, requests, instances, pending, record, times[kind], rules[kind], fleet, instance)
            begin(ranks, requests, instances, record, times[kind], rules[kind], instance, now)
        elif pending_s <= now:
            request = pop(pending)
            _arrive(ranks, requests, instances, pending, record, times, rules, fleet, request, now)
        else:
            request = arrivals[next_arrival]
            next_arrival += 1
            _arrive(ranks, requests, instances, pending, record, times, rules, fleet, request, now)
        _sample(ranks, record, now)
