"""Two lanes of one instance that share its rank: prompts in one, decode steps in the other, at the same time.

The share of the device that an iteration has is settled when it begins. Prompts that are done begin to decode with the
next step; a run of decode steps is cut at the step during which prompts begin or end.
"""

from __future__ import annotations

import math

from ridgeline.serving.clock import hosted
from ridgeline.serving.compiling import clocked
from ridgeline.serving.runs import catch_up, set_run, steps_to_go
from ridgeline.serving.schedule import ensure_growth, form_batch
from ridgeline.serving.sequences import start_decoding
from ridgeline.serving.split import prompt_s
from ridgeline.serving.state import ANSWERS, BOTH, DECODES, IDLE, JOINS, MIXED, NOBODY, Clock, Record


@clocked
def home(clock: Clock, instance: int) -> int:
    """The lane under which requests of an instance are counted: that of prompts."""
    return int(clock.instances[instance].peer if clock.instances[instance].lane == ANSWERS else instance)


@clocked
def works(clock: Clock, instance: int, now_s: float) -> None:
    """Notes that a lane begins to work; its device is busy from then on if the other lane is idle."""
    if clock.instances[instance].lane != BOTH and clock.instances[clock.instances[instance].peer].at == IDLE:
        clock.instances[home(clock, instance)].since_s = now_s


@clocked
def rests(clock: Clock, instance: int, now_s: float, seconds: float) -> None:
    """Counts the time that an instance's devices were busy, of two lanes when the last one stops."""
    if clock.instances[instance].lane == BOTH:
        clock.instances[instance].busy_s += seconds
    elif clock.instances[clock.instances[instance].peer].at == IDLE:
        counted = home(clock, instance)
        clock.instances[counted].busy_s += now_s - clock.instances[counted].since_s


@clocked
def begin_prompts(clock: Clock, rule: Record, instance: int, now_s: float) -> None:
    """Starts the next iteration of prompts, or leaves the lane idle."""
    peer = clock.instances[instance].peer
    catch_up(clock, rule, peer, now_s)
    rank = clock.instances[instance].first_rank
    form_batch(clock, rule, rank, math.inf, now_s)
    clock.instances[instance].begun_s = now_s
    clock.instances[peer].dirty = 1  # its next step has another share, or another queue
    if clock.ranks[rank].chunks == 0:
        clock.instances[instance].at, clock.instances[instance].next_s = IDLE, math.inf
        return
    seconds, prompts = prompt_s(clock, rule, instance)
    works(clock, instance, now_s)
    clock.instances[instance].at, clock.instances[instance].steps = MIXED, 1
    clock.instances[instance].next_s = now_s + hosted(rule, seconds, prompts)


@clocked
def begin_answers(clock: Clock, rule: Record, instance: int, now_s: float) -> None:
    """Starts the next run of decode steps, or leaves the lane idle."""
    rank, peer = clock.instances[instance].first_rank, clock.instances[instance].peer
    sent_back = clock.ranks[rank].decoding > 0 and ensure_growth(clock, rule, rank)
    if sent_back and clock.instances[peer].at == IDLE:  # their blocks are free for whoever is next
        begin_prompts(clock, rule, peer, now_s)
        clock.instances[instance].dirty = 0
    clock.instances[instance].begun_s = now_s
    if clock.ranks[rank].decoding == 0:
        clock.instances[instance].at, clock.instances[instance].next_s = IDLE, math.inf
        return
    beside = clock.instances[peer].at == MIXED
    clock.instances[instance].share = 1.0 - clock.instances[peer].share if beside else 1.0
    clock.instances[instance].asks = clock.instances[peer].asks if beside else 0.0
    works(clock, instance, now_s)
    clock.instances[instance].at = DECODES
    steps = steps_to_go(clock, rule, instance)
    set_run(clock, rule, instance, 1 if sent_back else steps, math.inf)


@clocked
def prompt_joins(clock: Clock, rule: Record, peer: int, rank: int, request: int) -> None:
    """A prompt that is done decodes from the next step on: at once where none runs in the lane beside it."""
    if peer != NOBODY and clock.instances[peer].at == DECODES:
        clock.requests[request].stage = JOINS
        clock.ranks[rank].joining += 1
    else:
        start_decoding(clock, rule, rank, request)


@clocked
def take_in(clock: Clock, rule: Record, rank: int) -> None:
    """Those whose prompts were done during a step decode from now on."""
    request = int(clock.ranks[rank].run_first)
    while clock.ranks[rank].joining > 0:
        if clock.requests[request].stage == JOINS:
            start_decoding(clock, rule, rank, request)
            clock.ranks[rank].joining -= 1
        request = int(clock.requests[request].after)
