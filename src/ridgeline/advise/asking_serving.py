"""Advice on a serving scenario as a person wrote it: the piece of traffic that replays use, the baseline, its floor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from ridgeline.advise.cases import DOLLARS, GOODPUT, JOULES, TIME, TrialOutcome
from ridgeline.advise.composing import AdviceQuestion, advise
from ridgeline.advise.serving import FEWEST_REQUESTS, INVERSE, MOST_REQUESTS, UNITS, ServingCase
from ridgeline.advise.serving_levers import GivenHost, ServedChoice
from ridgeline.errors import InputError, NoPlanError
from ridgeline.facts.engines import engine_policy
from ridgeline.predict.serving import queue_of
from ridgeline.report.advice import Advice
from ridgeline.report.deployments import deployment_text
from ridgeline.scenario.serving import ServingScenario
from ridgeline.serving.engine import Policies
from ridgeline.serving.metrics import decode_band, decode_parts, prefill_band, prefill_parts
from ridgeline.serving.objective import Objective
from ridgeline.serving.traffic.asked import asked_traffic
from ridgeline.serving.traffic.traffic import Traffic

_COMING = ("rate", "concurrency", "trace", "arrivals", "duration")  # words that say how requests come
_LENGTHS = ("prompt", "output", "seed", "slo")


def advise_serving(
    asked: ServingScenario, *, objective: str | None = None, batch: int | None = None,
    policies: Policies = engine_policy, host: GivenHost | None = None,
) -> Advice:  # fmt: skip
    """Advice on a serving scenario, by default of the goodput where bounds are said, else of the throughput.

    Without words of how requests come it is a static batch, or a queue that never runs dry, as of `predict`; a batch
    may have its weights beside the devices. Raises `InputError` for an objective that the scenario does not have.
    """
    bounds = Objective.of(asked.traffic.get("slo", {}))
    goal = objective or (GOODPUT if bounds.stated else TIME)
    comes = any(name in asked.traffic for name in _COMING)
    _check(goal, bounds, asked, comes)
    if len({one.kind for one in asked.deployments}) > 1:
        told = "advice is of devices of one kind; ask about each group, or simulate both"
        raise InputError(told, field="--on", value=asked.cluster.name)
    searched = goal == GOODPUT or (goal == DOLLARS and bounds.stated)
    traffic, fleet, load, said = _traffic(asked, batch, comes, searched)
    lengths = float(np.mean(traffic.prompt_tokens)), float(np.mean(traffic.output_tokens))
    case = ServingCase(
        model=asked.model, cluster=asked.cluster, base=ServedChoice(deployments=fleet), traffic=traffic, bounds=bounds,
        objective=goal, policies=policies, offline=not comes,
        host=None if comes else host or GivenHost(), lengths=lengths,
    )  # fmt: skip
    base = _base(case)
    waits = goal == TIME and case.steady  # of requests that come at a rate the mean latency is asked
    unit = "s" if waits else UNITS[goal]
    question = AdviceQuestion(
        title=f"{asked.model.name} on {asked.cluster.name}: {load.split(';')[0]}", objective=goal, unit=unit,
        baseline=", ".join(deployment_text(one) for one in fleet) + f", {fleet[0].engine}", load=load,
        capacity_bytes=asked.cluster.accelerator.memory_bytes, floor=_floor(case, base, goal),
        assumed=(*asked.assumed, *said), inverse=goal in INVERSE and not waits,
    )  # fmt: skip
    return advise(case, question, base)


def _check(goal: str, bounds: Objective, asked: ServingScenario, comes: bool) -> None:
    if goal == GOODPUT and not bounds.stated:
        raise InputError("goodput needs an objective, e.g. --slo ttft=1s,tpot=50ms", field="--slo")
    if goal == GOODPUT and ("concurrency" in asked.traffic or not comes):
        raise InputError("is the highest rate that keeps to --slo: say --rate, or --for time", field="--for")
    if goal == DOLLARS and asked.cluster.price_usd_per_device_h is None:
        raise InputError(f"no price is known of {asked.cluster.accelerator.name}; say time", field="--for")
    if goal == JOULES and asked.cluster.accelerator.tdp_w is None:
        raise InputError(f"no rated power is known of {asked.cluster.accelerator.name}; say time", field="--for")


def _base(case: ServingCase) -> TrialOutcome:
    try:
        return case.explained(case.base)
    except NoPlanError:
        return case.outcome(case.base)


def _traffic(
    asked: ServingScenario, batch: int | None, comes: bool, searched: bool
) -> tuple[Traffic, tuple[Any, ...], str, tuple[str, ...]]:
    """The requests that replays use, the part of the fleet that they are for, and both in words.

    Where the highest rate is searched, a process of arrivals goes on for as long as replays need: the few requests of
    a short while would all wait in the queue of any rate.
    """
    words: Mapping[str, Any] = asked.traffic
    if searched and "trace" not in words:
        words = {name: value for name, value in words.items() if name not in ("duration", "requests")}
    fleet = asked.deployments
    if "concurrency" in words:
        traffic, said = asked_traffic(words, fleet)
        return traffic, fleet, f"{traffic.name}; {traffic.requests:,} requests replayed, {_mean(traffic)}", said
    if comes:
        traffic, said = asked_traffic(
            {**words, "requests": min(words.get("requests", MOST_REQUESTS), MOST_REQUESTS)}, fleet
        )
        told = (
            f"replays of {min(FEWEST_REQUESTS, traffic.requests):,} to {traffic.requests:,} requests on an equal part"
        )
        return traffic, fleet, f"{traffic.name}; {told} of the fleet, {_mean(traffic)}", said
    plain = {name: words[name] for name in _LENGTHS if name in words}
    if batch:
        fleet = (replace(fleet[0], instances=1),) if len(fleet) == 1 else fleet
        traffic, said = asked_traffic({**plain, "arrivals": "burst", "requests": batch}, fleet)
        return traffic, fleet, f"a batch of {batch:,}; {_mean(traffic)}", said
    try:
        count, fleet, parts = queue_of(asked.model, asked.cluster, fleet, plain)
    except NoPlanError:  # it does not start
        traffic, said = asked_traffic({**plain, "arrivals": "burst", "requests": 1}, fleet)
        return traffic, asked.deployments, f"a batch of 1; {_mean(traffic)}", said
    count = min(count, MOST_REQUESTS)
    traffic, said = asked_traffic({**plain, "arrivals": "burst", "requests": count}, fleet)
    part = f", on 1 of {parts:g} equal parts of the fleet" if parts > 1 else ""
    return traffic, fleet, f"a queue that never runs dry; {count:,} requests replayed{part}, of {_mean(traffic)}", said


def _mean(traffic: Traffic) -> str:
    prompt, output = float(np.mean(traffic.prompt_tokens)), float(np.mean(traffic.output_tokens))
    return f"{prompt:,.0f} prompt and {output:,.0f} output tokens on average"


def _floor(case: ServingCase, base: TrialOutcome, goal: str) -> tuple[float, str] | None:
    """The least that a request takes of the devices, of prompts beside full steps; None where nothing starts."""
    if not base.fits or goal not in (TIME, GOODPUT) or (goal == TIME and case.steady):
        return None
    engines, tables = case._engines(case.base)
    first, last = engines[0], engines[-1]
    prompt, output = case.lengths
    room = last.capacity.cache_tokens / (prompt + output)
    batch = max(1.0, min(float(last.policy.max_seqs), room))
    prompts, steps = prefill_parts(first, tables[0], prompt), decode_parts(last, tables[-1], batch, prompt + output / 2)
    bands = prefill_band(first, tables[0], prompt), decode_band(last, tables[-1], batch, prompt + output / 2)
    each = sum(prompts.values()), output * sum(steps.values()) / batch
    ranks = [one.deployment.dp * one.deployment.pp * one.deployment.instances for one in engines]
    if len(engines) > 1:
        least = max(each[0] / ranks[0], each[1] / ranks[-1])
    else:
        least = (
            max(
                sum(time * getattr(band, what) for time, band in zip(each, bands, strict=True))
                for what in ("compute", "memory")
            )
            / ranks[0]
        )
    if not 0.0 < least < inf:
        return None
    value = least if goal == GOODPUT else least / output
    return value, "what requests take of these devices at these prices, formats and degrees: no order goes beyond"
