"""A serving scenario: model, cluster, traffic, objective and deployments, from a TOML file or from flags.

The traffic and its objective are the scenario's [workload], the deployment its [plan].
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.errors import PlanError, RidgelineError
from ridgeline.graph.model import SAMPLE
from ridgeline.plan.checkpoint_formats import with_formats
from ridgeline.plan.deployment import EVEN_LOADS, Deployment, Role
from ridgeline.scenario.fields import WORKLOAD_FIELDS, read_fields
from ridgeline.scenario.serving_fields import DEPLOYMENT_FIELDS, OFFLOAD_FIELDS, TRAFFIC_FIELDS
from ridgeline.scenario.serving_words import applying, deployed, deployment_words, idle
from ridgeline.scenario.training import Place, Table, failing, guarded, model_and_cluster, tables_of, words_of
from ridgeline.seams.serving import expert_devices, other_devices, own_devices, router_of

if TYPE_CHECKING:
    from ridgeline.facts.records import Cluster
    from ridgeline.graph.model import Model

# Words, and those of which one must be said for them to mean anything.
_ABOUT: Mapping[str, tuple[str, ...]] = {
    "draft_model": ("draft_tokens", "draft_tree"),
    "priority_levels": ("priority_period",),
    "micro_batches": ("expert_devices", "apart", "prefill"),
    **{entry.name: ("offload",) for entry in OFFLOAD_FIELDS if entry.name != "offload"},
}


_TOLD = "is an option of training, not of serving; `ridgeline plan` and `predict` read it without --serve"
_OF_PLAN = (*DEPLOYMENT_FIELDS, *OFFLOAD_FIELDS)
_OF_TRAINING = {entry.name: _TOLD for entry in WORKLOAD_FIELDS} | words_of("plan", _OF_PLAN)


@dataclass(frozen=True, kw_only=True)
class ServingScenario:
    """What to replay: `traffic` holds the words of the workload as read, `deployments` one instance or two pools.

    `stated` are the words of the deployment that a person wrote, which a search keeps; `assumed` tells what was taken
    where nothing was said.
    """

    model: Model
    cluster: Cluster
    traffic: Mapping[str, Any]
    deployments: tuple[Deployment, ...]
    router: str
    stated: Mapping[str, Any]
    engine_file: str | None = None
    draft: Model | None = None
    assumed: tuple[str, ...] = ()
    file: str | None = field(default=None, compare=False)


def read_serving(
    path: str | Path, words: Mapping[str, Table], *, apart: frozenset[str] = frozenset()
) -> ServingScenario:
    """The serving scenario in a TOML file, flags laid over it; raises InputError with file, line and field.

    Words of the plan that stand `apart` are left to whoever asks.
    """
    tables, place = tables_of(path, words)
    plan = {name: value for name, value in tables.get("plan", {}).items() if name not in apart}
    return _build({**tables, **({"plan": plan} if "plan" in tables else {})}, place)


def serving_from_words(words: Mapping[str, Table]) -> ServingScenario:
    """The serving scenario that tables describe."""
    return _build(words, Place(file=None, folder=Path(), lines={}))


def _build(tables: Mapping[str, Table], place: Place) -> ServingScenario:
    model, cluster, _ = model_and_cluster(tables, place)
    if SAMPLE in model.dims:
        raise place.fail("model", "name", f"{model.name} makes no tokens to serve; leave out --serve")
    cluster = _with_beside(_side_by_side(cluster, tables, place), tables.get("plan", {}), place)
    traffic = read_fields(
        tables.get("workload", {}), TRAFFIC_FIELDS, failing("workload", place), elsewhere=_OF_TRAINING
    )
    of_traffic = words_of("workload", TRAFFIC_FIELDS)
    stated = read_fields(tables.get("plan", {}), _OF_PLAN, failing("plan", place), elsewhere=of_traffic)
    _check_idle(stated, place)
    if stated.get("failures", {}).get("on"):
        stated["failures"]["on"] = guarded(
            "plan", tables["plan"], place, lambda: _kind_of(stated["failures"]["on"], cluster)
        )
    formed = [with_formats(one, model, cluster) for one in _placed(stated, cluster, place)]
    for name, words in (
        ("trace", traffic),
        ("engine_file", stated),
        ("expert_loads", stated),
        ("expert_traffic", stated),
    ):
        path = place.folder / str(words.get(name, ""))
        if name in words and os.path.exists(path):
            words[name] = os.path.abspath(path)
    return ServingScenario(
        model=model,
        cluster=cluster,
        traffic=traffic,
        deployments=tuple(one for one, _ in formed),
        router=stated.get("router") or router_of([one for one, _ in formed]).text,
        stated=stated,
        engine_file=stated.get("engine_file"),
        draft=_draft(stated, place),
        assumed=(*dict.fromkeys(why for _, why in formed if why), *_even_loads(stated)),
        file=place.file,
    )


def _even_loads(stated: Mapping[str, Any]) -> tuple[str, ...]:
    """What is assumed of experts' loads where replicas are asked for, and nothing says what for."""
    if not stated.get("expert_redundant") or "expert_loads" in stated:
        return ()
    return (EVEN_LOADS,)


