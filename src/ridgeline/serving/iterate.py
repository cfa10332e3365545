"""Iterations of an instance: what the next one is, how long it takes, and what it has done when it ends."""

from __future__ import annotations

import math

from ridgeline.serving.attention_ffn import micro_batched_s
from ridgeline.serving.clock import (
    chunks_s,
    decode_s,
    group_s,
    head_s,
    hosted,
    in_two,
    last_stage,
    longest_prompt,
    nano_parts,
    nano_s,
    of_one_host,
    tally,
    token_s,
)
from ridgeline.serving.compiling import clocked
from ridgeline.serving.elastic import free_beside, merge, part, parted, ring_s
from ridgeline.serving.fairness import head
from ridgeline.serving.hooks import books
from ridgeline.serving.polling import known_until, pass_on_late, result_s, steps_to_look
from ridgeline.serving.remote_kv import borrowed_s, owes_soon, rearrange
from ridgeline.serving.routing import ended, push, sample
from ridgeline.serving.runs import book_run, cut_called, set_run, standing, step_ranks, steps_to_go
from ridgeline.serving.schedule import form_batch
from ridgeline.serving.sequences import finish, next_end, prompt_done
from ridgeline.serving.state import (
    ANSWERS,
    BOOKS,
    BOTH,
    DECODES,
    IDLE,
    MIXED,
    MIXED_BATCHES,
    MOVING,
    NOBODY,
    PROMPTS,
    Clock,
    Record,
)
from ridgeline.serving.streams import begin_answers, begin_prompts, home, prompt_joins, rests, take_in
from ridgeline.serving.urgency import redraw


@clocked
def _drafting_s(clock: Clock, rule: Record, instance: int, whole_s: float) -> float:
    """Drafting in an iteration with prompts of `whole_s`: its part of a step, and of what prompts add [s]."""
    own, total = 0.0, 0.0
    if rule.scheduler == MIXED_BATCHES:
        for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
            decoding = float(clock.ranks[rank].decoding)
            if decoding <= 0.0:
                continue
            tokens = decoding * (1.0 + rule.drafted)
            total += tokens
            attention = decode_s(clock.times, rule, decoding, clock.ranks[rank].context / decoding, False)
            own = max(own, token_s(clock.times, rule, tokens) + head_s(clock.times, rule, decoding) + attention)
    if total > 0.0:
        own += group_s(clock.times, rule, total / rule.ranks, True)
    step_s = min(own, whole_s)
    return float(rule.draft_share * step_s + rule.draft_prompt * (whole_s - step_s))


@clocked
def _tokens(clock: Clock, rule: Record, rank: int, merged: float) -> float:
    """Tokens of a rank in an iteration with prompts, of which `merged` instances compute their parts [token]."""
    tokens = clock.ranks[rank].decoding * (1.0 + rule.drafted) if rule.scheduler == MIXED_BATCHES else 0.0
    least = longest_prompt(rule, clock.chunks[rank], clock.ranks[rank].chunks)
    for place in range(clock.ranks[rank].chunks):
        tokens += parted(float(max(clock.chunks[rank, place, 1], least)), merged)
    return float(tokens)


