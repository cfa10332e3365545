"""What becomes of a request on a rank: it decodes, stops, gives its room back, and ends."""

from __future__ import annotations

import math

from ridgeline.serving.borrowing import asks, give_back
from ridgeline.serving.compiling import clocked
from ridgeline.serving.fairness import decodes
from ridgeline.serving.hooks import held
from ridgeline.serving.kept import cut, fetched_tokens, held_tokens, prompt_tokens, read_tokens
from ridgeline.serving.loading import leave_adapter
from ridgeline.serving.queues import (
    blocks_of,
    first_growth,
    held_blocks,
    leave_running,
    let_go,
    pop_end,
    publish,
    push_end,
)
from ridgeline.serving.state import DECODING, ENDED, HELD, NOBODY, Lists, Record, Records


@clocked
def start_decoding(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> None:
    """A request whose cache is complete joins the sequences that gain tokens every step."""
    step, needed = ranks[rank].step, requests[request].needed
    length, reads = held_tokens(rule, needed), read_tokens(rule, needed)
    if lists.hooks[HELD] != 0:
        length = min(max(int(held(lists.hooks[HELD], (requests, rule, request, needed))), 1), needed)
        reads = float(length)
    cut(ranks, requests, rule, rank, request, length)
    left = requests[request].output - requests[request].made
    requests[request].stage = DECODING
    requests[request].since, requests[request].length = step, length
    requests[request].until = step + math.ceil(left / rule.gained)
    ranks[rank].decoding += 1
    requests[request].reads, requests[request].fetches = reads, fetched_tokens(rule, needed)
    if requests[request].lent > 0:
        requests[request].reads = max(0, needed - requests[request].lent * rule.block_tokens)
        asks(ranks, lists, requests, rule, rank, request, 1)
    else:
        lists.phase[rank, (step + first_growth(rule, length)) % rule.period] += 1
    ranks[rank].context += requests[request].reads + 1
    ranks[rank].fetching += requests[request].fetches
    decodes(ranks, lists, rule, rank, requests[request].client, 1)
    push_end(ranks, lists, rank, requests[request].until, request)


@clocked
def stop_decoding(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int) -> None:
    """Takes a request out of the sequences that gain tokens; its tokens so far are counted, its cache stays."""
    steps = ranks[rank].step - requests[request].since
    length = requests[request].length
    start = requests[request].since + first_growth(rule, length)
    if requests[request].lent > 0:
        asks(ranks, lists, requests, rule, rank, request, -1)
    else:
        lists.phase[rank, start % rule.period] -= 1
    ranks[rank].decoding -= 1
    ranks[rank].context -= requests[request].reads + 1 + rule.gained * steps
    ranks[rank].fetching -= requests[request].fetches
    decodes(ranks, lists, rule, rank, requests[request].client, -1)
    if ranks[rank].decoding == 0:
        ranks[rank].context = 0.0
    gained = math.floor(rule.gained * steps)
    requests[request].made = min(requests[request].output, requests[request].made + gained)


@clocked
def release(
    ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int, decoded: bool
) -> None:
    """Gives back all blocks of a request and what was set aside for it."""
    if requests[request].lent > 0:
        held = requests[request].own
        give_back(ranks, lists, requests, rank, request)
    elif decoded:
        held = held_blocks(requests, rule, request, ranks[rank].step)
    else:
        held = blocks_of(prompt_tokens(rule, requests[request].needed), rule.block_tokens)
    own = held - requests[request].shared * (rule.prefix_tokens // rule.block_tokens)
    ranks[rank].used -= own + let_go(ranks, lists, requests, rule, rank, request)
    ranks[rank].committed -= requests[request].reserved
    requests[request].reserved = 0
    ranks[rank].hosted -= requests[request].hosted
    requests[request].hosted = 0
    leave_adapter(ranks, lists, requests, rule, rank, request)


@clocked
def finish(
    ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int, now_s: float
) -> None:
    """Ends a request that has all its tokens."""
    decoded = requests[request].stage == DECODING
    if decoded:
        stop_decoding(ranks, lists, requests, rule, rank, request)
        requests[request].made = requests[request].output
    release(ranks, lists, requests, rule, rank, request, decoded)
    leave_running(ranks, requests, rank, request)
    requests[request].stage, requests[request].end_s = ENDED, now_s


@clocked
def next_end(ranks: Records, lists: Lists, rank: int) -> int:
    """The request that has done its last step, or nobody."""
    if ranks[rank].ends > 0 and lists.ends[rank, 0, 0] <= ranks[rank].step:
        request = int(lists.ends[rank, 0, 1])
        pop_end(ranks, lists, rank)
        return request
    return NOBODY


@clocked
def prompt_done(
    ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int, request: int, now_s: float
) -> None:
    """A prompt whose last chunk has been computed has made a token."""
    publish(lists, requests, rule, rank, request)
    if requests[request].made == 0:
        requests[request].first_s = now_s
    requests[request].made += 1
