"""Queues, the order of ends, and cache blocks of a rank, compiled; every function changes the arrays it is given."""

from __future__ import annotations

import math

from ridgeline.serving.compiling import clocked
from ridgeline.serving.fairness import comes, goes
from ridgeline.serving.hooks import order
from ridgeline.serving.state import NOBODY, ON_HOST, ORDER, Clock, Record, Records, Whole


@clocked
def _earlier(one: Whole, two: Whole) -> bool:
    """Whether one entry of the order of ends comes before another: by step, then by request."""
    return bool(one[0] < two[0] or (one[0] == two[0] and one[1] < two[1]))


@clocked
def _swap(one: Whole, two: Whole) -> None:
    one[0], two[0] = two[0], one[0]
    one[1], two[1] = two[1], one[1]


@clocked
def _rise(ends: Whole, place: int, always: bool) -> None:
    """Moves an entry up to where it belongs, or to the top."""
    while place > 0:
        above = (place - 1) // 2
        if not always and not _earlier(ends[place], ends[above]):
            break
        _swap(ends[place], ends[above])
        place = above


@clocked
def push_end(clock: Clock, rank: int, until: int, request: int) -> None:
    """Notes that a request ends when the rank has done `until` steps."""
    ends, place = clock.ends[rank], clock.ranks[rank].ends
    clock.ranks[rank].ends = place + 1
    ends[place, 0], ends[place, 1] = until, request
    _rise(ends, place, False)


@clocked
def pop_end(clock: Clock, rank: int) -> None:
    """Removes the request that ends first."""
    ends, size = clock.ends[rank], clock.ranks[rank].ends - 1
    clock.ranks[rank].ends = size
    _swap(ends[0], ends[size])
    place = 0
    while True:
        least = place
        for below in range(2 * place + 1, min(2 * place + 3, size)):
            if _earlier(ends[below], ends[least]):
                least = below
        if least == place:
            break
        _swap(ends[place], ends[least])
        place = least


@clocked
def drop_end(clock: Clock, rank: int, request: int) -> None:
    """Removes a request that is preempted from the order of ends."""
    for place in range(clock.ranks[rank].ends):
        if clock.ends[rank, place, 1] == request:
            _rise(clock.ends[rank], place, True)
            pop_end(clock, rank)
            return


@clocked
def shortest_first(requests: Records, rule: Record, request: int, other: int) -> bool:
    """Hook `order`: whether the prompt of one who waits is longer, where a second of waiting counts for tokens.

    n + p a with its arrival at a: of two who wait, both grow as old, so that their order never changes.
    """
    mine = requests[request].prompt + rule.patience * requests[request].came_s
    return bool(requests[other].prompt + rule.patience * requests[other].came_s > mine)


@clocked
def _stays_behind(clock: Clock, rule: Record, other: int, request: int, first: bool, by_priority: bool) -> bool:
    """Whether one who waits comes after one who joins: less urgent, or by the hook; of equals if that is `first`."""
    if (by_priority or rule.shortest) and clock.requests[other].priority != clock.requests[request].priority:
        return bool(clock.requests[other].priority > clock.requests[request].priority)
    if rule.shortest:
        if order(clock.hooks[ORDER], clock.requests, rule, request, other):
            return True
        if order(clock.hooks[ORDER], clock.requests, rule, other, request):
            return False
    return first


@clocked
def join_queue(clock: Clock, rule: Record, rank: int, request: int, first: bool, by_priority: bool) -> None:
    """Puts a request into a rank's queue: last, or first (after a preemption); of all, or of those of its priority.

    Where a hook says the order, of those whom it puts before and after none of.
    """
    comes(clock, rule, rank, request, first)
    clock.ranks[rank].waiting += 1
    before, after = clock.ranks[rank].wait_last, NOBODY
    if first and not by_priority and not rule.shortest:
        before, after = NOBODY, clock.ranks[rank].wait_first
    elif by_priority or rule.shortest:
        while before != NOBODY and _stays_behind(clock, rule, before, request, first, by_priority):
            before, after = clock.requests[before].before, before
    clock.requests[request].before, clock.requests[request].after = before, after
    if before == NOBODY:
        clock.ranks[rank].wait_first = request
    else:
        clock.requests[before].after = request
    if after == NOBODY:
        clock.ranks[rank].wait_last = request
    else:
        clock.requests[after].before = request


@clocked
def leave_queue(clock: Clock, rule: Record, rank: int, request: int) -> None:
    """Takes a request out of a rank's queue."""
    goes(clock, rule, rank, request)
    before, after = clock.requests[request].before, clock.requests[request].after
    if before == NOBODY:
        clock.ranks[rank].wait_first = after
    else:
        clock.requests[before].after = after
    if after == NOBODY:
        clock.ranks[rank].wait_last = before
    else:
        clock.requests[after].before = before
    clock.ranks[rank].waiting -= 1


