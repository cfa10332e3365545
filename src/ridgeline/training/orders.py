"""The order in which each pipeline stage runs its forwards and backwards.

Shape letters: P stages, v chunks per stage, m micro-batches, N tasks per stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.errors import PlanError
from ridgeline.plan.plan import Schedule
from ridgeline.training.schedules import SCHEDULE_CODE, check_shape, memory_cap, positions, stage_table
from ridgeline.training.zero_bubble import best_filling

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = 0, 1, 2, 3
KIND_LABEL = ("F", "B", "Bi", "W")


@dataclass(frozen=True, kw_only=True)
class Order:
    """Program order of every stage; each array is (P, N), row s lists the tasks of stage s.

    `kind` is FORWARD, BACKWARD (both parts at once), BACKWARD_INPUT or BACKWARD_WEIGHT.
    """

    schedule: Schedule
    stages: int
    micro_batches: int
    chunks: int
    kind: NDArray[np.int8]
    micro_batch: NDArray[np.int32]
    chunk: NDArray[np.int16]

    @property
    def positions(self) -> NDArray[np.int64]:
        """Place of each (stage, chunk) in the model's chain of chunks, (P, v) [1]."""
        return positions(self.schedule, self.stages, self.chunks)


def order(
    schedule: Schedule,
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    *,
    forward_s: ArrayLike = 1.0,
    backward_input_s: ArrayLike = 1.0,
    backward_weight_s: ArrayLike = 1.0,
    send_s: ArrayLike = 0.0,
    memory_limit: ArrayLike | None = None,
) -> Order:
    """Program order of every stage under a schedule.

    GPipe, 1F1B and interleaved 1F1B are fixed by their shape. The zero-bubble family looks at the times (each a
    number or (P, v) array [s]; `send_s` of what they hand on, a number or (2, P, v) [s]) and keeps at most
    `memory_limit` chunk-activations per stage (a number or (P,) array; None: the
    schedule's own, see `schedules.memory_cap`).

    Raises
    ------
    PlanError
        The schedule is not defined for this shape, or the limit cannot hold one micro-batch.

    Source: Huang et al. 2019 (arXiv:1811.06965), Narayanan et al. 2021 (arXiv:2104.04473),
    Qi et al. 2024 (arXiv:2401.10241 and arXiv:2405.15362).
    """
    check_shape(schedule, stages, micro_batches, chunks)
    stage = np.arange(stages)
    units = micro_batches * chunks
    if schedule is Schedule.GPIPE:
        return _alternating(schedule, stages, micro_batches, chunks, np.full(stages, units))
    if schedule is Schedule.ONE_F_ONE_B:
        return _alternating(schedule, stages, micro_batches, chunks, stages - 1 - stage)
    if schedule is Schedule.INTERLEAVED:
        warm_up = 2 * (stages - 1 - stage) + (chunks - 1) * stages
        return _alternating(schedule, stages, micro_batches, chunks, warm_up)
    chain = positions(schedule, stages, chunks)
    times = np.stack([_by_position(time, chain) for time in (forward_s, backward_input_s, backward_weight_s)])
    sends = np.stack([_by_position(time, chain) for time in np.broadcast_to(send_s, (2, *chain.shape))])
    cap = _cap(schedule, stages, micro_batches, chunks, memory_limit)
    filled = best_filling(schedule, chain, micro_batches, times_s=times, send_s=sends, cap=cap)
    return Order(
        schedule=schedule,
        stages=stages,
        micro_batches=micro_batches,
        chunks=chunks,
        kind=filled.kind.astype(np.int8),
        micro_batch=filled.micro_batch.astype(np.int32),
        chunk=(filled.position != chain[:, :1]).astype(np.int16),
    )


def _by_position(time_s: ArrayLike, chain: NDArray[np.int64]) -> NDArray[np.float64]:
    """Times of a (P, v) table in the order of the chain [s]."""
    times = np.empty(chain.size)
    times[chain] = stage_table(time_s, (chain.shape[0], chain.shape[1]))
    return times


def _cap(
    schedule: Schedule, stages: int, micro_batches: int, chunks: int, memory_limit: ArrayLike | None
) -> NDArray[np.int64]:
    """Chunk-activations that each stage may hold [1]."""
    if memory_limit is None:
        memory_limit = memory_cap(SCHEDULE_CODE[schedule], stages, micro_batches, chunks)
    cap = np.broadcast_to(np.asarray(memory_limit, dtype=np.int64), (stages,)).copy()
    if cap.min() < chunks:
        raise PlanError(
            f"schedule {schedule.value}: memory limit {cap.min()} chunk-activations on stage {cap.argmin()}, needs"
            f" >= {chunks} to hold one micro-batch; shrink the micro-batch or recompute"
        )
    return cap


def _alternating(schedule: Schedule, stages: int, micro_batches: int, chunks: int, warm_up: NDArray[np.int64]) -> Order:
    """Forwards alone, then one forward and one backward in turn, then backwards alone.

    With w warm-up forwards among n, forward k stands at place k while k < w, then at 2k - w; backward k
    at w + 2k + 1 while forwards last (k < n - w), then at n + k.
    """
    units = micro_batches * chunks
    k = np.arange(units)[None, :]
    w = np.minimum(warm_up, units)[:, None]
    place_forward = np.where(k < w, k, 2 * k - w)
    place_backward = np.where(k < units - w, w + 2 * k + 1, units + k)
    round_size = stages * chunks if schedule is Schedule.INTERLEAVED else micro_batches
    lap = round_size // chunks
    micro_batch = k // round_size * lap + k % lap
    chunk = k % round_size // lap
    row = np.arange(stages)[:, None]
    shape = (stages, 2 * units)
    kinds, batches, chunk_ids = np.empty(shape, np.int8), np.empty(shape, np.int32), np.empty(shape, np.int16)
    for place, kind, piece in ((place_forward, FORWARD, chunk), (place_backward, BACKWARD, chunks - 1 - chunk)):
        kinds[row, place], batches[row, place], chunk_ids[row, place] = kind, micro_batch, piece
    return Order(
        schedule=schedule,
        stages=stages,
        micro_batches=micro_batches,
        chunks=chunks,
        kind=kinds,
        micro_batch=batches,
        chunk=chunk_ids,
    )
