"""Iterations of an instance: what the next one is, how long it takes, and what it has done when it ends."""

from __future__ import annotations

import math

from ridgeline.serving.apart import apart_s
from ridgeline.serving.borrowing import borrowed_s, owes_soon
from ridgeline.serving.clock import (
    Times,
    chunks_s,
    decode_s,
    group_s,
    head_s,
    hosted,
    in_two,
    last_stage,
    nano_parts,
    nano_s,
    of_one_host,
    tally,
    token_s,
)
from ridgeline.serving.compiling import clocked
from ridgeline.serving.fairness import head
from ridgeline.serving.lanes import begin_answers, begin_prompts, home, prompt_joins, rests, take_in
from ridgeline.serving.looks import known_until, pass_on_late, result_s, steps_to_look
from ridgeline.serving.merging import free_beside, merge, part, parted, ring_s
from ridgeline.serving.routing import ended, push, sample
from ridgeline.serving.runs import book_run, catch_up, cut_called, set_run, standing, step_ranks, steps_to_go
from ridgeline.serving.schedule import form_batch
from ridgeline.serving.sequences import finish, next_end, prompt_done
from ridgeline.serving.state import (
    ANSWERS,
    BOTH,
    DECODES,
    IDLE,
    MIXED,
    MIXED_BATCHES,
    MOVING,
    NOBODY,
    PROMPTS,
    Fleet,
    Lists,
    Record,
    Records,
)
from ridgeline.serving.urgency import redraw


@clocked
def _drafting_s(ranks: Records, instances: Records, times: Times, rule: Record, instance: int, whole_s: float) -> float:
    """Drafting in an iteration with prompts of `whole_s`: its part of a step, and of what prompts add [s]."""
    own, total = 0.0, 0.0
    if rule.scheduler == MIXED_BATCHES:
        for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
            decoding = float(ranks[rank].decoding)
            if decoding <= 0.0:
                continue
            tokens = decoding * (1.0 + rule.drafted)
            total += tokens
            attention = decode_s(times, rule, decoding, ranks[rank].context / decoding, False)
            own = max(own, token_s(times, rule, tokens) + head_s(times, rule, decoding) + attention)
    if total > 0.0:
        own += group_s(times, rule, total / rule.ranks, True)
    step_s = min(own, whole_s)
    return float(rule.draft_share * step_s + rule.draft_prompt * (whole_s - step_s))


@clocked
def _tokens(ranks: Records, lists: Lists, rule: Record, rank: int, merged: float) -> float:
    """Tokens of a rank in an iteration with prompts, of which `merged` instances compute their parts [token]."""
    tokens = ranks[rank].decoding * (1.0 + rule.drafted) if rule.scheduler == MIXED_BATCHES else 0.0
    for place in range(ranks[rank].chunks):
        tokens += parted(float(lists.chunks[rank, place, 1]), merged)
    return float(tokens)


