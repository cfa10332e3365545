"""Filling a skeleton: when each stage runs its forwards, input backwards and, in between, its weight parts.

Shape letters: P stages, v chunks per stage, K = P v positions of the chain, m micro-batches.

The filling walks through time with the real durations: a stage runs its next skeleton entry as soon as it can, and a
weight part while it waits or when memory is full. Where asked, it also starts forwards of chunk 0 ahead of their
turn in such gaps, which fills the warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.compiled import kernel, run_on_lists

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


# Rows of the kernel's tables. Per position: how many of each have run, and how many forwards the skeleton has passed.
RAN_FORWARD, RAN_INPUT, RAN_WEIGHT, PASSED = 0, 1, 2, 3
# Per stage: activations held, tasks placed, place in the skeleton, weight parts queued and taken from the queue.
HELD, PLACED, CURSOR, QUEUED, TAKEN = 0, 1, 2, 3, 4
# Per stage: when it decides next, when its first task started and its latest ends.
WAKE, FIRST, LATEST = 0, 1, 2
WAIT, RUN_FORWARD, RUN_INPUT, RUN_WEIGHT = -1, 0, 2, 3


@kernel
def _choose(
    stage: int,
    now_s: float,
    micro_batches: int,
    patience: float,
    times_s: Numbers,
    cap: Numbers,
    skeleton: Numbers,
    ready_s: Numbers,
    ran: Numbers,
    lane: Numbers,
    queue: Numbers,
) -> tuple[int, int, float]:
    """What a stage does now: action, position, and, for WAIT, the time at which to ask again."""
    entries = len(skeleton[0]) // len(cap)
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
    elif lane[HELD][stage] < cap[stage]:
        due_s = ready_s[0][position * micro_batches + ran[RAN_FORWARD][position]]
        if due_s <= now_s:
            return RUN_FORWARD, position, now_s
    elif waiting_weight >= 0:
        return RUN_WEIGHT, waiting_weight, now_s
    else:
        return WAIT, position, NEVER_S
    if waiting_weight >= 0 and due_s - now_s >= patience * times_s[2][waiting_weight]:
        return RUN_WEIGHT, waiting_weight, now_s
    next_forward = ran[RAN_FORWARD][stage]
    if next_forward < skeleton[2][place] and lane[HELD][stage] < cap[stage]:
        early_s = ready_s[0][stage * micro_batches + next_forward]
        if early_s <= now_s and due_s - now_s >= patience * times_s[0][stage]:
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
    micro_batches: int,
    patience: float,
    send_s: Numbers,
    times_s: Numbers,
    cap: Numbers,
    stage_at: Numbers,
    skeleton: Numbers,
    out: Numbers,
    ready_s: Numbers,
    ran: Numbers,
    lane: Numbers,
    queue: Numbers,
    clock_s: Numbers,
    winner: Numbers,
) -> int:
    """Fill a skeleton in order of time; return the number of tasks placed, short of all if memory blocks."""
    stages, length = len(cap), len(stage_at)
    entries = len(skeleton[0]) // stages
    tasks = 3 * entries // 2
    placed = 0
    while placed < tasks * stages:
        stage = winner[1]
        now_s = clock_s[WAKE][stage]
        if now_s >= NEVER_S:
            return placed
        _pass_early(stage, skeleton, ran, lane, entries)
        action, position, ask_s = _choose(
            stage, now_s, micro_batches, patience, times_s, cap, skeleton, ready_s, ran, lane, queue
        )
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
                other = stage_at[receiver]
                if other != stage:
                    arrival_s = end_s + send_s[part][position]
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
        out[0][place] = action
        out[1][place] = position
        out[2][place] = micro_batch
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
    stage_at = np.empty(length, dtype=np.int64)
    stage_at[chain] = np.arange(stages)[:, None]
    ready = np.full((2, length * micro_batches), NEVER_S)
    ready[0, :micro_batches] = 0.0
    clock = np.full((3, leaves), NEVER_S)
    clock[:, :stages] = 0.0
    # All stages wake at 0, so every match goes to its leftmost leaf; leaves without a stage never wake.
    winner = np.zeros(2 * leaves, dtype=np.int64)
    winner[leaves:] = np.arange(leaves)
    for node in range(leaves - 1, 0, -1):
        winner[node] = winner[2 * node]
    out = np.empty((3, stages * tasks), dtype=np.int64)
    ran, lane = np.zeros((4, length), dtype=np.int64), np.zeros((5, stages), dtype=np.int64)
    queue = np.empty(stages * tasks // 3, dtype=np.int64)
    placed = run_on_lists(
        _fill,
        (
            micro_batches,
            float(skeleton.patience),
            np.ascontiguousarray(np.broadcast_to(send_s, (2, length)), dtype=np.float64),
            np.ascontiguousarray(times_s, dtype=np.float64),
            np.ascontiguousarray(cap, dtype=np.int64),
            stage_at,
            np.stack((skeleton.position.ravel(), skeleton.kind.ravel(), skeleton.allowed.ravel())),
        ),
        (out, ready, ran, lane, queue, clock, winner),
        plain_s=(stages * tasks if steps is None else steps) * _TASK_S,
        force=compiled,
    )
    if placed < stages * tasks:
        return None
    first, latest = clock[FIRST, :stages], clock[LATEST, :stages]
    kind, position, micro_batch = out.reshape(3, stages, tasks)
    return Filled(
        kind=kind,
        position=position,
        micro_batch=micro_batch,
        makespan_s=float(latest.max()),
        longest_span_s=float((latest - first).max()),
    )
