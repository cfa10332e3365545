"""Runs of decode steps of an instance: how many, how long they take, and what they have done."""

from __future__ import annotations

import math

from ridgeline.serving.apart import apart_lines
from ridgeline.serving.borrowing import borrow_lines, steps_done
from ridgeline.serving.clock import Lines, Times, decode_lines, of_one_host, run, tally
from ridgeline.serving.compiling import clocked
from ridgeline.serving.fairness import steps_to_turn
from ridgeline.serving.kept import fetch_s
from ridgeline.serving.queues import growth, make_room, steps_that_fit
from ridgeline.serving.schedule import ensure_growth
from ridgeline.serving.split import split_lines
from ridgeline.serving.state import (
    DECODES,
    MIXED_BATCHES,
    Fleet,
    Lists,
    Record,
    Records,
)


@clocked
def _busiest(ranks: Records, instances: Records, rule: Record, instance: int) -> tuple[int, float, float, int]:
    """The rank with most to decode, of all ranks decoding sequences, of one scheduler running ones, ranks at work.

    On a split device only those that decode are of concern to the host of their lane. Ranks that stand decode nothing.
    """
    best, most, total, running, fullest, active = instances[instance].first_rank, -1, 0.0, 0.0, 0.0, 0
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        here = 0 if ranks[rank].stands else ranks[rank].decoding
        total += here
        seen = float(here if rule.split else ranks[rank].running)
        running, fullest = running + seen, max(fullest, seen)
        active += here > 0
        if here > most or (here == most and ranks[rank].context > ranks[best].context):
            best, most = rank, here
    return best, total, of_one_host(rule, fullest, running), active