@clocked
def _mixed_s(
    ranks: Records, lists: Lists, instances: Records, times: Times, rule: Record, instance: int, merged: float
) -> float:
    """Time of one iteration with prompts: the slowest rank, then the experts of all ranks together [s].

    Of `merged` instances that compute one prompt together, the one that decodes as well.
    """
    longest, total, running, fullest, active, most = 0.0, 0.0, 0.0, 0.0, 0, 0.0
    moved, away, decodes, most_sampled = 0.0, 0.0, False, 0.0
    going_on = False  # a prompt has further chunks, and nothing else waits for this one's end
    mixes = rule.scheduler == MIXED_BATCHES
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        total += _tokens(ranks, lists, rule, rank, merged)
    mean = total / rule.ranks
    cut = in_two(rule, mean)
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        decoding = float(ranks[rank].decoding) if mixes else 0.0
        tokens, sampled = _tokens(ranks, lists, rule, rank, merged), decoding + ranks[rank].chunks
        running, fullest = running + ranks[rank].running, max(fullest, float(ranks[rank].running))
        moved = max(moved, ranks[rank].moved_s)
        if tokens <= 0.0:
            continue
        active += 1
        going_on = ranks[rank].partial != NOBODY and decoding <= 0.0
        fetched = ranks[rank].fetching * rule.fetch_s if mixes else 0.0
        away = max(away, fetched, (tokens - decoding * (1.0 + rule.drafted)) * rule.store_s)  # out beside in
        most = max(most, tokens)
        attention = 0.0
        if decoding > 0.0:
            decodes = True
            attention = decode_s(times, rule, decoding, ranks[rank].context / decoding, cut)
        if rule.borrows:
            added, far = borrowed_s(ranks, instances, rule, rank)
            attention = max(attention, far) + added
        prompts = chunks_s(times, rule, lists.chunks[rank], ranks[rank].chunks) / merged
        if merged > 1.0:
            prompts = max(prompts, ring_s(rule, float(lists.chunks[rank, 0, 1]), merged))
        if cut:
            compute, memory, network = nano_parts(times, rule, tokens, mean, sampled, True)
            longest = max(longest, nano_s(rule, compute + prompts, memory + attention, network))
        elif rule.micro_batches > 0:  # of one of them
            own = token_s(times, rule, tokens) - rule.exposed_s
            longest = max(longest, own + attention + prompts / min(rule.micro_batches, tokens))
            most_sampled = max(most_sampled, sampled)
        else:
            longest = max(longest, token_s(times, rule, tokens) + head_s(times, rule, sampled) + attention + prompts)
    if rule.micro_batches > 0:
        longest = apart_s(times, rule, longest, mean, most)
        longest += rule.exposed_s + head_s(times, rule, most_sampled)
    elif not cut:
        longest += group_s(times, rule, mean, True)
    drafting = 0.0
    if rule.draft_share > 0.0 or rule.draft_prompt > 0.0:
        drafting = _drafting_s(ranks, instances, times, rule, instance, longest) * last_stage(rule, active > 1)
    if active > 1:
        longest *= rule.balance
    if most > rule.prefill_graphs:
        longest = max(longest, rule.eager_s)
    longest += rule.hops * (rule.send_start_s + rule.send_s * most)
    if rule.follows > 0.0 and active == 1 and going_on:
        longest *= rule.follows / (1.0 + rule.hops)
    if rule.part_tokens > 0.0 and not decodes:
        parts = 2.0 ** math.ceil(math.log2(max(total / rule.part_tokens, 1.0)))
        longest *= (parts + rule.hops) / (parts * (1.0 + rule.hops))
    longest += drafting
    seconds = hosted(rule, max(longest, away), of_one_host(rule, fullest, running))
    return max(seconds, moved) if rule.beside else seconds + moved


@clocked
def _build_s(ranks: Records, lists: Lists, rule: Record, first: int) -> float:
    """Time to compile kernels for numbers of tokens that ranks have for the first time, all ranks at once [s]."""
    news = False
    for rank in range(first, first + rule.ranks):
        tokens = int(_tokens(ranks, lists, rule, rank, 1.0))
        news = news or (tokens > 0 and lists.built[rank, min(tokens, rule.token_budget)] == 0)
        lists.built[rank, min(tokens, rule.token_budget)] = 1
    return float(rule.build_s if news else 0.0)


@clocked
def _prompts_s(
    ranks: Records, lists: Lists, instances: Records, fleet: Fleet, times: Times, rule: Record, instance: int
) -> float:
    """Time of an iteration with prompts, of a long one by as many instances as are fastest together [s]."""
    best = _mixed_s(ranks, lists, instances, times, rule, instance, 1.0)
    rank = instances[instance].first_rank
    if rule.elastic > 0 and ranks[rank].helpers > 0 and lists.chunks[rank, 0, 1] >= rule.elastic:
        chosen = 0
        for count in range(1, ranks[rank].helpers + 1):
            seconds = _mixed_s(ranks, lists, instances, times, rule, instance, 1.0 + count)
            if seconds < best:
                best, chosen = seconds, count
        merge(ranks, instances, fleet, instance, chosen)
    for place in range(rank, rank + rule.ranks):
        ranks[place].moved_s = 0.0
    return best


