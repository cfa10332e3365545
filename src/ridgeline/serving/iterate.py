"""Iterations of an instance: what the next one is, how long it takes, and what it has done when it ends."""

from __future__ import annotations

import math

from numba import njit

from ridgeline.serving.clock import Times, below, between, chunks_s, decode_constant, hosted, run, tally
from ridgeline.serving.queues import growth, make_room, steps_that_fit
from ridgeline.serving.routing import ended, push
from ridgeline.serving.schedule import ensure_growth, finish, form_batch, next_end, prompt_done, start_decoding
from ridgeline.serving.state import (
    CONTEXT_S,
    DECODE_S,
    DECODES,
    IDLE,
    ITERATIONS,
    MIXED,
    MIXED_BATCHES,
    MOVES,
    MOVING,
    NOBODY,
    PREFILL_S,
    RUNS,
    SEQUENCE_S,
    Fleet,
    Instances,
    Pending,
    Ranks,
    Record,
    Requests,
    Rules,
)


@njit(cache=True)
def _busiest(ranks: Ranks, instances: Instances, rules: Rules, instance: int) -> tuple[int, float, float, int]:
    """The rank with most to decode, and of all ranks: decoding sequences, running ones, ranks at work."""
    best, total, running, active = instances.first_rank[instance], 0.0, 0.0, 0
    for rank in range(instances.first_rank[instance], instances.first_rank[instance] + rules.ranks):
        here = ranks.decoding[rank]
        total += here
        running += ranks.running[rank]
        active += here > 0
        if here > ranks.decoding[best] or (here == ranks.decoding[best] and ranks.context[rank] > ranks.context[best]):
            best = rank
    return best, total, running, active


@njit(cache=True)
def _mixed_s(ranks: Ranks, instances: Instances, times: Times, rules: Rules, instance: int) -> float:
    """Time of one iteration with prompts: the slowest rank, then the experts of all ranks together [s]."""
    longest, total, running, active, most = 0.0, 0.0, 0.0, 0, 0.0
    moved = 0.0
    mixes = rules.scheduler == MIXED_BATCHES
    for rank in range(instances.first_rank[instance], instances.first_rank[instance] + rules.ranks):
        decoding = float(ranks.decoding[rank]) if mixes else 0.0
        tokens, sampled = decoding * (1.0 + times.drafted), decoding + ranks.chunks[rank]
        for place in range(ranks.chunks[rank]):
            tokens += ranks.chunk_tokens[rank, place]
        running += ranks.running[rank]
        if tokens <= 0.0:
            continue
        active += 1
        total += tokens
        most = max(most, tokens)
        seconds = between(times.tokens, times.lane, tokens) + between(times.sequences, times.head, sampled)
        if decoding > 0.0:
            context = ranks.context[rank] / ranks.decoding[rank]
            row = _decode_s(times, decoding, context)
            seconds += row
        seconds += chunks_s(times, ranks.chunk_tokens[rank], ranks.chunk_past[rank], ranks.chunks[rank])
        longest = max(longest, seconds)
        moved = max(moved, ranks.moved_s[rank])
        ranks.moved_s[rank] = 0.0
    longest += between(times.tokens, times.group, total / rules.ranks)
    if most > times.prefill_graphs:
        longest = max(longest, times.eager_s)
    if active > 1:
        longest *= times.balance
    longest += times.hops * (times.send_start_s + times.send_s * most)
    return hosted(times, longest, running) + moved


@njit(cache=True)
def _decode_s(times: Times, sequences: float, context: float) -> float:
    """Attention of decoding sequences in one iteration [s]."""
    rows, columns = times.sequences, times.contexts
    row = below(rows, sequences)
    share = max((sequences - rows[row]) / (rows[row + 1] - rows[row]), 0.0)
    low = between(columns, times.decode[row], context)
    return float(low + share * (between(columns, times.decode[row + 1], context) - low))


@njit(cache=True)
def begin(
    ranks: Ranks,
    requests: Requests,
    instances: Instances,
    record: Record,
    times: Times,
    rules: Rules,
    instance: int,
    now_s: float,
) -> None:
    """Starts the next iteration of an instance, or its next run of decode steps, or leaves it idle."""
    chunks, decoding = 0, 0
    for rank in range(instances.first_rank[instance], instances.first_rank[instance] + rules.ranks):
        form_batch(ranks, requests, record, times, rules, rank)
        chunks += ranks.chunks[rank]
        decoding += ranks.decoding[rank]
    instances.begun_s[instance] = now_s
    if chunks > 0:
        instances.at[instance], instances.steps[instance] = MIXED, 1
        instances.next_s[instance] = now_s + _mixed_s(ranks, instances, times, rules, instance)
    elif decoding > 0:
        steps = 2**62
        for rank in range(instances.first_rank[instance], instances.first_rank[instance] + rules.ranks):
            if ranks.decoding[rank] == 0:
                continue
            if rules.scheduler != MIXED_BATCHES:
                ensure_growth(ranks, requests, record, times, rules, rank)
            free = int(rules.capacity - ranks.used[rank])
            first = int(ranks.heap_step[rank, 0] - ranks.step[rank])
            steps = min(steps, max(steps_that_fit(ranks, rules, rank, free, first), 1))
        instances.at[instance] = DECODES
        set_run(ranks, instances, record, times, rules, instance, steps, math.inf)
    else:
        instances.at[instance], instances.next_s[instance] = IDLE, math.inf


