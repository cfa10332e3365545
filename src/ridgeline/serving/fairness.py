"""The virtual token counter: whose turn it is among clients that share a rank, compiled.

A client's counter is what it has been served: a prompt's tokens when it is admitted, twice the generated ones as they
come. The waiting client with the least counter is next. A client that comes back to the queue is lifted to the least
counter of those who wait, so that nobody saves up turns while absent. Source: sheng2024vtc, algorithm 2.
"""

from __future__ import annotations

import math

from ridgeline.serving.compiling import clocked
from ridgeline.serving.loading import loadable
from ridgeline.serving.state import NOBODY, Lists, Record, Records

PROMPT_WEIGHT, TOKEN_WEIGHT = 1.0, 2.0  # of one token: w_p and w_q of sheng2024vtc, section 5.1


@clocked
def _gaining(lists: Lists, rule: Record, rank: int, client: int) -> float:
    """What a client's decoding sequences add to its counter in one step."""
    return float(TOKEN_WEIGHT * rule.gained * lists.busy[rank, client])


@clocked
def counter(ranks: Records, lists: Lists, rule: Record, rank: int, client: int) -> float:
    """What a client has been served by a rank so far, in weighted tokens."""
    steps = ranks[rank].step - lists.busy_since[rank, client]
    return float(lists.served[rank, client] + _gaining(lists, rule, rank, client) * steps)


@clocked
def decodes(ranks: Records, lists: Lists, rule: Record, rank: int, client: int, more: int) -> None:
    """Notes that `more` of a client's sequences decode from now on; fewer, where it is negative."""
    if rule.fair:
        lists.served[rank, client] = counter(ranks, lists, rule, rank, client)
        lists.busy_since[rank, client] = ranks[rank].step
        lists.busy[rank, client] += more


@clocked
def charge(lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> None:
    """Counts a prompt when it is first admitted; computing it again after a preemption is not the client's doing."""
    if rule.fair and not requests[request].charged:
        requests[request].charged = 1
        lists.served[rank, requests[request].client] += PROMPT_WEIGHT * requests[request].prompt


@clocked
def comes(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int, first: bool) -> None:
    """Notes that a request joins the queue; a new one is seen, and its client lifted, at the scheduler's next look."""
    if rule.fair:
        if first:
            lists.queued[rank, requests[request].client] += 1
        else:
            requests[request].unseen = 1
            ranks[rank].unseen += 1


@clocked
def goes(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> None:
    """Notes that a request leaves the queue."""
    if rule.fair:
        if requests[request].unseen:
            requests[request].unseen = 0
            ranks[rank].unseen -= 1
        else:
            lists.queued[rank, requests[request].client] -= 1
        ranks[rank].last_client = requests[request].client


@clocked
def see(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int) -> None:
    """The scheduler sees who is new, and lifts clients of whom nothing waited.

    To the least counter of those who wait, or where nobody does to that of the client whose request left last.
    """
    if ranks[rank].unseen == 0:
        return
    least, other = math.inf, int(ranks[rank].wait_first)  # of those who wait and were seen
    while other != NOBODY:
        if not requests[other].unseen:
            least = min(least, counter(ranks, lists, rule, rank, requests[other].client))
        other = int(requests[other].after)
    floor = least
    if least == math.inf and ranks[rank].last_client != NOBODY:
        floor = counter(ranks, lists, rule, rank, ranks[rank].last_client)
    request = int(ranks[rank].wait_first)
    while ranks[rank].unseen > 0:
        if requests[request].unseen:
            client = requests[request].client
            own = counter(ranks, lists, rule, rank, client)
            if lists.queued[rank, client] == 0 and floor < math.inf and floor > own:
                lists.served[rank, client] += floor - own
            least = floor = min(least, counter(ranks, lists, rule, rank, client))
            lists.queued[rank, client] += 1
            requests[request].unseen = 0
            ranks[rank].unseen -= 1
        request = int(requests[request].after)


@clocked
def head(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int) -> int:
    """The waiting request whose turn it is: the first, or the first of the least served client of its priority.

    Who waits for an adapter that has no slot is passed over; nobody where all do.
    """
    request, chosen, least = int(ranks[rank].wait_first), NOBODY, math.inf
    if rule.slots == 0 and (not rule.fair or ranks[rank].waiting < 2):
        return request
    while request != NOBODY and (chosen == NOBODY or requests[request].priority == requests[chosen].priority):
        if loadable(ranks, lists, requests, rule, rank, request):
            if not rule.fair:
                return request
            served = counter(ranks, lists, rule, rank, requests[request].client)
            if served < least:
                least, chosen = served, request
        request = int(requests[request].after)
    return chosen


@clocked
def steps_to_turn(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, most: int) -> int:
    """Decode steps until another waiting client is served less than the one whose turn it is, at most `most` [step]."""
    if not rule.fair or ranks[rank].waiting < 2:
        return most
    first = head(ranks, lists, requests, rule, rank)
    if first == NOBODY:
        return most
    mine = counter(ranks, lists, rule, rank, requests[first].client)
    rate = _gaining(lists, rule, rank, requests[first].client)
    steps, earlier = most, True
    request = int(ranks[rank].wait_first)
    while request != NOBODY:
        earlier = earlier and request != first
        faster = rate - _gaining(lists, rule, rank, requests[request].client)
        equal = requests[request].priority == requests[first].priority
        if faster > 0.0 and equal and loadable(ranks, lists, requests, rule, rank, request):
            ahead = (counter(ranks, lists, rule, rank, requests[request].client) - mine) / faster
            steps = min(steps, math.ceil(ahead) if earlier else math.floor(ahead) + 1)
        request = int(requests[request].after)
    return int(max(steps, 1))
