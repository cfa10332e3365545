"""Tasks of a step whose micro-batches go ways of their own over nodes.

Shape letters: N nodes, R ways, K nodes of a way, T steps of a way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.lower.tasks import TaskGraph, listed_rows
from ridgeline.seams.schedule import BACKWARD, FORWARD, SHARED_FORWARD, NodeGrid
from ridgeline.timeline.ways import visited, walked
from ridgeline.training.pipeline import SEND_BACKWARD, SEND_FORWARD
from ridgeline.training.step import REDUCE, STEP_LABEL, UPDATE

_KINDS = np.array((FORWARD, SHARED_FORWARD, BACKWARD))
_LABEL = (*STEP_LABEL[:SHARED_FORWARD], "loss", *STEP_LABEL[SHARED_FORWARD + 1 :])


def routed_tasks(
    grid: NodeGrid, ways: NDArray[np.int64], reduce_s: NDArray[np.float64], update_s: NDArray[np.float64]
) -> TaskGraph:
    """Tasks of one step: nodes in the order of `walked`, links each way, then what each stage reduces and updates (P,).

    Streams 0..N-1 are nodes, then one for each directed pair that exchanges anything, then one for each stage's
    reductions. A stage reduces when all its nodes are done; all stages update after the last reduction.
    """
    walk, nodes, stages = walked(grid, ways), len(grid.stage), grid.stages
    steps, each = walk.begins_s.shape[1], 2 * ways.shape[1] + 1
    node, kind = (part.reshape(-1) for part in visited(ways, steps))
    begins, count = walk.begins_s.reshape(-1), node.size
    taken = np.stack((grid.forward_s, grid.loss_s, grid.backward_s))[kind, node]
    order = np.lexsort((begins + taken, begins))  # tasks by start
    rank = np.argsort(order)
    follows = np.arange(count) % steps < steps - 1
    target = np.where(follows, np.roll(node, -1), node)
    sends = order[(target != node)[order]]  # by start of what is sent
    pairs, link = np.unique(node[sends] * nodes + target[sends], return_inverse=True)
    arrival = rank.copy()
    arrival[sends] = count + np.arange(sends.size)
    waits: list[list[int]] = [[] for _ in range(count)]
    for task in np.flatnonzero(follows).tolist():
        waits[int(rank[task + 1])].append(int(arrival[task]))
    waits += [[int(rank[task])] for task in sends.tolist()]
    last = dict(zip(node[order].tolist(), range(count), strict=True))  # of each node
    members = [np.flatnonzero(grid.stage == stage).tolist() for stage in range(stages)]
    waits += [[last[one] for one in held if one in last] for held in members]
    waits += [[count + sends.size + stage for stage in range(stages)]] * stages
    first = [held[0] for held in members]
    names = [f"stage {s} of rank {one - first[s]}" for one, s in enumerate(grid.stage.tolist())]
    names += [f"link {pair // nodes}>{pair % nodes}" for pair in pairs.tolist()]
    streams = (node[order], nodes + link, nodes + pairs.size + np.arange(stages), first)
    sent_kind = np.where(kind[sends] == 0, SEND_FORWARD, SEND_BACKWARD)
    batch, (dep_start, dep) = np.arange(count) // each, listed_rows(waits)
    return TaskGraph(
        duration_s=np.concatenate((taken[order], grid.send_s[node[sends], target[sends]], reduce_s, update_s)),
        stream=np.concatenate(streams).astype(np.int32),
        dep_start=dep_start,
        dep=dep,
        stream_names=(*names, *(f"data link {stage}" for stage in range(stages))),
        stream_device=(*range(nodes), *(pairs // nodes).tolist(), *first),
        kind=np.concatenate((_KINDS[kind[order]], sent_kind, [REDUCE] * stages, [UPDATE] * stages)).astype(np.int16),
        label=_LABEL,
        micro_batch=np.concatenate((batch[order], batch[sends], [0] * (2 * stages))).astype(np.int32),
        chunk=np.zeros(count + sends.size + 2 * stages, dtype=np.int16),
    )
