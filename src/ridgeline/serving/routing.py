"""Where requests go and when: what is on its way, the choice of instance and rank, and what an end sets free."""

from __future__ import annotations

from ridgeline.serving.compiling import clocked
from ridgeline.serving.fronts import drawn_of, front_of
from ridgeline.serving.hooks import route
from ridgeline.serving.queues import resident
from ridgeline.serving.state import NOBODY, ROUTE, SAMPLES, Clock, Record, Records

_IMBALANCE, _IMBALANCE_SHARE = 32, 1.1  # beyond both, a prefix-aware router takes the least loaded (SGLang's defaults)


@clocked
def _sooner(one: Record, two: Record) -> bool:
    """Whether one entry comes before another: by time, then by number."""
    return bool(one.at_s < two.at_s or (one.at_s == two.at_s and one.number < two.number))


@clocked
def _swap(coming: Records, one: int, two: int) -> None:
    a, b = coming[one], coming[two]
    at_s, number, request = a.at_s, a.number, a.request
    a.at_s, a.number, a.request = b.at_s, b.number, b.request
    b.at_s, b.number, b.request = at_s, number, request


@clocked
def push(clock: Clock, at_s: float, request: int) -> None:
    """Notes that a request arrives, or that its cache does, at a time."""
    coming, place = clock.coming, clock.system.awaited
    entry = coming[place]
    entry.at_s, entry.number, entry.request = at_s, clock.system.numbered, request
    clock.system.awaited += 1
    clock.system.numbered += 1
    while place > 0:
        above = (place - 1) // 2
        if not _sooner(coming[place], coming[above]):
            break
        _swap(coming, place, above)
        place = above


@clocked
def pop(clock: Clock) -> int:
    """The request that is next to arrive."""
    coming, size = clock.coming, clock.system.awaited - 1
    found = int(coming[0].request)
    clock.system.awaited = size
    _swap(coming, 0, size)
    place = 0
    while True:
        least = place
        for below in range(2 * place + 1, min(2 * place + 3, size)):
            if _sooner(coming[below], coming[least]):
                least = below
        if least == place:
            break
        _swap(coming, place, least)
        place = least
    return found


@clocked
def _least_loaded(clock: Clock, pool: int) -> tuple[int, int, int]:
    """The instance of a pool with the fewest requests, or nobody; the fewest and the most [1]."""
    least, most, chosen = -1, -1, NOBODY
    for index in range(clock.instances.size):
        if clock.instances[index].up > 0 and clock.instances[index].takes == pool:
            load = int(clock.instances[index].load)
            if chosen == NOBODY or load < least:
                least, chosen = load, index
            most = max(most, load)
    return chosen, least, most


@clocked
def choose_instance(clock: Clock, pool: int, request: int) -> int:
    """The instance that a request goes to, by the hook or in turn; nobody when no instance of the pool is up."""
    if clock.hooks[ROUTE] != 0:
        return int(route(clock.hooks[ROUTE], clock, pool, request))
    count, front = clock.instances.size, front_of(request, clock.turns.shape[1])
    for ahead in range(count):
        index = int((clock.turns[pool, front] + ahead) % count)
        if clock.instances[index].up > 0 and clock.instances[index].takes == pool:
            clock.turns[pool, front] = index + 1
            return index
    return NOBODY


@clocked
def least_loaded(clock: Clock, pool: int, request: int) -> int:
    """Hook `route`: the instance of the pool with the fewest requests."""
    chosen, _, _ = _least_loaded(clock, pool)
    return chosen


@clocked
def longest_prefix(clock: Clock, pool: int, request: int) -> int:
    """Hook `route`: the instance with the longest prefix of the request, the least loaded where loads differ much."""
    chosen, least, most = _least_loaded(clock, pool)
    if chosen == NOBODY:
        return chosen
    if most - least > _IMBALANCE and most > _IMBALANCE_SHARE * least:
        return chosen
    longest = 0
    for rank in range(clock.ranks.size):
        index = int(clock.ranks[rank].instance)
        if clock.instances[index].up > 0 and clock.instances[index].takes == pool:
            found = resident(clock, clock.rules[clock.instances[index].kind], rank, request)
            lighter = clock.instances[index].load < clock.instances[chosen].load
            if found > longest or (found > 0 and found == longest and lighter):
                longest, chosen = found, index
    return chosen


