"""The request clock, compiled: arrivals, iterations of instances, caches on their way; events in order of time.

An instance that only decodes is at a run of steps that ends with the first request to end, or with the first step that
ends after a request arrives at it; everything between is advanced at once, exactly. Before a router that reads caches,
or the rule of a fleet's size, is asked, the steps of runs that have ended are booked.
"""

from __future__ import annotations

import math

from ridgeline.serving.changes import change, evacuate, next_change, next_start
from ridgeline.serving.compiling import clocked
from ridgeline.serving.hooks import books
from ridgeline.serving.iterate import begin, commit
from ridgeline.serving.kv_eviction import prompt_tokens
from ridgeline.serving.queues import join_queue, leave_running, most_blocks, stop_keeping
from ridgeline.serving.remote_kv import too_long
from ridgeline.serving.routing import choose_instance, choose_rank, ended, pop, push, sample
from ridgeline.serving.runs import set_run
from ridgeline.serving.sequences import release
from ridgeline.serving.state import (
    ANSWERS,
    BOOKS,
    COMES_IN,
    DECODES,
    ENDED,
    IDLE,
    MOVING,
    NOBODY,
    NOT_ARRIVED,
    REFUSED,
    WAITING,
    Clock,
    Whole,
)
from ridgeline.serving.stopping import A_REQUEST, EVENTS, LEAST, hopeless
from ridgeline.serving.urgency import drawn_priority


@clocked
def _elsewhere(clock: Clock, request: int, rank: int) -> None:
    """Stops keeping a turn's cache for one that is not at its rank; whoever waits there takes note."""
    if request != NOBODY and clock.requests[request].kept and clock.requests[request].rank != rank:
        where = int(clock.requests[request].rank)
        index = int(clock.ranks[where].instance)
        stop_keeping(clock, clock.rules[clock.instances[index].kind], where, request)
        clock.instances[index].dirty = 1


@clocked
def _next_coming_s(clock: Clock) -> float:
    """When the next request arrives, or a cache that is kept has been so for long enough [s]."""
    while clock.system.awaited > 0:
        request = clock.coming[0].request
        if clock.requests[request].stage != ENDED or clock.requests[request].kept:
            return float(clock.coming[0].at_s)
        pop(clock)  # it is not kept any more
    return math.inf


@clocked
def _refuse(clock: Clock, request: int, now_s: float) -> None:
    clock.requests[request].stage, clock.requests[request].end_s = REFUSED, now_s
    _elsewhere(clock, int(clock.requests[request].follows), NOBODY)
    ended(clock, request, now_s)


@clocked
def _arrive(clock: Clock, request: int, now_s: float) -> None:
    """A request, or the cache of one, reaches the system: it joins a queue, and its instance takes note."""
    pool = 1
    if clock.requests[request].stage == ENDED:
        _elsewhere(clock, request, NOBODY)
        return
    if clock.requests[request].stage == MOVING:
        pool = 2
        rank = clock.requests[request].rank
        index = clock.ranks[rank].instance
        kind = clock.instances[index].kind
        release(clock, clock.rules[kind], rank, request, False)
        clock.ranks[rank].running += not clock.rules[kind].moving_holds
        leave_running(clock, rank, request)
        clock.instances[index].load -= 1
        clock.requests[request].needed = clock.requests[request].prompt + clock.requests[request].made - 1
        clock.requests[request].ready = clock.requests[request].needed
        clock.instances[index].dirty = 1
    elif clock.requests[request].stage == NOT_ARRIVED:
        clock.requests[request].came_s = now_s
        if clock.requests[request].front_s > 0.0:
            clock.requests[request].stage = COMES_IN
            push(clock, now_s + clock.requests[request].front_s, request)
            return
    if clock.system.reads_cache:
        books(clock.hooks[BOOKS], clock, now_s)
    instance = choose_instance(clock, pool, request)
    if instance == NOBODY:
        later_s = next_start(clock, pool)
        if later_s < math.inf:  # nobody is up, somebody will be
            clock.requests[request].stage = COMES_IN
            push(clock, max(later_s, now_s), request)
        else:
            _refuse(clock, request, now_s)
        return
    kind = clock.instances[instance].kind
    output = clock.requests[request].output if clock.instances[instance].gives == 0 else 0
    away = clock.rules[kind].host_tokens
    away_too_long = away > 0 and clock.requests[request].prompt + output > away
    taken = prompt_tokens(clock.rules[kind], clock.requests[request].prompt)
    if away_too_long or too_long(clock, clock.rules[kind], most_blocks(clock.rules[kind], taken, output)):
        _refuse(clock, request, now_s)
        return
    rank = choose_rank(clock, clock.rules[kind], instance, request)
    _elsewhere(clock, int(clock.requests[request].follows), rank)
    clock.requests[request].rank, clock.requests[request].stage = rank, WAITING
    clock.instances[instance].load += 1
    clock.instances[instance].last_arrival_s = now_s
    if clock.rules[kind].redraws > 0:
        clock.requests[request].priority = drawn_priority(clock.rules[kind], request, clock.instances[instance].epoch)
    join_queue(clock, clock.rules[kind], rank, request, False, bool(clock.system.by_priority))
    clock.instances[instance].dirty = 1