def _check_idle(stated: Mapping[str, Any], place: Place) -> None:
    """Raises for words about what is not said, which would change nothing."""
    for name, about in _ABOUT.items():
        if name in stated and not any(word in stated for word in about):
            message = f"is about {about[0]}, which is not said; say {' or '.join(about)} as well, or leave it out"
            raise place.fail("plan", name, message)
    for name, message in idle(stated):
        if name in _ABOUT:
            continue
        raise place.fail("plan", name, message)
    _check_backend(stated, place)
    drafts = next((name for name in ("draft_tokens", "draft_tree") if stated.get(name)), None)
    if drafts and "acceptance" not in stated:
        message = "drafts are accepted with a probability that is not said; say acceptance, e.g. 0.7"
        raise place.fail("plan", drafts, message)
    if stated.get("adapters") and stated.get("prefix_cache"):
        message = "finds nothing beside adapters here, whose caches differ from each other; leave one of them out"
        raise place.fail("plan", "prefix_cache", message)
    for name in ("draft_share", "draft_prompt_share"):
        if "draft_model" in stated and name in stated:
            raise place.fail("plan", name, "is what draft_model is asked for; leave one of them out")


def _check_backend(stated: Mapping[str, Any], place: Place) -> None:
    """Raises for a backend of experts that the engine has not, which would change nothing."""
    from ridgeline.facts.engine_kernels import backends_of

    word, (name, *_) = stated.get("expert_backend"), str(stated.get("engine", "vllm")).split(" ")
    known = backends_of(name)
    if word is not None and word not in known:
        words = f"take one of {', '.join(known)}" if known else "none of its backends was measured; leave it out"
        raise place.fail("plan", "expert_backend", f"'{word}' is no backend of {name}; {words}")


def _draft(stated: Mapping[str, Any], place: Place) -> Model | None:
    """The model that drafts, where one is named; raises InputError at its word."""
    from ridgeline.graph.load import load

    if "draft_model" not in stated:
        return None
    try:
        return load(stated["draft_model"])
    except RidgelineError as error:
        raise place.fail("plan", "draft_model", str(error)) from None


def _side_by_side(found: Cluster, tables: Mapping[str, Table], place: Place) -> Cluster:
    """Two groups of unlike devices as serving sees them."""
    from ridgeline.facts.clusters import side_by_side

    if found.mixed is not None and "beside" in tables.get("plan", {}):
        raise place.fail("plan", "beside", f"{found.name} has devices of two kinds already; leave one of them out")
    seen: Cluster = guarded("cluster", tables["cluster"], place, lambda: side_by_side(found))
    return seen


def _with_beside(first: Cluster, plan: Table, place: Place) -> Cluster:
    """The cluster with the devices of another kind that the plan names beside it, where it does."""
    from ridgeline.facts.clusters import cluster, with_secondary

    text = plan.get("beside")
    if not isinstance(text, str) or not text.strip():
        return first
    path = place.folder / text.strip()
    named = str(path.resolve()) if text.strip().casefold().endswith(".toml") else text
    found: Cluster = guarded("plan", {"beside": text}, place, lambda: with_secondary(first, cluster(named)))
    return found


def _placed(stated: Mapping[str, Any], cluster: Cluster, place: Place) -> tuple[Deployment, ...]:
    """The deployments; what is wrong with them together is told at the file's table, where there is one."""
    try:
        return deployments_of(stated, cluster)
    except PlanError as error:
        if place.file is None:
            raise
        raise place.fail("plan", "", str(error)) from None


