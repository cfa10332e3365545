"""Iterations of an instance: what the next one is, how long it takes, and what it has done when it ends."""

from __future__ import annotations

import math

from numba import njit

from ridgeline.serving.clock import (
    Times,
    chunks_s,
    decode_lines,
    decode_s,
    group_s,
    head_s,
    hosted,
    in_two,
    nano_parts,
    nano_s,
    run,
    tally,
    token_s,
)
from ridgeline.serving.fairness import steps_to_turn
from ridgeline.serving.kept import fetch_s
from ridgeline.serving.queues import growth, make_room, steps_that_fit
from ridgeline.serving.routing import ended, push, sample
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
    PEAK_BLOCKS,
    PREFILL_S,
    RUNS,
    SEQUENCE_S,
    Fleet,
    Lists,
    Record,
    Records,
)


@njit(cache=True)
def _busiest(ranks: Records, instances: Records, rule: Record, instance: int) -> tuple[int, float, float, int]:
    """The rank with most to decode, and of all ranks: decoding sequences, running ones, ranks at work."""
    best, total, running, active = instances[instance].first_rank, 0.0, 0.0, 0
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        here = ranks[rank].decoding
        total += here
        running += ranks[rank].running
        active += here > 0
        if here > ranks[best].decoding or (here == ranks[best].decoding and ranks[rank].context > ranks[best].context):
            best = rank
    return best, total, running, active


@njit(cache=True)
def _mixed_s(ranks: Records, lists: Lists, instances: Records, times: Times, rule: Record, instance: int) -> float:
    """Time of one iteration with prompts: the slowest rank, then the experts of all ranks together [s]."""
    longest, total, running, active, most = 0.0, 0.0, 0.0, 0, 0.0
    moved, away, decodes = 0.0, 0.0, False
    mixes = rule.scheduler == MIXED_BATCHES
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        decoding = float(ranks[rank].decoding) if mixes else 0.0
        tokens, sampled = decoding * (1.0 + rule.drafted), decoding + ranks[rank].chunks
        for place in range(ranks[rank].chunks):
            tokens += lists.chunks[rank, place, 1]
        running += ranks[rank].running
        moved = max(moved, ranks[rank].moved_s)
        ranks[rank].moved_s = 0.0
        if tokens <= 0.0:
            continue
        active += 1
        total += tokens
        fetched = ranks[rank].fetching * rule.fetch_s if mixes else 0.0
        away = max(away, fetched, (tokens - decoding * (1.0 + rule.drafted)) * rule.store_s)  # out beside in
        most = max(most, tokens)
        attention = 0.0
        if decoding > 0.0:
            decodes = True
            attention = decode_s(times, rule, decoding, ranks[rank].context / decoding, in_two(rule, tokens))
        prompts = chunks_s(times, rule, lists.chunks[rank], ranks[rank].chunks)
        if in_two(rule, tokens):  # one rank, which holds its experts
            compute, memory, network = nano_parts(times, rule, tokens, sampled)
            longest = nano_s(rule, compute + prompts, memory + attention, network)
        else:
            longest = max(longest, token_s(times, rule, tokens) + head_s(times, rule, sampled) + attention + prompts)
    if not in_two(rule, most):
        longest += group_s(times, rule, total / rule.ranks)
    if active > 1:
        longest *= rule.balance
    if decodes:
        longest *= 1.0 + rule.draft_share
    if most > rule.prefill_graphs:
        longest = max(longest, rule.eager_s)
    longest += rule.hops * (rule.send_start_s + rule.send_s * most)
    seconds = hosted(rule, max(longest, away), running)
    return max(seconds, moved) if rule.beside else seconds + moved


@njit(cache=True)
def _steps_to_go(
    ranks: Records,
    lists: Lists,
    requests: Records,
    instances: Records,
    fleet: Fleet,
    rule: Record,
    instance: int,
) -> int:
    """Decode steps until a request of the instance ends or its blocks run out, at least 1 [step]."""
    steps = ranks[instances[instance].first_rank].step + rule.capacity * rule.block_tokens  # no run is longer
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        if ranks[rank].decoding > 0:
            if rule.scheduler != MIXED_BATCHES and ensure_growth(ranks, lists, requests, fleet, rule, rank):
                steps = 1  # whom it sent back may fit again after it
            free = rule.capacity - ranks[rank].used
            first = lists.ends[rank, 0, 0] - ranks[rank].step
            steps = min(steps, max(steps_that_fit(ranks, lists, rule, rank, free, first), 1))
            turn = steps_to_turn(ranks, lists, requests, rule, rank, steps)
            if turn < steps:  # at the next look from then on
                look = (-(instances[instance].iterations + turn)) % max(rule.receive_steps, 1)
                steps = min(steps, turn + look)
    return int(steps)