@clocked
def join_running(clock: Clock, rank: int, request: int) -> None:
    """Adds a request to the end of the order of admission."""
    last = clock.ranks[rank].run_last
    clock.requests[request].before, clock.requests[request].after = last, NOBODY
    if last == NOBODY:
        clock.ranks[rank].run_first = request
    else:
        clock.requests[last].after = request
    clock.ranks[rank].run_last = request
    clock.ranks[rank].running += 1


@clocked
def leave_running(clock: Clock, rank: int, request: int) -> None:
    """Takes a request out of the order of admission."""
    before, after = clock.requests[request].before, clock.requests[request].after
    if before == NOBODY:
        clock.ranks[rank].run_first = after
    else:
        clock.requests[before].after = after
    if after == NOBODY:
        clock.ranks[rank].run_last = before
    else:
        clock.requests[after].before = before
    clock.ranks[rank].running -= 1


# blocks ----------------------------------------------------------------------------------------------


@clocked
def blocks_of(tokens: float, block_tokens: int) -> int:
    """Blocks that hold so many tokens [1]."""
    return -int(-tokens // block_tokens)


@clocked
def first_growth(rule: Record, length: int) -> int:
    """Steps until a sequence of this length needs its next block, less than a period [step]."""
    return int(min(((-length) % rule.block_tokens) // rule.gained, rule.period - 1))


@clocked
def held_blocks(clock: Clock, rule: Record, request: int, step: int) -> int:
    """Blocks that a decoding request holds when its rank has done `step` steps, shared ones included [1]."""
    length = clock.requests[request].length
    held = blocks_of(length, rule.block_tokens)
    since = step - 1 - clock.requests[request].since - first_growth(rule, length)
    return held + ((since // rule.period + 1) * rule.growth_blocks if since >= 0 else 0)


@clocked
def most_blocks(rule: Record, prompt: int, output: int) -> int:
    """Blocks that a request holds at its end, alone [1]."""
    if rule.gained == 1.0:
        return blocks_of(prompt + output, rule.block_tokens)
    steps = math.ceil(output / rule.gained)
    return int(blocks_of(prompt, rule.block_tokens) + (steps // rule.period + 1) * rule.growth_blocks)


@clocked
def growth(clock: Clock, rule: Record, rank: int, steps: int) -> int:
    """Blocks that the decoding sequences of a rank need over its next steps [1]."""
    phase = clock.phase[rank]
    period = rule.period
    whole = steps // period
    needed = whole * (clock.ranks[rank].decoding - clock.ranks[rank].asking)  # who has borrowed has all its blocks
    for ahead in range(steps - whole * period):
        needed += phase[(clock.ranks[rank].step + ahead) % period]
    return int(needed * rule.growth_blocks)


@clocked
def steps_that_fit(clock: Clock, rule: Record, rank: int, available: int, most: int) -> int:
    """How many of the next `most` steps the rank's free blocks suffice for [step]."""
    decoding, period = clock.ranks[rank].decoding - clock.ranks[rank].asking, rule.period
    if decoding == 0 or growth(clock, rule, rank, most) <= available:
        return most
    steps = min((available // (decoding * rule.growth_blocks)) * period, most)
    left = available - growth(clock, rule, rank, steps)
    while steps < most:
        left -= clock.phase[rank, (clock.ranks[rank].step + steps) % period] * rule.growth_blocks
        if left < 0:
            break
        steps += 1
    return int(steps)


# prefix blocks ---------------------------------------------------------------------------------------


@clocked
def resident(clock: Clock, rule: Record, rank: int, request: int) -> int:
    """Leading prefix blocks of a prompt that the rank holds, on the host too [1]; a token is always left to compute."""
    if rule.prefix_tokens == 0:
        return 0
    start = clock.prefix_start[request]
    whole = min(clock.prefix_start[request + 1] - start, (clock.requests[request].needed - 1) // rule.prefix_tokens)
    found = 0
    while found < whole and clock.use[rank, clock.prefix_blocks[start + found], 0] != NOBODY:
        found += 1
    return int(found)


@clocked
def idle_among(clock: Clock, rank: int, request: int, count: int) -> int:
    """How many of the first `count` prefix blocks of a prompt nobody holds, or the host [1]."""
    start, idle = clock.prefix_start[request], 0
    for place in range(count):
        holders = clock.use[rank, clock.prefix_blocks[start + place], 0]
        idle += holders == 0 or holders == ON_HOST
    return idle


@clocked
def _forget(clock: Clock, rank: int, block: int) -> None:
    """Takes a block out of the order of last use, that of the device's blocks or of the host's."""
    away = clock.use[rank, block, 0] == ON_HOST
    older, newer = clock.use[rank, block, 2], clock.use[rank, block, 1]
    if older != NOBODY:
        clock.use[rank, older, 1] = newer
    elif away:
        clock.ranks[rank].host_oldest = newer
    else:
        clock.ranks[rank].oldest = newer
    if newer != NOBODY:
        clock.use[rank, newer, 2] = older
    elif away:
        clock.ranks[rank].host_newest = older
    else:
        clock.ranks[rank].newest = older
    clock.ranks[rank].host_idle -= away
    clock.ranks[rank].idle_blocks -= not away


@clocked
def _remember(clock: Clock, rank: int, block: int) -> None:
    """Puts a block that nobody holds at the newest end of the order of last use, of the device or of the host."""
    away = clock.use[rank, block, 0] == ON_HOST
    newest = clock.ranks[rank].host_newest if away else clock.ranks[rank].newest
    clock.use[rank, block, 2], clock.use[rank, block, 1] = newest, NOBODY
    if newest != NOBODY:
        clock.use[rank, newest, 1] = block
    elif away:
        clock.ranks[rank].host_oldest = block
    else:
        clock.ranks[rank].oldest = block
    if away:
        clock.ranks[rank].host_newest = block
    else:
        clock.ranks[rank].newest = block
    clock.ranks[rank].host_idle += away
    clock.ranks[rank].idle_blocks += not away


@clocked
def hold(clock: Clock, rule: Record, rank: int, request: int, count: int) -> None:
    """Holds the first `count` prefix blocks of a prompt; those of the host come back over its link."""
    start = clock.prefix_start[request]
    for place in range(count):
        block = clock.prefix_blocks[start + place]
        if clock.use[rank, block, 0] == ON_HOST:
            clock.ranks[rank].moved_s += rule.prefix_tokens * rule.swap_token_s
        if clock.use[rank, block, 0] == 0 or clock.use[rank, block, 0] == ON_HOST:
            _forget(clock, rank, block)
            clock.use[rank, block, 0] = 0
        clock.use[rank, block, 0] += 1
    clock.requests[request].shared = count


@clocked
def publish(clock: Clock, rule: Record, rank: int, request: int, tokens: int) -> None:
    """Makes the whole prefix blocks of `tokens` computed ones known; what another published first stays its own."""
    if rule.prefix_tokens == 0:
        return
    start = clock.prefix_start[request]
    whole = min(clock.prefix_start[request + 1] - start, tokens // rule.prefix_tokens)
    shared = clock.requests[request].shared
    while shared < whole and clock.use[rank, clock.prefix_blocks[start + shared], 0] < 0:
        if clock.use[rank, clock.prefix_blocks[start + shared], 0] == ON_HOST:
            _forget(clock, rank, clock.prefix_blocks[start + shared])
        clock.use[rank, clock.prefix_blocks[start + shared], 0] = 1
        shared += 1
    clock.requests[request].shared = shared


@clocked
def let_go(clock: Clock, rule: Record, rank: int, request: int) -> int:
    """Releases the prefix blocks of a request; returns the cache blocks that nobody uses any more [1]."""
    start, freed = clock.prefix_start[request], 0
    for place in range(clock.requests[request].shared - 1, -1, -1):
        block = clock.prefix_blocks[start + place]
        clock.use[rank, block, 0] -= 1
        if clock.use[rank, block, 0] == 0:
            _remember(clock, rank, block)
            freed += rule.prefix_tokens // rule.block_tokens
    clock.requests[request].shared = 0
    return freed


@clocked
def make_room(clock: Clock, rule: Record, rank: int, blocks: int) -> None:
    """Evicts prefix blocks, the longest unused first, until `blocks` more fit beside what is in use.

    They go to the host where it has room for any, the longest unused of which are forgotten.
    """
    each = max(rule.prefix_tokens // rule.block_tokens, 1)
    while clock.ranks[rank].idle_blocks > 0 and (
        clock.ranks[rank].used + clock.ranks[rank].idle_blocks * each + blocks > rule.capacity
    ):
        block = clock.ranks[rank].oldest
        _forget(clock, rank, block)
        clock.use[rank, block, 0] = NOBODY
        if rule.host_blocks > 0:
            clock.use[rank, block, 0] = ON_HOST
            _remember(clock, rank, block)
        if clock.ranks[rank].host_idle * each > rule.host_blocks:
            block = clock.ranks[rank].host_oldest
            _forget(clock, rank, block)
            clock.use[rank, block, 0] = NOBODY


# blocks kept between the turns of a session ----------------------------------------------------------


@clocked
def keep(clock: Clock, rank: int, request: int) -> None:
    """Keeps the prefix blocks of a request that has ended for the next turn of its session."""
    last = clock.ranks[rank].keep_last
    clock.requests[request].kept = 1
    clock.requests[request].kept_before, clock.requests[request].kept_after = last, NOBODY
    if last == NOBODY:
        clock.ranks[rank].keep_first = request
    else:
        clock.requests[last].kept_after = request
    clock.ranks[rank].keep_last = request


@clocked
def stop_keeping(clock: Clock, rule: Record, rank: int, request: int) -> None:
    """The blocks that were kept for a next turn are as those of any other request that has ended."""
    before, after = clock.requests[request].kept_before, clock.requests[request].kept_after
    if before == NOBODY:
        clock.ranks[rank].keep_first = after
    else:
        clock.requests[before].kept_after = after
    if after == NOBODY:
        clock.ranks[rank].keep_last = before
    else:
        clock.requests[after].kept_before = before
    clock.requests[request].kept = 0
    clock.ranks[rank].used -= let_go(clock, rule, rank, request)