@clocked
def _attend(clock: Clock, now_s: float) -> tuple[int, float]:
    """Lets dirty instances take note: an idle one begins, a run of decode steps is cut at its next step.

    Returns the instance that is next to end what it is at, and when [s].
    """
    first, first_s = clock.instances.size - 1, math.inf
    for instance in range(clock.instances.size):
        if clock.instances[instance].dirty:
            clock.instances[instance].dirty = 0
            rule = clock.rules[clock.instances[instance].kind]
            if clock.instances[instance].failing and clock.instances[instance].at == IDLE:
                evacuate(clock, rule, instance, now_s)
            elif clock.instances[instance].at == IDLE:
                begin(clock, rule, instance, now_s)
            elif clock.instances[instance].at == DECODES:
                set_run(clock, rule, instance, clock.instances[instance].steps, now_s)
        peer = clock.instances[instance].peer  # of answers: it may have begun again with what they gave back
        if clock.instances[instance].lane == ANSWERS and clock.instances[peer].next_s < first_s:
            first, first_s = peer, clock.instances[peer].next_s
        if clock.instances[instance].next_s < first_s:
            first, first_s = instance, clock.instances[instance].next_s
    if clock.rules[0].borrows:  # who began later may have cut the run of one before it
        first_s = math.inf
        for instance in range(clock.instances.size):
            if clock.instances[instance].next_s < first_s:
                first, first_s = instance, clock.instances[instance].next_s
    return first, first_s


@clocked
def replay(clock: Clock, arrivals: Whole, most_s: float) -> float:
    """Runs the clock until every request has ended, until `most_s`, or until too many have missed their objective.

    Returns the time that it shows then [s].
    """
    next_arrival, now, events = 0, 0.0, 0
    between_looks = max(EVENTS, clock.requests.size // A_REQUEST)
    while True:
        arrival_s = math.inf
        if next_arrival < arrivals.size:
            arrival_s = clock.requests[arrivals[next_arrival]].arrival_s
        coming_s = _next_coming_s(clock)
        instance, iteration_s = 0, math.inf
        if min(arrival_s, coming_s) > now:  # all that comes at one instant is there before anyone takes note
            instance, iteration_s = _attend(clock, now)
            sample(clock, now)
            coming_s = _next_coming_s(clock)  # a failed one gives back
        event_s = min(iteration_s, arrival_s, coming_s)
        if event_s == math.inf or event_s > most_s:
            return now
        change_s = next_change(clock)
        now = max(now, min(event_s, change_s))
        events += 1
        if clock.stop[LEAST] > 0.0 and events % between_looks == 0 and hopeless(clock.requests, clock.stop, now):
            clock.system.stopped = 1
            return now
        if change_s <= now:
            change(clock, now)
            continue
        if iteration_s <= now:
            rule = clock.rules[clock.instances[instance].kind]
            commit(clock, rule, instance)
            clock.instances[instance].at, clock.instances[instance].dirty = IDLE, 1
            continue
        if coming_s <= now:
            request = pop(clock)
        else:
            request = arrivals[next_arrival]
            next_arrival += 1
        _arrive(clock, request, now)
