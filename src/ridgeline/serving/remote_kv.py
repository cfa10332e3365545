"""Room for caches that an instance borrows of others, compiled: who lends, what it holds, and what a step waits for it.

A request that does not fit its own instance keeps a part of its cache in the memory of others. Its queries travel
there, attention over each part is computed where it lies, and sums come back. Source: Infinite-LLM (Lin and others,
2024, arXiv:2401.02669), DistAttention.
"""

from __future__ import annotations

import math

from ridgeline.serving.clock import NO, Lines, decode_lines, decode_s, hosted, of_one_host, run
from ridgeline.serving.compiling import clocked
from ridgeline.serving.hooks import lends
from ridgeline.serving.queues import first_growth, growth, held_blocks, most_blocks
from ridgeline.serving.state import DECODING, LENDS, NOBODY, Clock, Record


@clocked
def lendable(clock: Clock, rule: Record, rank: int) -> int:
    """Blocks that a rank gives at once, to a guest or to a request of its own that borrows: a share of those free."""
    free = rule.capacity - clock.ranks[rank].used - growth(clock, rule, rank, 1)
    return int(max(0, math.floor(rule.lend_share * free)))


@clocked
def most_held(clock: Clock, rule: Record) -> int:
    """Blocks of the longest request that a rank holds, with what all others give if nobody uses any [1]."""
    if rule.borrows == 0:
        return int(rule.capacity)
    each = math.floor(rule.lend_share * rule.capacity)
    return int(max(rule.capacity, min(clock.ranks.size * each, rule.owe + each)))


@clocked
def too_long(clock: Clock, rule: Record, blocks: int) -> bool:
    """Whether so many blocks are more than a rank has, and than all ranks would give if nobody used any."""
    return bool(blocks > most_held(clock, rule))


@clocked
def debt(clock: Clock, rule: Record, rank: int, request: int) -> int:
    """Blocks that a request must borrow to be held to its end; -1 where others do not give them now.

    Where caches of who decodes move as a hook says, one that a rank can hold alone waits for that.
    """
    if rule.borrows == 0:
        return -1
    total = most_blocks(rule, clock.requests[request].prompt, clock.requests[request].output)
    if clock.hooks[LENDS] != 0 and total <= rule.capacity:
        return -1
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
        _lend(clock, request, lender, taken)
        missing -= taken
    return int(own)


@clocked
def _lend(clock: Clock, request: int, lender: int, blocks: int) -> None:
    """Books blocks of a request at a lender."""
    clock.loans[request, lender] += blocks
    clock.ranks[lender].used += blocks
    clock.ranks[lender].lent += blocks
    clock.ranks[lender].called = 1
    clock.system.peak_blocks = max(clock.system.peak_blocks, clock.ranks[lender].used)
    clock.requests[request].part = max(clock.requests[request].part, clock.loans[request, lender])


@clocked
def _longest(clock: Clock, rank: int) -> int:
    """Who decodes with the most of its prompt at home, the first admitted of equals; nobody where none has any."""
    found, most, request = NOBODY, 0.0, clock.ranks[rank].run_first
    while request != NOBODY:
        if clock.requests[request].stage == DECODING and clock.requests[request].reads > most:
            found, most = request, clock.requests[request].reads
        request = clock.requests[request].after
    return int(found)


@clocked
def movable(clock: Clock, rule: Record, rank: int, request: int, lender: int) -> int:
    """Blocks of a decoding request's prompt that a lender takes now, at most [1]."""
    there = min(lendable(clock, rule, lender), rule.owe - clock.ranks[rank].owes)
    return int(min(there, clock.requests[request].reads // rule.block_tokens))


@clocked
def freed(clock: Clock, rule: Record, rank: int, request: int, blocks: int) -> int:
    """Blocks of its own rank that are free when so many of a request have moved: what it needs to its end stays [1]."""
    if clock.requests[request].lent > 0:
        return blocks
    whole = most_blocks(rule, clock.requests[request].prompt, clock.requests[request].output)
    return int(blocks + held_blocks(clock, rule, request, clock.ranks[rank].step) - whole)


@clocked
def _relocate(clock: Clock, rule: Record, rank: int, request: int, lender: int, blocks: int) -> None:
    """Moves blocks of a decoding request's prompt to a lender; from then on it has all it needs to its end."""
    clock.ranks[rank].used -= freed(clock, rule, rank, request, blocks)
    if clock.requests[request].lent > 0:
        asks(clock, rule, rank, request, -1)
    else:
        start = clock.requests[request].since + first_growth(rule, clock.requests[request].length)
        clock.phase[rank, start % rule.period] -= 1
        clock.requests[request].part = 0
        clock.requests[request].own = most_blocks(rule, clock.requests[request].prompt, clock.requests[request].output)
    clock.requests[request].own -= blocks
    clock.ranks[rank].committed += clock.requests[request].own - clock.requests[request].reserved
    clock.requests[request].reserved = clock.requests[request].own
    clock.requests[request].lent += blocks
    clock.ranks[rank].owes += blocks
    clock.requests[request].reads -= blocks * rule.block_tokens
    clock.ranks[rank].context -= blocks * rule.block_tokens
    clock.ranks[rank].moved_s += blocks * rule.block_tokens * rule.lend_token_s
    clock.system.loans += 1
    _lend(clock, request, lender, blocks)
    asks(clock, rule, rank, request, 1)


@clocked
def rearrange(clock: Clock, rule: Record, rank: int) -> None:
    """While requests wait, moves caches of who decodes, the longest first, to who by the hook takes the most."""
    while clock.ranks[rank].waiting > 0:
        request, lender, most = _longest(clock, rank), NOBODY, 0
        if request == NOBODY:
            return
        for other in range(clock.ranks.size):
            blocks = lends(clock.hooks[LENDS], clock, rule, rank, request, other) if other != rank else 0
            if blocks > most and blocks <= movable(clock, rule, rank, request, other):
                lender, most = other, blocks
        if lender == NOBODY or freed(clock, rule, rank, request, most) <= 0:
            return
        _relocate(clock, rule, rank, request, lender, most)


@clocked
def tokens_per_s(clock: Clock, rule: Record, rank: int, more: tuple[float, float, float, float]) -> float:
    """Tokens a second of a rank that decodes with `more` than it has, by the clock's own prices [token/s].

    `more` are sequences, tokens of context at home, tokens that its steps wait for elsewhere, and guests' tokens.
    """
    sequences, context = clock.ranks[rank].decoding + more[0], clock.ranks[rank].context + more[1]
    if sequences < 1.0:
        return 0.0
    lines = decode_lines(clock.times, rule, sequences, sequences / rule.ranks, False, 0.0)
    attention = lines[2] * decode_s(clock.times, rule, sequences, context / sequences, False)
    away = max(attention, (clock.ranks[rank].far + more[2]) * rule.far_token_s)
    away += (clock.ranks[rank].guests + more[3]) * rule.far_token_s
    asking = clock.ranks[rank].asking + (1.0 if more[2] > 0.0 else 0.0)
    if asking > 0.0:
        away += rule.ask_start_s + asking * rule.ask_s
    return float(rule.gained * sequences / hosted(rule, max(lines[0], lines[1] + away), sequences))


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
