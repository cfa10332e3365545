"""What one rank holds of the whole: reciprocal degrees per plan, and numbers divided by them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.graph.workload import Workload
from ridgeline.memory.profile import Divided, Kept, Part

Array = NDArray[np.float64]


def as_array(value: ArrayLike) -> Array:
    """A number or an array over plans as floats."""
    return np.asarray(value, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What one rank holds of a whole, per plan: reciprocal degrees [1] and its tokens."""

    tensor: Array  # 1 / tp
    sequence: Array  # 1 / tp with sequence parallel, else 1
    expert: Array  # 1 / (ep * etp)
    expert_repeated: Array  # 1 / ep
    tokens: Array  # of one micro-batch on one context rank
    shard: Array  # 1 / ranks over which ZeRO shards dense weights
    expert_shard: Array  # the same for experts

    def dense(self, sums: Divided) -> Array:
        """Numbers outside the experts on one rank [1]."""
        return sums.dense * self.tensor + sums.repeated

    def experts(self, sums: Divided) -> Array:
        """Numbers inside the experts on one rank [1]."""
        return sums.expert * self.expert + sums.expert_repeated * self.expert_repeated

    def sharded(self, dense: Array, experts: Array, on: NDArray[np.bool_]) -> Array:
        """Numbers held of `dense` and `experts` where ZeRO sharding is `on` [1]."""
        return dense * np.where(on, self.shard, 1.0) + experts * np.where(on, self.expert_shard, 1.0)

    def kept(self, kept: Kept, part: Part) -> Array:
        """Bytes of one layer and micro-batch on one rank [byte]."""
        divided = kept.tensor + kept.vocab + kept.expert * part.top_k
        return self.tokens * part.tokens_factor * (kept.sequence * self.sequence + divided * self.tensor)


def shares_of(
    workload: Workload,
    *,
    tp: ArrayLike,
    cp: ArrayLike,
    ep: ArrayLike,
    etp: ArrayLike,
    sequence_parallel: ArrayLike,
    micro_batch: ArrayLike,
    shard_ranks: ArrayLike,
) -> Shares:
    """Reciprocal degrees and tokens of plans.

    Experts shard over their own data-parallel group: shard_ranks * tp / (ep * etp), the whole group
    edp = tp * cp * dp / (ep * etp) when shard_ranks = dp * cp.
    """
    tensor = 1.0 / as_array(tp)
    expert_repeated = 1.0 / as_array(ep)
    expert = expert_repeated / as_array(etp)
    ranks = as_array(shard_ranks)
    return Shares(
        tensor=tensor,
        sequence=np.where(np.asarray(sequence_parallel, dtype=bool), tensor, 1.0),
        expert=expert,
        expert_repeated=expert_repeated,
        tokens=as_array(micro_batch) * workload.seq_len / as_array(cp),
        shard=1.0 / ranks,
        expert_shard=1.0 / np.maximum(1.0, ranks * expert / tensor),
    )