@clocked
def _mixed_s(clock: Clock, rule: Record, instance: int, merged: float) -> float:
    """Time of one iteration with prompts: the slowest rank, then the experts of all ranks together [s].

    Of `merged` instances that compute one prompt together, the one that decodes as well.
    """
    longest, total, running, fullest, active, most = 0.0, 0.0, 0.0, 0.0, 0, 0.0
    moved, away, decodes, most_sampled = 0.0, 0.0, False, 0.0
    going_on = False  # a prompt has further chunks, and nothing else waits for this one's end
    mixes = rule.scheduler == MIXED_BATCHES
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        total += _tokens(clock, rule, rank, merged)
    mean = total / rule.ranks
    cut = in_two(rule, mean)
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        decoding = float(clock.ranks[rank].decoding) if mixes else 0.0
        tokens, sampled = _tokens(clock, rule, rank, merged), decoding + clock.ranks[rank].chunks
        running, fullest = running + clock.ranks[rank].running, max(fullest, float(clock.ranks[rank].running))
        moved = max(moved, clock.ranks[rank].moved_s)
        if tokens <= 0.0:
            continue
        active += 1
        going_on = clock.ranks[rank].partial != NOBODY and decoding <= 0.0
        fetched = clock.ranks[rank].fetching * rule.fetch_s if mixes else 0.0
        away = max(away, fetched, (tokens - decoding * (1.0 + rule.drafted)) * rule.store_s)  # out beside in
        most = max(most, tokens)
        attention = 0.0
        if decoding > 0.0:
            decodes = True
            attention = decode_s(clock.times, rule, decoding, clock.ranks[rank].context / decoding, cut)
        if rule.borrows:
            added, far = borrowed_s(clock, rule, rank)
            attention = max(attention, far) + added
        prompts = chunks_s(clock.times, rule, clock.chunks[rank], clock.ranks[rank].chunks) / merged
        if merged > 1.0:
            prompts = max(prompts, ring_s(rule, float(clock.chunks[rank, 0, 1]), merged))
        if cut:
            compute, memory, network = nano_parts(clock.times, rule, tokens, mean, sampled, True)
            longest = max(longest, nano_s(rule, (compute + prompts, memory, network), attention, sampled))
        elif rule.micro_batches > 0:  # of one of them
            own = token_s(clock.times, rule, tokens) - rule.exposed_s
            longest = max(longest, own + attention + prompts / min(rule.micro_batches, tokens))
            most_sampled = max(most_sampled, sampled)
        else:
            longest = max(
                longest, token_s(clock.times, rule, tokens) + head_s(clock.times, rule, sampled) + attention + prompts
            )
    if rule.micro_batches > 0:
        longest = micro_batched_s(clock.times, rule, longest, mean, most)
        longest += rule.exposed_s + head_s(clock.times, rule, most_sampled)
    elif not cut:
        longest += group_s(clock.times, rule, mean, True)
    drafting = 0.0
    if rule.draft_share > 0.0 or rule.draft_prompt > 0.0:
        drafting = _drafting_s(clock, rule, instance, longest) * last_stage(rule, active > 1)
    if active > 1:
        longest *= rule.balance
    if most > rule.prefill_graphs:
        longest = max(longest, rule.eager_s)
    longest += rule.hops * (rule.send_start_s + rule.send_s * most)
    if rule.follows > 0.0 and active == 1 and going_on:
        longest *= rule.follows / (1.0 + rule.hops)
    if rule.part_tokens > 0.0 and not decodes:
        parts = active * 2.0 ** math.ceil(math.log2(max(most / rule.part_tokens, 1.0)))
        longest *= active * (parts + rule.hops) / (parts * (1.0 + rule.hops))
    seconds = hosted(rule, max(longest, away) + drafting, of_one_host(rule, fullest, running))
    return max(seconds, moved) if rule.beside else seconds + moved


@clocked
def _build_s(clock: Clock, rule: Record, first: int) -> float:
    """Time to compile kernels for numbers of tokens that ranks have for the first time, all ranks at once [s]."""
    news = False
    for rank in range(first, first + rule.ranks):
        tokens = int(_tokens(clock, rule, rank, 1.0))
        news = news or (tokens > 0 and clock.built[rank, min(tokens, rule.token_budget)] == 0)
        clock.built[rank, min(tokens, rule.token_budget)] = 1
    return float(rule.build_s if news else 0.0)


@clocked
def _prompts_s(clock: Clock, rule: Record, instance: int) -> float:
    """Time of an iteration with prompts, of a long one by as many instances as are fastest together [s]."""
    best = _mixed_s(clock, rule, instance, 1.0)
    rank = clock.instances[instance].first_rank
    if rule.elastic > 0 and clock.ranks[rank].helpers > 0 and clock.chunks[rank, 0, 1] >= rule.elastic:
        chosen = 0
        for count in range(1, clock.ranks[rank].helpers + 1):
            seconds = _mixed_s(clock, rule, instance, 1.0 + count)
            if seconds < best:
                best, chosen = seconds, count
        merge(clock, instance, chosen)
    for place in range(rank, rank + rule.ranks):
        clock.ranks[place].moved_s = 0.0
    return best


@clocked
def begin(clock: Clock, rule: Record, instance: int, now_s: float) -> None:
    """Starts the next iteration of an instance, or its next run of decode steps, or leaves it idle."""
    if clock.instances[instance].lane == PROMPTS:
        begin_prompts(clock, rule, instance, now_s)
        return
    if clock.instances[instance].lane == ANSWERS:
        begin_answers(clock, rule, instance, now_s)
        return
    redraw(clock, rule, instance)
    chunks, decoding, preempted = 0, 0, clock.system.preemptions
    if rule.borrows:
        books(clock.hooks[BOOKS], clock, now_s)
    if rule.rearranges > 0 and clock.instances[instance].iterations % rule.rearranges == 0:
        rearrange(clock, rule, clock.instances[instance].first_rank)
    known_s = known_until(clock, rule, instance, now_s)
    if rule.elastic > 0:
        clock.ranks[clock.instances[instance].first_rank].helpers = free_beside(clock, instance)
    while True:
        for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
            form_batch(clock, rule, rank, known_s, now_s)
            chunks += clock.ranks[rank].chunks
            decoding += clock.ranks[rank].decoding
        if chunks + decoding > 0 or known_s == math.inf:
            break
        known_s = math.inf  # an idle scheduler looks again
    followed = clock.instances[instance].prompted and clock.instances[instance].next_s == now_s and chunks > 0
    before_s = clock.instances[instance].begun_s
    clock.instances[instance].chained = known_s < math.inf
    clock.instances[instance].formed_s = min(known_s, now_s)
    clock.instances[instance].begun_s, clock.instances[instance].prompted = now_s, chunks > 0
    if rule.borrows:
        clock.instances[instance].guests = clock.ranks[clock.instances[instance].first_rank].guests
        cut_called(clock, rule, now_s, clock.system.preemptions > preempted)
    if chunks > 0:
        clock.instances[instance].at, clock.instances[instance].steps = MIXED, 1
        standing(clock, rule, instance, True)
        built_s = _build_s(clock, rule, clock.instances[instance].first_rank) if rule.build_s > 0.0 else 0.0
        clock.instances[instance].next_s = now_s + built_s + _prompts_s(clock, rule, instance)
        if followed and rule.late_results:
            pass_on_late(clock, rule, instance, before_s, now_s, built_s)
    elif decoding > 0:
        clock.instances[instance].at = DECODES
        steps = steps_to_go(clock, rule, instance)
        steps = min(steps, steps_to_look(clock, rule, instance, known_s))
        first = clock.instances[instance].first_rank
        if rule.borrows and clock.ranks[first].waiting > 0:
            waits = head(clock, rule, first)
            steps = 1 if owes_soon(clock, rule, first, waits) else steps
        if standing(clock, rule, instance, False):
            steps = 1
        set_run(clock, rule, instance, steps, math.inf)
    else:
        clock.instances[instance].at, clock.instances[instance].next_s = IDLE, math.inf