@clocked
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
    if instances[instance].lane == PROMPTS:
        begin_prompts(ranks, lists, requests, instances, fleet, times, rule, instance, now_s)
        return
    if instances[instance].lane == ANSWERS:
        begin_answers(ranks, lists, requests, instances, fleet, times, rule, instance, now_s)
        return
    redraw(ranks, requests, instances, rule, instance)
    chunks, decoding, preempted = 0, 0, fleet.system[0].preemptions
    if rule.borrows:
        catch_up(ranks, lists, instances, fleet, times, rule, now_s)
    known_s = known_until(ranks, lists, requests, instances, rule, instance, now_s)
    if rule.elastic > 0:
        ranks[instances[instance].first_rank].helpers = free_beside(ranks, instances, instance)
    while True:
        for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
            form_batch(ranks, lists, requests, fleet, rule, rank, known_s, now_s)
            chunks += ranks[rank].chunks
            decoding += ranks[rank].decoding
        if chunks + decoding > 0 or known_s == math.inf:
            break
        known_s = math.inf  # an idle scheduler looks again
    followed = instances[instance].prompted and instances[instance].next_s == now_s and chunks > 0
    before_s = instances[instance].begun_s
    instances[instance].chained = known_s < math.inf
    instances[instance].formed_s = min(known_s, now_s)
    instances[instance].begun_s, instances[instance].prompted = now_s, chunks > 0
    if rule.borrows:
        instances[instance].guests = ranks[instances[instance].first_rank].guests
        cut_called(ranks, instances, fleet, times, rule, now_s, fleet.system[0].preemptions > preempted)
    if chunks > 0:
        instances[instance].at, instances[instance].steps = MIXED, 1
        standing(ranks, instances, rule, instance, True)
        built_s = _build_s(ranks, lists, rule, instances[instance].first_rank) if rule.build_s > 0.0 else 0.0
        instances[instance].next_s = now_s + built_s + _prompts_s(ranks, lists, instances, fleet, times, rule, instance)
        if followed and rule.late_results:
            pass_on_late(ranks, requests, instances, rule, instance, before_s, now_s, built_s)
    elif decoding > 0:
        instances[instance].at = DECODES
        steps = steps_to_go(ranks, lists, requests, instances, fleet, rule, instance)
        steps = min(steps, steps_to_look(ranks, instances, rule, instance, known_s))
        first = instances[instance].first_rank
        if rule.borrows and ranks[first].waiting > 0:
            waits = head(ranks, lists, requests, rule, first)
            steps = 1 if owes_soon(ranks, lists, requests, rule, first, waits) else steps
        if standing(ranks, instances, rule, instance, False):
            steps = 1
        set_run(ranks, instances, fleet, times, rule, instance, steps, math.inf)
    else:
        instances[instance].at, instances[instance].next_s = IDLE, math.inf


@clocked
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
    rests(instances, instance, now, seconds)
    if rule.elastic > 0:
        part(instances, instance, seconds)
    counted = home(instances, instance)
    fleet.system[0].runs += 1
    mixed = instances[instance].at == MIXED
    total = 0.0
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        total += ranks[rank].decoding
    if not mixed:
        book_run(ranks, lists, instances, fleet, times, rule, instance, steps, seconds)
    else:
        instances[instance].iterations += steps
        fleet.system[0].iterations += steps
        fleet.system[0].prefill_s += seconds
        if rule.scheduler == MIXED_BATCHES:
            if total > 0.0:
                tally(fleet.histogram, seconds + instances[instance].stalled_s, total * rule.gained)
            step_ranks(ranks, lists, instances, fleet, rule, instance, steps)
        elif total > 0.0 and instances[instance].lane == BOTH:
            instances[instance].stalled_s += seconds
            instances[instance].stalled = int(total)
    sample(ranks, fleet, now)
    noticed_s = result_s(ranks, requests, instances, rule, instance, now)
    if rule.borrows:
        instances[instance].at = IDLE
        catch_up(ranks, lists, instances, fleet, times, rule, now)
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        request = NOBODY if instances[instance].lane == PROMPTS else next_end(ranks, lists, rank)
        while request != NOBODY:
            finish(ranks, lists, requests, rule, rank, request, now)
            instances[counted].load -= 1
            ended(requests, fleet, request, now)
            request = next_end(ranks, lists, rank)
        if mixed:
            _prompts_done(ranks, lists, requests, instances, fleet, times, rule, instance, rank, now, noticed_s)
    if rule.borrows:
        cut_called(ranks, instances, fleet, times, rule, now, True)
    if instances[instance].lane == ANSWERS:
        take_in(ranks, lists, requests, rule, instances[instance].first_rank)
    if instances[instance].lane != BOTH:  # blocks are free for prompts, or the device for answers
        instances[instances[instance].mate].stirred = 1


@clocked
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
    noticed_s: float,
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
            if requests[request].made == 1:
                requests[request].first_s = math.nan  # it travels with the cache
            ranks[rank].running -= not rule.moving_holds  # it stays in the order of admission, whoever holds a place
            begin_s = max(noticed_s, ranks[rank].link_free_s)
            moved_s = requests[request].needed * rule.move_token_s
            ranks[rank].link_free_s = begin_s + moved_s
            fleet.system[0].moves += 1
            push(fleet, begin_s + moved_s + rule.move_start_s, request)
        else:
            prompt_joins(ranks, lists, requests, instances, rule, instances[instance].mate, rank, request)
    ranks[rank].chunks = 0
