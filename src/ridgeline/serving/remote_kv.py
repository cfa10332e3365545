"""Room for caches that an instance borrows of others, compiled: who lends, what it holds, and what a step waits for it.

A request that does not fit its own instance keeps a part of its cache in the memory of others. Its queries travel
there, attention over each part is computed where it lies, and sums come back. Source: Infinite-LLM (Lin and others,
2024, arXiv:2401.02669), DistAttention.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.cost.network import send_seconds
from ridgeline.errors import PlanError
from ridgeline.facts.engines import EnginePolicy
from ridgeline.facts.mechanisms import constant
from ridgeline.lower.pieces import Core, Recurrence, Served
from ridgeline.seams.serving import RemoteKV, preemption_of
from ridgeline.serving.clock import NO, Lines, decode_lines, decode_s, hosted
from ridgeline.serving.compiling import clocked
from ridgeline.serving.hooks import lends
from ridgeline.serving.queues import first_growth, growth, held_blocks, most_blocks
from ridgeline.serving.state import DECODING, LENDS, NOBODY, Clock, Record

if TYPE_CHECKING:
    from ridgeline.serving.step import StepModel


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


_LONG_CONTEXTS = 32_768.0, 65_536.0  # between which the time of one more token elsewhere is read [token]
_ANY = 2**40  # blocks: no limit


def loan_numbers(
    steps: StepModel, policy: EnginePolicy, asked: RemoteKV, *, blocks: int, stride: int, move_token_s: float
) -> dict[str, float]:
    """The numbers of `state.RULE` about room at an instance `stride` devices away.

    A step of those who borrow sends, in each layer, each head's query and takes back its sum, 16 bits each, with the
    weight of the part, 32 bits: two latencies a layer, and its bytes for each sequence. A token there is read at the
    rate of decode attention of one long sequence.

    Parameters
    ----------
    blocks : int [1]
        Of one instance's cache.
    move_token_s : float [s]
        A token's cache over the link between instances.

    Raises
    ------
    PlanError
        Engines that run prompts apart from decode steps or swap; windows and recurrent states.
    """
    one = steps.deployment
    if policy.scheduler != "mixed" or preemption_of(one, policy) == "swap":
        raise PlanError(
            f"deployment: borrows, but {policy.name} is {policy.scheduler} and its preemption is"
            f" {preemption_of(one, policy)}; room is borrowed where prompts mix with decode steps, and recomputed"
        )
    cores = _cores(steps.served)
    size = sum(many * core.heads * (2.0 * core.query_elements + 2.0 * core.result_elements + 4.0)
               for many, core in cores)  # fmt: skip
    none, some = (float(send_seconds(moved, stride, steps.machine)) for moved in (1e6, 1e6 + size))
    near, far = (sum(many * _read_s(steps, core, length) for many, core in cores) for length in _LONG_CONTEXTS)
    return {
        "borrows": 1,
        "owe": _ANY if asked.owe_share is None else int(asked.owe_share * blocks),
        "lend_share": constant("serve.lend_share") if asked.lend_share is None else asked.lend_share,
        "lend_token_s": move_token_s,
        "ask_start_s": 2.0 * sum(many for many, _ in cores) * float(send_seconds(1.0, stride, steps.machine)),
        "ask_s": some - none,
        "far_token_s": (far - near) / (_LONG_CONTEXTS[1] - _LONG_CONTEXTS[0]),
    }


def _read_s(steps: StepModel, core: Core, length: float) -> float:
    """Attention of one sequence over so many tokens in one layer [s]."""
    return float(steps.prices.decode(core, np.ones(1), np.array([length])).mid[0])


def _cores(served: Served) -> list[tuple[int, Core]]:
    """The attention of all layers and how many have it; raises where a part of a cache cannot lie elsewhere."""
    found = []
    for kind in served.kinds:
        for piece in kind.pieces:
            if isinstance(piece, Recurrence) or (isinstance(piece, Core) and piece.window):
                raise PlanError("deployment: borrows, but the model has windows or states; they are not divided")
            if isinstance(piece, Core):
                found.append((kind.count, piece))
    return found
