"""The request clock, compiled: arrivals, iterations of instances, caches on their way; events in order of time.

An instance that only decodes is at a run of steps that ends with the first request to end, or with the first step that
ends after a request arrives at it; everything between is advanced at once, exactly. Only a router by prefixes may see
the cache of a run as it was when the run began: what a run evicts is booked at its end.
"""

from __future__ import annotations

import math

from ridgeline.serving.borrowing import too_long
from ridgeline.serving.changes import change, evacuate, next_change, next_start
from ridgeline.serving.clock import Times
from ridgeline.serving.compiling import clocked, entered
from ridgeline.serving.iterate import begin, commit
from ridgeline.serving.kept import prompt_tokens
from ridgeline.serving.queues import join_queue, leave_running, most_blocks
from ridgeline.serving.routing import choose_instance, choose_rank, ended, pop, push, sample
from ridgeline.serving.runs import set_run
from ridgeline.serving.sequences import release
from ridgeline.serving.state import (
    ANSWERS,
    COMES_IN,
    DECODES,
    IDLE,
    MOVING,
    NOBODY,
    NOT_ARRIVED,
    REFUSED,
    WAITING,
    Fleet,
    Lists,
    Records,
    Whole,
)
from ridgeline.serving.stopping import A_REQUEST, EVENTS, LEAST, hopeless
from ridgeline.serving.urgency import drawn_priority


@clocked
def _refuse(requests: Records, fleet: Fleet, request: int, now_s: float) -> None:
    requests[request].stage, requests[request].end_s = REFUSED, now_s
    ended(requests, fleet, request, now_s)


@clocked
def _arrive(
    ranks: Records,
    lists: Lists,
    requests: Records,
    instances: Records,
    fleet: Fleet,
    rules: Records,
    request: int,
    now_s: float,
) -> None:
    """A request, or the cache of one, reaches the system: it joins a queue, and its instance takes note."""
    pool = 1
    if requests[request].stage == MOVING:
        pool = 2
        rank = requests[request].rank
        index = ranks[rank].instance
        kind = instances[index].kind
        release(ranks, lists, requests, rules[kind], rank, request, False)
        ranks[rank].running += not rules[kind].moving_holds
        leave_running(ranks, requests, rank, request)
        instances[index].load -= 1
        requests[request].needed = requests[request].prompt + requests[request].made - 1
        requests[request].ready = requests[request].needed
        instances[index].stirred = 1
    elif requests[request].stage == NOT_ARRIVED:
        requests[request].came_s = now_s
        if requests[request].front_s > 0.0:
            requests[request].stage = COMES_IN
            push(fleet, now_s + requests[request].front_s, request)
            return
    instance = choose_instance(ranks, lists, requests, instances, rules, fleet, pool, request)
    if instance == NOBODY:
        later_s = next_start(instances, pool)
        if later_s < math.inf:  # nobody is up, somebody will be
            requests[request].stage = COMES_IN
            push(fleet, max(later_s, now_s), request)
        else:
            _refuse(requests, fleet, request, now_s)
        return
    kind = instances[instance].kind
    output = requests[request].output if instances[instance].gives == 0 else 0
    away = rules[kind].host_tokens
    away_too_long = away > 0 and requests[request].prompt + output > away
    taken = prompt_tokens(rules[kind], requests[request].prompt)
    if away_too_long or too_long(ranks, rules[kind], most_blocks(rules[kind], taken, output)):
        _refuse(requests, fleet, request, now_s)
        return
    rank = choose_rank(ranks, lists, requests, instances, rules[kind], fleet, instance, request)
    requests[request].rank, requests[request].stage = rank, WAITING
    instances[instance].load += 1
    instances[instance].heard_s = now_s
    if rules[kind].redraws > 0:
        requests[request].priority = drawn_priority(rules[kind], request, instances[instance].epoch)
    join_queue(ranks, lists, requests, rules[kind], rank, request, False, bool(fleet.system[0].by_priority))
    instances[instance].stirred = 1


@clocked
def _attend(
    ranks: Records,
    lists: Lists,
    requests: Records,
    instances: Records,
    fleet: Fleet,
    times: Times,
    rules: Records,
    now_s: float,
) -> tuple[int, float]:
    """Lets stirred instances take note: an idle one begins, a run of decode steps is cut at its next step.

    Returns the instance that is next to end what it is at, and when [s].
    """
    first, first_s = instances.size - 1, math.inf
    for instance in range(instances.size):
        if instances[instance].stirred:
            instances[instance].stirred = 0
            rule = rules[instances[instance].kind]
            if instances[instance].failing and instances[instance].at == IDLE:
                evacuate(ranks, lists, requests, instances, fleet, rule, instance, now_s)
            elif instances[instance].at == IDLE:
                begin(ranks, lists, requests, instances, fleet, times, rule, instance, now_s)
            elif instances[instance].at == DECODES:
                set_run(ranks, instances, fleet, times, rule, instance, instances[instance].steps, now_s)
        mate = instances[instance].mate  # of answers: it may have begun again with what they gave back
        if instances[instance].lane == ANSWERS and instances[mate].next_s < first_s:
            first, first_s = mate, instances[mate].next_s
        if instances[instance].next_s < first_s:
            first, first_s = instance, instances[instance].next_s
    if rules[0].borrows:  # who began later may have cut the run of one before it
        first_s = math.inf
        for instance in range(instances.size):
            if instances[instance].next_s < first_s:
                first, first_s = instance, instances[instance].next_s
    return first, first_s


@entered
def replay(
    ranks: Records,
    lists: Lists,
    requests: Records,
    instances: Records,
    fleet: Fleet,
    times: Times,
    rules: Records,
    arrivals: Whole,
    most_s: float,
) -> float:
    """Runs the clock until every request has ended, until `most_s`, or until too many have missed their objective.

    Returns the time that it shows then [s].
    """
    next_arrival, now, events = 0, 0.0, 0
    between_looks = max(EVENTS, requests.size // A_REQUEST)
    while True:
        arrival_s = math.inf
        if next_arrival < arrivals.size:
            arrival_s = requests[arrivals[next_arrival]].arrival_s
        coming_s = fleet.coming[0].at_s if fleet.system[0].awaited > 0 else math.inf
        instance, iteration_s = 0, math.inf
        if min(arrival_s, coming_s) > now:  # all that comes at one instant is there before anyone takes note
            instance, iteration_s = _attend(ranks, lists, requests, instances, fleet, times, rules, now)
            sample(ranks, fleet, now)
            coming_s = fleet.coming[0].at_s if fleet.system[0].awaited > 0 else math.inf  # a failed one gives back
        event_s = min(iteration_s, arrival_s, coming_s)
        if event_s == math.inf or event_s > most_s:
            return now
        change_s = next_change(instances, fleet)
        now = max(now, min(event_s, change_s))
        events += 1
        if fleet.stop[LEAST] > 0.0 and events % between_looks == 0 and hopeless(requests, fleet.stop, now):
            fleet.system[0].stopped = 1
            return now
        if change_s <= now:
            change(instances, fleet, now)
            continue
        if iteration_s <= now:
            rule = rules[instances[instance].kind]
            commit(ranks, lists, requests, instances, fleet, times, rule, instance)
            instances[instance].at, instances[instance].stirred = IDLE, 1
            continue
        if coming_s <= now:
            request = pop(fleet)
        else:
            request = arrivals[next_arrival]
            next_arrival += 1
        _arrive(ranks, lists, requests, instances, fleet, rules, request, now)
