"""What is asked about a pipeline stage: the options of a call as arrays, and what one rank holds of the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce, wraps
from typing import Any, Required, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.errors import UnknownNameError
from ridgeline.graph.model import Graph
from ridgeline.graph.workload import Workload
from ridgeline.memory.profile import Divided, GraphProfile, Kept, PartMemory, profile_graph
from ridgeline.memory.runtime import Runtime, runtime_of
from ridgeline.plan.plan import Plan
from ridgeline.seams.data_exchange import DataExchange, data_exchange
from ridgeline.seams.loss import CrossEntropy, cross_entropy
from ridgeline.seams.offload import FLAGS, GRADIENTS, OPTIMIZER, WEIGHTS, TierOffload, by_name
from ridgeline.seams.recompute import RecomputeRule, recompute_rule
from ridgeline.seams.registry import each_name

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
    shards: Mapping[str, tuple[Array, Array]]  # of each state, 1 / ranks that share it: of dense weights, of experts

    def dense(self, sums: Divided) -> Array:
        """Numbers outside the experts on one rank [1]."""
        return sums.dense * self.tensor + sums.repeated

    def experts(self, sums: Divided) -> Array:
        """Numbers inside the experts on one rank [1]."""
        return sums.expert * self.expert + sums.expert_repeated * self.expert_repeated

    def sharded(self, dense: Array, experts: Array, state: str) -> Array:
        """Numbers held of `dense` and `experts` of a state; '' is one that each rank holds whole [1]."""
        shard, expert_shard = self.shards.get(state, (1.0, 1.0))
        return np.asarray(dense * shard + experts * expert_shard)

    def kept(self, kept: Kept, part: PartMemory) -> Array:
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
    shards: Mapping[str, Array],
) -> Shares:
    """Reciprocal degrees and tokens of plans.

    `shards` are ranks that share each state, 0 where they do not. Experts shard over their own data-parallel group:
    of R such ranks R * tp / (ep * etp), the whole group edp = tp * cp * dp / (ep * etp) when R = dp * cp.
    """
    tensor = 1.0 / as_array(tp)
    expert_repeated = 1.0 / as_array(ep)
    expert = expert_repeated / as_array(etp)

    def divided(ranks: Array) -> tuple[Array, Array]:
        shard = 1.0 / np.maximum(1.0, ranks)
        return shard, np.where(ranks > 0, 1.0 / np.maximum(1.0, ranks * expert / tensor), 1.0)

    return Shares(
        tensor=tensor,
        sequence=np.where(np.asarray(sequence_parallel, dtype=bool), tensor, 1.0),
        expert=expert,
        expert_repeated=expert_repeated,
        tokens=as_array(micro_batch) * workload.seq_len / as_array(cp),
        shards={state: divided(ranks) for state, ranks in shards.items()},
    )


Bools = NDArray[np.bool_]
Codes = NDArray[np.int64]


class MemoryOptions(TypedDict, total=False):
    """Plans of one stage; every number may be an array over plans.

    `layers` counts the layers of each block kind on the stage; `first` and `last` say whether it
    holds the embedding and the head (default: both), or a share of each with others, `ends` of them (default: 1).
    `in_flight` [1] is the peak number of
    micro-batches held, in units of the stage's whole activations; `head_in_flight` that of the loss
    (1 but for schedules that run all forwards first). `micro_batches` of a step [1]: from the second
    one on, gradients of the first are there while activations are. `zero` 0..3 shards over `shard_ranks` ranks
    (None: dp * cp). `recompute` is the name of a rule, or names, `recompute_layers` of a stage's layers by which a rule
    for whole layers is limited (None: all). `offload_weights` keeps weights, gradients and optimizer states
    on the host, `optimizer_in_backward` frees a gradient as it is used; `loss` is the name of one, or names; `offloads`
    are techniques that all plans have, `exchange` how their states are sharded. `runtime` is by default that of the
    workload's framework, `profile` what `profile_graph` says under it; `others` are layers of the same stage under
    other plans.
    """

    layers: Required[Mapping[str, ArrayLike]]
    tp: ArrayLike
    cp: ArrayLike
    ep: ArrayLike
    etp: ArrayLike
    dp: ArrayLike
    sequence_parallel: ArrayLike
    micro_batch: ArrayLike
    zero: ArrayLike
    shard_ranks: ArrayLike | None
    first: ArrayLike
    last: ArrayLike
    ends: int
    in_flight: ArrayLike
    head_in_flight: ArrayLike
    micro_batches: ArrayLike
    recompute: ArrayLike
    recompute_layers: ArrayLike | None
    offload_optimizer: ArrayLike
    offload_activations: ArrayLike
    offload_weights: ArrayLike
    optimizer_in_backward: ArrayLike
    loss: ArrayLike
    offloads: tuple[TierOffload, ...]
    exchange: DataExchange
    runtime: Runtime
    profile: GraphProfile
    others: Sequence[MemoryOptions]


@dataclass(frozen=True, kw_only=True)
class MemoryStage:
    """A stage of one graph and workload under an array of plans."""

    profile: GraphProfile
    runtime: Runtime
    shares: Shares
    layers: Mapping[str, Array]
    first: Array
    last: Array
    in_flight: Array
    head_in_flight: Array
    micro_batches: Array
    zero: Codes
    rules: tuple[tuple[RecomputeRule, Bools], ...]  # each that a plan has, and which plans have it
    recompute_layers: Array | None
    offloads: tuple[tuple[TierOffload, Bools], ...]  # each that a plan has, and which plans have it
    optimizer_in_backward: Bools
    losses: tuple[tuple[CrossEntropy, Bools], ...]  # each that a plan has, and which plans have it
    beside: Array  # what the exchange keeps for each trained number of a rank [byte]
    others: tuple[MemoryStage, ...] = ()  # layers of the stage that are run in another way
    _away: dict[tuple[str, str], Array] = field(default_factory=dict, repr=False, compare=False)

    @property
    def parts(self) -> tuple[MemoryStage, ...]:
        """The stage as parts whose layers are run alike, the first with what is no layer."""
        return (replace(self, others=()), *self.others)

    @property
    def layer_count(self) -> Array:
        """Layers of all kinds [1]."""
        return np.asarray(sum(self.layers.values(), start=np.zeros(())))

    def away(self, kind: str, tier: str = "") -> Array:
        """Share of one of `seams.offload.KINDS` that is in a tier beside the device, or in any of them [1]."""
        if (kind, tier) not in self._away:
            total = np.zeros(())
            for one, chosen in self.offloads:
                where = one.away(kind, self.zero)
                share = as_array(getattr(where, tier)) if tier else as_array(where.dram) + as_array(where.nvme)
                total = total + np.where(chosen, share, 0.0)
            self._away[kind, tier] = np.minimum(total, 1.0)
        return self._away[kind, tier]

    @property
    def forwards(self) -> int:
        """Forwards of a step that has no backward [1]; 0 where it has one."""
        return self.profile.optimizer.forwards()

    @property
    def side_by_side(self) -> int:
        """Forwards of a step without backward that go through the layers together [1]."""
        return self.forwards if any(one.forwards for one, _ in self.offloads) else min(1, self.forwards)

    def by_rule(self, asked: Callable[[RecomputeRule], Array]) -> Array:
        """What each plan's rule of recompute answers, in the answer's unit."""
        found = np.zeros(())
        for rule, chosen in self.rules:
            found = np.where(chosen, asked(rule), found)
        return found

    def by_loss(self, asked: Callable[[CrossEntropy], ArrayLike]) -> Array:
        """What each plan's loss answers, in the answer's unit."""
        found = np.zeros(())
        for loss, chosen in self.losses:
            found = np.where(chosen, asked(loss), found)
        return found


def shared_ends(profile: GraphProfile, stages: int) -> GraphProfile:
    """The profile where so many stages have an equal share each of the vocabulary's two ends."""
    if stages == 1:
        return profile

    def share(part: PartMemory) -> PartMemory:
        sums: dict[str, Any] = {}
        for name in ("trained", "frozen", "quantized", "formats", "states", "largest"):
            whole: Divided = getattr(part, name)
            sums[name] = replace(whole, dense=whole.dense / stages, repeated=whole.repeated / stages)
        return replace(part, **sums)

    return replace(
        profile,
        embedding=share(profile.embedding),
        head=share(profile.head),
        table=share(profile.table),
        vocab=-(-profile.vocab // stages),
    )


Measured = Callable[[MemoryStage], Array]


def summed(measure: Measured) -> Measured:
    """What a stage holds, added up over its parts."""

    @wraps(measure)
    def over_parts(stage: MemoryStage) -> Array:
        if not stage.others:
            return measure(stage)
        return np.asarray(sum((measure(part) for part in stage.parts), start=as_array(0.0)))

    return over_parts


def widest(measure: Measured) -> Measured:
    """What one layer of a stage has at once: the most of its parts."""

    @wraps(measure)
    def over_parts(stage: MemoryStage) -> Array:
        if not stage.others:
            return measure(stage)
        return np.asarray(reduce(np.maximum, (measure(part) for part in stage.parts)))

    return over_parts


def resolve(graph: Graph, workload: Workload, options: MemoryOptions) -> MemoryStage:
    """The stage that `options` describe; unknown names and block kinds are refused."""
    for name in options:
        if name not in MemoryOptions.__annotations__:
            raise UnknownNameError("option of stage_memory", name, MemoryOptions.__annotations__)
    for name in options["layers"]:
        if name not in graph.blocks:
            raise UnknownNameError("block kind", name, graph.blocks)
    runtime = options.get("runtime") or runtime_of(workload.policy)
    cp, dp = as_array(options.get("cp", 1)), as_array(options.get("dp", 1))
    ranks, zero = options.get("shard_ranks"), np.asarray(options.get("zero", 0), dtype=np.int64)
    limit, exchange = options.get("recompute_layers"), options.get("exchange") or data_exchange(())
    group = dp * cp if ranks is None else as_array(ranks)
    whole = options.get("profile") or profile_graph(graph, workload, runtime)
    profile = shared_ends(whole, options.get("ends", 1))
    return MemoryStage(
        profile=profile,
        runtime=runtime,
        shares=shares_of(
            workload,
            tp=options.get("tp", 1),
            cp=cp,
            ep=options.get("ep", 1),
            etp=options.get("etp", 1),
            sequence_parallel=options.get("sequence_parallel", False),
            micro_batch=options.get("micro_batch", 1),
            shards={
                state: np.where(exchange.sharded(state, zero), exchange.group(state, dp * cp, group), 0.0)
                for state in (WEIGHTS, GRADIENTS, OPTIMIZER)
            },
        ),
        layers={name: as_array(count) for name, count in options["layers"].items()},
        first=as_array(options.get("first", True)),
        last=as_array(options.get("last", True)),
        in_flight=as_array(options.get("in_flight", 1)),
        head_in_flight=as_array(options.get("head_in_flight", 1)),
        micro_batches=as_array(options.get("micro_batches", 1)),
        zero=zero,
        beside=as_array(exchange.kept_bytes(zero, dp * cp, group, profile.precision.weight_bytes)),
        rules=tuple(
            (recompute_rule(name, runtime.selective), chosen)
            for name, chosen in each_name(options.get("recompute", Plan.recompute))
        ),
        recompute_layers=None if limit is None else as_array(limit),
        offloads=_offloads(options),
        optimizer_in_backward=np.asarray(options.get("optimizer_in_backward", False), dtype=bool),
        losses=tuple((cross_entropy(name), chosen) for name, chosen in each_name(options.get("loss", Plan.loss))),
        others=tuple(
            resolve(graph, workload, {"profile": whole, **other, "runtime": runtime})
            for other in options.get("others", ())
        ),
    )


def _offloads(options: MemoryOptions) -> tuple[tuple[TierOffload, Bools], ...]:
    """Each technique of offload that any plan has, with the plans that have it."""
    flags = {key: np.asarray(options.get(word, False), dtype=bool) for word, key in FLAGS.items()}
    meant = [(by_name(key), chosen) for key, chosen in flags.items() if np.any(chosen)]
    return (*meant, *((one, np.asarray(True)) for one in options.get("offloads", ())))
