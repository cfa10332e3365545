"""Policies of serving engines, one TOML file each: how a version batches, what memory it holds, what its host costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import DomainError
from ridgeline.facts.engine_schema import CONDITION_CHECKS, KEYS, EnginePolicy
from ridgeline.facts.policy_files import Policies, Program, folded
from ridgeline.facts.user_files import ENGINE


@dataclass(frozen=True, kw_only=True)
class ModelTraits:
    """What a policy may ask of a model: its name, whether it routes tokens to experts, its hidden size [1].

    Of the model that stands for none no condition holds.
    """

    name: str = ""
    experts: bool | None = None
    hidden: float = float("inf")


_NO_MODEL = ModelTraits()


ENGINES = Policies(what="engine", folder="engines", user_file=ENGINE, keys=KEYS, conditions=CONDITION_CHECKS)


def engine_names() -> tuple[str, ...]:
    """Names of the engines whose policies ship with the package, sorted."""
    return ENGINES.names()


def engine_known(name: str) -> bool:
    """Whether an engine of that name has a policy in the catalog."""
    return ENGINES.find(name) is not None


def engine_named(name: str) -> str:
    """The name under which the catalog has an engine that people also call otherwise; `name` itself of no known one.

    >>> engine_named("trtllm")
    'TensorRT-LLM'
    """
    known = ENGINES.find(name)
    return name if known is None else known.name


def newest_policy(name: str) -> str:
    """The version from which the newest policy of a known engine holds."""
    return ENGINES.named(name).starts[-1]


def engine_policy(
    name: str,
    version: str = "",
    *,
    memory_bytes: float,
    offline: bool = False,
    context_tokens: int = 0,
    ranks: int = 1,
    device: str = "",
    architecture: str = "",
    model: ModelTraits = _NO_MODEL,
) -> EnginePolicy:
    """The policy that version `version` of an engine has on a device with `memory_bytes` [byte].

    An empty version, a nightly build and a date count as the newest. `offline`: requests are known beforehand;
    `context_tokens`: the model's longest context; `ranks`: devices of an instance; `device`: the accelerator's name;
    `architecture`: its vendor and architecture; `model`: what is known of the model, without which no rule about models
    holds.

    >>> engine_policy("vllm", "0.8.5", memory_bytes=80e9).token_budget
    8192
    """
    engine = ENGINES.named(name)
    given = _given(memory_bytes, offline, context_tokens, ranks, device, model, architecture)
    return _resolve(engine, version, given)


def engine_policy_from_file(
    path: str | Path,
    version: str = "",
    *,
    memory_bytes: float,
    offline: bool = False,
    context_tokens: int = 0,
    ranks: int = 1,
    device: str = "",
    architecture: str = "",
    model: ModelTraits = _NO_MODEL,
) -> EnginePolicy:
    """The policy that a person's own TOML file describes; every defect of the file is an InputError."""
    engine = ENGINES.from_file(path)
    given = _given(memory_bytes, offline, context_tokens, ranks, device, model, architecture)
    return _resolve(engine, version, given)


def _given(
    memory_bytes: float,
    offline: bool,
    context_tokens: int,
    ranks: int,
    device: str,
    model: ModelTraits,
    architecture: str = "",
) -> Mapping[str, Any]:
    if not 0 < memory_bytes < float("inf"):
        raise DomainError(f"memory_bytes = {memory_bytes:g}, needs > 0 byte of device memory")
    if ranks < 1 or context_tokens < 0:
        raise DomainError(f"ranks = {ranks}, context_tokens = {context_tokens}; needs ranks >= 1, context_tokens >= 0")
    return {
        "memory": memory_bytes, "offline": offline, "context": context_tokens, "ranks": ranks, "device": device,
        "architecture": architecture, "model": model,
    }  # fmt: skip


def _holds(conditions: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether every condition of a case is met."""
    model: ModelTraits = given["model"]
    met = {
        "memory_above_bytes": given["memory"] >= conditions.get("memory_above_bytes", 0),
        "memory_below_bytes": given["memory"] < conditions.get("memory_below_bytes", float("inf")),
        "offline": given["offline"] is conditions.get("offline"),
        "context_above_tokens": given["context"] > conditions.get("context_above_tokens", -1),
        "ranks_at_least": given["ranks"] >= conditions.get("ranks_at_least", 1),
        "device": any(folded(word) in folded(given["device"]) for word in conditions.get("device", "").split(",")),
        "architecture": conditions.get("architecture", "").casefold() in given["architecture"].casefold().split(),
        "build": conditions.get("build", "").casefold() in given["version"].casefold(),
        "model": bool(model.name) and model.name.casefold().startswith(conditions.get("model", "").casefold()),
        "experts": model.experts is conditions.get("experts"),
        "hidden_up_to": model.hidden <= conditions.get("hidden_up_to", 0),
    }
    return all(met[name] for name in conditions)


def _resolve(engine: Program, version: str, given: Mapping[str, Any]) -> EnginePolicy:
    """Later policies and later cases override earlier ones; rules become numbers."""
    values, facts = ENGINES.in_force(
        engine, version, lambda conditions: _holds(conditions, {**given, "version": version})
    )
    policy = EnginePolicy(name=engine.name, version=version, facts=facts, **values)
    if policy.budget_covers_context:
        values["token_budget"] = max(policy.token_budget, given["context"])
    if not policy.graphs:
        values["graph_sizes"] = ()
    elif policy.graph_max:
        values["graph_sizes"] = tuple(size for size in policy.graph_sizes if size <= policy.graph_max)
    reserved = policy.reserved_bytes + policy.reserved_rank_bytes * given["ranks"]
    if policy.reserved_bytes:
        if reserved >= given["memory"]:
            raise DomainError(
                f"{engine.name} leaves {reserved:.3g} byte free of {given['memory']:.3g}; set a memory fraction"
            )
        values["memory_fraction"] = 1 - reserved / given["memory"]
    return EnginePolicy(name=engine.name, version=version, facts=facts, **values)
