"""Orders for the zero-bubble family: skeletons of forwards and input backwards, to be filled with weight parts.

Shape letters: P stages, v chunks per stage, K = P v positions of the chain, m micro-batches.

A skeleton says in which order a stage runs its forwards and input backwards. Straight schedules take 1F1B's with
more warm-up. V-shaped ones repeat one micro-batch's block of time slots every six slots (two chunks times forward,
input and weight part); the block moves `slope` slots from one stage to the next in each of its four passes, and
the slopes set how long activations live: 4P slots for V-Min, 6P for V-Half, 12P for ZB-V, so a third, a half
and all of 1F1B's memory (Qi et al. 2024, arXiv:2405.15362). Waits at the block's turns keep the passes of one stage in
different slots modulo six. Real durations come in when the skeleton is filled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ridgeline.seams.schedule import Durations, Order
from ridgeline.training.fill import Floats, Integers, Skeleton, fill

Slopes = tuple[int, int, int, int]
SLOTS = 6  # two chunks, each with forward, input and weight part
# Least gap worth filling, in lengths of the filler. Both are tried: with equal parts any gap is (0), with uneven ones
# it often pays to let gaps shorter than half the filler pass (0.5).
PATIENCE = (0.0, 0.5)


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
