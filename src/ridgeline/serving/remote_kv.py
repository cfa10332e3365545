"""Room for caches that an instance borrows of others, compiled: who lends, what it holds, and what a step waits for it.

A request that does not fit its own instance keeps a part of its cache in the memory of others. Its queries travel
there, attention over each part is computed where it lies, and sums come back. Source: Infinite-LLM (Lin and others,
2024, arXiv:2401.02669), DistAttention.
"""

from __future__ import annotations

import math

from ridgeline.serving.clock import NO, Lines, of_one_host, run
from ridgeline.serving.compiling import clocked
from ridgeline.serving.queues import growth, most_blocks
from ridgeline.serving.state import NOBODY, Clock, Record


@clocked
def lendable(clock: Clock, rule: Record, rank: int) -> int:
    """Blocks that a rank gives at once, to a guest or to a request of its own that borrows: a share of those free."""
    free = rule.capacity - clock.ranks[rank].used - growth(clock, rule, rank, 1)
    return int(max(0, math.floor(rule.lend_share * free)))


@clocked
def too_long(clock: Clock, rule: Record, blocks: int) -> bool:
    """Whether so many blocks are more than a rank has, and than all ranks would give if nobody used any."""
    if blocks <= rule.capacity:
        return False
    each = math.floor(rule.lend_share * rule.capacity)
    return bool(rule.borrows == 0 or blocks > clock.ranks.size * each or blocks - each > rule.owe)


@clocked
def debt(clock: Clock, rule: Record, rank: int, request: int) -> int:
    """Blocks that a request must borrow to be held to its end; -1 where others do not give them now."""
    if rule.borrows == 0:
        return -1
    total = most_blocks(rule, clock.requests[request].prompt, clock.requests[request].output)
    missing = total - min(total, lendable(clock, rule, rank))
    if missing <= 0 or clock.ranks[rank].owes + missing > rule.owe:
        return -1
    given = 0
    for other in range(clock.ranks.size):
        given += lendable(clock, rule, other) if other != rank else 0
    return missing if given >= missing else -1


@clocked
def owes_soon(clock: Clock, rule: Record, rank: int, request: int) -> bool:
    """Whether who waits would fit its rank but for what is set aside there, and borrows once that has grown."""
    if request == NOBODY:
        return False
    total = most_blocks(rule, clock.requests[request].prompt, clock.requests[request].output)
    return bool(total <= lendable(clock, rule, rank))


@clocked
def borrow(clock: Clock, rule: Record, rank: int, request: int) -> int:
    """Takes loans for a request, of those who can give most first; returns the blocks of its own instance."""
    missing = debt(clock, rule, rank, request)
    own = most_blocks(rule, clock.requests[request].prompt, clock.requests[request].output) - missing
    clock.requests[request].own, clock.requests[request].lent, clock.requests[request].part = own, missing, 0
    clock.ranks[rank].owes += missing
    tokens = min(missing * rule.block_tokens, clock.requests[request].needed)
    clock.ranks[rank].moved_s += tokens * rule.lend_token_s
    clock.system.loans += 1
    while missing > 0:
        lender, most = NOBODY, 0
        for other in range(clock.ranks.size):
            given = lendable(clock, rule, other) if other != rank and clock.loans[request, other] == 0 else 0
            if given > most:
                lender, most = other, given
        taken = min(missing, most)
        clock.loans[request, lender] = taken
        clock.ranks[lender].used += taken
        clock.ranks[lender].lent += taken
        clock.ranks[lender].called = 1
        clock.system.peak_blocks = max(clock.system.peak_blocks, clock.ranks[lender].used)
        clock.requests[request].part = max(clock.requests[request].part, taken)
        missing -= taken
    return int(own)


@clocked
def give_back(clock: Clock, rank: int, request: int) -> None:
    """Returns what a request has borrowed."""
    for lender in range(clock.ranks.size):
        taken = clock.loans[request, lender]
        if taken > 0:
            clock.ranks[lender].used -= taken
            clock.ranks[lender].lent -= taken
            clock.ranks[lender].called = 1
            clock.loans[request, lender] = 0
    clock.ranks[rank].owes -= clock.requests[request].lent
    clock.requests[request].lent = 0


@clocked
def asks(clock: Clock, rule: Record, rank: int, request: int, sign: int) -> None:
    """A request that has borrowed begins to decode (sign 1) or ceases to (-1): guests are read where they lie."""
    clock.ranks[rank].asking += sign
    clock.ranks[rank].far += sign * clock.requests[request].part * rule.block_tokens
    for lender in range(clock.ranks.size):
        if clock.loans[request, lender] > 0:
            clock.ranks[lender].guests += sign * clock.loans[request, lender] * rule.block_tokens
            clock.ranks[lender].called = 1


@clocked
def borrowed_s(clock: Clock, rule: Record, rank: int) -> tuple[float, float]:
    """What borrowing adds to a step, and how long attention takes elsewhere beside a rank's own [s].

    Guests are read once in each step of their lender, at its own attention's rate.
    """
    added = clock.instances[clock.ranks[rank].instance].guests * rule.far_token_s
    if clock.ranks[rank].asking > 0:
        added += rule.ask_start_s + clock.ranks[rank].asking * rule.ask_s
    return added, clock.ranks[rank].far * rule.far_token_s


@clocked
def borrow_lines(clock: Clock, rule: Record, instance: int, lines: Lines) -> Lines:
    """The lines of a decode step with borrowed room: attention at home, or that of the largest part elsewhere."""
    added, far = borrowed_s(clock, rule, clock.instances[instance].first_rank)
    least, constant, factor = lines[0], lines[1] + added, lines[2]
    return (least, constant, factor, constant + far, 0.0, NO, 0.0, NO, 0.0)


@clocked
def steps_done(clock: Clock, rule: Record, instance: int, lines: Lines, now_s: float) -> tuple[int, float]:
    """Steps of a run that have ended before now, but for the one that runs, and their time [step, s]."""
    rank = clock.instances[instance].first_rank
    sequences, here = float(clock.ranks[rank].decoding), float(clock.ranks[rank].running)
    running = of_one_host(rule, here, here)
    context, most = clock.ranks[rank].context / sequences, clock.instances[instance].steps
    limit_s, histogram = now_s - clock.instances[instance].begun_s, clock.histogram
    done, _ = run(clock.times, rule, (sequences, running, context), lines, most, limit_s, histogram, 0.0)
    if done < 2:
        return 0, 0.0
    _, elapsed = run(clock.times, rule, (sequences, running, context), lines, done - 1, math.inf, histogram, 0.0)
    return done - 1, elapsed
