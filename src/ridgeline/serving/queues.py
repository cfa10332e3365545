"""Queues, the order of ends, and cache blocks of a rank, compiled; every function changes the arrays it is given."""

from __future__ import annotations

from numba import njit

from ridgeline.serving.state import NOBODY, Ranks, Requests, Rules


@njit(cache=True)
def push_end(ranks: Ranks, rank: int, until: int, request: int) -> None:
    """Notes that a request ends when the rank has done `until` steps."""
    steps, names = ranks.heap_step[rank], ranks.heap_request[rank]
    place = ranks.heap_size[rank]
    ranks.heap_size[rank] = place + 1
    while place > 0:
        above = (place - 1) // 2
        if steps[above] < until or (steps[above] == until and names[above] <= request):
            break
        steps[place], names[place] = steps[above], names[above]
        place = above
    steps[place], names[place] = until, request


@njit(cache=True)
def pop_end(ranks: Ranks, rank: int) -> None:
    """Removes the request that ends first."""
    steps, names = ranks.heap_step[rank], ranks.heap_request[rank]
    size = ranks.heap_size[rank] - 1
    ranks.heap_size[rank] = size
    until, request = steps[size], names[size]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        other = below + 1
        if other < size and (
            steps[other] < steps[below] or (steps[other] == steps[below] and names[other] < names[below])
        ):
            below = other
        if until < steps[below] or (until == steps[below] and request <= names[below]):
            break
        steps[place], names[place] = steps[below], names[below]
        place = below
    steps[place], names[place] = until, request


@njit(cache=True)
def drop_end(ranks: Ranks, rank: int, request: int) -> None:
    """Removes a request that is preempted from the order of ends."""
    names = ranks.heap_request[rank]
    size = ranks.heap_size[rank]
    for place in range(size):
        if names[place] == request:
            ranks.heap_step[rank, place] = -1  # it rises to the top and is popped there
            _rise(ranks, rank, place)
            pop_end(ranks, rank)
            return


@njit(cache=True)
def _rise(ranks: Ranks, rank: int, place: int) -> None:
    steps, names = ranks.heap_step[rank], ranks.heap_request[rank]
    while place > 0:
        above = (place - 1) // 2
        steps[place], steps[above] = steps[above], steps[place]
        names[place], names[above] = names[above], names[place]
        place = above


@njit(cache=True)
def join_queue(ranks: Ranks, requests: Requests, rank: int, request: int, first: bool, by_priority: bool) -> None:
    """Puts a request into a rank's queue: last, first (after a preemption), or where its priority says."""
    ranks.waiting[rank] += 1
    before, after = ranks.wait_last[rank], NOBODY
    if first:
        before, after = NOBODY, ranks.wait_first[rank]
    elif by_priority:
        while before != NOBODY and requests.priority[before] > requests.priority[request]:
            before, after = requests.before[before], before
    requests.before[request], requests.after[request] = before, after
    if before == NOBODY:
        ranks.wait_first[rank] = request
    else:
        requests.after[before] = request
    if after == NOBODY:
        ranks.wait_last[rank] = request
    else:
        requests.before[after] = request


@njit(cache=True)
def leave_queue(ranks: Ranks, requests: Requests, rank: int) -> int:
    """Takes the first request out of a rank's queue."""
    request = int(ranks.wait_first[rank])
    after = requests.after[request]
    ranks.wait_first[rank] = after
    if after == NOBODY:
        ranks.wait_last[rank] = NOBODY
    else:
        requests.before[after] = NOBODY
    ranks.waiting[rank] -= 1
    return request


@njit(cache=True)
def join_running(ranks: Ranks, requests: Requests, rank: int, request: int) -> None:
    """Adds a request to the end of the order of admission."""
    last = ranks.run_last[rank]
    requests.before[request], requests.after[request] = last, NOBODY
    if last == NOBODY:
        ranks.run_first[rank] = request
    else:
        requests.after[last] = request
    ranks.run_last[rank] = request
    ranks.running[rank] += 1


@njit(cache=True)
def leave_running(ranks: Ranks, requests: Requests, rank: int, request: int) -> None:
    """Takes a request out of the order of admission."""
    before, after = requests.before[request], requests.after[request]
    if before == NOBODY:
        ranks.run_first[rank] = after
    else:
        requests.after[before] = after
    if after == NOBODY:
        ranks.run_last[rank] = before
    else:
        requests.before[after] = before
    ranks.running[rank] -= 1


# blocks ----------------------------------------------------------------------------------------------


