"""Prices, layers and times of every pipeline stage and chunk.

Shape letters: P stages, v chunks per stage; leading axes are plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.phases import BlockCost
from ridgeline.lower.params import RankParams
from ridgeline.lower.work import Layout, Number
from ridgeline.seams.schedule import SharedPasses

Floats = NDArray[np.float64]


def on_chunks(value: Number) -> Floats:
    """Numbers of plans with axes for stages and chunks behind them."""
    return np.asarray(value)[..., None, None]


@dataclass(frozen=True, kw_only=True)
class LayoutCost:
    """Prices and parameters of every block kind and of the two ends for one layout (or many).

    `exchanges` are seconds of what ranks exchange of a layer of each block kind, of the embedding and of the head, by
    names of `seams.data_exchange.LayerExchange`, once `StageModel.exchanged` has priced them; empty before.
    """

    layout: Layout
    blocks: Mapping[str, BlockCost]
    block_params: Mapping[str, RankParams]
    embedding: BlockCost
    head: BlockCost
    embedding_params: RankParams
    head_params: RankParams
    exchanges: Mapping[str, tuple[Number, ...]] = field(default_factory=dict)

    def forwards_alone(self, times: int) -> LayoutCost:
        """The same in a step of so many forwards and no backward; as it is where `times` is 0."""
        if not times:
            return self
        return replace(
            self,
            blocks={name: block.forwards_alone(times) for name, block in self.blocks.items()},
            embedding=self.embedding.forwards_alone(times),
            head=self.head.forwards_alone(times),
        )

    def with_logits(self, again: Number) -> LayoutCost:
        """The same where backward multiplies hidden states and head `again` times more [1]."""
        return replace(self, head=self.head.multiplied_again(again)) if np.any(again) else self


@dataclass(frozen=True, kw_only=True)
class StageLayers:
    """Which layers and ends every stage and chunk holds, and their prices.

    `counts` (P, v, kinds) of the block kinds `names`; `first`, `last` (P, v) are 1 where embedding and head are.
    `relayouts` (2, P, v) [s] is what changes of layout between layers take, forward and backward; None where none do.
    """

    cost: LayoutCost
    names: tuple[str, ...]
    counts: NDArray[np.int64]
    first: Floats
    last: Floats
    relayouts: Floats | None = None

    def layers(self, read: Callable[[BlockCost], Number]) -> Floats:
        """What `read` takes from each layer's cost, over each chunk's layers, (..., P, v)."""
        total = np.zeros(self.counts.shape[:-1])
        for index, name in enumerate(self.names):
            total = total + on_chunks(read(self.cost.blocks[name])) * self.counts[..., index]
        return total

    def chunks(self, read: Callable[[BlockCost], Number]) -> Floats:
        """What `read` takes from costs, over each chunk's layers and ends, (..., P, v)."""
        total = self.layers(read) + on_chunks(read(self.cost.embedding)) * self.first
        return total + on_chunks(read(self.cost.head)) * self.last

    def held(self) -> list[tuple[RankParams, NDArray[Any]]]:
        """Parameters of each block kind, of the embedding and of the head, with how many each chunk has, (P, v)."""
        cost = self.cost
        params = (*(cost.block_params[name] for name in self.names), cost.embedding_params, cost.head_params)
        return list(zip(params, self.many(), strict=True))

    def many(self) -> list[NDArray[Any]]:
        """How many of each block kind, of the embedding and of the head each chunk has, (P, v) [1]."""
        return [*(self.counts[..., i] for i in range(len(self.names))), self.first, self.last]

    def per_stage(self, field: str) -> Floats:
        """Sum of a field of `RankParams` over what each stage holds (..., P), in the field's unit."""
        total: Number = 0.0
        for params, count in self.held():
            total = total + np.asarray(getattr(params, field))[..., None] * count.sum(axis=-1)
        return np.asarray(total)


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """Seconds per micro-batch and chunk (..., P, v), and once-a-step seconds (..., P).

    `gather_s` collects a chunk's weights, `reduce_s` reduces its gradients; `pieces` is the number of layers that a
    chunk's exchange is cut into. `optimizer_s` is the update of one stage, `final_gather_s` the collection of the
    updated weights when it is not hidden. `gather_copy_s` of each forward and backward, and `reduce_copy_s` of each
    backward, are copies around exchanges; `message_s` of each forward and backward is the host's time for its messages,
    `turn_s` of each forward, and `back_turn_s` of each backward, that of the program around its layers where the device
    does not work that long.
    `host_copy_s` is the time in which the host link takes what a chunk's forward keeps, and again gives it back;
    `host_wait_s` of each forward and `host_back_wait_s` of each backward is what that takes longer than the compute.
    Where layers of a chunk are sharded in different ways, `gather_once_s` is collected once a step beside what
    `gather_s` collects, and `reduce_once_s` reduced once.
    `forwards_alone` says that a step has no backward: its times are 0, and no gradient is reduced.
    `exchanged_s` is the part of `optimizer_s` that is no update: copies around exchanges once a step, and the sum of a
    tied embedding's gradients over the first and the last stage. `back_gather_s` is what `gather_s` takes before a
    backward, where that differs; `delayed_s` (..., P) runs beside a whole step, which waits for it at its end. `shared`
    are passes that all stages take part in. `paired_s` (..., P, v, v) is what a forward of one chunk (the first v) and
    a backward of one (the second) take less as one pass than one after the other.
    """

    forward_s: Floats
    backward_input_s: Floats
    backward_weight_s: Floats
    send_forward_s: Floats
    send_backward_s: Floats
    gather_s: Floats
    reduce_s: Floats
    pieces: NDArray[np.int64]
    optimizer_s: Floats
    gather_copy_s: Floats | float = 0.0
    reduce_copy_s: Floats | float = 0.0
    exchanged_s: Floats | float = 0.0
    message_s: Floats | float = 0.0
    turn_s: Floats | float = 0.0
    back_turn_s: Floats | float = 0.0
    host_copy_s: Floats | float = 0.0
    host_wait_s: Floats | float = 0.0
    host_back_wait_s: Floats | float = 0.0
    shared: SharedPasses | None = None
    forwards_alone: bool = False
    gather_once_s: Floats | float = 0.0
    reduce_once_s: Floats | float = 0.0
    back_gather_s: Floats | None = None
    delayed_s: Floats | float = 0.0
    paired_s: Floats | None = None

    @property
    def again_s(self) -> Floats:
        """Seconds to collect a chunk's weights for a backward."""
        return self.gather_s if self.back_gather_s is None else self.back_gather_s

    @property
    def without_exchanges(self) -> StageTimes:
        """The same with nothing to collect or to reduce."""
        none = self.gather_s * 0
        return replace(
            self, gather_s=none, reduce_s=none, back_gather_s=None, gather_once_s=0.0, reduce_once_s=0.0, delayed_s=0.0
        )

    def without_backward(self) -> StageTimes:
        """The same without what backward and gradients take."""
        none = np.zeros(self.forward_s.shape)
        update_s = np.asarray(self.optimizer_s) - self.exchanged_s
        return replace(
            self, backward_input_s=none, backward_weight_s=none, send_backward_s=none, reduce_s=none,
            optimizer_s=update_s, reduce_copy_s=0.0, exchanged_s=0.0, back_turn_s=0.0, reduce_once_s=0.0,
            back_gather_s=None, delayed_s=0.0, forwards_alone=True,
        )  # fmt: skip

    @property
    def first_gather_s(self) -> Floats:
        """Seconds to collect weights for the first forward of a step, those that stay collected among them."""
        return self.gather_s + self.gather_once_s if np.any(self.gather_once_s) else self.gather_s

    @property
    def last_reduce_s(self) -> Floats:
        """Seconds to reduce gradients after the last backward of a step, those that were kept until then among them."""
        return self.reduce_s + self.reduce_once_s if np.any(self.reduce_once_s) else self.reduce_s
