"""From a schedule to an order, and from an order to tasks: compute on every stage, transfers on every link between.

Shape letters: P stages, v chunks per stage, m micro-batches, N tasks per stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.errors import PlanError
from ridgeline.lower.tasks import TaskGraph
from ridgeline.seams.registry import technique
from ridgeline.seams.schedule import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    SHARED_FORWARD,
    Durations,
    Integers,
    Order,
    PipelineSchedule,
    Shape,
)

KIND_LABEL = ("F", "B", "Bi", "W", "S", "T")


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


def forwards_of(sequence: Order) -> Order:
    """The forwards of an order alone, as a step without backward runs them."""
    kept = sequence.kind == FORWARD
    shape = (sequence.stages, -1)
    return replace(
        sequence, kind=sequence.kind[kept].reshape(shape), micro_batch=sequence.micro_batch[kept].reshape(shape),
        chunk=sequence.chunk[kept].reshape(shape), paired=None,
    )  # fmt: skip


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


def alternating(
    places: Integers, micro_batches: int, warm_up: Integers, *, lap: int | None = None, paired: bool = False
) -> Order:
    """Forwards alone, then one forward and one backward in turn, then backwards alone.

    With w warm-up forwards (P,) among n, forward k stands at place k while k < w, then at 2k - w; backward k
    at w + 2k + 1 while forwards last (k < n - w), then at n + k. Chunks go round after every `lap` micro-batches.
    With `paired` a forward and the backward behind it run as one pass.
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
    place = np.arange(shape[1])
    first = (place >= w) & (place < shape[1] - w) & ((place - w) % 2 == 0) if paired else None
    return Order(
        places=places, micro_batches=micro_batches, kind=kinds, micro_batch=batches, chunk=chunk_ids, paired=first
    )


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


SEND_FORWARD, SEND_BACKWARD = 6, 7
LABEL = (*KIND_LABEL, "send F", "send B")


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """The compute tasks of an order as flat arrays, stage by stage, and where their results go."""

    kind: NDArray[np.int16]
    micro_batch: NDArray[np.int32]
    chunk: NDArray[np.int16]
    stage: NDArray[np.int64]
    position: NDArray[np.int64]
    length: int  # positions in a chain
    target: NDArray[np.int64]  # stage that waits for this task's result, -1 for none


