"""The virtual token counter: whose turn it is among clients that share a rank, compiled.

A client's counter is what it has been served: a prompt's tokens when it is admitted, twice the generated ones as they
come. The waiting client with the least counter is next. A client that comes back to the queue is lifted to the least
counter of those who wait, so that nobody saves up turns while absent. Source: sheng2024vtc, algorithm 2.
"""

from __future__ import annotations

import math

from ridgeline.serving.compiling import clocked
from ridgeline.serving.loading import loadable
from ridgeline.serving.state import NOBODY, Clock, Record

PROMPT_WEIGHT, TOKEN_WEIGHT = 1.0, 2.0  # of one token: w_p and w_q of sheng2024vtc, section 5.1


@clocked
def _gaining(clock: Clock, rule: Record, rank: int, client: int) -> float:
    """What a client's decoding sequences add to its counter in one step."""
    return float(TOKEN_WEIGHT * rule.gained * clock.busy[rank, client])


@clocked
def counter(clock: Clock, rule: Record, rank: int, client: int) -> float:
    """What a client has been served by a rank so far, in weighted tokens."""
    steps = clock.ranks[rank].step - clock.busy_since[rank, client]
    return float(clock.served[rank, client] + _gaining(clock, rule, rank, client) * steps)


@clocked
def decodes(clock: Clock, rule: Record, rank: int, client: int, more: int) -> None:
    """Notes that `more` of a client's sequences decode from now on; fewer, where it is negative."""
    if rule.fair:
        clock.served[rank, client] = counter(clock, rule, rank, client)
        clock.busy_since[rank, client] = clock.ranks[rank].step
        clock.busy[rank, client] += more


@clocked
def charge(clock: Clock, rule: Record, rank: int, request: int) -> None:
    """Counts a prompt when it is first admitted; computing it again after a preemption is not the client's doing."""
    if rule.fair and not clock.requests[request].charged:
        clock.requests[request].charged = 1
        clock.served[rank, clock.requests[request].client] += PROMPT_WEIGHT * clock.requests[request].prompt


@clocked
def comes(clock: Clock, rule: Record, rank: int, request: int, first: bool) -> None:
    """Notes that a request joins the queue; a new one is seen, and its client lifted, at the scheduler's next look."""
    if rule.fair:
        if first:
            clock.queued[rank, clock.requests[request].client] += 1
        else:
            clock.requests[request].unseen = 1
            clock.ranks[rank].unseen += 1


@clocked
def goes(clock: Clock, rule: Record, rank: int, request: int) -> None:
    """Notes that a request leaves the queue."""
    if rule.fair:
        if clock.requests[request].unseen:
            clock.requests[request].unseen = 0
            clock.ranks[rank].unseen -= 1
        else:
            clock.queued[rank, clock.requests[request].client] -= 1
        clock.ranks[rank].last_client = clock.requests[request].client


@clocked
def see(clock: Clock, rule: Record, rank: int) -> None:
    """The scheduler sees who is new, and lifts clients of whom nothing waited.

    To the least counter of those who wait, or where nobody does to that of the client whose request left last.
    """
    if clock.ranks[rank].unseen == 0:
        return
    least, other = math.inf, int(clock.ranks[rank].wait_first)  # of those who wait and were seen
    while other != NOBODY:
        if not clock.requests[other].unseen:
            least = min(least, counter(clock, rule, rank, clock.requests[other].client))
        other = int(clock.requests[other].after)
    floor = least
    if least == math.inf and clock.ranks[rank].last_client != NOBODY:
        floor = counter(clock, rule, rank, clock.ranks[rank].last_client)
    request = int(clock.ranks[rank].wait_first)
    while clock.ranks[rank].unseen > 0:
        if clock.requests[request].unseen:
            client = clock.requests[request].client
            own = counter(clock, rule, rank, client)
            if clock.queued[rank, client] == 0 and floor < math.inf and floor > own:
                clock.served[rank, client] += floor - own
            least = floor = min(least, counter(clock, rule, rank, client))
            clock.queued[rank, client] += 1
            clock.requests[request].unseen = 0
            clock.ranks[rank].unseen -= 1
        request = int(clock.requests[request].after)


@clocked
def head(clock: Clock, rule: Record, rank: int) -> int:
    """The waiting request whose turn it is: the first, or the first of the least served client of its priority.

    Who waits for an adapter that has no slot is passed over; nobody where all do.
    """
    request, chosen, least = int(clock.ranks[rank].wait_first), NOBODY, math.inf
    if rule.slots == 0 and (not rule.fair or clock.ranks[rank].waiting < 2):
        return request
    while request != NOBODY and (
        chosen == NOBODY or clock.requests[request].priority == clock.requests[chosen].priority
    ):
        if loadable(clock, rule, rank, request):
            if not rule.fair:
                return request
            served = counter(clock, rule, rank, clock.requests[request].client)
            if served < least:
                least, chosen = served, request
        request = int(clock.requests[request].after)
    return chosen


@clocked
def steps_to_turn(clock: Clock, rule: Record, rank: int, most: int) -> int:
    """Decode steps until another waiting client is served less than the one whose turn it is, at most `most` [step]."""
    if not rule.fair or clock.ranks[rank].waiting < 2:
        return most
    first = head(clock, rule, rank)
    if first == NOBODY:
        return most
    mine = counter(clock, rule, rank, clock.requests[first].client)
    rate = _gaining(clock, rule, rank, clock.requests[first].client)
    steps, earlier = most, True
    request = int(clock.ranks[rank].wait_first)
    while request != NOBODY:
        earlier = earlier and request != first
        faster = rate - _gaining(clock, rule, rank, clock.requests[request].client)
        equal = clock.requests[request].priority == clock.requests[first].priority
        if faster > 0.0 and equal and loadable(clock, rule, rank, request):
            ahead = (counter(clock, rule, rank, clock.requests[request].client) - mine) / faster
            steps = min(steps, math.ceil(ahead) if earlier else math.floor(ahead) + 1)
        request = int(clock.requests[request].after)
    return int(max(steps, 1))
