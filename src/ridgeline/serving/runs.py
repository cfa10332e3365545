"""Runs of decode steps of an instance: how many, how long they take, and what they have done."""

from __future__ import annotations

import math

from ridgeline.serving.attention_ffn import micro_batched_lines
from ridgeline.serving.clock import Batch, Lines, decode_lines, of_one_host, run, tally
from ridgeline.serving.compiling import clocked
from ridgeline.serving.fairness import steps_to_turn
from ridgeline.serving.kv_eviction import fetch_s
from ridgeline.serving.queues import growth, make_room, steps_that_fit
from ridgeline.serving.remote_kv import borrow_lines
from ridgeline.serving.schedule import ensure_growth
from ridgeline.serving.split import split_lines
from ridgeline.serving.state import BOTH, DECODES, MIXED_BATCHES, Clock, Record


@clocked
def _busiest(clock: Clock, rule: Record, instance: int) -> tuple[int, float, float, int]:
    """The rank with most to decode, of all ranks decoding sequences, of one scheduler running ones, ranks at work.

    On a split device only those that decode are of concern to the host of their lane. Ranks that stand decode nothing.
    """
    best, most, total, running, fullest, active = clock.instances[instance].first_rank, -1, 0.0, 0.0, 0.0, 0
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        here = 0 if clock.ranks[rank].stands else clock.ranks[rank].decoding
        total += here
        seen = float(here if rule.split else clock.ranks[rank].running)
        running, fullest = running + seen, max(fullest, seen)
        active += here > 0
        if here > most or (here == most and clock.ranks[rank].context > clock.ranks[best].context):
            best, most = rank, here
    return best, total, of_one_host(rule, fullest, running), active


@clocked
def steps_to_go(clock: Clock, rule: Record, instance: int) -> int:
    """Decode steps until a request of the instance ends or its blocks run out, at least 1 [step]."""
    steps = (
        clock.ranks[clock.instances[instance].first_rank].step + rule.capacity * rule.block_tokens
    )  # no run is longer
    if rule.redraws > 0:  # priorities change then
        steps = min(steps, rule.redraws - clock.instances[instance].iterations % rule.redraws)
    if rule.rearranges > 0 and clock.ranks[clock.instances[instance].first_rank].waiting > 0:  # caches may move then
        steps = min(steps, rule.rearranges - clock.instances[instance].iterations % rule.rearranges)
    if rule.rearranges > 0 and clock.ranks[clock.instances[instance].first_rank].moved_s > 0.0:  # before the first step
        steps = 1
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        if clock.ranks[rank].decoding > 0:
            if rule.scheduler != MIXED_BATCHES and ensure_growth(clock, rule, rank):
                steps = 1  # whom it sent back may fit again after it
            free = rule.capacity - clock.ranks[rank].used
            first = clock.ends[rank, 0, 0] - clock.ranks[rank].step
            steps = min(steps, max(steps_that_fit(clock, rule, rank, free, first), 1))
            steps = min(steps, steps_to_turn(clock, rule, rank, steps))
    return int(steps)


@clocked
def standing(clock: Clock, rule: Record, instance: int, prompts: bool) -> bool:
    """Whether ranks that have just taken in sequences stand in this iteration while others step.

    They take part with nothing to compute, unless all have (then nothing is to be waited for) or `prompts` run. Source:
    sglang, srt/disaggregation/decode.py (get_next_disagg_decode_batch_to_run), pull requests 12839 and 19568.
    """
    some, others = False, False
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        if clock.ranks[rank].decoding > 0:
            some, others = some or clock.ranks[rank].stands > 0, others or clock.ranks[rank].stands == 0
    stand = some and others and not prompts
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        if not stand:
            clock.ranks[rank].stands = 0
    return stand


@clocked
def lines_of(clock: Clock, rule: Record, instance: int, sequences: float, total: float, active: int) -> Lines:
    """The lines of an instance's decode steps over attention's time, as `clock.decode_lines`.

    `sequences` decode on the busiest rank, `total` on all of them, of which `active` are at work.
    """
    if rule.split:
        return split_lines(
            clock.times, rule, sequences, clock.instances[instance].share, clock.instances[instance].asks
        )
    away_s = fetch_s(clock, rule, instance)
    if rule.micro_batches > 0:
        return micro_batched_lines(clock.times, rule, sequences, total / rule.ranks, away_s)
    lines = decode_lines(clock.times, rule, sequences, total / rule.ranks, active > 1, away_s)
    return borrow_lines(clock, rule, instance, lines) if rule.borrows else lines


@clocked
def _moved_s(clock: Clock, rule: Record, instance: int, batch: Batch, lines: Lines) -> float:
    """By how much caches that move to or from the host make the first step of a run longer [s]."""
    moved = 0.0
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        moved = max(moved, clock.ranks[rank].moved_s)
    if moved > 0.0 and rule.beside:  # the first step is no shorter than what moves
        _, step_s = run(clock.times, rule, batch, lines, 1, math.inf, clock.histogram, 0.0)
        moved = max(0.0, moved - step_s)
    return float(moved)


