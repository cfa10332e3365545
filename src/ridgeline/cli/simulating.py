"""The command `simulate`: from words to traffic and deployments, to a replay, to the screen."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ridgeline.cli.flags import cluster_words, given, is_folder, read_flags
from ridgeline.cli.offloading import predict_offloaded, refuse_offload
from ridgeline.cli.placing import with_placement
from ridgeline.cli.progress import busy
from ridgeline.errors import DomainError, InputError, NoPlanError, UnknownNameError
from ridgeline.scenario.serving import ServingScenario, read_serving, serving_from_words
from ridgeline.scenario.serving_fields import BATCH_FIELDS, DEPLOYMENT_FIELDS, OFFLOAD_FIELDS, TRAFFIC_FIELDS

if TYPE_CHECKING:
    from ridgeline.cost.machine import Machine
    from ridgeline.facts.records import Cluster
    from ridgeline.serving.traffic.traffic import Traffic

MEASURED = "measured"  # rates that others measured, the best that may answer
TRAFFIC_NAMES = frozenset(field.name for field in TRAFFIC_FIELDS)
DEPLOYMENT_NAMES = frozenset(field.name for field in (*DEPLOYMENT_FIELDS, *OFFLOAD_FIELDS))
_OF_BATCHES = ("prompt", "output", "requests", "seed", "slo")  # of a scenario's traffic; how it arrives does not matter


def serving_scenario_of(subject: str, on: str | None, words: Mapping[str, Any]) -> ServingScenario:
    """The serving scenario that a command line describes; flags win over the scenario file."""
    machine = cluster_words(on, words.get("region"))
    words = {name: value for name, value in words.items() if name != "region"}
    for name, value in words.items():
        if value is not None and name not in TRAFFIC_NAMES | DEPLOYMENT_NAMES | {"batch"}:
            raise InputError("is a word of training, not of serving", field="--" + name.replace("_", "-"))
    tables: dict[str, dict[str, object]] = {
        "workload": given(words, TRAFFIC_NAMES),
        "plan": given(words, DEPLOYMENT_NAMES),
    }
    if machine:
        tables["cluster"] = machine
    if subject.endswith(".toml"):
        return read_serving(subject, tables)
    is_file = subject.endswith(".json") or is_folder(subject)
    tables["model"] = {"config" if is_file else "name": subject}
    if on is None:
        raise InputError("say which machine, e.g. --on 8xH100-SXM", field="--on")
    return serving_from_words(tables)


def policies_of(asked: ServingScenario) -> Callable[..., Any] | None:
    """Where engines' policies come from: a person's own file, or those that ship (None)."""
    if asked.engine_file is None:
        return None
    from ridgeline.facts.engines import engine_policy_from_file

    return lambda name, version, use: engine_policy_from_file(str(asked.engine_file), version, use)


def too_long(asked: ServingScenario, traffic: Traffic) -> tuple[str, ...]:
    """That requests are longer than the positions that the model knows, where any is."""
    most, longest = asked.model.max_positions, int((traffic.prompt_tokens + traffic.output_tokens).max())
    if most is None or longest <= most:
        return ()
    return (
        f"requests of up to {longest:,} tokens are served although {asked.model.name} has {most:,} positions; engines"
        " refuse them unless told otherwise",
    )


def newer_engine(asked: ServingScenario) -> tuple[str, ...]:
    """That an engine's version is beyond the newest whose habits are known, where it is."""
    from ridgeline.facts.engines import engine_known, newest_policy
    from ridgeline.facts.policies import version_key

    one = asked.deployments[0]
    if asked.engine_file is not None or not one.version or not engine_known(one.engine):
        return ()
    newest = newest_policy(one.engine)
    numbers = version_key(one.version)
    if newest == "0" or not all(map(math.isfinite, numbers)) or numbers <= version_key(newest):
        return ()
    return (f"{one.engine} {one.version} does as {newest}, the newest whose habits are known",)


def about(asked: ServingScenario, traffic: Traffic) -> tuple[str, ...]:
    """What a person should know of what was asked."""
    return (*too_long(asked, traffic), *newer_engine(asked))


def comings_of(asked: ServingScenario) -> Any:
    """How instances come and go, as a person said it."""
    from ridgeline.serving.comings import Autoscale, Comings, Failures

    auto, failures = asked.stated.get("autoscale"), asked.stated.get("failures")
    return Comings(
        autoscale=None if auto is None else Autoscale(**auto),
        failures=None if failures is None else Failures(**failures, seed=asked.traffic.get("seed", 0)),
    )


def fronts_of(asked: ServingScenario) -> Any:
    """Front ends that requests come in through, as a person said it; raises where turns are not taken."""
    from ridgeline.plan.deployment import Router
    from ridgeline.serving.fronts import Fronts

    count = asked.stated.get("fronts")
    if count is None:
        return None
    if asked.router is not Router.ROUND_ROBIN:
        said = f"turns are taken under --router round-robin alone, this is {asked.router.value}; leave one out"
        raise InputError(said, field="--fronts")
    return Fronts(count=count, seed=asked.traffic.get("seed", 0))


