"""The grid of deployments: degrees that divide model and machine, formats, budgets, pools for prompts and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ridgeline.cost.formats import form
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Cluster
from ridgeline.graph.model import Model
from ridgeline.plan.checkpoint_formats import rates_of_both, with_formats
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.scenario.serving import drafts_of, fitting_instances
from ridgeline.scenario.serving_words import applying, deployed, deployment_words, replaced
from ridgeline.seams.deployment_slots import fills
from ridgeline.seams.registry import built_in
from ridgeline.seams.serving import Placement, RemoteKV, instance_devices, of
from ridgeline.search.expert_service import Known, Loads, placed, routes_of
from ridgeline.serving.engine import Engine
from ridgeline.serving.metrics import decode_parts, prefill_parts
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import Traffic

_NARROW_WEIGHTS = (("fp4", "nvfp4"), ("fp8", "fp8"))  # matrix rates that admit narrower weights, and their format


def _whole(key: str) -> int:
    return field(default_factory=lambda: int(constant(key)))


GOODPUT, TIME, DOLLARS, JOULES, CARBON = AIMS = ("goodput", "time", "dollars", "joules", "carbon")


@dataclass(frozen=True, kw_only=True)
class ServingSpace:
    """What a search may vary, and for what; `quantize` admits formats narrower than the model's own, `pools`
    disaggregation. `aim` is one of AIMS: what those that keep to the objective are ranked by."""

    token_budgets: tuple[int | None, ...] = (None, 2048, 16384)
    max_seqs: tuple[int | None, ...] = (None, 64)
    aim: str = "goodput"
    quantize: bool = False
    pools: bool = True
    most_pp: int = 4
    loads: Loads | None = None  # of experts, which are then placed for them
    splits: int = 3  # prefill instances tried on either side of the balanced number
    micro_batches: tuple[int, ...] = (2, 3, 4)  # of experts on devices of another kind
    # Prompts that several instances compute, and contexts that are divided over ranks which would hold the same cache.
    elastic_tokens: int = _whole("serve.elastic_tokens")
    long_tokens: int = _whole("serve.long_tokens")
    fixed: Mapping[str, Any] = field(default_factory=dict)  # options of a deployment that a person stated
    recipe: Callable[[tuple[Deployment, ...]], tuple[Deployment, ...]] | None = None  # sets what a benchmark does
    drafted: Callable[[Deployment], Deployment] | None = None  # gives a shape what a model that drafts takes

    def choices(self, name: str, values: Iterable[Any]) -> list[Any]:
        """The stated value of an option, else the values that are worth trying."""
        return [self.fixed[name]] if name in self.fixed else list(values)


def _powers(most: int) -> list[int]:
    return [2**place for place in range(most.bit_length()) if 2**place <= most]


def deployments(model: Model, cluster: Cluster, space: ServingSpace, *, longest: int = 0) -> Iterator[Deployment]:
    """Shapes of one instance for contexts of up to `longest` tokens, those with what a person stated only.

    In a fleet of two kinds of devices each kind may hold whole instances, or attention with experts on the other.
    """
    stated = space.fixed
    if cluster.secondary is None:
        yield from _of_kind(model, cluster, space, longest)
        return
    for kind in (cluster.accelerator.name, cluster.secondary.cluster.accelerator.name):
        own = cluster.of_kind(kind)
        if "expert_devices" not in stated and not stated.get("apart"):
            whole = _of_kind(model, replace(own, secondary=None), space, longest)
            yield from (replace(one, kind=kind) for one in whole)
        yield from _experts_beside(model, own, space, longest)


def _experts_beside(model: Model, own: Cluster, space: ServingSpace, longest: int) -> Iterator[Deployment]:
    """Shapes with attention on the devices of a cluster and experts on those beside it."""
    assert own.secondary is not None
    there = own.secondary.cluster
    if "pp" in space.fixed or "ep" in space.fixed:
        return
    apart = replace(space, fixed={**space.fixed, "apart": True})
    for one in _of_kind(model, own, apart, longest):
        for micro in space.choices("micro_batches", space.micro_batches):
            yield replaced(
                one, kind=own.accelerator.name, expert_kind=there.accelerator.name, micro_batches=micro
            )  # fmt: skip


def _of_kind(model: Model, cluster: Cluster, space: ServingSpace, longest: int) -> Iterator[Deployment]:
    """Shapes of one instance on devices of one kind, or with experts beside them where they are to be apart."""
    stated = space.fixed
    fixed = deployment_words(stated) | drafts_of(stated)
    name, _, version = str(stated.get("engine", "vllm")).partition(" ")
    fixed |= {"engine": name, "version": version.strip()}
    if other := _own(model, cluster, space).other_weights:
        fixed["other_weights"] = other
    known: Known = {}  # the imbalance on so many ranks
    routes = routes_of(model, cluster) if space.loads is not None else None
    stays: tuple[bool, ...] = (stated.get("tokens_stay", False),)
    if space.loads is not None and space.loads.flow is not None and "tokens_stay" not in stated:
        stays = (False, True)
    experts = max((block.experts for block in model.graph.blocks.values()), default=0)
    for degrees in _divided(_degrees(model, cluster, space), model, space, longest >= space.long_tokens):
        for formats in _formats(model, cluster, space):
            for budget in space.choices("token_budget", space.token_budgets):
                for seqs in space.choices("max_seqs", space.max_seqs):
                    for stay in stays:
                        if stay and not _may_stay(degrees):
                            continue
                        words = {**fixed, **degrees, **formats, "token_budget": budget, "max_seqs": seqs}
                        one = deployed(**applying({**words, "tokens_stay": stay}))
                        yield one if space.loads is None else placed(
                            one, space.loads, experts, routes=routes, known=known
                        )  # fmt: skip


def _may_stay(degrees: Mapping[str, int]) -> bool:
    """Whether tokens can stay with their experts: whole ones, on attention's ranks."""
    return degrees["tp"] == degrees["pp"] == 1 < degrees["dp"] == degrees["ep"] and "expert_devices" not in degrees


