"""The seam of pipeline schedules: the order of forwards and backwards, and what it holds in flight.

Shape letters: P stages, v chunks of each, m micro-batches, N tasks of a stage. The model is a chain of places, one
after another; a schedule says which chunk of which stage holds each. One that keeps several copies of the weights has
as many chains, laid end to end: place q of copy c is c * (places of a chain) + q.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.errors import PlanError
from ridgeline.seams.technique import Technique

if TYPE_CHECKING:
    from ridgeline.seams.setting import Setting

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, SHARED_FORWARD, SHARED_BACKWARD = range(6)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a schedule is asked to order: P `stages`, v `chunks` of each, m `micro_batches`."""

    stages: int
    chunks: int
    micro_batches: int


@dataclass(frozen=True, kw_only=True)
class SharedPasses:
    """Times of one micro-batch in passes that all stages take part in, (..., P) arrays, and between them [s].

    `forward_s` and `backward_s` are a stage's share; the last place's result reaches all of them in `spread_s`, and
    `barriers_s` are what they exchange after the forwards and, where there are two, after the backwards.
    """

    forward_s: Floats
    backward_s: Floats
    spread_s: Floats
    barriers_s: tuple[Floats, ...]


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Times of one micro-batch at each chunk, (P, v) arrays [s]: forward, the two parts of a backward, and sends.

    `onward_s` is to hand a forward's result to the next place, `homeward_s` a gradient to the one before; `shared` are
    the passes that all stages take part in, where a schedule has any.
    """

    forward_s: Floats
    input_s: Floats
    weight_s: Floats
    onward_s: Floats
    homeward_s: Floats
    shared: SharedPasses | None = None


@dataclass(frozen=True, kw_only=True)
class Order:
    """Program order of every stage; each array is (P, N), row s lists the tasks of stage s.

    `kind` is FORWARD, BACKWARD (both parts at once), BACKWARD_INPUT, BACKWARD_WEIGHT or one of the two passes that all
    stages share; `places` (P, v) is the place in the chain of each stage's chunk, `chains` the number of chains that
    they make. `paired` (P, N) are forwards that run as one pass with the backward behind them, of another micro-batch:
    exchanges of experts of one under products of the other; None where none do.
    """

    places: Integers
    micro_batches: int
    kind: NDArray[np.int8]
    micro_batch: NDArray[np.int32]
    chunk: NDArray[np.int16]
    chains: int = 1
    paired: NDArray[np.bool_] | None = None

    @property
    def stages(self) -> int:
        """Pipeline stages P [1]."""
        return int(self.places.shape[0])

    @property
    def chunks(self) -> int:
        """Chunks of each stage v [1]."""
        return int(self.places.shape[1])


@dataclass(frozen=True, kw_only=True)
class NodeGrid:
    """Times of one micro-batch at each of N nodes, of which every stage has some, and between them [s].

    `stage` (N,) is the stage that a node holds; nodes of stage 0 take micro-batches in, and compute their loss in
    `loss_s` (N,). `forward_s` and `backward_s` are (N,), `send_s` (N, N) from row to column. A node holds `room`
    micro-batches at once; each node of stage 0 takes in `micro_batches`. `queued` says that what one node sends to
    another goes one after another.
    """

    stage: Integers
    forward_s: Floats
    backward_s: Floats
    loss_s: Floats
    send_s: Floats
    room: int
    micro_batches: int
    queued: bool = True

    @property
    def sources(self) -> Integers:
        """Nodes of stage 0 [index]."""
        return np.flatnonzero(self.stage == 0)

    @property
    def stages(self) -> int:
        """Stages P [1]."""
        return int(self.stage.max()) + 1


@dataclass(frozen=True, kw_only=True)
class PipelineSchedule(Technique):
    """The order in which pipeline stages run forwards and backwards.

    `splits` says that the two parts of a backward are tasks of their own; `copies` how many copies of the weights the
    pipeline holds; `alone` that one stage may run it. `flows_add` says that no backward of the last stage begins before
    its last forward has ended; `closed` that its bound is that of `training.bounds`, whose five facts must then hold of
    every order that it gives. `routed` says that micro-batches go ways of their own over the nodes of stages (`ways`),
    from and back to one of stage 0, which then holds embedding and head. `paired` says that its order has passes of a
    forward and a backward at once, and that its bound is no more than what each stage does (`closed` is False).
    """

    family: ClassVar[str] = "schedules"
    routed: ClassVar[bool] = False
    splits: ClassVar[bool] = False
    copies: ClassVar[int] = 1
    alone: ClassVar[bool] = False
    flows_add: ClassVar[bool] = False
    closed: ClassVar[bool] = True
    paired: ClassVar[bool] = False
    chunks_told: ClassVar[str] = "exactly 1; set chunks = 1 or schedule = 'interleaved'"

    def applies(self, setting: Setting) -> str:
        """Why it does not apply, in a phrase; '' where it does: to pipelines of a shape that it is defined for."""
        said, job, plan = super().applies(setting), setting.job, setting.train_plan
        if said or job is None or plan is None:
            return said
        if plan.pp == 1:
            return "one pipeline stage (pp 1): there is nothing to order"
        micro_batches = plan.micro_batches(job.global_batch)
        most = max(1, len(setting.model.graph.layers) // plan.pp)
        refusals = [
            self.refusal(Shape(stages=plan.pp, chunks=chunks, micro_batches=micro_batches))
            for chunks in self.chunk_counts(plan.pp, most)
        ]
        return min(refusals, key=bool) if refusals else f"{most} layers a stage, fewer than its chunks"

    def chunk_counts(self, stages: int, most: int) -> Iterable[int]:
        """Chunks of a stage that it may have on so many stages, at most `most` of them where it is free to choose."""
        return (1,)

    def barriers(self) -> int:
        """Exchanges of all stages between a micro-batch's last forward and first backward [1]; 0: the ends hold them.

        With any, each stage holds an equal share of the vocabulary's two ends, and runs it in passes of its own.
        """
        return 0

    def visited(self, stages: int) -> int:
        """Stages that a micro-batch goes through [1]: by default all."""
        return stages

    def ways(self, grid: NodeGrid) -> Integers:
        """Nodes that micro-batches visit, (R, K) [index]: `grid.room` ways of each node of stage 0, taken in turn.

        By default each goes through all stages in their order, over the nodes of its own place in them.
        """
        rows = [np.flatnonzero(grid.stage == stage) for stage in range(grid.stages)]
        return np.repeat(np.stack([row[np.arange(len(rows[0])) % len(row)] for row in rows], axis=1), grid.room, axis=0)

    def refusal(self, shape: Shape) -> str:
        """Why it is not defined for a shape, with the nearest that is; '' where it is."""
        return ""

    def places(self, stages: int, chunks: int) -> Integers:
        """Place in the chain of each stage's chunk, (P, v) [1]: by default c P + s."""
        return np.arange(chunks)[None, :] * stages + np.arange(stages)[:, None]

    def layer_places(self, stages: int, chunks: int) -> Integers:
        """Place of each stage's chunk in one copy of the model, (P, v) [1]."""
        return np.asarray(self.places(stages, chunks) % (stages * chunks // self.copies))

    def in_flight(self, stages: int, micro_batches: ArrayLike, chunks: int, stage: ArrayLike) -> Integers:
        """Most chunk-activations that a stage holds at once [1], broadcast over micro-batches and stages.

        One unit is what one chunk keeps of one micro-batch, from its forward to the end of its whole backward.
        """
        raise NotImplementedError

    def head_in_flight(self, micro_batches: ArrayLike) -> ArrayLike:
        """Micro-batches whose logits wait for their backward at once [1]."""
        return 1

    def order(self, shape: Shape, durations: Durations, limit: Integers) -> Order:
        """The order of every stage; `limit` (P,) are the chunk-activations that each may hold."""
        raise NotImplementedError

    def check(self, stages: int, micro_batches: int, chunks: int) -> None:
        """Raises `PlanError` for a shape that it is not defined for; the text names the nearest legal one."""
        for name, value in (("stages", stages), ("micro-batches", micro_batches), ("chunks", chunks)):
            if value < 1:
                raise PlanError(f"schedule {self.key}: {name} = {value}, needs >= 1")
        if chunks not in self.chunk_counts(stages, max(chunks, 2)):
            raise PlanError(f"schedule {self.key}: chunks = {chunks}, needs {self.chunks_told}")
        refused = self.refusal(Shape(stages=stages, chunks=chunks, micro_batches=micro_batches))
        if refused:
            raise PlanError(f"schedule {self.key}: {refused}")