@njit(cache=True)
def begin(
    ranks: Records,
    lists: Lists,
    requests: Records,
    instances: Records,
    fleet: Fleet,
    times: Times,
    rule: Record,
    instance: int,
    now_s: float,
) -> None:
    """Starts the next iteration of an instance, or its next run of decode steps, or leaves it idle."""
    chunks, decoding = 0, 0
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        form_batch(ranks, lists, requests, fleet, rule, rank)
        chunks += ranks[rank].chunks
        decoding += ranks[rank].decoding
    instances[instance].begun_s = now_s
    if chunks > 0:
        instances[instance].at, instances[instance].steps = MIXED, 1
        instances[instance].next_s = now_s + _mixed_s(ranks, lists, instances, times, rule, instance)
    elif decoding > 0:
        instances[instance].at = DECODES
        steps = _steps_to_go(ranks, lists, requests, instances, fleet, rule, instance)
        set_run(ranks, instances, fleet, times, rule, instance, steps, math.inf)
    else:
        instances[instance].at, instances[instance].next_s = IDLE, math.inf


@njit(cache=True)
def set_run(
    ranks: Records,
    instances: Records,
    fleet: Fleet,
    times: Times,
    rule: Record,
    instance: int,
    steps: int,
    limit_s: float,
) -> None:
    """Sets the length of a run of decode steps: at most `steps`, cut at the first that ends at `limit_s` or later."""
    best, total, running, active = _busiest(ranks, instances, rule, instance)
    sequences = float(ranks[best].decoding)
    moved = 0.0
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        moved = max(moved, ranks[rank].moved_s)
    away_s = fetch_s(ranks, instances, rule, instance)
    lines = decode_lines(times, rule, sequences, total / rule.ranks, active > 1, away_s)
    context = ranks[best].context / max(ranks[best].decoding, 1)
    if moved > 0.0 and rule.beside:  # the first step is no shorter than what moves
        _, step_s = run(times, rule, sequences, running, context, lines, 1, math.inf, fleet.histogram, 0.0)
        moved = max(0.0, moved - step_s)
    begun = instances[instance].begun_s + moved
    done, elapsed = run(times, rule, sequences, running, context, lines, steps, limit_s - begun, fleet.histogram, 0.0)
    if done == 0:
        done, elapsed = run(times, rule, sequences, running, context, lines, 1, math.inf, fleet.histogram, 0.0)
    if rule.receive_steps > 1 and done < steps:  # who has come is seen at the next look only
        seen = done + (-(instances[instance].iterations + done)) % rule.receive_steps
        done, elapsed = run(
            times, rule, sequences, running, context, lines, min(seen, steps), math.inf, fleet.histogram, 0.0
        )
    instances[instance].steps, instances[instance].next_s = done, begun + elapsed


@njit(cache=True)
def _count_run(
    ranks: Records, instances: Records, fleet: Fleet, times: Times, rule: Record, instance: int, seconds: float
) -> None:
    """Counts the tokens of a run that has ended, and what ran in it."""
    best, total, running, active = _busiest(ranks, instances, rule, instance)
    away_s = fetch_s(ranks, instances, rule, instance)
    lines = decode_lines(times, rule, float(ranks[best].decoding), total / rule.ranks, active > 1, away_s)
    context = ranks[best].context / max(ranks[best].decoding, 1)
    steps = instances[instance].steps
    if instances[instance].stalled_s > 0.0:
        waited = min(float(instances[instance].stalled), total)
        tally(fleet.histogram, instances[instance].stalled_s + seconds / steps, waited * rule.gained)
        tally(fleet.histogram, seconds / steps, (total - waited) * rule.gained)
        instances[instance].stalled_s = 0.0
        context, steps = context + rule.gained, steps - 1
    sequences = float(ranks[best].decoding)
    run(times, rule, sequences, running, context, lines, steps, math.inf, fleet.histogram, total * rule.gained)
    fleet.sums[DECODE_S] += seconds
    fleet.sums[SEQUENCE_S] += total * seconds
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        grown = 0.5 * rule.gained * (instances[instance].steps - 1) * ranks[rank].decoding
        fleet.sums[CONTEXT_S] += (ranks[rank].context + grown) * seconds