def _place(order: Order) -> _Placed:
    chain = order.places
    stage = np.repeat(np.arange(order.stages), order.kind.shape[1])
    kind, chunk = order.kind.ravel().astype(np.int16), order.chunk.ravel()
    position = chain[stage, chunk]
    stage_at = np.empty(chain.size, dtype=np.int64)
    stage_at[chain] = np.arange(order.stages)[:, None]
    neighbour = np.where(kind == FORWARD, position + 1, position - 1)
    length = chain.size // order.chains
    inside = (neighbour >= 0) & (neighbour // length == position // length) & (kind < BACKWARD_WEIGHT)
    return _Placed(
        kind=kind,
        micro_batch=order.micro_batch.ravel(),
        chunk=chunk,
        stage=stage,
        position=position,
        length=length,
        target=np.where(inside, stage_at[np.where(inside, neighbour, 0)], -1),
    )


def pipeline_tasks(
    order: Order,
    *,
    forward_s: ArrayLike,
    backward_input_s: ArrayLike,
    backward_weight_s: ArrayLike,
    send_forward_s: ArrayLike = 0.0,
    send_backward_s: ArrayLike = 0.0,
) -> TaskGraph:
    """Tasks of one pipeline's step: durations [s], streams, dependencies.

    Streams 0..P-1 are the stages' compute engines; then one per directed pair of stages that exchange
    anything, named 'link 0>1', which sends in the order in which its source stage produces. Transfers are tasks
    of their own, so they overlap with compute; those that take no time are left out. Compute tasks come
    first: task s * N + i is entry i of row s of the order. Passes that all stages share take none before
    `shared_passes.with_barriers`.

    Parameters
    ----------
    forward_s, backward_input_s, backward_weight_s : number or (P, v) array [s]
        Time of one micro-batch through a chunk; a whole backward takes the sum of its two parts.
    send_forward_s, send_backward_s : number or (P, v) array [s]
        Time to send a chunk's output onward, and the gradient of its input back, if another stage waits for it.
    """
    shape = (order.stages, order.chunks)
    placed = _place(order)
    whole = np.add(backward_input_s, backward_weight_s)
    times = (forward_s, whole, backward_input_s, backward_weight_s, 0.0, 0.0)
    table = np.stack([stage_table(time, shape) for time in times])
    compute_s = table[placed.kind, placed.stage, placed.chunk]
    sends = np.stack((stage_table(send_forward_s, shape), stage_table(send_backward_s, shape)))
    send_s = sends[(placed.kind != FORWARD).astype(np.int8), placed.stage, placed.chunk]
    source = np.flatnonzero((placed.target >= 0) & (placed.target != placed.stage) & (send_s > 0.0))
    pair = placed.stage[source] * order.stages + placed.target[source]
    links = np.flatnonzero(np.bincount(pair, minlength=1))
    link = np.searchsorted(links, pair)
    dep_start, dep = _dependencies(order, placed, source)
    send_kind = np.where(placed.kind[source] == FORWARD, SEND_FORWARD, SEND_BACKWARD).astype(np.int16)
    ends = [divmod(int(each), order.stages) for each in links]
    return TaskGraph(
        duration_s=np.concatenate((compute_s, send_s[source])),
        stream=np.concatenate((placed.stage, link + order.stages)).astype(np.int32),
        dep_start=dep_start,
        dep=dep,
        stream_names=(*(f"stage {s}" for s in range(order.stages)), *(f"link {a}>{b}" for a, b in ends)),
        stream_device=(*range(order.stages), *(a for a, _ in ends)),
        kind=np.concatenate((placed.kind, send_kind)),
        label=LABEL,
        micro_batch=np.concatenate((placed.micro_batch, placed.micro_batch[source])),
        chunk=np.concatenate((placed.chunk, placed.chunk[source])),
    )


def _dependencies(
    order: Order, placed: _Placed, source: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compressed rows: a compute task waits for one result at most, a send for its source.

    A forward waits for the forward one position earlier, a backward for the backward one position later or, at
    the end of the chain, for its own forward; a weight part for its input part. Where a result travels by a
    send, its receiver waits for the send.
    """
    count, length = placed.kind.size, placed.length
    task = np.arange(count)
    arrival = task.copy()
    arrival[source] = count + np.arange(source.size)
    is_forward, is_weight = placed.kind == FORWARD, placed.kind == BACKWARD_WEIGHT
    is_input = ~(is_forward | is_weight) & (placed.kind < SHARED_FORWARD)
    # Tables over (position + 1, micro-batch): forward results, backward results, own backward; of each chain with a
    # row before it, which stands for nothing, and one behind it, for the loss.
    ready = np.full((3, order.chains * (length + 2), order.micro_batches), -1, dtype=np.int64)
    row, column = placed.position + 1 + 2 * (placed.position // length), placed.micro_batch
    ready[0, row[is_forward], column[is_forward]] = arrival[is_forward]
    ready[1, row[is_input], column[is_input]] = arrival[is_input]
    ready[2, row[is_input], column[is_input]] = task[is_input]
    ready[1, length + 1 :: length + 2] = ready[0, length :: length + 2]
    line = np.where(is_forward, 0, np.where(is_weight, 2, 1))
    wait = np.where(placed.kind < SHARED_FORWARD, ready[line, row + np.array((-1, 1, 0))[line], column], -1)
    has = np.concatenate((wait >= 0, np.ones(source.size, dtype=np.bool_)))
    dep_start = np.concatenate(([0], np.cumsum(has)))
    return dep_start, np.concatenate((wait[wait >= 0], source))
