"""Room for caches that an instance borrows of others, compiled: who lends, what it holds, and what a step waits for it.

A request that does not fit its own instance keeps a part of its cache in the memory of others. Its queries travel
there, attention over each part is computed where it lies, and sums come back. Source: Infinite-LLM (Lin and others,
2024, arXiv:2401.02669), DistAttention.
"""

from __future__ import annotations

import math

from ridgeline.serving.clock import NO, Lines, Times, of_one_host, run
from ridgeline.serving.compiling import clocked
from ridgeline.serving.queues import growth, most_blocks
from ridgeline.serving.state import NOBODY, Fleet, Lists, Record, Records


@clocked
def lendable(ranks: Records, lists: Lists, rule: Record, rank: int) -> int:
    """Blocks that a rank gives at once, to a guest or to a request of its own that borrows: a share of those free."""
    free = rule.capacity - ranks[rank].used - growth(ranks, lists, rule, rank, 1)
    return int(max(0, math.floor(rule.lend_share * free)))


@clocked
def too_long(ranks: Records, rule: Record, blocks: int) -> bool:
    """Whether so many blocks are more than a rank has, and than all ranks would give if nobody used any."""
    if blocks <= rule.capacity:
        return False
    each = math.floor(rule.lend_share * rule.capacity)
    return bool(rule.borrows == 0 or blocks > ranks.size * each or blocks - each > rule.owe)


@clocked
def debt(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> int:
    """Blocks that a request must borrow to be held to its end; -1 where others do not give them now."""
    if rule.borrows == 0:
        return -1
    total = most_blocks(rule, requests[request].prompt, requests[request].output)
    missing = total - min(total, lendable(ranks, lists, rule, rank))
    if missing <= 0 or ranks[rank].owes + missing > rule.owe:
        return -1
    given = 0
    for other in range(ranks.size):
        given += lendable(ranks, lists, rule, other) if other != rank else 0
    return missing if given >= missing else -1


@clocked
def owes_soon(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> bool:
    """Whether who waits would fit its rank but for what is set aside there, and borrows once that has grown."""
    if request == NOBODY:
        return False
    total = most_blocks(rule, requests[request].prompt, requests[request].output)
    return bool(total <= lendable(ranks, lists, rule, rank))


@clocked
def borrow(ranks: Records, lists: Lists, requests: Records, fleet: Fleet, rule: Record, rank: int, request: int) -> int:
    """Takes loans for a request, of those who can give most first; returns the blocks of its own instance."""
    missing = debt(ranks, lists, requests, rule, rank, request)
    own = most_blocks(rule, requests[request].prompt, requests[request].output) - missing
    requests[request].own, requests[request].lent, requests[request].part = own, missing, 0
    ranks[rank].owes += missing
    tokens = min(missing * rule.block_tokens, requests[request].needed)
    ranks[rank].moved_s += tokens * rule.lend_token_s
    fleet.system[0].loans += 1
    while missing > 0:
        lender, most = NOBODY, 0
        for other in range(ranks.size):
            given = lendable(ranks, lists, rule, other) if other != rank and lists.loans[request, other] == 0 else 0
            if given > most:
                lender, most = other, given
        taken = min(missing, most)
        lists.loans[request, lender] = taken
        ranks[lender].used += taken
        ranks[lender].lent += taken
        ranks[lender].called = 1
        fleet.system[0].peak_blocks = max(fleet.system[0].peak_blocks, ranks[lender].used)
        requests[request].part = max(requests[request].part, taken)
        missing -= taken
    return int(own)


@clocked
def give_back(ranks: Records, lists: Lists, requests: Records, rank: int, request: int) -> None:
    """Returns what a request has borrowed."""
    for lender in range(ranks.size):
        taken = lists.loans[request, lender]
        if taken > 0:
            ranks[lender].used -= taken
            ranks[lender].lent -= taken
            ranks[lender].called = 1
            lists.loans[request, lender] = 0
    ranks[rank].owes -= requests[request].lent
    requests[request].lent = 0


@clocked
def asks(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int, sign: int) -> None:
    """A request that has borrowed begins to decode (sign 1) or ceases to (-1): guests are read where they lie."""
    ranks[rank].asking += sign
    ranks[rank].far += sign * requests[request].part * rule.block_tokens
    for lender in range(ranks.size):
        if lists.loans[request, lender] > 0:
            ranks[lender].guests += sign * lists.loans[request, lender] * rule.block_tokens
            ranks[lender].called = 1


@clocked
def borrowed_s(ranks: Records, instances: Records, rule: Record, rank: int) -> tuple[float, float]:
    """What borrowing adds to a step, and how long attention takes elsewhere beside a rank's own [s].

    Guests are read once in each step of their lender, at its own attention's rate.
    """
    added = instances[ranks[rank].instance].guests * rule.far_token_s
    if ranks[rank].asking > 0:
        added += rule.ask_start_s + ranks[rank].asking * rule.ask_s
    return added, ranks[rank].far * rule.far_token_s


@clocked
def borrow_lines(ranks: Records, instances: Records, rule: Record, instance: int, lines: Lines) -> Lines:
    """The lines of a decode step with borrowed room: attention at home, or that of the largest part elsewhere."""
    added, far = borrowed_s(ranks, instances, rule, instances[instance].first_rank)
    least, constant, factor = lines[0], lines[1] + added, lines[2]
    return (least, constant, factor, constant + far, 0.0, NO, 0.0, NO, 0.0)


@clocked
def steps_done(
    ranks: Records,
    instances: Records,
    fleet: Fleet,
    times: Times,
    rule: Record,
    instance: int,
    lines: Lines,
    now_s: float,
) -> tuple[int, float]:
    """Steps of a run that have ended before now, but for the one that runs, and their time [step, s]."""
    rank = instances[instance].first_rank
    sequences, here = float(ranks[rank].decoding), float(ranks[rank].running)
    running = of_one_host(rule, here, here)
    context, most = ranks[rank].context / sequences, instances[instance].steps
    limit_s, histogram = now_s - instances[instance].begun_s, fleet.histogram
    done, _ = run(times, rule, sequences, running, context, lines, most, limit_s, histogram, 0.0)
    if done < 2:
        return 0, 0.0
    _, elapsed = run(times, rule, sequences, running, context, lines, done - 1, math.inf, histogram, 0.0)
    return done - 1, elapsed
