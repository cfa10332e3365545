"""The command `simulate`: from words to traffic and deployments, to a replay, to the screen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ridgeline.api.answer import Answer
from ridgeline.api.asking import blamed_on_word, deployed_scenario_of, take_machine_words
from ridgeline.api.flags import read_flags
from ridgeline.api.offloading import predict_offloaded, refuse_offload
from ridgeline.api.placing import with_placement
from ridgeline.api.progress import busy
from ridgeline.errors import InputError
from ridgeline.plan.deployment import Role
from ridgeline.report.blocks import Block, Line, Table
from ridgeline.scenario.serving import ServingScenario
from ridgeline.scenario.serving_fields import BATCH_FIELDS
from ridgeline.seams.serving import expert_devices
from ridgeline.units import time_text

if TYPE_CHECKING:
    from ridgeline.cost.machine import Machine
    from ridgeline.facts.records import Cluster
    from ridgeline.facts.shared_devices import ApplicationTable, RequestPartTable, SharedDevice
    from ridgeline.predict.serving import Operation
    from ridgeline.report.serving import ServingReport
    from ridgeline.serving.shared_device import Application
    from ridgeline.serving.traffic.traffic import Traffic


def simulate_pool(given: SimpleNamespace) -> Answer:
    """Prints what each rule makes of the same jobs; with `--technique` of one alone."""
    from ridgeline.facts.job_pools import job_pool
    from ridgeline.predict.job_pools import pool_world
    from ridgeline.seams.assignment import ASSIGNMENTS, JobAssignment
    from ridgeline.seams.registry import names, technique
    from ridgeline.training.job_pool import run_pools

    said = {name: value for name, value in given.words.items() if value is not None and name != "technique"}
    if given.on is not None or said:
        wrong = next(iter(said), "on").replace("_", "-")
        raise InputError("says nothing of a pool of jobs; leave it out", field=f"--{wrong}")
    asked = given.words.get("technique")
    rules = [technique(ASSIGNMENTS, text) for text in ([asked] if asked else names(ASSIGNMENTS))]
    world = pool_world(job_pool(given.subject))
    found = run_pools(world, [one for one in rules if isinstance(one, JobAssignment)])

    def shown() -> list[Block]:
        rows = [
            (one.policy, f"{one.completed_share:.1%}", f"{one.high_completed_share:.1%}", f"{one.moves_s:,.0f} s",
             f"{one.broken:,} of {one.started:,}", f"{one.busy_share:.0%}")
            for one in found
        ]  # fmt: skip
        columns = ("rule", "in time", "of priority", "lost to links", "broken off", "busy")
        many = f"{len(world.jobs):,} jobs, {len(world.absences):,} devices"
        return [Line(text=many), Table(columns=columns, rows=tuple(rows))]

    return Answer(lambda: {"rows": [asdict(one) for one in found]}, shown, value=found)


def simulate_shared(given: SimpleNamespace) -> Answer:
    """Prints what each application on a device gets under each rule; with `--technique` under one."""
    from ridgeline.facts.shared_devices import shared_device
    from ridgeline.seams.device_turns import DEVICE_TURNS, DeviceTurns
    from ridgeline.seams.registry import names, technique
    from ridgeline.serving.nano import shares
    from ridgeline.serving.shared_device import run_shared

    said = {name: value for name, value in given.words.items() if value is not None and name != "technique"}
    if given.on is not None or given.find is not None or said:
        wrong = next(iter(said), "on" if given.on is not None else "find").replace("_", "-")
        raise InputError("says nothing of applications on one device; leave it out", field=f"--{wrong}")
    asked = given.words.get("technique")
    applications = [_application(one, shared_device(given.subject)) for one in shared_device(given.subject).application]
    rules = [technique(DEVICE_TURNS, text) for text in ([asked] if asked else names(DEVICE_TURNS))]
    found = [
        one for rule in rules if isinstance(rule, DeviceTurns) for one in run_shared(applications, rule, shares()[0])
    ]

    def shown() -> list[Block]:
        rows = [
            (one.rule, one.application, f"{one.attained_share:.0%}", time_text(one.latency_s), f"{one.slowdown:.2f}x",
             "-" if one.normalized is None else f"{one.normalized:.2f}", time_text(one.end_s))
            for one in found
        ]  # fmt: skip
        columns = ("rule", "application", "in objective", "latency", "over alone", "over objective", "ends")
        return [Table(columns=columns, rows=tuple(rows))]

    def as_dict() -> dict[str, Any]:
        by_rule = {
            rule: [one for one in found if one.rule == rule] for rule in dict.fromkeys(one.rule for one in found)
        }
        rules = [
            {"rule": rule, "end_s": max(one.end_s for one in each),
             "least_attained_share": min(one.attained_share for one in each)}
            for rule, each in by_rule.items()
        ]  # fmt: skip
        return {"rows": [asdict(one) for one in found], "rules": rules}

    return Answer(as_dict, shown, value=found)


def _application(one: ApplicationTable, all_of: SharedDevice) -> Application:
    """An application with the times of its parts."""
    from ridgeline.serving.shared_device import Application, RequestPart

    order = [each.name for each in all_of.application]
    parts = tuple(
        RequestPart(
            seconds=_part_s(part), times=part.times, kernels=part.kernels, memory=part.memory,
            objective_s=math.inf if part.objective is None else part.objective,
        )
        for part in one.part
    )  # fmt: skip
    return Application(
        name=one.name, requests=one.requests, parts=parts, every_s=one.every,
        after=tuple(order.index(name) for name in one.after),
        objective_s=math.inf if one.objective is None else one.objective,
    )  # fmt: skip


def _part_s(part: RequestPartTable) -> float:
    """Time of a part [s]: as it is said, or of a command's answer."""
    from ridgeline.api.claiming import asked
    from ridgeline.report.answer_values import value_at

    if part.seconds is not None:
        return part.seconds
    if part.command.split()[0] not in ("predict", "op"):
        raise InputError(f"'{part.command[:80]}' is neither predict nor op; write one of them", field="command")
    answer = asked(part.command, {})
    try:
        return value_at(answer, part.value).mid
    except (ValueError, KeyError) as error:
        why = answer.get("error", str(error))
        raise InputError(f"'{part.command[:80]}' has no answer at {part.value}: {why}", field="command") from None


