"""The order in which each pipeline stage runs its forwards and backwards, of any schedule.

Shape letters: P stages, v chunks per stage, m micro-batches, N tasks per stage.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.errors import PlanError
from ridgeline.seams.registry import technique
from ridgeline.seams.schedule import BACKWARD, FORWARD, Durations, Integers, Order, PipelineSchedule, Shape

KIND_LABEL = ("F", "B", "Bi", "W")


def pipeline_schedule(name: str) -> PipelineSchedule:
    """The schedule that a plan names; raises `UnknownNameError` for a name of none."""
    return cast(PipelineSchedule, technique("schedules", name))


def order(
    schedule: PipelineSchedule,
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    *,
    durations: Durations | None = None,
    memory_limit: ArrayLike | None = None,
) -> Order:
    """Program order of every stage under a schedule.

    Some schedules look at the times (`durations`; None: every part of a chunk takes as long, sends nothing), and keep
    at most `memory_limit` chunk-activations per stage (a number or (P,) array; None: the schedule's own,
    `PipelineSchedule.in_flight`).

    Raises
    ------
    PlanError
        The schedule is not defined for this shape, or the limit cannot hold one micro-batch.
    """
    schedule.check(stages, micro_batches, chunks)
    if memory_limit is None:
        memory_limit = schedule.in_flight(stages, micro_batches, chunks, np.arange(stages))
    limit = np.broadcast_to(np.asarray(memory_limit, dtype=np.int64), (stages,)).copy()
    least = chunks // schedule.copies
    if schedule.splits and limit.min() < least:
        raise PlanError(
            f"schedule {schedule.key}: memory limit {limit.min()} chunk-activations on stage {limit.argmin()}, needs"
            f" >= {least} to hold one micro-batch; shrink the micro-batch or recompute"
        )
    shape = Shape(stages=stages, chunks=chunks, micro_batches=micro_batches)
    return schedule.order(shape, durations or durations_of((stages, chunks)), limit)


def durations_of(
    shape: tuple[int, int],
    *,
    forward_s: ArrayLike = 1.0,
    backward_input_s: ArrayLike = 1.0,
    backward_weight_s: ArrayLike = 1.0,
    send_s: ArrayLike = 0.0,
) -> Durations:
    """Times of a schedule's chunks from numbers, (P,) or (P, v) arrays [s]; `send_s` also (2, P, v), both ways."""
    onward, homeward = np.broadcast_to(send_s, (2, *shape))
    return Durations(
        forward_s=stage_table(forward_s, shape),
        input_s=stage_table(backward_input_s, shape),
        weight_s=stage_table(backward_weight_s, shape),
        onward_s=onward,
        homeward_s=homeward,
    )


def alternating(places: Integers, micro_batches: int, warm_up: Integers, *, lap: int | None = None) -> Order:
    """Forwards alone, then one forward and one backward in turn, then backwards alone.

    With w warm-up forwards (P,) among n, forward k stands at place k while k < w, then at 2k - w; backward k
    at w + 2k + 1 while forwards last (k < n - w), then at n + k. Chunks go round after every `lap` micro-batches.
    """
    stages, chunks = places.shape
    units = micro_batches * chunks
    k = np.arange(units)[None, :]
    w = np.minimum(warm_up, units)[:, None]
    place_forward = np.where(k < w, k, 2 * k - w)
    place_backward = np.where(k < units - w, w + 2 * k + 1, units + k)
    lap = lap or micro_batches
    micro_batch = k // (lap * chunks) * lap + k % lap
    chunk = k % (lap * chunks) // lap
    row = np.arange(stages)[:, None]
    shape = (stages, 2 * units)
    kinds, batches, chunk_ids = np.empty(shape, np.int8), np.empty(shape, np.int32), np.empty(shape, np.int16)
    for place, kind, piece in ((place_forward, FORWARD, chunk), (place_backward, BACKWARD, chunks - 1 - chunk)):
        kinds[row, place], batches[row, place], chunk_ids[row, place] = kind, micro_batch, piece
    return Order(places=places, micro_batches=micro_batches, kind=kinds, micro_batch=batches, chunk=chunk_ids)


def stage_table(value: ArrayLike, shape: tuple[int, int]) -> NDArray[np.float64]:
    """A number, a (P,) or a (P, v) array as a (P, v) array, in the same unit."""
    array = np.asarray(value, dtype=np.float64)
    if array.ndim == 1:
        array = array[:, None]
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise PlanError(
            f"schedule: values of shape {np.shape(value)} do not fit {shape[0]} stages of {shape[1]} chunks;"
            f" give a number, ({shape[0]},) or {shape}"
        ) from None