def _degrees(model: Model, cluster: Cluster, space: ServingSpace) -> Iterator[dict[str, int]]:
    stated = space.fixed
    graph = model.graph
    experts = max((block.experts for block in graph.blocks.values()), default=0)
    node = min(cluster.tiers[0].size if cluster.tiers else 1, cluster.count)
    for tp in space.choices("tp", _powers(min(node, cluster.count))):
        if any(op.heads % tp for op in graph.attentions):
            continue
        alone = {"nano_tokens", "kv_fetched", "expert_devices", "elastic_tokens"} & stated.keys()
        one_stage = alone or any(stated.get(name) for name in ("split", "apart", "borrows", "two_batch_overlap"))
        stages = 1 if one_stage else min(space.most_pp, len(graph.layers))
        for pp in space.choices("pp", _powers(stages)):
            one_rank = "elastic_tokens" in stated or stated.get("split") or stated.get("borrows")
            spreads = experts and not one_rank
            for dp in space.choices("dp", _powers(cluster.count) if spreads else [1]):
                ranks = tp * dp
                if ranks * pp > cluster.count or (pp > 1 and dp > 1 and "pp" not in stated):
                    continue
                spread = sorted({1, ranks} if dp == 1 else {ranks}) if experts else [1]
                spread = [1] if "expert_devices" in stated else spread
                if stated.get("apart") and "expert_devices" not in stated:
                    others = cluster.count - ranks if cluster.secondary is None else cluster.secondary.cluster.count
                    others = others if pp == 1 else 0
                    for count in [one for one in range(1, others + 1) if experts and experts % one == 0]:
                        yield {"tp": tp, "pp": pp, "dp": dp, "ep": 1, "expert_devices": count}
                    continue
                more = experts + stated.get("expert_redundant", 0)
                whole = [one for one in spread if not experts or experts % one == 0 or more % one == 0]
                for ep in space.choices("ep", whole):
                    if ranks % ep == 0:
                        yield {"tp": tp, "pp": pp, "dp": dp, "ep": ep}


