"""Orders for the zero-bubble family: skeletons of forwards and input backwards, to be filled with weight parts.

Shape letters: P stages, v chunks per stage, K = P v positions of the chain, m micro-batches.

A skeleton says in which order a stage runs its forwards and input backwards. Straight schedules take 1F1B's with
more warm-up. V-shaped ones repeat one micro-batch's block of time slots every six slots (two chunks times forward,
input and weight part); the block moves `slope` slots from one stage to the next in each of its four passes, and
the slopes set how long activations live: 4P slots for V-Min, 6P for V-Half, 12P for ZB-V, so a third, a half
and all of 1F1B's memory (Qi et al. 2024, arXiv:2405.15362). Waits at the block's turns keep the passes of one stage in
different slots modulo six.
Filling walks through time with the real durations: a stage runs its next skeleton entry as soon as it can, and a
weight part while it waits or when memory is full. Where asked, it also starts forwards of chunk 0 ahead of their
turn in such gaps, which fills the warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.compiled import kernel, run_on_lists
from ridgeline.seams.schedule import Durations, Order

Numbers = Any  # a list or an array, by the way the kernel runs
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NEVER_S = 1e300  # later than any event

_TASK_S = 3e-6  # measured: placing a task in plain Python


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """Order of forwards (kind 0) and input backwards (2) alone, (P, 2 v m), and how freely it is filled.

    `allowed` (P, 2 v m), at most m, is how many forwards of chunk 0 may have run while the stage stands at an entry, so
    that some may run before their turn; a gap is filled when it is at least `patience` of the filler long.
    """

    position: Integers
    kind: Integers
    allowed: Integers
    patience: float


@dataclass(frozen=True, kw_only=True)
class Filled:
    """A filled order: kind (0 F, 2 Bi, 3 W), position and micro-batch, each (P, 3 v m), and what it takes [s]."""

    kind: Integers
    position: Integers
    micro_batch: Integers
    makespan_s: float
    longest_span_s: float


# Rows of the kernel's tables. Times per position: of its parts (0 to 2), of what forward and input backward hand on (3,
# 4), and the least gap that a weight part or a forward before its turn fills (5, 6).
SEND, LEAST_WEIGHT, LEAST_FORWARD = 3, 5, 6
# Per position: how many of each have run, how many forwards the skeleton has passed, and its stage.
RAN_FORWARD, RAN_INPUT, RAN_WEIGHT, PASSED, STAGE = 0, 1, 2, 3, 4
# Per stage: activations held, tasks placed, place in the skeleton, weight parts queued and taken from the queue,
# and the most activations that it may hold.
HELD, PLACED, CURSOR, QUEUED, TAKEN, CAP = 0, 1, 2, 3, 4, 5
# What is placed: kind, position and micro-batch of each task, and the positions of queued weight parts.
KIND, POSITION, MICRO_BATCH, QUEUE = 0, 1, 2, 3
# Per stage: when it decides next, when its first task started and its latest ends.
WAKE, FIRST, LATEST = 0, 1, 2
WAIT, RUN_FORWARD, RUN_INPUT, RUN_WEIGHT = -1, 0, 2, 3


@kernel
def _choose(
    stage: int,
    now_s: float,
    times_s: Numbers,
    skeleton: Numbers,
    ready_s: Numbers,
    ran: Numbers,
    lane: Numbers,
    queue: Numbers,
) -> tuple[int, int, float]:
    """What a stage does now: action, position, and, for WAIT, the time at which to ask again."""
    entries = len(skeleton[0]) // len(lane[CAP])
    micro_batches = len(ready_s[0]) // len(times_s[0])
    place = stage * entries + lane[CURSOR][stage]
    waiting_weight = (
        queue[stage * entries // 2 + lane[TAKEN][stage]] if lane[TAKEN][stage] < lane[QUEUED][stage] else -1
    )
    if lane[CURSOR][stage] == entries:
        return RUN_WEIGHT, waiting_weight, now_s
    position = skeleton[0][place]
    if skeleton[1][place] == RUN_INPUT:
        due_s = ready_s[1][position * micro_batches + ran[RAN_INPUT][position]]
        if due_s <= now_s:
            return RUN_INPUT, position, now_s
    elif lane[HELD][stage] < lane[CAP][stage]:
        due_s = ready_s[0][position * micro_batches + ran[RAN_FORWARD][position]]
        if due_s <= now_s:
            return RUN_FORWARD, position, now_s
    elif waiting_weight >= 0:
        return RUN_WEIGHT, waiting_weight, now_s
    else:
        return WAIT, position, NEVER_S
    if waiting_weight >= 0 and due_s - now_s >= times_s[LEAST_WEIGHT][waiting_weight]:
        return RUN_WEIGHT, waiting_weight, now_s
    next_forward = ran[RAN_FORWARD][stage]
    if next_forward < skeleton[2][place] and lane[HELD][stage] < lane[CAP][stage]:
        early_s = ready_s[0][stage * micro_batches + next_forward]
        if early_s <= now_s and due_s - now_s >= times_s[LEAST_FORWARD][stage]:
            return RUN_FORWARD, stage, now_s
        if now_s < early_s < due_s:
            return WAIT, stage, early_s
    return WAIT, position, due_s


@kernel
def _pass_early(stage: int, skeleton: Numbers, ran: Numbers, lane: Numbers, entries: int) -> None:
    """Move the stage's cursor past forwards that have already run."""
    while lane[CURSOR][stage] < entries:
        place = stage * entries + lane[CURSOR][stage]
        position = skeleton[0][place]
        if skeleton[1][place] != RUN_FORWARD or ran[RAN_FORWARD][position] <= ran[PASSED][position]:
            break
        ran[PASSED][position] += 1
        lane[CURSOR][stage] += 1