@njit(cache=True)
def set_run(
    ranks: Ranks,
    instances: Instances,
    record: Record,
    times: Times,
    rules: Rules,
    instance: int,
    steps: int,
    limit_s: float,
) -> None:
    """Sets the length of a run of decode steps: at most `steps`, cut at the first that ends at `limit_s` or later."""
    best, total, running, active = _busiest(ranks, instances, rules, instance)
    sequences = float(ranks.decoding[best])
    moved = 0.0
    for rank in range(instances.first_rank[instance], instances.first_rank[instance] + rules.ranks):
        moved = max(moved, ranks.moved_s[rank])
    constant = decode_constant(times, sequences, total / rules.ranks, active > 1)
    context = ranks.context[best] / max(ranks.decoding[best], 1)
    begun = instances.begun_s[instance] + moved
    done, elapsed = run(times, sequences, running, context, constant, steps, limit_s - begun, record.histogram, 0.0)
    if done == 0:
        done, elapsed = run(times, sequences, running, context, constant, 1, math.inf, record.histogram, 0.0)
    instances.steps[instance], instances.next_s[instance] = done, begun + elapsed


@njit(cache=True)
def _count_run(
    ranks: Ranks, instances: Instances, record: Record, times: Times, rules: Rules, instance: int, seconds: float
) -> None:
    """Counts the tokens of a run that has ended, and what ran in it."""
    best, total, running, active = _busiest(ranks, instances, rules, instance)
    constant = decode_constant(times, float(ranks.decoding[best]), total / rules.ranks, active > 1)
    context = ranks.context[best] / max(ranks.decoding[best], 1)
    steps = instances.steps[instance]
    if instances.stalled_s[instance] > 0.0:
        tally(record.histogram, instances.stalled_s[instance] + seconds / steps, total * times.gained)
        instances.stalled_s[instance] = 0.0
        context, steps = context + times.gained, steps - 1
    sequences = float(ranks.decoding[best])
    run(times, sequences, running, context, constant, steps, math.inf, record.histogram, total * times.gained)
    record.sums[DECODE_S] += seconds
    record.sums[SEQUENCE_S] += total * seconds
    for rank in range(instances.first_rank[instance], instances.first_rank[instance] + rules.ranks):
        record.sums[CONTEXT_S] += ranks.context[rank] * seconds


@njit(cache=True)
def _step_ranks(ranks: Ranks, instances: Instances, times: Times, rules: Rules, instance: int, steps: int) -> None:
    """Every decoding sequence of an instance gains the tokens of `steps` steps."""
    for rank in range(instances.first_rank[instance], instances.first_rank[instance] + rules.ranks):
        if ranks.decoding[rank] > 0:
            ranks.used[rank] += growth(ranks, rules, rank, steps)
            ranks.context[rank] += times.gained * steps * ranks.decoding[rank]
            make_room(ranks, rules, rank, 0)
        ranks.step[rank] += steps
        ranks.moved_s[rank] = 0.0


@njit(cache=True)
def commit(
    ranks: Ranks,
    requests: Requests,
    instances: Instances,
    pending: Pending,
    record: Record,
    times: Times,
    rules: Rules,
    fleet: Fleet,
    instance: int,
) -> None:
    """Books what an instance was at and has now done: tokens, ends, prompts."""
    now = instances.next_s[instance]
    seconds, steps = now - instances.begun_s[instance], instances.steps[instance]
    instances.busy_s[instance] += seconds
    instances.iterations[instance] += steps
    record.counts[ITERATIONS] += steps
    record.counts[RUNS] += 1
    mixed = instances.at[instance] == MIXED
    total = 0.0
    for rank in range(instances.first_rank[instance], instances.first_rank[instance] + rules.ranks):
        total += ranks.decoding[rank]
    if not mixed:
        _count_run(ranks, instances, record, times, rules, instance, seconds)
        _step_ranks(ranks, instances, times, rules, instance, steps)
    else:
        record.sums[PREFILL_S] += seconds
        if rules.scheduler == MIXED_BATCHES:
            if total > 0.0:
                tally(record.histogram, seconds + instances.stalled_s[instance], total * times.gained)
            _step_ranks(ranks, instances, times, rules, instance, 1)
        elif total > 0.0:
            instances.stalled_s[instance] += seconds
    for rank in range(instances.first_rank[instance], instances.first_rank[instance] + rules.ranks):
        request = next_end(ranks, rank)
        while request != NOBODY:
            finish(ranks, requests, times, rules, rank, request, now)
            instances.load[instance] -= 1
            ended(requests, pending, fleet, record, request, now)
            request = next_end(ranks, rank)
        if mixed:
            _prompts_done(ranks, requests, instances, pending, record, times, rules, fleet, instance, rank, now)


@njit(cache=True)
def _prompts_done(
    ranks: Ranks,
    requests: Requests,
    instances: Instances,
    pending: Pending,
    record: Record,
    times: Times,
    rules: Rules,
    fleet: Fleet,
    instance: int,
    rank: int,
    now: float,
) -> None:
    """What becomes of prompts whose chunk was computed: more chunks, decoding, the end, or a move to another pool."""
    for place in range(ranks.chunks[rank]):
        request = ranks.chunk_request[rank, place]
        requests.ready[request] += ranks.chunk_tokens[rank, place]
        if requests.ready[request] < requests.needed[request]:
            continue
        prompt_done(ranks, requests, rules, rank, request, now)
        if requests.made[request] >= requests.output[request]:
            finish(ranks, requests, times, rules, rank, request, now)
            instances.load[instance] -= 1
            ended(requests, pending, fleet, record, request, now)
        elif instances.gives[instance] > 0:
            requests.stage[request] = MOVING
            begin_s = max(now, instances.link_free_s[instance])
            moved_s = requests.needed[request] * rules.move_token_s
            instances.link_free_s[instance] = begin_s + moved_s
            record.counts[MOVES] += 1
            push(pending, begin_s + moved_s + rules.move_start_s, request)
        else:
            start_decoding(ranks, requests, times, rules, rank, request)
    ranks.chunks[rank] = 0
