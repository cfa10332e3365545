"""The words of a plan as it runs, from which a target writes its config: none left to defaults."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ridgeline.api.asking import deployed_scenario_of, scenario_of
from ridgeline.errors import InputError, NoPlanError
from ridgeline.export.memory_share import Room
from ridgeline.export.target import Target
from ridgeline.facts.engines import engine_named
from ridgeline.plan.checkpoint_formats import with_formats
from ridgeline.plan.deployment import AS_IT_IS, Deployment, Role
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS

if TYPE_CHECKING:
    from ridgeline.scenario.serving import ServingScenario
    from ridgeline.scenario.training import Scenario
    from ridgeline.serving.engine import Engine

_DEGREES = ("tp", "pp", "dp", "ep")
_IN_FORCE = ("token_budget", "max_seqs", "memory_fraction", "block_tokens", "prefix_cache", "chunked")
"""What an engine's policy says where a person did not: written out, so that the file runs what was predicted."""
_POOLS = ("prefill", "decode", "instances")


def served_by(given: SimpleNamespace, one: Target) -> ServingScenario:
    """The serving scenario that is asked; its engine is the target's program where no engine is said."""
    asked = deployed_scenario_of(given.subject, given.on, given.words)
    if not {"engine", "engine_file"} & asked.stated.keys() and one.program:
        given.words["engine"] = one.program
        asked = deployed_scenario_of(given.subject, given.on, given.words)
    whole = [each for each in asked.deployments if each.role is Role.WHOLE]
    if len(whole) > 1 or len({each.kind for each in asked.deployments}) > 1:
        raise InputError("has groups of unlike instances, and a file is of one; export each group", field="--on")
    if len(asked.deployments) > 1 and not one.pools:
        raise InputError(f"{one.title} has no prefill and decode pools; export one deployment", field="plan.prefill")
    return asked


def serving_words(asked: ServingScenario, deployment: Deployment, one: Target) -> tuple[dict[str, Any], list[str]]:
    """The words of one deployment as it runs, and notes on what was converted."""
    from ridgeline.api.simulating import policies_of, resolved
    from ridgeline.facts.engines import engine_policy
    from ridgeline.serving.engine import engine

    found = {f"plan.{name}": value for name, value in asked.stated.items() if name not in (*_POOLS, "recipe")}
    found |= {f"plan.{name}": getattr(deployment, name) for name in _DEGREES}
    plain = replace(deployment, weights="", kv="")
    own = with_formats(plain, asked.model, asked.cluster)[0]
    for name in ("weights", "kv"):
        value = getattr(deployment, name)
        found[f"plan.{name}"] = None if not value or value == getattr(own, name) else value
    found["model.weights"] = deployment.weights or own.weights
    run = engine(asked.model, resolved(asked.cluster, "measured"), deployment, policies=policies_of(asked))
    for name in _IN_FORCE:
        value = getattr(deployment.options, name)
        found[f"plan.{name}"] = getattr(run.policy, name) if value is None else value
    if one.program and engine_named(deployment.engine) != engine_named(one.program):  # blocks of another's allocator
        theirs = replace(deployment, engine=one.program, options=AS_IT_IS)
        own_run = engine(asked.model, resolved(asked.cluster, "measured"), theirs, policies=engine_policy)
        found["plan.block_tokens"] = own_run.policy.block_tokens
    if math.isinf(found["plan.token_budget"]):
        found["plan.token_budget"] = None
    found.setdefault("plan.graphs", bool(run.graphs))
    found["workload.longest"], about = _longest(asked, run, found["plan.max_seqs"] if one.context_of_slots else 1)
    found["plan.instances"] = deployment.instances
    if deployment.role is not Role.WHOLE:
        found["pool.role"] = deployment.role.value
    notes = [*_share(found, run, one), *about]
    words = {word: value for word, value in found.items() if value is not None}
    return {**words, **_about(asked.model, asked.cluster)}, notes


def one_share(given: SimpleNamespace, asked: ServingScenario, one: Target, roles: list[dict[str, Any]]) -> list[str]:
    """Puts the smallest memory fraction and longest request of several pools to all; a note where fractions differ."""
    longest = {words["workload.longest"] for words in roles if "workload.longest" in words}
    for words in roles if longest else []:
        words["workload.longest"] = min(longest)
    shares = {words["plan.memory_fraction"] for words in roles if "plan.memory_fraction" in words}
    if len(shares) < 2:
        return []
    for words in roles:
        words["plan.memory_fraction"] = min(shares)
    if engine_named(asked.deployments[0].engine) == engine_named(one.program):
        given.words["memory_fraction"] = min(shares)
    return [f"the memory fraction of all pools is {min(shares):.4g}, the smallest of theirs"]


