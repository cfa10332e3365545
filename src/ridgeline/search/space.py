"""The choices a search goes through, and which degrees are legal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product

import numpy as np

from ridgeline.facts.records import Cluster
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.plan.rules import ModelLimits, divisors, most_places, rules
from ridgeline.seams.context import context_style
from ridgeline.seams.loss import tried_losses
from ridgeline.seams.registry import names
from ridgeline.seams.schedule import PipelineSchedule
from ridgeline.seams.setting import Setting


@dataclass(frozen=True, kw_only=True)
class Space:
    """What each choice may be; `None` means every legal value up to the limit beside it.

    `fixed` holds fields of Plan that the person stated: only plans with these values are covered.
    """

    max_tp: int = 64
    tensor_across_nodes: bool = False  # tp beyond the innermost network tier
    max_pp: int = 128
    max_cp: int = 64
    max_ep: int = 512
    max_micro_batch: int = 16
    max_chunks: int = 16
    schedules: tuple[str, ...] = ("1f1b", "interleaved", "zb-h1", "zb-v")
    recompute: tuple[str, ...] = ("none", "selective", "full")
    recompute_shares: tuple[float, ...] = (1.0, 0.5)  # of a stage's layers, where recompute is full
    zero: tuple[int, ...] = (0, 1, 3)
    zero_in_pipelines: tuple[int, ...] = (0, 1)  # of these; pipelines gather and reduce with every micro-batch
    zero_in_node: bool = False  # also shard over one node only (hybrid)
    offload_optimizer: tuple[bool, ...] = (False, True)
    offload_weights: tuple[bool, ...] = (False,)
    offload_activations: tuple[bool, ...] = (False,)
    optimizer_in_backward: tuple[bool, ...] = (False,)
    loss: tuple[str, ...] = (Plan.loss,)
    sequence_parallel: tuple[bool, ...] = (True, False)
    overlap_tensor: tuple[bool, ...] = (False, True)
    overlap_gradients: tuple[bool, ...] = (True,)
    overlap_weights: tuple[bool, ...] = (True,)
    context_style: tuple[str, ...] = ("ring", "ulysses")
    node_order: str = "annealed"  # where links between nodes differ
    within_host: bool = True  # only plans whose states and activations the host's memory holds
    balance_stages: bool = True  # also try layers balanced with the embedding and the head counted
    min_context_tokens: int = 2048  # a context shard smaller than this is not tried
    devices: int | None = None  # that plans may use; None: all of the cluster
    fixed: Mapping[str, object] = field(default_factory=dict)

    @property
    def techniques(self) -> tuple[str, ...]:
        """Techniques that every plan applies."""
        stated = self.fixed.get("technique", ())
        return stated if isinstance(stated, tuple) else ()

    def thrifty(self, setting: Setting) -> Space:
        """The space with everything that holds less on the device tried as well."""
        both = (False, True)
        losses = tuple(dict.fromkeys((Plan.loss, *tried_losses(setting))))
        return replace(self, offload_weights=both, offload_activations=both, optimizer_in_backward=both, loss=losses)

    def narrowed(self) -> Space:
        """The space with every stated field's choices reduced to the stated value."""
        names = {item.name for item in fields(self)}
        changes: dict[str, object] = {}
        for name, value in self.fixed.items():
            if name == "node_order":
                changes[name] = value
            elif name in names and name not in ("fixed",):
                changes[name] = (value,)
            elif name == "schedule":
                changes["schedules"] = (value,)
            elif f"max_{name}" in names and isinstance(value, int):
                changes[f"max_{name}"] = value
        return replace(self, **changes)  # type: ignore[arg-type]


EXHAUSTIVE = Space(
    max_micro_batch=1 << 20,
    min_context_tokens=1024,
    tensor_across_nodes=True,
    recompute_shares=(1.0, 5 / 6, 2 / 3, 1 / 2, 1 / 3, 1 / 6),
    schedules=names("schedules"),
    zero=(0, 1, 2, 3),
    zero_in_node=True,
    overlap_gradients=(True, False),
    overlap_weights=(True, False),
)


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """Parallel degrees and micro-batch of a family of plans; `dp` is the largest that the batch allows."""

    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    etp: int
    micro_batch: int
    micro_batches: int
    context: str


_PLANNED = ("tp", "cp", "pp", "dp", "ep", "etp", "micro_batch")  # degrees that are fields of a plan
_OFF = ("sequence_parallel", "zero", "zero_group", "offload_weights", "optimizer_in_backward")
"""Choices of a plan that the rules of degrees do not hang on."""


def _pick(name: str, space: Space, choices: list[int]) -> list[int]:
    stated = space.fixed.get(name)
    return choices if stated is None else [int(str(stated))]


def data_parallel(ranks: int, batch: int) -> int:
    """The largest data-parallel degree over `ranks` ranks that divides `batch` [1]."""
    if batch % ranks == 0:
        return ranks
    return max(d for d in divisors(batch) if d <= ranks)