@clocked
def least_filled(clock: Clock, pool: int, request: int) -> int:
    """Hook `route`: the instance with the smallest share of its blocks in use or needed by who waits there."""
    chosen, least = NOBODY, 0.0
    for index in range(clock.instances.size):
        if clock.instances[index].up <= 0 or clock.instances[index].takes != pool:
            continue
        rule = clock.rules[clock.instances[index].kind]
        blocks = 0.0
        for rank in range(clock.instances[index].first_rank, clock.instances[index].first_rank + rule.ranks):
            blocks += clock.ranks[rank].used
            waits = clock.ranks[rank].wait_first
            while waits != NOBODY:
                blocks += clock.requests[waits].needed / rule.block_tokens
                waits = clock.requests[waits].after
        share = blocks / (rule.capacity * rule.ranks)
        lighter = chosen != NOBODY and clock.instances[index].load < clock.instances[chosen].load
        if chosen == NOBODY or share < least or (share == least and lighter):
            chosen, least = index, share
    return chosen


@clocked
def by_length(clock: Clock, pool: int, request: int) -> int:
    """Hook `route`: the least loaded instance of the first kind for short prompts, of the last for long ones."""
    wanted = 0 if clock.requests[request].prompt < clock.system.long_tokens else clock.rules.size - 1
    chosen = NOBODY
    for index in range(clock.instances.size):
        one = clock.instances[index]
        fits = one.up > 0 and one.takes == pool and one.kind == wanted
        if fits and (chosen == NOBODY or one.load < clock.instances[chosen].load):
            chosen = index
    if chosen != NOBODY:
        return chosen
    return least_loaded(clock, pool, request)


@clocked
def choose_rank(clock: Clock, rule: Record, instance: int, request: int) -> int:
    """The rank of an instance with the longest prefix of the request, then the fewest requests; or the one drawn."""
    first = int(clock.instances[instance].first_rank)
    if rule.draws_rank:
        return first + drawn_of(request, int(rule.ranks))
    chosen, fewest, longest = first, -1, 0
    for rank in range(first, first + rule.ranks):
        load = clock.ranks[rank].waiting + clock.ranks[rank].running
        found = resident(clock, rule, rank, request) if clock.system.by_prefix else 0
        if fewest < 0 or found > longest or (found == longest and load < fewest):
            chosen, fewest, longest = rank, load, found
    return chosen


@clocked
def ended(clock: Clock, request: int, now_s: float) -> None:
    """Lets what waited for the end of a request arrive: its session's next turn, or a closed loop's next request."""
    clock.system.done += 1
    child = clock.requests[request].first_child
    while child != NOBODY:
        push(clock, max(now_s + clock.requests[child].think_s, clock.requests[child].arrival_s), child)
        child = clock.requests[child].next_child
    if clock.system.concurrency > 0 and clock.system.unstarted < clock.requests.size:
        push(clock, max(now_s, clock.requests[clock.system.unstarted].arrival_s), clock.system.unstarted)
        clock.system.unstarted += 1


@clocked
def sample(clock: Clock, now_s: float) -> None:
    """Keeps the most of cache in use, waiting and running requests in each stretch of time."""
    while now_s >= clock.system.series_s * SAMPLES:  # twice as wide stretches, half as many
        for place in range(SAMPLES // 2):
            for column in range(4):
                one, two = clock.series[2 * place, column], clock.series[2 * place + 1, column]
                clock.series[place, column] = max(one, two)
        for place in range(SAMPLES // 2, SAMPLES):
            for column in range(4):
                clock.series[place, column] = 0.0
        clock.system.series_s *= 2.0
    place = int(now_s / clock.system.series_s)
    used, waiting, running = 0.0, 0.0, 0.0
    for rank in range(clock.ranks.size):
        used += clock.ranks[rank].used
        waiting += clock.ranks[rank].waiting
        running += clock.ranks[rank].running
    row = clock.series[place]
    row[0], row[1], row[2], row[3] = max(row[0], used), max(row[1], waiting), max(row[2], running), 1.0
