"""Two lanes of one instance that share its rank: prompts in one, decode steps in the other, at the same time.

The share of the device that an iteration has is settled when it begins. Prompts that are done begin to decode with the
next step; a run of decode steps is cut at the step during which prompts begin or end.
"""

from __future__ import annotations

import math

from ridgeline.serving.clock import Times, hosted, run
from ridgeline.serving.compiling import clocked
from ridgeline.serving.runs import book_run, lines_of, set_run, steps_to_go
from ridgeline.serving.schedule import ensure_growth, form_batch
from ridgeline.serving.sequences import start_decoding
from ridgeline.serving.split import prompt_s
from ridgeline.serving.state import (
    ANSWERS,
    BOTH,
    DECODES,
    IDLE,
    JOINS,
    MIXED,
    NOBODY,
    Fleet,
    Lists,
    Record,
    Records,
)


@clocked
def home(instances: Records, instance: int) -> int:
    """The lane under which requests of an instance are counted: that of prompts."""
    return int(instances[instance].mate if instances[instance].lane == ANSWERS else instance)


@clocked
def works(instances: Records, instance: int, now_s: float) -> None:
    """Notes that a lane begins to work; its device is busy from then on if the other lane is idle."""
    if instances[instance].lane != BOTH and instances[instances[instance].mate].at == IDLE:
        instances[home(instances, instance)].since_s = now_s


@clocked
def rests(instances: Records, instance: int, now_s: float, seconds: float) -> None:
    """Counts the time that an instance's devices were busy, of two lanes when the last one stops."""
    if instances[instance].lane == BOTH:
        instances[instance].busy_s += seconds
    elif instances[instances[instance].mate].at == IDLE:
        counted = home(instances, instance)
        instances[counted].busy_s += now_s - instances[counted].since_s


@clocked
def begin_prompts(
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
    """Starts the next iteration of prompts, or leaves the lane idle."""
    mate = instances[instance].mate
    _catch_up(ranks, lists, instances, fleet, times, rule, mate, now_s)
    rank = instances[instance].first_rank
    form_batch(ranks, lists, requests, fleet, rule, rank, math.inf, now_s)
    instances[instance].begun_s = now_s
    instances[mate].stirred = 1  # its next step has another share, or another queue
    if ranks[rank].chunks == 0:
        instances[instance].at, instances[instance].next_s = IDLE, math.inf
        return
    seconds, prompts = prompt_s(ranks, lists, instances, times, rule, instance)
    works(instances, instance, now_s)
    instances[instance].at, instances[instance].steps = MIXED, 1
    instances[instance].next_s = now_s + hosted(rule, seconds, prompts)


@clocked
def begin_answers(
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
    """Starts the next run of decode steps, or leaves the lane idle."""
    rank, mate = instances[instance].first_rank, instances[instance].mate
    sent_back = ranks[rank].decoding > 0 and ensure_growth(ranks, lists, requests, fleet, rule, rank)
    if sent_back and instances[mate].at == IDLE:  # their blocks are free for whoever is next
        begin_prompts(ranks, lists, requests, instances, fleet, times, rule, mate, now_s)
        instances[instance].stirred = 0
    instances[instance].begun_s = now_s
    if ranks[rank].decoding == 0:
        instances[instance].at, instances[instance].next_s = IDLE, math.inf
        return
    beside = instances[mate].at == MIXED
    instances[instance].share = 1.0 - instances[mate].share if beside else 1.0
    instances[instance].asks = instances[mate].asks if beside else 0.0
    works(instances, instance, now_s)
    instances[instance].at = DECODES
    steps = steps_to_go(ranks, lists, requests, instances, fleet, rule, instance)
    set_run(ranks, instances, fleet, times, rule, instance, 1 if sent_back else steps, math.inf)


@clocked
def prompt_joins(
    ranks: Records,
    lists: Lists,
    requests: Records,
    instances: Records,
    rule: Record,
    mate: int,
    rank: int,
    request: int,
) -> None:
    """A prompt that is done decodes from the next step on: at once where none runs in the lane beside it."""
    if mate != NOBODY and instances[mate].at == DECODES:
        requests[request].stage = JOINS
        ranks[rank].joining += 1
    else:
        start_decoding(ranks, lists, requests, rule, rank, request)


@clocked
def take_in(ranks: Records, lists: Lists, requests: Records, rule: Record, rank: int) -> None:
    """Those whose prompts were done during a step decode from now on."""
    request = int(ranks[rank].run_first)
    while ranks[rank].joining > 0:
        if requests[request].stage == JOINS:
            start_decoding(ranks, lists, requests, rule, rank, request)
            ranks[rank].joining -= 1
        request = int(requests[request].after)


@clocked
def _catch_up(
    ranks: Records,
    lists: Lists,
    instances: Records,
    fleet: Fleet,
    times: Times,
    rule: Record,
    instance: int,
    now: float,
) -> None:
    """Books the steps of a run that have ended before now, and leaves the one that runs."""
    if instances[instance].at != DECODES or instances[instance].steps < 2:
        return
    rank, begun = instances[instance].first_rank, instances[instance].begun_s
    sequences = float(ranks[rank].decoding)
    lines = lines_of(ranks, instances, times, rule, instance, sequences, sequences, 1)  # a divided device is one rank
    context = ranks[rank].context / sequences
    most = instances[instance].steps
    histogram = fleet.histogram
    done, _ = run(times, rule, sequences, sequences, context, lines, most, now - begun, histogram, 0.0)
    if done > 1:
        _, elapsed = run(times, rule, sequences, sequences, context, lines, done - 1, math.inf, histogram, 0.0)
        book_run(ranks, lists, instances, fleet, times, rule, instance, done - 1, elapsed)
        instances[instance].begun_s = begun + elapsed
        instances[instance].steps = most - (done - 1)