@kernel
def _seat(changed: int, wake_s: Numbers, winner: Numbers) -> None:
    """Restore the tournament tree after one stage's wake time changed: the earliest stage is at the root."""
    node = (changed + len(winner) // 2) // 2
    while node > 0:
        left, right = winner[2 * node], winner[2 * node + 1]
        winner[node] = right if wake_s[right] < wake_s[left] else left
        node = node // 2


@kernel
def _fill(
    times_s: Numbers,
    skeleton: Numbers,
    out: Numbers,
    ready_s: Numbers,
    ran: Numbers,
    lane: Numbers,
    clock_s: Numbers,
    winner: Numbers,
) -> int:
    """Fill a skeleton in order of time; return the number of tasks placed, short of all if memory blocks."""
    stages, length = len(lane[CAP]), len(times_s[0])
    micro_batches = len(ready_s[0]) // length
    queue = out[QUEUE]
    entries = len(skeleton[0]) // stages
    tasks = 3 * entries // 2
    placed = 0
    while placed < tasks * stages:
        stage = winner[1]
        now_s = clock_s[WAKE][stage]
        if now_s >= NEVER_S:
            return placed
        _pass_early(stage, skeleton, ran, lane, entries)
        action, position, ask_s = _choose(stage, now_s, times_s, skeleton, ready_s, ran, lane, queue)
        if action == WAIT:
            clock_s[WAKE][stage] = ask_s
            _seat(stage, clock_s[WAKE], winner)
            continue
        part = action if action == RUN_FORWARD else action - 1  # row of times_s and ran
        micro_batch = ran[part][position]
        ran[part][position] += 1
        end_s = now_s + times_s[part][position]
        other, arrival_s = stage, end_s
        if action == RUN_WEIGHT:
            lane[TAKEN][stage] += 1
            lane[HELD][stage] -= 1
        else:
            receiver = position + 1 if action == RUN_FORWARD else position - 1
            if 0 <= receiver < length:
                other = ran[STAGE][receiver]
                if other != stage:
                    arrival_s = end_s + times_s[SEND + part][position]
                ready_s[part][receiver * micro_batches + micro_batch] = arrival_s
            elif action == RUN_FORWARD:
                ready_s[1][position * micro_batches + micro_batch] = end_s
            if action == RUN_FORWARD:
                lane[HELD][stage] += 1
            else:
                queue[stage * entries // 2 + lane[QUEUED][stage]] = position
                lane[QUEUED][stage] += 1
                lane[CURSOR][stage] += 1
        place = stage * tasks + lane[PLACED][stage]
        out[KIND][place] = action
        out[POSITION][place] = position
        out[MICRO_BATCH][place] = micro_batch
        if lane[PLACED][stage] == 0:
            clock_s[FIRST][stage] = now_s
        lane[PLACED][stage] += 1
        placed += 1
        clock_s[LATEST][stage] = end_s
        clock_s[WAKE][stage] = end_s if lane[PLACED][stage] < tasks else NEVER_S
        _seat(stage, clock_s[WAKE], winner)
        if other != stage and lane[PLACED][other] < tasks and arrival_s < clock_s[WAKE][other]:
            # A busy stage decides at its end anyway; a waiting one decides when the result arrives.
            latest_s = clock_s[LATEST][other]
            clock_s[WAKE][other] = arrival_s if arrival_s > latest_s else latest_s
            _seat(other, clock_s[WAKE], winner)
    return placed


def fill(
    skeleton: Skeleton,
    *,
    chain: Integers,
    micro_batches: int,
    times_s: Floats,
    send_s: float | Floats,
    cap: Integers,
    steps: int | None = None,
    compiled: bool | None = None,
) -> Filled | None:
    """Fill one skeleton under a memory cap; None if the cap blocks it.

    `chain` (P, v) positions; `times_s` (3, K) forward, input and weight time of each position [s]; `send_s` of what
    its forward and its input backward hand on, a number or (2, K) [s]; `cap` (P,).
    `steps` announces more work to the kernel than this one filling (None: this one).
    """
    stages, chunks = chain.shape
    length, tasks = chain.size, 3 * chunks * micro_batches
    leaves = 1 << max(stages - 1, 1).bit_length()
    ready = np.full((2, length * micro_batches), NEVER_S)
    ready[0, :micro_batches] = 0.0
    clock = np.full((3, leaves), NEVER_S)
    clock[:, :stages] = 0.0
    # All stages wake at 0, so every match goes to its leftmost leaf; leaves without a stage never wake.
    winner = np.zeros(2 * leaves, dtype=np.int64)
    winner[leaves:] = np.arange(leaves)
    for node in range(leaves - 1, 0, -1):
        winner[node] = winner[2 * node]
    out = np.empty((4, stages * tasks), dtype=np.int64)
    ran, lane = np.zeros((5, length), dtype=np.int64), np.zeros((6, stages), dtype=np.int64)
    ran[STAGE, chain] = np.arange(stages)[:, None]
    lane[CAP] = cap
    sends = np.broadcast_to(send_s, (2, length))
    placed = run_on_lists(
        _fill,
        (
            np.concatenate((times_s, sends, skeleton.patience * times_s[[2, 0]])),
            np.stack((skeleton.position.ravel(), skeleton.kind.ravel(), skeleton.allowed.ravel())),
        ),
        (out, ready, ran, lane, clock, winner),
        plain_s=(stages * tasks if steps is None else steps) * _TASK_S,
        force=compiled,
    )
    if placed < stages * tasks:
        return None
    first, latest = clock[FIRST, :stages], clock[LATEST, :stages]
    kind, position, micro_batch = out[:QUEUE].reshape(3, stages, tasks)
    return Filled(
        kind=kind,
        position=position,
        micro_batch=micro_batch,
        makespan_s=float(latest.max()),
        longest_span_s=float((latest - first).max()),
    )


Slopes = tuple[int, int, int, int]
SLOTS = 6  # two chunks, each with forward, input and weight part
# Least gap worth filling, in lengths of the filler. All are tried: with equal parts any gap is (0), with uneven ones it
# often pays to let gaps pass that are shorter than a quarter of the filler or than all of it.
PATIENCE = (0.0, 0.25, 1.0)


def _straight_skeleton(stages: int, micro_batches: int, warm_up: Integers) -> tuple[Integers, Integers]:
    """Warm-up forwards, then one input backward and one forward in turn, then input backwards."""
    k = np.arange(micro_batches)[None, :]
    warm = np.minimum(warm_up, micro_batches)[:, None]
    kind = np.full((stages, 2 * micro_batches), 2, dtype=np.int64)
    np.put_along_axis(kind, np.where(k < warm, k, 2 * k - warm + 1), 0, axis=1)
    return np.broadcast_to(np.arange(stages)[:, None], kind.shape).copy(), kind


def _folded_skeleton(
    slope: Slopes, waits: tuple[int, int], chain: Integers, micro_batches: int, interval: int
) -> tuple[Integers, Integers]:
    """The schedule's block of one micro-batch, repeated every `interval` slots."""
    stages = chain.shape[0]
    down, up = np.arange(stages), np.arange(stages)[::-1]
    before_backward, at_turn = waits
    forward_down = slope[0] * down
    forward_up = forward_down[-1] + 1 + slope[1] * up
    backward_down = forward_up[0] + 1 + before_backward + slope[2] * down
    backward_up = backward_down[-1] + 1 + at_turn + slope[3] * up
    slot = np.stack((forward_down, forward_up, backward_down, backward_up), axis=1)[:, :, None]
    slot = (slot + interval * np.arange(micro_batches)).reshape(stages, -1)
    by_slot = np.argsort(slot, axis=1, kind="stable")
    line = by_slot // micro_batches
    return np.take_along_axis(chain, np.array((0, 1, 1, 0))[line], axis=1), np.array((0, 0, 2, 2))[line]


def _held_at_least(kind: Integers) -> Integers:
    """Chunk-activations that a skeleton holds on each stage even if no weight part is ever late [1]."""
    held: Integers = np.cumsum(np.where(kind == 0, 1, -1), axis=1).max(axis=1)
    return held


def straight_skeletons(micro_batches: int, warm_up: Integers, cap: Integers) -> Iterator[Skeleton]:
    """1F1B's order with (P,) forwards before the first backward, as far as the cap (P,) lets them."""
    warm_up = np.minimum.accumulate(np.minimum(warm_up, cap))  # a stage cannot warm up with more than those before send
    position, kind = _straight_skeleton(len(cap), micro_batches, warm_up)
    for patience in PATIENCE:
        yield Skeleton(position=position, kind=kind, allowed=np.zeros_like(kind), patience=patience)


def folded_skeletons(
    slopes: Slopes, waits: tuple[int, int], chain: Integers, micro_batches: int, cap: Integers
) -> Iterator[Skeleton]:
    """A folded schedule's block, as close together as the cap (P,) lets them stand, with and without early forwards.

    `slopes` are slots per stage of the four passes (forward down, forward up, backward down, backward up), `waits` the
    slots to wait before the first backward and at its turn.
    """
    interval = SLOTS
    position, kind = _folded_skeleton(slopes, waits, chain, micro_batches, interval)
    while (_held_at_least(kind) > cap).any():
        interval += 1 + interval // 8
        position, kind = _folded_skeleton(slopes, waits, chain, micro_batches, interval)
    none, early = np.zeros_like(kind), _allowed(position, kind, micro_batches, cap)
    for allowed in (none, early):
        for patience in PATIENCE:
            yield Skeleton(position=position, kind=kind, allowed=allowed, patience=patience)


def _allowed(position: Integers, kind: Integers, micro_batches: int, cap: Integers) -> Integers:
    """Forwards of chunk 0 that may have run at each entry if the rest of the skeleton must still fit the cap [1].

    With n of them run, a later entry x at which the skeleton itself has fewer holds n + (other forwards - input
    backwards up to x); n may rise until the largest of these meets the cap.
    """
    stage = np.arange(position.shape[0])[:, None]
    others = np.cumsum(np.where(kind != 0, -1, np.where(position == stage, 0, 1)), axis=1)
    to_come = np.maximum.accumulate(others[:, ::-1], axis=1)[:, ::-1]
    return np.minimum(cap[:, None] - to_come, micro_batches)


def filled_order(
    skeletons: Sequence[Skeleton], chain: Integers, micro_batches: int, durations: Durations, cap: Integers
) -> Order:
    """The shortest filling among skeletons as an order; ties go to the shortest span of a stage.

    `chain` (P, v) places of the chunks; `cap` (P,) >= v chunk-activations that each stage may hold.
    """

    def by_place(times_s: Floats) -> Floats:
        times = np.empty(chain.size)
        times[chain] = times_s
        return times

    times = np.stack([by_place(each) for each in (durations.forward_s, durations.input_s, durations.weight_s)])
    sends = np.stack([by_place(each) for each in (durations.onward_s, durations.homeward_s)])
    announced = [skeletons[0].kind.size * 3 // 2 * len(skeletons)] + [0] * (len(skeletons) - 1)
    fillings = [
        fill(each, chain=chain, micro_batches=micro_batches, times_s=times, send_s=sends, cap=cap, steps=steps)
        for each, steps in zip(skeletons, announced, strict=True)
    ]
    best = min((each for each in fillings if each is not None), key=lambda each: (each.makespan_s, each.longest_span_s))
    return Order(
        places=chain,
        micro_batches=micro_batches,
        kind=best.kind.astype(np.int8),
        micro_batch=best.micro_batch.astype(np.int32),
        chunk=(best.position != chain[:, :1]).astype(np.int16),
    )