@njit(cache=True)
def _step_ranks(
    ranks: Records, lists: Lists, instances: Records, fleet: Fleet, rule: Record, instance: int, steps: int
) -> None:
    """Every decoding sequence of an instance gains the tokens of `steps` steps."""
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        if ranks[rank].decoding > 0:
            ranks[rank].used += growth(ranks, lists, rule, rank, steps)
            ranks[rank].context += rule.gained * steps * ranks[rank].decoding
            make_room(ranks, lists, rule, rank, 0)
            fleet.counts[PEAK_BLOCKS] = max(fleet.counts[PEAK_BLOCKS], ranks[rank].used)
        ranks[rank].step += steps
        ranks[rank].moved_s = 0.0


@njit(cache=True)
def commit(
    ranks: Records,
    lists: Lists,
    requests: Records,
    instances: Records,
    fleet: Fleet,
    times: Times,
    rule: Record,
    instance: int,
) -> None:
    """Books what an instance was at and has now done: tokens, ends, prompts."""
    now = instances[instance].next_s
    seconds, steps = now - instances[instance].begun_s, instances[instance].steps
    instances[instance].busy_s += seconds
    instances[instance].iterations += steps
    fleet.counts[ITERATIONS] += steps
    fleet.counts[RUNS] += 1
    mixed = instances[instance].at == MIXED
    total = 0.0
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        total += ranks[rank].decoding
    if not mixed:
        _count_run(ranks, instances, fleet, times, rule, instance, seconds)
        _step_ranks(ranks, lists, instances, fleet, rule, instance, steps)
    else:
        fleet.sums[PREFILL_S] += seconds
        if rule.scheduler == MIXED_BATCHES:
            if total > 0.0:
                tally(fleet.histogram, seconds + instances[instance].stalled_s, total * rule.gained)
            _step_ranks(ranks, lists, instances, fleet, rule, instance, steps)
        elif total > 0.0:
            instances[instance].stalled_s += seconds
            instances[instance].stalled = int(total)
    sample(ranks, fleet, now)
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        request = next_end(ranks, lists, rank)
        while request != NOBODY:
            finish(ranks, lists, requests, rule, rank, request, now)
            instances[instance].load -= 1
            ended(requests, fleet, request, now)
            request = next_end(ranks, lists, rank)
        if mixed:
            _prompts_done(ranks, lists, requests, instances, fleet, times, rule, instance, rank, now)


@njit(cache=True)
def _prompts_done(
    ranks: Records,
    lists: Lists,
    requests: Records,
    instances: Records,
    fleet: Fleet,
    times: Times,
    rule: Record,
    instance: int,
    rank: int,
    now: float,
) -> None:
    """What becomes of prompts whose chunk was computed: more chunks, decoding, the end, or a move to another pool."""
    for place in range(ranks[rank].chunks):
        request = lists.chunks[rank, place, 0]
        requests[request].ready += lists.chunks[rank, place, 1]
        if requests[request].ready < requests[request].needed:
            continue
        prompt_done(ranks, lists, requests, rule, rank, request, now)
        if requests[request].made >= requests[request].output:
            finish(ranks, lists, requests, rule, rank, request, now)
            instances[instance].load -= 1
            ended(requests, fleet, request, now)
        elif instances[instance].gives > 0:
            requests[request].stage = MOVING
            begin_s = max(now, instances[instance].link_free_s)
            moved_s = requests[request].needed * rule.move_token_s
            instances[instance].link_free_s = begin_s + moved_s
            fleet.counts[MOVES] += 1
            push(fleet, begin_s + moved_s + rule.move_start_s, request)
        else:
            start_decoding(ranks, lists, requests, rule, rank, request)
    ranks[rank].chunks = 0