def _divided(grid: Iterable[dict[str, int]], model: Model, space: ServingSpace, long: bool) -> Iterator[dict[str, int]]:
    """Degrees with contexts whole and, where they are `long` and nothing stated forbids it, held once by all ranks."""
    stated = space.fixed
    heads = min((1 if op.latent else op.kv_heads for op in model.graph.attentions), default=0)
    words = {"kv_ranks", "nano_tokens", "kv_kept", "kv_fetched", "elastic_tokens"}
    whole_only = words & stated.keys() or any(stated.get(name) for name in ("split", "borrows", "two_batch_overlap"))
    for degrees in grid:
        if degrees["tp"] % stated.get("kv_ranks", 1):
            continue
        yield degrees
        copies = degrees["tp"] // heads if heads else 1
        if long and not whole_only and copies > 1:
            yield {**degrees, "kv_ranks": copies}


def _own(model: Model, cluster: Cluster, space: ServingSpace) -> Deployment:
    """A deployment in the stated formats, else in the checkpoint's own."""
    stated = space.fixed
    asked = Deployment(weights=stated.get("weights", ""), other_weights=stated.get("attention_weights", ""))
    return with_formats(asked, model, cluster)[0]


def _formats(model: Model, cluster: Cluster, space: ServingSpace) -> Iterator[dict[str, str]]:
    """Formats of weights and cache: as stated, else the checkpoint's own and, where admitted, narrower ones."""
    rates = rates_of_both(cluster)
    own = _own(model, cluster, space).weights
    least_bytes = form(own or "bf16").weight_bytes
    narrower = [
        name
        for rate, name in _NARROW_WEIGHTS
        if space.quantize and rate in rates and form(name).weight_bytes < least_bytes
    ]
    weights = [own] if "weights" in space.fixed else [own, *narrower]
    caches = space.choices("kv", ["", *(["fp8"] if space.quantize and "fp8" in rates else [])])
    for one in weights:
        for cache in caches:
            yield {"weights": one, "kv": cache}


def fleets(
    shapes: Sequence[Deployment],
    cluster: Cluster,
    space: ServingSpace,
    ready: Callable[[Deployment], tuple[Engine, StepTables]],
    traffic: Traffic,
) -> Iterator[tuple[Deployment, ...]]:
    """Fleets that fill the cluster: whole instances of each shape, and pools of two shapes near their balance."""
    stated = space.fixed
    for one in shapes:
        most = fitting_instances(one, cluster)
        whole = replace(one, instances=min(stated.get("instances", most), most))
        yield (whole,)
        yield from ((other,) for other in _long_prompts(whole, space, ready, traffic))
    if cluster.secondary is not None:
        yield from _both_kinds(shapes, cluster, space)
        if space.pools and "instances" not in stated:
            yield from _pools_of_kinds(shapes, cluster)
        return
    if not space.pools or cluster.count < 2 or "instances" in stated or any(fills(one, "roles") for one in shapes):
        return
    seqs = shapes[0].options.max_seqs if shapes else None
    plain = [one for one in shapes if one.pp == 1 and one.options.max_seqs == seqs and not of(one, Placement).stay]
    smallest = {_degree_key(one): one for one in reversed(plain)}  # the first budget of each shape
    paces = [(one, *_paces(one, *ready(one), traffic)) for one in smallest.values()]
    for first, prefill_s, _ in paces:
        for second, _, decode_s in paces:
            if first.weights == second.weights and first.kv == second.kv:
                yield from _pools(first, second, prefill_s, decode_s, cluster, space)