@clocked
def commit(clock: Clock, rule: Record, instance: int) -> None:
    """Books what an instance was at and has now done: tokens, ends, prompts."""
    now = clock.instances[instance].next_s
    seconds, steps = now - clock.instances[instance].begun_s, clock.instances[instance].steps
    rests(clock, instance, now, seconds)
    if rule.elastic > 0:
        part(clock, instance, seconds)
    counted = home(clock, instance)
    clock.system.runs += 1
    mixed = clock.instances[instance].at == MIXED
    total = 0.0
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        total += clock.ranks[rank].decoding
    if not mixed:
        book_run(clock, rule, instance, steps, seconds)
    else:
        clock.instances[instance].iterations += steps
        clock.system.iterations += steps
        clock.system.prefill_s += seconds
        if rule.scheduler == MIXED_BATCHES:
            if total > 0.0:
                tally(clock.histogram, seconds + clock.instances[instance].stalled_s, total * rule.gained)
            step_ranks(clock, rule, instance, steps)
        elif total > 0.0 and clock.instances[instance].lane == BOTH:
            clock.instances[instance].stalled_s += seconds
            clock.instances[instance].stalled = int(total)
    sample(clock, now)
    noticed_s = result_s(clock, rule, instance, now)
    if rule.borrows:
        clock.instances[instance].at = IDLE
        books(clock.hooks[BOOKS], clock, now)
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        request = NOBODY if clock.instances[instance].lane == PROMPTS else next_end(clock, rank)
        while request != NOBODY:
            finish(clock, rule, rank, request, now)
            clock.instances[counted].load -= 1
            ended(clock, request, now)
            request = next_end(clock, rank)
        if mixed:
            _prompts_done(clock, rule, instance, rank, now, noticed_s)
    if rule.borrows:
        cut_called(clock, rule, now, True)
    if clock.instances[instance].lane == ANSWERS:
        take_in(clock, rule, clock.instances[instance].first_rank)
    if clock.instances[instance].lane != BOTH:  # blocks are free for prompts, or the device for answers
        clock.instances[clock.instances[instance].peer].dirty = 1


@clocked
def _prompts_done(clock: Clock, rule: Record, instance: int, rank: int, now: float, noticed_s: float) -> None:
    """What becomes of prompts whose chunk was computed: more chunks, decoding, the end, or a move to another pool."""
    for place in range(clock.ranks[rank].chunks):
        request = clock.chunks[rank, place, 0]
        clock.requests[request].ready += clock.chunks[rank, place, 1]
        if clock.requests[request].ready < clock.requests[request].needed:
            continue
        prompt_done(clock, rule, rank, request, now)
        if clock.requests[request].made >= clock.requests[request].output:
            finish(clock, rule, rank, request, now)
            clock.instances[instance].load -= 1
            ended(clock, request, now)
        elif clock.instances[instance].gives > 0:
            clock.requests[request].stage = MOVING
            if clock.requests[request].made == 1:
                clock.requests[request].first_s = math.nan  # it travels with the cache
            clock.ranks[
                rank
            ].running -= not rule.moving_holds  # it stays in the order of admission, whoever holds a place
            begin_s = max(noticed_s, clock.ranks[rank].link_free_s)
            moved_s = clock.requests[request].needed * rule.move_token_s
            clock.ranks[rank].link_free_s = begin_s + moved_s
            clock.system.moves += 1
            push(clock, begin_s + moved_s + rule.move_start_s, request)
        else:
            prompt_joins(clock, rule, clock.instances[instance].peer, rank, request)
    clock.ranks[rank].chunks = 0