@njit(cache=True)
def blocks_of(tokens: float, block_tokens: int) -> int:
    """Blocks that hold so many tokens [1]."""
    return int((tokens + block_tokens - 1) // block_tokens)


@njit(cache=True)
def first_growth(length: int, block_tokens: int, gained: float) -> int:
    """Steps until a sequence of this length needs its next block [step]."""
    return int(((-length) % block_tokens) / gained)


@njit(cache=True)
def held_blocks(requests: Requests, rules: Rules, request: int, step: int, gained: float) -> int:
    """Blocks that a decoding request holds when its rank has done `step` steps, shared ones included [1]."""
    length = requests.length[request]
    held = blocks_of(length, rules.block_tokens)
    since = step - 1 - requests.since[request] - first_growth(length, rules.block_tokens, gained)
    return held + (since // rules.period + 1 if since >= 0 else 0)


@njit(cache=True)
def growth(ranks: Ranks, rules: Rules, rank: int, steps: int) -> int:
    """Blocks that the decoding sequences of a rank need over its next steps [1]."""
    phase = ranks.phase[rank]
    period = rules.period
    whole = steps // period
    needed = whole * ranks.decoding[rank]
    for ahead in range(steps - whole * period):
        needed += phase[(ranks.step[rank] + ahead) % period]
    return int(needed)


@njit(cache=True)
def steps_that_fit(ranks: Ranks, rules: Rules, rank: int, available: int, most: int) -> int:
    """How many of the next `most` steps the rank's free blocks suffice for [step]."""
    decoding, period = ranks.decoding[rank], rules.period
    if decoding == 0 or growth(ranks, rules, rank, most) <= available:
        return most
    steps = min((available // decoding) * period, most)
    left = available - growth(ranks, rules, rank, steps)
    while steps < most:
        left -= ranks.phase[rank, (ranks.step[rank] + steps) % period]
        if left < 0:
            break
        steps += 1
    return int(steps)


# prefix blocks ---------------------------------------------------------------------------------------


@njit(cache=True)
def resident(ranks: Ranks, requests: Requests, rules: Rules, rank: int, request: int) -> int:
    """Leading prefix blocks of a prompt that the rank's cache holds [1]; one token is always left to compute."""
    if rules.prefix_tokens == 0:
        return 0
    start = requests.prefix_start[request]
    whole = min(requests.prefix_start[request + 1] - start, (requests.needed[request] - 1) // rules.prefix_tokens)
    found = 0
    while found < whole and ranks.holders[rank, requests.prefix_blocks[start + found]] >= 0:
        found += 1
    return int(found)


@njit(cache=True)
def idle_among(ranks: Ranks, requests: Requests, rank: int, request: int, count: int) -> int:
    """How many of the first `count` prefix blocks of a prompt nobody holds [1]."""
    start, idle = requests.prefix_start[request], 0
    for place in range(count):
        idle += ranks.holders[rank, requests.prefix_blocks[start + place]] == 0
    return idle


@njit(cache=True)
def _forget(ranks: Ranks, rank: int, block: int) -> None:
    """Takes a block out of the order of last use."""
    older, newer = ranks.older[rank, block], ranks.newer[rank, block]
    if older == NOBODY:
        ranks.oldest[rank] = newer
    else:
        ranks.newer[rank, older] = newer
    if newer == NOBODY:
        ranks.newest[rank] = older
    else:
        ranks.older[rank, newer] = older
    ranks.idle_blocks[rank] -= 1


@njit(cache=True)
def _remember(ranks: Ranks, rank: int, block: int) -> None:
    """Puts a block that nobody holds at the newest end of the order of last use."""
    newest = ranks.newest[rank]
    ranks.older[rank, block], ranks.newer[rank, block] = newest, NOBODY
    if newest == NOBODY:
        ranks.oldest[rank] = block
    else:
        ranks.newer[rank, newest] = block
    ranks.newest[rank] = block
    ranks.idle_blocks[rank] += 1


@njit(cache=True)
def hold(ranks: Ranks, requests: Requests, rank: int, request: int, count: int) -> None:
    """Holds the first `count` prefix blocks of a prompt, all of them resident."""
    start = requests.prefix_start[request]
    for place in range(count):
        block = requests.prefix_blocks[start + place]
        if ranks.holders[rank, block] == 0:
            _forget(ranks, rank, block)
        ranks.holders[rank, block] += 1
    requests.shared[request] = count


@njit(cache=True)
def publish(ranks: Ranks, requests: Requests, rules: Rules, rank: int, request: int) -> None:
    """Makes the whole prefix blocks of a computed prompt known; those that another published first stay its own."""
    if rules.prefix_tokens == 0:
        return
    start = requests.prefix_start[request]
    whole = min(requests.prefix_start[request + 1] - start, requests.prompt[request] // rules.prefix_tokens)
    shared = requests.shared[request]
    while shared < whole and ranks.holders[rank, requests.prefix_blocks[start + shared]] < 0:
        ranks.holders[rank, requests.prefix_blocks[start + shared]] = 1
        shared += 1
    requests.shared[request] = shared


@njit(cache=True)
def let_go(ranks: Ranks, requests: Requests, rules: Rules, rank: int, request: int) -> int:
    """Releases the prefix blocks of a request; returns the cache blocks that nobody uses any more [1]."""
    start, freed = requests.prefix_start[request], 0
    for place in range(requests.shared[request] - 1, -1, -1):
        block = requests.prefix_blocks[start + place]
        ranks.holders[rank, block] -= 1
        if ranks.holders[rank, block] == 0:
            _remember(ranks, rank, block)
            freed += rules.prefix_tokens // rules.block_tokens
    requests.shared[request] = 0
    return freed


@njit(cache=True)
def make_room(ranks: Ranks, rules: Rules, rank: int, blocks: int) -> None:
    """Evicts prefix blocks, the longest unused first, until `blocks` more fit beside what is in use."""
    each = max(rules.prefix_tokens // rules.block_tokens, 1)
    while ranks.idle_blocks[rank] > 0 and (ranks.used[rank] + ranks.idle_blocks[rank] * each + blocks > rules.capacity):
        block = ranks.oldest[rank]
        _forget(ranks, rank, block)
        ranks.holders[rank, block] = -1