MEASURED = "measured"  # rates that others measured, the best that may answer
_OF_BATCHES = ("prompt", "output", "requests", "seed", "slo")  # of a scenario's traffic; how it arrives does not matter


def policies_of(asked: ServingScenario) -> Callable[..., Any]:
    """Where engines' policies come from: a person's own file, or those that ship."""
    from ridgeline.facts.engines import engine_policy, engine_policy_from_file

    if asked.engine_file is None:
        return engine_policy
    return lambda name, version, use: engine_policy_from_file(str(asked.engine_file), version, use)


def about(asked: ServingScenario, traffic: Traffic) -> tuple[str, ...]:
    """What a person should know of what was asked: requests beyond the model's positions, an engine that is newer than
    those whose habits are known."""
    most, longest = asked.model.max_positions, int((traffic.prompt_tokens + traffic.output_tokens).max())
    found = () if most is None or longest <= most else (
        f"requests of up to {longest:,} tokens are served although {asked.model.name} has {most:,} positions; engines"
        " refuse them unless told otherwise",
    )  # fmt: skip
    from ridgeline.facts.engines import engine_known, newest_policy
    from ridgeline.facts.policies import version_key

    one = asked.deployments[0]
    if asked.engine_file is not None or not one.version or not engine_known(one.engine):
        return found
    newest = newest_policy(one.engine)
    numbers = version_key(one.version)
    if newest == "0" or not all(map(math.isfinite, numbers)) or numbers <= version_key(newest):
        return found
    return (*found, f"{one.engine} {one.version} does as {newest}, the newest whose habits are known")


def fleet_events_of(asked: ServingScenario) -> Any:
    """How instances come and go, as a person said it."""
    from ridgeline.serving.fleet_events import Autoscale, Failures, FleetEvents
    from ridgeline.serving.objective import Objective

    auto, failures = asked.stated.get("autoscale"), asked.stated.get("failures")
    ttft_s = Objective.of(asked.traffic.get("slo", {})).tightest().get("ttft_s")
    return FleetEvents(
        autoscale=None if auto is None else Autoscale(**auto, ttft_s=ttft_s),
        failures=None if failures is None else Failures(**failures, seed=asked.traffic.get("seed", 0)),
    )


def fronts_of(asked: ServingScenario) -> Any:
    """Front ends that requests come in through, as a person said it; raises where turns are not taken."""
    from ridgeline.serving.fronts import Fronts

    count = asked.stated.get("fronts")
    if count is None:
        return None
    if asked.router not in ("", "round-robin"):
        said = f"turns are taken under --router round-robin alone, this is {asked.router}; leave one out"
        raise InputError(said, field="--fronts")
    return Fronts(count=count, seed=asked.traffic.get("seed", 0))