def simulate(subject: str, on: str | None, words: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints what a deployment does under traffic; raises NoPlanError when it will not start."""
    asked = with_placement(serving_scenario_of(subject, on, words))
    refuse_offload(asked)
    if asked.stated.get("apart") and not any(one.expert_devices for one in asked.deployments):
        raise InputError("says nothing of how many devices hold the experts; say --expert-devices", field="--apart")
    _needs_experts_beside(asked)
    with blamed_on_word(asked):
        _replay(asked, as_json=as_json)


@contextmanager
def blamed_on_word(asked: ServingScenario) -> Iterator[None]:
    """Errors about a name that is in no catalog, or no number format, name the word of the scenario that says it."""
    try:
        yield
    except (UnknownNameError, DomainError) as error:
        quoted = re.search(r"'([^']+)'", str(error))
        words = {"workload": asked.traffic, "plan": asked.stated}
        said = [
            (section, name)
            for section, table in words.items()
            for name, value in table.items()
            if quoted is not None and isinstance(value, str) and value.startswith(quoted[1])
        ]
        if len(said) != 1:
            raise
        section, name = said[0]
        field = "--" + name.replace("_", "-") if asked.file is None else f"{section}.{name}"
        raise InputError(str(error), file=asked.file, field=field, value=words[section][name]) from None


def _needs_experts_beside(asked: ServingScenario) -> None:
    """Raises where devices of another kind are named that nothing is put on."""
    if "beside" in asked.stated and not any(one.expert_kind for one in asked.deployments):
        raise InputError(
            "says nothing of how many of these devices hold the experts; say --expert-devices", field="--beside"
        )


def predict_batch(
    subject: str, on: str | None, words: Mapping[str, Any], *, evidence: str = MEASURED, as_json: bool
) -> None:
    """Prints what a deployment does with one static batch, or with a queue that never runs dry."""
    batch = read_flags({"batch": words.get("batch")}, BATCH_FIELDS)
    asked = with_placement(serving_scenario_of(subject, on, {**words, "requests": batch.get("batch")}))
    if "offload" in asked.stated:
        measured_only(evidence, "--offload")
        predict_offloaded(asked, batch=batch.get("batch"), as_json=as_json)
        return
    _needs_experts_beside(asked)
    kept = {name: value for name, value in asked.traffic.items() if name in _OF_BATCHES}
    asked = replace(asked, traffic={**kept, "arrivals": "burst"})
    parts = 1.0
    with blamed_on_word(asked):
        if words.get("batch") is None:
            asked, parts = _queued(asked)
        _replay(asked, as_json=as_json, evidence=evidence, offline=True, parts=parts)


def _queued(asked: ServingScenario) -> tuple[ServingScenario, float]:
    """A queue that never runs dry in front of as much of the fleet as is replayed, and how many such parts it has."""
    from ridgeline.predict.serving import MOST_QUEUED, queue_of

    count, part, parts = queue_of(asked.model, asked.cluster, asked.deployments, asked.traffic)
    if "autoscale" in asked.stated or "failures" in asked.stated:  # the parts do not do the same
        count, part, parts = int(min(count * parts, MOST_QUEUED)), asked.deployments, 1.0
    said = [f"{part[0].instances:,} of {asked.deployments[0].instances:,} instances replayed, each taking its share of"
            " the queue; the others do the same"] if parts > 1.0 else []  # fmt: skip
    asked = replace(asked, traffic={**asked.traffic, "requests": count}, assumed=(*asked.assumed, *said))
    return replace(asked, deployments=part), parts


def measured_only(evidence: str, word: str) -> None:
    """Raises where rates of the datasheet alone are asked for beside a word that knows measured ones only."""
    if evidence != MEASURED:
        raise InputError(f"{word} is priced by rates that others measured; leave it out", field="--evidence")


def resolved(cluster: Cluster, evidence: str) -> Machine:
    """A cluster with the rates that a person asked for: those that others measured, or the datasheet's alone."""
    from ridgeline.cost.machine import machine

    return machine(cluster, datasheet_only=evidence != MEASURED)


def _with_draft(draft: Any, model: Any, *others: Any, **words: Any) -> Any:
    """`simulate_serving` with a model that drafts."""
    from ridgeline.predict.drafts import simulate_drafted

    return simulate_drafted(model, draft, *others, **words)


def _replay(
    asked: ServingScenario, *, as_json: bool, evidence: str = MEASURED, offline: bool = False, parts: float = 1.0
) -> None:
    from ridgeline.predict.serving import simulate_serving
    from ridgeline.report.blocks import show
    from ridgeline.report.serving import serving_blocks
    from ridgeline.report.serving_json import serving_as_dict
    from ridgeline.serving.metrics import Objective
    from ridgeline.serving.traffic.asked import asked_traffic

    traffic, assumed = asked_traffic(asked.traffic)
    run = simulate_serving if asked.draft is None else partial(_with_draft, asked.draft)
    with busy(f"replaying {traffic.requests:,} requests"):
        report = run(
            asked.model,
            asked.cluster,
            asked.deployments,
            traffic,
            objective=Objective(**asked.traffic.get("slo", {})),
            router=asked.router,
            assumed=(*asked.assumed, *about(asked, traffic), *assumed),
            resolved=resolved(asked.cluster, evidence),
            policies=policies_of(asked),
            offline=offline,
            comings=comings_of(asked),
            fronts=fronts_of(asked),
            parts=parts,
        )
    if as_json:
        print(json.dumps(serving_as_dict(report), indent=1, allow_nan=False))
    else:
        show(serving_blocks(report), sys.stdout)
    if report.metrics.refused == traffic.requests:
        raise NoPlanError(
            f"every request is longer than the {report.capacities[-1].cache_tokens:,} tokens of cache of one rank;"
            " divide the model over more devices (tp, pp), or take a narrower cache (kv)"
        )