@clocked
def steps_to_go(
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
    if rule.redraws > 0:  # priorities change then
        steps = min(steps, rule.redraws - instances[instance].iterations % rule.redraws)
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        if ranks[rank].decoding > 0:
            if rule.scheduler != MIXED_BATCHES and ensure_growth(ranks, lists, requests, fleet, rule, rank):
                steps = 1  # whom it sent back may fit again after it
            free = rule.capacity - ranks[rank].used
            first = lists.ends[rank, 0, 0] - ranks[rank].step
            steps = min(steps, max(steps_that_fit(ranks, lists, rule, rank, free, first), 1))
            steps = min(steps, steps_to_turn(ranks, lists, requests, rule, rank, steps))
    return int(steps)


@clocked
def standing(ranks: Records, instances: Records, rule: Record, instance: int, prompts: bool) -> bool:
    """Whether ranks that have just taken in sequences stand in this iteration while others step.

    They take part with nothing to compute, unless all have (then nothing is to be waited for) or `prompts` run. Source:
    sglang, srt/disaggregation/decode.py (get_next_disagg_decode_batch_to_run), pull requests 12839 and 19568.
    """
    some, others = False, False
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        if ranks[rank].decoding > 0:
            some, others = some or ranks[rank].stands > 0, others or ranks[rank].stands == 0
    stand = some and others and not prompts
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        if not stand:
            ranks[rank].stands = 0
    return stand


@clocked
def lines_of(
    ranks: Records,
    instances: Records,
    times: Times,
    rule: Record,
    instance: int,
    sequences: float,
    total: float,
    active: int,
) -> Lines:
    """The lines of an instance's decode steps over attention's time, as `clock.decode_lines`.

    `sequences` decode on the busiest rank, `total` on all of them, of which `active` are at work.
    """
    if rule.split:
        return split_lines(times, rule, sequences, instances[instance].share, instances[instance].asks)
    away_s = fetch_s(ranks, instances, rule, instance)
    if rule.micro_batches > 0:
        return apart_lines(times, rule, sequences, total / rule.ranks, away_s)
    lines = decode_lines(times, rule, sequences, total / rule.ranks, active > 1, away_s)
    return borrow_lines(ranks, instances, rule, instance, lines) if rule.borrows else lines


@clocked
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
    lines = lines_of(ranks, instances, times, rule, instance, sequences, total, active)
    context = ranks[best].context / max(ranks[best].decoding, 1)
    if moved > 0.0 and rule.beside:  # the first step is no shorter than what moves
        _, step_s = run(times, rule, sequences, running, context, lines, 1, math.inf, fleet.histogram, 0.0)
        moved = max(0.0, moved - step_s)
    begun = instances[instance].begun_s + moved
    done, elapsed = run(times, rule, sequences, running, context, lines, steps, limit_s - begun, fleet.histogram, 0.0)
    if done == 0:
        done, elapsed = run(times, rule, sequences, running, context, lines, 1, math.inf, fleet.histogram, 0.0)
    instances[instance].steps, instances[instance].next_s = done, begun + elapsed


@clocked
def _count_run(
    ranks: Records,
    instances: Records,
    fleet: Fleet,
    times: Times,
    rule: Record,
    instance: int,
    steps: int,
    seconds: float,
) -> None:
    """Counts the tokens of a run that has ended, and what ran in it."""
    best, total, running, active = _busiest(ranks, instances, rule, instance)
    sequences = float(ranks[best].decoding)
    lines = lines_of(ranks, instances, times, rule, instance, sequences, total, active)
    context, whole = ranks[best].context / max(ranks[best].decoding, 1), steps
    if instances[instance].stalled_s > 0.0:
        waited = min(float(instances[instance].stalled), total)
        tally(fleet.histogram, instances[instance].stalled_s + seconds / steps, waited * rule.gained)
        tally(fleet.histogram, seconds / steps, (total - waited) * rule.gained)
        instances[instance].stalled_s = 0.0
        context, steps = context + rule.gained, steps - 1
    run(times, rule, sequences, running, context, lines, steps, math.inf, fleet.histogram, total * rule.gained)
    fleet.system[0].decode_s += seconds
    fleet.system[0].sequence_s += total * seconds
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        grown = 0.5 * rule.gained * (whole - 1) * ranks[rank].decoding
        fleet.system[0].context_s += (ranks[rank].context + grown) * seconds


@clocked
def step_ranks(
    ranks: Records, lists: Lists, instances: Records, fleet: Fleet, rule: Record, instance: int, steps: int
) -> None:
    """Every decoding sequence of an instance gains the tokens of `steps` steps, but for those of ranks that stand."""
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        ranks[rank].moved_s = 0.0
        if ranks[rank].stands:
            continue
        if ranks[rank].decoding > 0:
            ranks[rank].used += growth(ranks, lists, rule, rank, steps)
            ranks[rank].context += rule.gained * steps * ranks[rank].decoding
            make_room(ranks, lists, rule, rank, 0)
            fleet.system[0].peak_blocks = max(fleet.system[0].peak_blocks, ranks[rank].used)
        ranks[rank].step += steps


@clocked
def book_run(
    ranks: Records,
    lists: Lists,
    instances: Records,
    fleet: Fleet,
    times: Times,
    rule: Record,
    instance: int,
    steps: int,
    seconds: float,
) -> None:
    """Books decode steps that have ended: their tokens, their time and what they held."""
    instances[instance].iterations += steps
    fleet.system[0].iterations += steps
    _count_run(ranks, instances, fleet, times, rule, instance, steps, seconds)
    stood = 0
    for rank in range(instances[instance].first_rank, instances[instance].first_rank + rule.ranks):
        stood += max(ranks[rank].decoding - ranks[rank].stands, 0) if ranks[rank].stands else 0
    if stood > 0:
        instances[instance].stalled_s, instances[instance].stalled = seconds, stood
    step_ranks(ranks, lists, instances, fleet, rule, instance, steps)


@clocked
def catch_up(
    ranks: Records, lists: Lists, instances: Records, fleet: Fleet, times: Times, rule: Record, now_s: float
) -> None:
    """Books the steps of all runs that have ended before now, so that what each rank holds is known."""
    for instance in range(instances.size):
        if instances[instance].at != DECODES or instances[instance].steps < 2:
            continue
        sequences = float(ranks[instances[instance].first_rank].decoding)
        lines = lines_of(ranks, instances, times, rule, instance, sequences, sequences, 1)
        done, elapsed = steps_done(ranks, instances, fleet, times, rule, instance, lines, now_s)
        if done > 0:
            book_run(ranks, lists, instances, fleet, times, rule, instance, done, elapsed)
            instances[instance].busy_s += elapsed
            instances[instance].begun_s += elapsed
            instances[instance].steps -= done


@clocked
def cut_called(
    ranks: Records, instances: Records, fleet: Fleet, times: Times, rule: Record, now_s: float, freed: bool
) -> None:
    """Runs whose loans have changed end with the step that runs; where blocks were `freed` all who wait take note."""
    for instance in range(instances.size):
        rank = instances[instance].first_rank
        if ranks[rank].called and instances[instance].at == DECODES and instances[instance].steps > 1:
            set_run(ranks, instances, fleet, times, rule, instance, instances[instance].steps, now_s)
        ranks[rank].called = 0
        if freed and ranks[rank].waiting > 0:
            instances[instance].stirred = 1