@clocked
def set_run(clock: Clock, rule: Record, instance: int, steps: int, limit_s: float) -> None:
    """Sets the length of a run of decode steps: at most `steps`, cut at the first that ends at `limit_s` or later."""
    best, total, running, active = _busiest(clock, rule, instance)
    sequences = float(clock.ranks[best].decoding)
    lines = lines_of(clock, rule, instance, sequences, total, active)
    batch = (sequences, running, clock.ranks[best].context / max(clock.ranks[best].decoding, 1))
    begun = clock.instances[instance].begun_s + _moved_s(clock, rule, instance, batch, lines)
    done, elapsed = run(clock.times, rule, batch, lines, steps, limit_s - begun, clock.histogram, 0.0)
    if done == 0:
        done, elapsed = run(clock.times, rule, batch, lines, 1, math.inf, clock.histogram, 0.0)
    clock.instances[instance].steps, clock.instances[instance].next_s = done, begun + elapsed


@clocked
def _count_run(clock: Clock, rule: Record, instance: int, steps: int, seconds: float) -> None:
    """Counts the tokens of a run that has ended, and what ran in it."""
    best, total, running, active = _busiest(clock, rule, instance)
    sequences = float(clock.ranks[best].decoding)
    lines = lines_of(clock, rule, instance, sequences, total, active)
    context, whole = clock.ranks[best].context / max(clock.ranks[best].decoding, 1), steps
    if clock.instances[instance].stalled_s > 0.0:
        waited = min(float(clock.instances[instance].stalled), total)
        tally(clock.histogram, clock.instances[instance].stalled_s + seconds / steps, waited * rule.gained)
        tally(clock.histogram, seconds / steps, (total - waited) * rule.gained)
        clock.instances[instance].stalled_s = 0.0
        context, steps = context + rule.gained, steps - 1
    run(clock.times, rule, (sequences, running, context), lines, steps, math.inf, clock.histogram, total * rule.gained)
    clock.system.decode_s += seconds
    clock.system.sequence_s += total * seconds
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        grown = 0.5 * rule.gained * (whole - 1) * clock.ranks[rank].decoding
        clock.system.context_s += (clock.ranks[rank].context + grown) * seconds


@clocked
def step_ranks(clock: Clock, rule: Record, instance: int, steps: int) -> None:
    """Every decoding sequence of an instance gains the tokens of `steps` steps, but for those of ranks that stand."""
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        clock.ranks[rank].moved_s = 0.0
        if clock.ranks[rank].stands:
            continue
        if clock.ranks[rank].decoding > 0:
            clock.ranks[rank].used += growth(clock, rule, rank, steps)
            clock.ranks[rank].context += rule.gained * steps * clock.ranks[rank].decoding
            make_room(clock, rule, rank, 0)
            clock.system.peak_blocks = max(clock.system.peak_blocks, clock.ranks[rank].used)
        clock.ranks[rank].step += steps


@clocked
def book_run(clock: Clock, rule: Record, instance: int, steps: int, seconds: float) -> None:
    """Books decode steps that have ended: their tokens, their time and what they held."""
    clock.instances[instance].iterations += steps
    clock.system.iterations += steps
    _count_run(clock, rule, instance, steps, seconds)
    stood = 0
    for rank in range(clock.instances[instance].first_rank, clock.instances[instance].first_rank + rule.ranks):
        stood += max(clock.ranks[rank].decoding - clock.ranks[rank].stands, 0) if clock.ranks[rank].stands else 0
    if stood > 0:
        clock.instances[instance].stalled_s, clock.instances[instance].stalled = seconds, stood
    step_ranks(clock, rule, instance, steps)


@clocked
def catch_up(clock: Clock, rule: Record, instance: int, now_s: float) -> None:
    """Books the steps of a run that have ended before now, and leaves the one that runs."""
    if clock.instances[instance].at != DECODES or clock.instances[instance].steps < 2:
        return
    best, total, running, active = _busiest(clock, rule, instance)
    sequences = float(clock.ranks[best].decoding)
    lines = lines_of(clock, rule, instance, sequences, total, active)
    batch, most = (sequences, running, clock.ranks[best].context / sequences), clock.instances[instance].steps
    moved = _moved_s(clock, rule, instance, batch, lines)
    limit_s = now_s - (clock.instances[instance].begun_s + moved)
    done, _ = run(clock.times, rule, batch, lines, most, limit_s, clock.histogram, 0.0)
    if done < 2:
        return
    _, elapsed = run(clock.times, rule, batch, lines, done - 1, math.inf, clock.histogram, 0.0)
    elapsed += moved
    book_run(clock, rule, instance, done - 1, elapsed)
    if clock.instances[instance].lane == BOTH:  # else busy until both lanes are idle
        clock.instances[instance].busy_s += elapsed
    clock.instances[instance].begun_s += elapsed
    clock.instances[instance].steps = most - (done - 1)


@clocked
def catch_up_all(clock: Clock, now_s: float) -> int:
    """Hook `books`: the steps of all runs that have ended before now, so that what each rank holds is known."""
    for instance in range(clock.instances.size):
        catch_up(clock, clock.rules[clock.instances[instance].kind], instance, now_s)
    return 0


@clocked
def cut_called(clock: Clock, rule: Record, now_s: float, freed: bool) -> None:
    """Runs whose loans have changed end with the step that runs; where blocks were `freed` all who wait take note."""
    for instance in range(clock.instances.size):
        rank = clock.instances[instance].first_rank
        if clock.ranks[rank].called and clock.instances[instance].at == DECODES and clock.instances[instance].steps > 1:
            set_run(clock, rule, instance, clock.instances[instance].steps, now_s)
        clock.ranks[rank].called = 0
        if freed and clock.ranks[rank].waiting > 0:
            clock.instances[instance].dirty = 1