def _long_prompts(
    one: Deployment, space: ServingSpace, ready: Callable[[Deployment], tuple[Engine, StepTables]], traffic: Traffic
) -> Iterator[Deployment]:
    """The same instances that borrow room, where a request is longer than a cache, or merge for long prompts."""
    plain = one.instances > 1 and one.dp == one.pp == one.kv_ranks == 1
    others = ("cache", "adapters", "iterations", "urgency", "roles", "host copies")
    if not plain or one.options.prefix_cache or any(fills(one, slot) for slot in others):
        return
    if int(np.max(traffic.prompt_tokens)) >= space.long_tokens:
        yield replaced(one, elastic_tokens=space.elastic_tokens)
    if int(np.max(traffic.prompt_tokens + traffic.output_tokens)) > ready(one)[0].capacity.cache_tokens:
        for way in built_in(RemoteKV.family):
            yield replace(one, technique=(*one.technique, way().text))


def _both_kinds(
    shapes: Sequence[Deployment], cluster: Cluster, space: ServingSpace
) -> Iterator[tuple[Deployment, ...]]:
    """Whole instances on devices of both kinds at once, alike in all but their degrees."""
    whole = [one for one in shapes if not one.expert_kind]
    first = [one for one in whole if one.kind == cluster.accelerator.name]
    if "instances" in space.fixed:
        return
    for one in first:
        for other in whole:
            if other.kind != one.kind and _batching(other) == _batching(one):
                yield tuple(replace(each, instances=fitting_instances(each, cluster)) for each in (one, other))


def _pools_of_kinds(shapes: Sequence[Deployment], cluster: Cluster) -> Iterator[tuple[Deployment, ...]]:
    """Prefill on devices of one kind and decode on those of the other, either way, alike in formats and batching."""
    plain = [one for one in shapes if not one.expert_kind and one.pp == 1 and not fills(one, "roles")]
    for first in plain:
        for second in plain:
            if first.kind != second.kind and _batching(first) == _batching(second):
                yield tuple(
                    replace(one, instances=fitting_instances(one, cluster), role=role)
                    for one, role in ((first, Role.PREFILL), (second, Role.DECODE))
                )


def _batching(one: Deployment) -> tuple[object, ...]:
    return one.weights, one.kv, one.options, one.pp


def _degree_key(one: Deployment) -> tuple[object, ...]:
    return one.tp, one.pp, one.dp, one.ep, one.kv_ranks, one.weights, one.kv


def _paces(one: Deployment, made: Engine, tables: StepTables, traffic: Traffic) -> tuple[float, float]:
    """Seconds of one instance for a mean request's prompt, and for its answer in a batch of 64 [s]."""
    prompt = float(np.mean(traffic.prompt_tokens))
    output = float(np.mean(traffic.output_tokens))
    batch = min(64.0, float(made.policy.max_seqs))
    decode_s = output * sum(decode_parts(made, tables, batch, prompt + output / 2).values()) / batch
    return sum(prefill_parts(made, tables, prompt).values()) / one.dp, decode_s / one.dp


def _pools(
    first: Deployment, second: Deployment, prefill_s: float, decode_s: float, cluster: Cluster, space: ServingSpace
) -> Iterator[tuple[Deployment, ...]]:
    """Splits of the devices over prefill and decode instances, near the one in which both keep pace."""
    one, two = instance_devices(first), instance_devices(second)
    if one + two > cluster.count:
        return
    # n prefill instances keep pace with m decode ones when n / prefill_s = m / decode_s
    balanced = cluster.count * prefill_s / (one * prefill_s + two * decode_s)
    middle = max(1, round(balanced))
    tried = set()
    for count in range(middle - space.splits, middle + space.splits + 1):
        others = (cluster.count - count * one) // two
        if count < 1 or others < 1 or (count, others) in tried:
            continue
        tried.add((count, others))
        yield (replace(first, instances=count, role=Role.PREFILL), replace(second, instances=others, role=Role.DECODE))