def _share(found: dict[str, Any], run: Engine, one: Target) -> list[str]:
    """The memory fraction as the target means it, put into `found`; a note where it was converted, or left out."""
    theirs, share = run.policy.memory_of, found["plan.memory_fraction"]
    if not one.memory_of:
        found["plan.memory_fraction"] = None
        return []
    if theirs == one.memory_of:
        return []
    try:
        held = run.capacity
    except NoPlanError as error:
        found["plan.memory_fraction"] = None
        return [f"no memory fraction is said, which would be converted: {error}"]
    room = Room(
        memory_bytes=held.memory_bytes, weights_bytes=held.weights_bytes,
        work_bytes=held.workspace_bytes + held.context_bytes,
    )  # fmt: skip
    said = room.share(one.memory_of, room.left_bytes(theirs, share))
    found["plan.memory_fraction"] = math.floor(said * 1e4) / 1e4
    return [
        f"{share:.4g} of {theirs} memory is {said:.4g} of {one.memory_of} memory here, as weights of"
        f" {held.weights_bytes / 1e9:.1f} GB and workspace of {room.work_bytes / 1e9:.1f} GB are predicted"
    ]


def _longest(asked: ServingScenario, run: Engine, slots: int) -> tuple[int | None, list[str]]:
    """Tokens that a request may have [token], none beyond the model's positions, and a note where none were given.

    Of a trace and of fixed lengths it is the longest request; of other traffic the model's context, as far as the
    cache, divided over `slots`, holds one.
    """
    from ridgeline.serving.traffic.asked import asked_traffic

    timed = {"rate", "concurrency", "trace", "arrivals"} & asked.traffic.keys()
    traffic, _ = asked_traffic(asked.traffic if timed else {**asked.traffic, "arrivals": "burst"}, asked.deployments)
    longest = int((traffic.prompt_tokens + traffic.output_tokens).max()) + 1  # the last token is written too
    most = asked.model.max_positions
    alike = traffic.prompt_tokens.min() == traffic.prompt_tokens.max()
    alike = alike and traffic.output_tokens.min() == traffic.output_tokens.max()
    if "trace" in asked.traffic or ({"prompt", "output"} <= asked.traffic.keys() and alike):
        return (longest if most is None else min(longest, most)), []
    try:
        held = max(run.capacity.cache_tokens // slots, longest)
    except NoPlanError:
        held = most or longest
    found = held if most is None else min(held, most)
    limit = "the model's context" if found == most else "what the cache holds of one request"
    return found, [f"requests of up to {found} tokens are taken, {limit}: the traffic has no longest that was given"]


def trained_by(given: SimpleNamespace, one: Target) -> Scenario:
    """The training scenario that is asked; its framework is the target's program where none is said."""
    asked = scenario_of(given.subject, given.on, given.words, planned=True)
    if "hidden" not in asked.model.dims and one.of_language:
        raise InputError(f"{one.title} trains language models, which {asked.model.name} is not", field="--to")
    if asked.plan is None or asked.workload.framework:
        return asked
    given.words["framework"] = one.program_of(asked.plan.zero)
    return scenario_of(given.subject, given.on, given.words, planned=True)


def training_words(asked: Scenario) -> dict[str, Any]:
    """The words of a training plan as it runs: workload and plan, none left to defaults."""
    assert asked.plan is not None
    found: dict[str, Any] = {}
    for section, record, fields in (("workload", asked.workload, WORKLOAD_FIELDS), ("plan", asked.plan, PLAN_FIELDS)):
        for field in fields:
            value = getattr(record, field.name)
            if value is not None:
                found[f"{section}.{field.name}"] = field.write(value)
    found["plan.micro_batches"] = asked.plan.micro_batches(asked.workload.global_batch)
    return {**found, **_about(asked.model, asked.cluster)}


def left_out(words: tuple[str, ...], values: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[str, ...]:
    """Words without a field that a person said, or degrees that are not 1."""
    found = []
    for word in words:
        name = word.partition(".")[2]
        if name in stated or (name in _DEGREES and values[word] != 1):
            found.append(word)
    return tuple(found)


def _about(model: Any, cluster: Any) -> dict[str, Any]:
    """The model's name and where its weights are, and how many devices there are."""
    hub = re.search(r"Hugging Face hub: (\S+/[^\s,;]+)", model.source)
    return {
        "model.name": model.name, "model.id": hub[1] if hub else model.name,
        "devices": cluster.count,
        "devices_per_node": cluster.node_devices, "vendor": cluster.accelerator.vendor,
        "model.type": model.model_type, "model.params": model.graph.params,
        **{f"model.{name}": value for name, value in model.dims.items()},
    }  # fmt: skip
