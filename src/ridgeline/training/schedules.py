"""Pipeline schedules: what each asks of its shape, where its chunks lie, what it holds in flight.

Shape letters: P stages, v chunks per stage, m micro-batches. A model is a chain of P * v chunks; its
position is a chunk's place in that chain. Straight schedules put position c * P + s on stage s, chunk c.
V-shaped ones go down the stages with chunk 0 and come back up with chunk 1, so that stage 0 holds both
ends of the model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.errors import PlanError
from ridgeline.plan.plan import Schedule

SCHEDULE_CODE: dict[Schedule, int] = {schedule: code for code, schedule in enumerate(Schedule)}
V_SHAPED = frozenset({Schedule.ZB_V, Schedule.V_HALF, Schedule.V_MIN})
SPLIT_BACKWARD = frozenset({Schedule.ZB_H1, Schedule.ZB_H2}) | V_SHAPED


def codes(schedules: frozenset[Schedule]) -> list[int]:
    """The codes of a set of schedules, in rising order."""
    return sorted(SCHEDULE_CODE[schedule] for schedule in schedules)


def check_shape(schedule: Schedule, stages: int, micro_batches: int, chunks: int) -> None:
    """Refuse a shape that the schedule is not defined for; the text names the nearest legal one."""
    for name, value in (("stages", stages), ("micro-batches", micro_batches), ("chunks", chunks)):
        if value < 1:
            raise PlanError(f"schedule {schedule.value}: {name} = {value}, needs >= 1")
    if schedule in V_SHAPED and chunks != 2:
        raise PlanError(
            f"schedule {schedule.value}: chunks = {chunks}, needs exactly 2 (one down, one up); set chunks = 2"
        )
    if schedule is Schedule.INTERLEAVED:
        if chunks < 2:
            raise PlanError(f"schedule interleaved: chunks = {chunks}, needs >= 2; set chunks = 2 or schedule = '1f1b'")
        if micro_batches % stages:
            nearest = max(1, round(micro_batches / stages)) * stages
            raise PlanError(
                f"schedule interleaved: {micro_batches} micro-batches are not a multiple of {stages} stages;"
                f" nearest legal number: {nearest}"
            )
    elif schedule not in V_SHAPED and chunks != 1:
        raise PlanError(
            f"schedule {schedule.value}: chunks = {chunks}, needs exactly 1; set chunks = 1 or schedule = 'interleaved'"
        )


def positions(schedule: Schedule, stages: int, chunks: int) -> NDArray[np.int64]:
    """Place in the model's chain of the chunk c of stage s, as a (P, v) array [1].

    >>> positions(Schedule.ZB_V, 3, 2).tolist()
    [[0, 5], [1, 4], [2, 3]]
    """
    stage = np.arange(stages)[:, None]
    chunk = np.arange(chunks)[None, :]
    if schedule in V_SHAPED:
        return np.where(chunk == 0, stage, 2 * stages - 1 - stage)
    return chunk * stages + stage


def memory_cap(
    schedule: ArrayLike, stages: ArrayLike, micro_batches: ArrayLike, chunks: ArrayLike
) -> NDArray[np.int64]:
    """Most chunk-activations that any stage may hold under a schedule [1], broadcast over arrays of codes.

    One unit is what one chunk keeps of one micro-batch, from its forward to the end of its whole backward (weight
    part included). ZB-H1 keeps 1F1B's p; ZB-H2 2p - 1; ZB-V 2p half-stage chunks, which is 1F1B's memory; V-Half
    half of that plus one unit; V-Min a third plus three. Never more than the m v there are.

    Source: Qi et al. 2024 (arXiv:2401.10241, 2405.15362); the additive units of V-Half and V-Min are those
    of their repeated pattern at the worst alignment of its parts (see `orders`).
    """
    code, p = np.asarray(schedule), np.asarray(stages, dtype=np.int64)
    units = np.asarray(micro_batches, dtype=np.int64) * np.asarray(chunks, dtype=np.int64)
    cap = {
        Schedule.ZB_H1: p,
        Schedule.ZB_H2: 2 * p - 1,
        Schedule.ZB_V: 2 * p,
        Schedule.V_HALF: p + 2,
        Schedule.V_MIN: -(-2 * p // 3) + 3,
    }
    limits = [np.where(code == SCHEDULE_CODE[name], limit, 0) for name, limit in cap.items()]
    split = np.isin(code, codes(SPLIT_BACKWARD))
    return np.minimum(np.where(split, sum(limits), units), units)


def in_flight(
    schedule: ArrayLike, stages: ArrayLike, micro_batches: ArrayLike, chunks: ArrayLike, stage: ArrayLike
) -> NDArray[np.int64]:
    """Peak number of chunk-activations that a stage holds at once [1], broadcast over arrays of codes.

    GPipe m; 1F1B min(m, p - s); interleaved min(m v, 2 (p - s - 1) + (v - 1) p + 1); the zero-bubble family its
    memory cap, which no stage exceeds. One unit is one chunk's activations of one micro-batch.

    >>> int(in_flight(SCHEDULE_CODE[Schedule.ONE_F_ONE_B], 4, 8, 1, 0))
    4
    """
    code, p, s = np.asarray(schedule), np.asarray(stages, dtype=np.int64), np.asarray(stage, dtype=np.int64)
    m, v = np.asarray(micro_batches, dtype=np.int64), np.asarray(chunks, dtype=np.int64)
    straight = np.minimum(m, p - s)
    interleaved = np.minimum(m * v, 2 * (p - s - 1) + (v - 1) * p + 1)
    held = np.where(code == SCHEDULE_CODE[Schedule.ONE_F_ONE_B], straight, memory_cap(code, p, m, v))
    return np.where(code == SCHEDULE_CODE[Schedule.INTERLEAVED], interleaved, held)


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