def simulate(given: SimpleNamespace) -> Answer:
    """Prints what a deployment does under traffic; raises NoPlanError when it will not start.

    Where the subject is a pool of jobs, what each rule of assignment makes of it; where it is applications on one
    device, what each gets under each rule of sharing.
    """
    from ridgeline.facts.job_pools import is_pool
    from ridgeline.facts.shared_devices import is_shared_device

    if is_pool(given.subject):
        if given.find is not None:
            raise InputError(
                "is a question about a deployment, and this is a pool of jobs; leave it out", field="--find"
            )
        return simulate_pool(given)
    if is_shared_device(given.subject):
        return simulate_shared(given)
    take_machine_words(given)
    asked = with_placement(deployed_scenario_of(given.subject, given.on, given.words))
    refuse_offload(asked)
    if asked.stated.get("apart") and not any(map(expert_devices, asked.deployments)):
        raise InputError("says nothing of how many devices hold the experts; say --expert-devices", field="--apart")
    _needs_experts_beside(asked)
    with blamed_on_word(asked):
        if given.find is not None:
            from ridgeline.api.finding import find

            return find(asked, given.find, changes=not given.quick)
        return _replay(asked, changes=not given.quick)


def _needs_experts_beside(asked: ServingScenario) -> None:
    """Raises where devices of another kind are named that nothing is put on."""
    if "beside" in asked.stated and not any(one.expert_kind for one in asked.deployments):
        raise InputError(
            "says nothing of how many of these devices hold the experts; say --expert-devices", field="--beside"
        )


def predict_batch(given: SimpleNamespace) -> Answer:
    """Prints what a deployment does with one static batch, or with a queue that never runs dry."""
    batch = read_flags({"batch": given.words.get("batch")}, BATCH_FIELDS)
    words = {**given.words, "requests": batch.get("batch")}
    asked = with_placement(deployed_scenario_of(given.subject, given.on, words))
    if "offload" in asked.stated:
        measured_only(given.evidence, "--offload")
        return predict_offloaded(asked, batch=batch.get("batch"))
    _needs_experts_beside(asked)
    kept = {name: value for name, value in asked.traffic.items() if name in _OF_BATCHES}
    asked = replace(asked, traffic={**kept, "arrivals": "burst"})
    parts = 1.0
    with blamed_on_word(asked):
        if not batch:
            if len([one for one in asked.deployments if one.role is Role.WHOLE]) > 1:
                said = (
                    "a queue is divided evenly, and these groups are unlike; say --batch, simulate --rate, or one group"
                )
                raise InputError(said, field="--on", value=asked.cluster.name)
            asked, parts = _queued(asked)
        return _replay(asked, evidence=given.evidence, offline=True, parts=parts, changes=not given.quick)


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


def operation_of(asked: ServingScenario, **said: Any) -> Operation:
    """How a fleet is run and priced, as a person said it and the command has it."""
    from ridgeline.predict.serving import Operation

    return Operation(policies=policies_of(asked), **said)


def report_of(
    asked: ServingScenario, *, evidence: str = MEASURED, offline: bool = False, parts: float = 1.0, changes: bool = True
) -> ServingReport:
    """The replay of a scenario's traffic on its deployments, explained."""
    from ridgeline.predict.serving import simulate_serving
    from ridgeline.serving.objective import Objective
    from ridgeline.serving.traffic.asked import asked_traffic

    traffic, assumed = asked_traffic(asked.traffic, asked.deployments)
    run = simulate_serving
    if asked.draft is not None:
        from ridgeline.predict.drafts import simulate_drafted

        run = partial(simulate_drafted, asked.draft)
    with busy(f"replaying {traffic.requests:,} requests"):
        return run(
            asked.model,
            asked.cluster,
            asked.deployments,
            traffic,
            objective=Objective.of(asked.traffic.get("slo", {})),
            operation=operation_of(
                asked, router=asked.router, resolved=resolved(asked.cluster, evidence), offline=offline,
                fleet_events=fleet_events_of(asked), fronts=fronts_of(asked), changes=changes,
            ),
            assumed=(*asked.assumed, *about(asked, traffic), *assumed),
            parts=parts,
        )  # fmt: skip


def _replay(
    asked: ServingScenario, *, evidence: str = MEASURED, offline: bool = False, parts: float = 1.0, changes: bool
) -> Answer:
    from ridgeline.report.serving_json import serving_as_dict

    report = report_of(asked, evidence=evidence, offline=offline, parts=parts, changes=changes)
    too_long = (
        f"every request is longer than the {report.capacities[-1].cache_tokens:,} tokens of cache of one rank;"
        " divide the model over more devices (tp, pp), or take a narrower cache (kv)"
    )
    return Answer(
        lambda: serving_as_dict(report),
        report.blocks,
        value=report,
        impossible=too_long if report.metrics.refused == report.traffic.requests else None,
    )