def degrees(space: Space, limits: ModelLimits, workload: Workload, cluster: Cluster) -> Iterator[Degrees]:
    """All combinations of degrees worth pricing; rules are checked afterwards, in one broadcast."""
    count, batch = space.devices or cluster.count, workload.global_batch
    domain = max(8, cluster.tiers[0].size) if cluster.tiers and not space.tensor_across_nodes else count
    tps = _pick("tp", space, divisors(max(limits.heads, 1), min(space.max_tp, domain, count)))
    cps = _pick(
        "cp",
        space,
        [
            c
            for c in divisors(workload.seq_len, space.max_cp)
            if c & (c - 1) == 0 and (c == 1 or workload.seq_len // c >= space.min_context_tokens)
        ],
    )
    micro = _pick("micro_batch", space, divisors(batch, space.max_micro_batch))
    for tp, cp in product(tps, cps):
        ranks = count // (tp * cp)
        if ranks < 1:
            continue
        for pp in _pick("pp", space, divisors(ranks, min(space.max_pp, limits.layers))):
            if pp > ranks:
                continue
            yield from _batches(space, limits, batch, ranks // pp, tp=tp, cp=cp, pp=pp, micro=micro)


def _batches(
    space: Space, limits: ModelLimits, batch: int, ranks: int, *, tp: int, cp: int, pp: int, micro: list[int]
) -> Iterator[Degrees]:
    stated_dp = space.fixed.get("dp")
    styles = [Plan.context_style] if cp == 1 else space.context_style
    for size in micro:
        if batch % size:
            continue
        dp = int(str(stated_dp)) if stated_dp is not None else data_parallel(ranks, batch // size)
        if (batch // size) % dp:
            continue
        group = tp * cp * dp
        experts = [e for e in divisors(limits.experts, space.max_ep) if group % e == 0] if limits.experts else [1]
        for ep in _pick("ep", space, experts):
            expert_tp = sorted({1, tp}) if limits.experts and tp > 1 and group % (ep * tp) == 0 else [1]
            for etp, context in product(_pick("etp", space, expert_tp), styles):
                yield Degrees(
                    tp=tp,
                    cp=cp,
                    pp=pp,
                    dp=dp,
                    ep=ep,
                    etp=etp,
                    micro_batch=size,
                    micro_batches=batch // size // dp,
                    context=context,
                )


def fewer_nodes(cluster: Cluster) -> list[int]:
    """Devices of fewer whole nodes that are worth a search of their own [1], the most first: divisors, and half."""
    nodes = -(-cluster.count // cluster.node_devices)
    found = {*divisors(nodes), nodes // 2} - {nodes, 0}
    return [many * cluster.node_devices for many in sorted(found, reverse=True)]


def chunk_choices(schedule: PipelineSchedule, pp: int, layers: int, space: Space) -> list[int]:
    """Chunks per stage that a schedule may use on `pp` stages [1]; empty when it does not apply.

    A stated number need not divide the layers.
    """
    stated, counts = space.fixed.get("chunks"), tuple(schedule.chunk_counts(pp, space.max_chunks))
    if pp == 1:
        found = [1] if schedule.alone else []
    elif len(counts) == 1:
        found = [c for c in counts if c == 1 or pp * c // schedule.copies <= layers]
    else:
        found = [c for c in counts if layers % (pp * c) == 0 or (c == stated and pp * c <= most_places(layers))]
    return found if stated is None else [c for c in found if c == stated]


def legal(
    found: list[Degrees], limits: ModelLimits, workload: Workload, cluster: Cluster
) -> tuple[list[bool], dict[str, int]]:
    """Which degrees keep every rule, and how many break each one first."""
    if not found:
        return [], {}
    columns = {name: np.array([int(getattr(item, name)) for item in found]) for name in _PLANNED}
    styles = [context_style(item.context) for item in found]
    columns |= {name: np.array([getattr(style, name) for style in styles]) for name in ("halves", "by_heads")}
    columns |= {"chunks": np.ones(len(found), dtype=int), **dict.fromkeys(_OFF, np.zeros(len(found), dtype=int))}
    kept = np.ones(len(found), dtype=bool)
    broken: dict[str, int] = {}
    for name, keeps in rules(limits, workload, cluster.count, columns):
        lost = int(np.count_nonzero(kept & ~keeps))
        if lost:
            broken[name] = lost
        kept &= keeps
    return kept.tolist(), broken


def plan_of(item: Degrees, **choices: object) -> Plan:
    """The plan with these degrees and choices."""
    degrees = {name: getattr(item, name) for name in _PLANNED}
    return Plan(**degrees, context_style=item.context, **choices)  # type: ignore[arg-type]


def alone(item: Degrees | Plan, *, experts: bool) -> bool:
    """Whether no rank shares its weights with another: nothing to shard, reduce or gather."""
    ranks = item.dp * item.cp
    return ranks == 1 and (not experts or item.tp * ranks <= item.ep * item.etp)