def deployments_of(stated: Mapping[str, Any], cluster: Cluster) -> tuple[Deployment, ...]:
    """One deployment on all devices, or a prefill and a decode pool; raises PlanError where they do not fit."""
    name, _, version = str(stated.get("engine", "vllm")).partition(" ")
    common = deployment_words(stated)
    common |= {"engine": name, "version": version.strip()}
    common |= drafts_of(stated)
    if "attention_weights" in stated:
        common["other_weights"] = stated["attention_weights"]
    pools = [pool for pool in ("prefill", "decode") if pool in stated]
    kinds = _kinds(stated, cluster)
    if len(pools) == 1:
        raise PlanError(f"a {pools[0]} pool alone cannot serve; give both, e.g. --prefill 2xtp4 --decode 1xtp8")
    if "fleet" in stated and (pools or "instances" in stated):
        raise PlanError("a fleet says its instances itself; leave out instances, prefill and decode")
    if pools and "instances" in stated:
        raise PlanError("instances are said beside pools, which have their own, e.g. --prefill 2xtp4; leave them out")
    if pools:
        found = tuple(
            deployed(
                **_beside(applying({**common, **stated[pool].degrees}), cluster), instances=stated[pool].instances,
                role=Role(pool), kind=_kind_of(stated[pool].kind or kind, cluster),
            )
            for pool, kind in zip(pools, kinds or ("", ""), strict=True)
        )  # fmt: skip
    elif "fleet" in stated:
        found = tuple(
            deployed(
                **_beside(applying({**common, **group.degrees}), cluster), instances=group.instances,
                kind=_kind_of(group.kind, cluster),
            )
            for group in stated["fleet"]
        )  # fmt: skip
    elif kinds:
        if "instances" in stated:
            said = f"4xtp2@{kinds[0]}+8xtp1@{kinds[1]}"
            raise PlanError(f"instances are said of devices of two kinds; say how many of each: --fleet {said}")
        each = [deployed(**common, kind=kind) for kind in kinds]
        found = tuple(replace(one, instances=fit) for one in each if (fit := fitting_instances(one, cluster)))
        found = found or (each[0],)
    else:
        common = _beside(common, cluster)
        one = deployed(**common)
        fitting = max(1, fitting_instances(one, cluster))
        found = (deployed(**common, instances=stated.get("instances", fitting)),)
    there = None if cluster.secondary is None else cluster.secondary.cluster
    less = ", or fewer expert_devices" if any(map(expert_devices, found)) else ""
    other = None if there is None else there.accelerator.name
    on_other = sum(own_devices(one) * one.instances for one in found if other and one.kind == other)
    for where, used in (
        (cluster, sum(own_devices(one) * one.instances for one in found) - on_other),
        (there, sum(other_devices(one) * one.instances for one in found) + on_other),
    ):
        if where is not None and used > where.count:
            raise PlanError(
                f"deployment: {used} devices are asked for, {where.name} has {where.count};"
                f" take fewer instances or smaller degrees{less}"
            )
    return found


def _kinds(stated: Mapping[str, Any], cluster: Cluster) -> tuple[str, ...]:
    """The kinds of a fleet of two that whole instances or pools stand on; none where experts have one of them."""
    if cluster.secondary is None or {"beside", "expert_devices", "apart"} & stated.keys():
        return ()
    return cluster.accelerator.name, cluster.secondary.cluster.accelerator.name


def _kind_of(named: str, cluster: Cluster) -> str:
    """The kind of devices of a fleet that a person's word names; '' of none, or where all are alike."""
    from ridgeline.facts.accelerators import canonical

    if not named:
        return ""
    there = [] if cluster.secondary is None else [cluster.secondary.cluster.accelerator.name]
    kinds = [cluster.accelerator.name, *there]
    if canonical(named) not in kinds:
        raise PlanError(
            f"deployment: instances on '{named}', of which {cluster.name} has none; it has {', '.join(kinds)}"
        )
    return str(canonical(named)) if there else ""


def drafts_of(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a deployment that say what is accepted: of a tree the other candidates apart."""
    if "acceptance" not in stated:
        return {}
    first, *others = stated["acceptance"]
    return {"acceptance": first} | ({"next_acceptance": tuple(others)} if others or "draft_tree" in stated else {})


def _beside(words: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """The words of a deployment, with its experts on the devices of another kind where there are any."""
    if cluster.secondary is None or "expert_devices" not in words:
        return words
    return {**words, "expert_kind": cluster.secondary.cluster.accelerator.name}


def fitting_instances(one: Deployment, cluster: Cluster) -> int:
    """Instances that the devices of the cluster, and those of another kind beside it, hold [1]."""
    own = cluster.of_kind(one.kind)
    fitting = own.count // own_devices(one)
    if own.secondary is None or not other_devices(one):
        return fitting
    return min(fitting, own.secondary.cluster.count // other_devices(one))
