"""Answers rows of measured serving: the traffic of a row replayed on its deployment, and the row's own metric."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.answer import worst
from ridgeline.energy.power import operator_power_w
from ridgeline.errors import InputError, RidgelineError
from ridgeline.facts.benchmark_settings import Run
from ridgeline.facts.mechanisms import power_of
from ridgeline.facts.recipes import recipe
from ridgeline.facts.records import Cluster, Evidence
from ridgeline.facts.run_settings import LIMITS, RunSettings, settings_of
from ridgeline.facts.transfer import joined, run_spread
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.recipes import as_divided, tuned, with_settings
from ridgeline.seams.serving import all_devices, instance_devices
from ridgeline.serving.capacity import Capacity, workspace_bytes
from ridgeline.serving.ends import bound_by_times
from ridgeline.serving.engine import Engine
from ridgeline.serving.metrics import Metrics
from ridgeline.serving.objective import Objective
from ridgeline.serving.replay import Replay
from ridgeline.validate.machines import Machines
from ridgeline.validate.rows import Row
from ridgeline.validate.score import Memo, scored
from ridgeline.validate.serving_replays import ReplayedJob, serve
from ridgeline.validate.serving_rows import ServedJob, read_served
from ridgeline.validate.serving_settings import AGES, as_likely, might_be, usual_releases
from ridgeline.validate.serving_traffic import measured_span_s, sampled_share
from ridgeline.validate.serving_words import engine_of, release_then

AT_LIMITS = (
    "the load is the highest at which 99 % of requests keep to the benchmark's limits: its rate is the result and"
    " stated, and latencies are wherever the search for it ended"
)
_KEPT = 64  # answers kept ready; rows of one run follow each other


class ServedRows:
    """Answers rows one by one; rows that one run answers are replayed once."""

    def __init__(self, source: Machines | None = None) -> None:
        self._source = source
        self._runs = Memo[ReplayedJob](most=_KEPT)

    def answer(self, row: Row) -> dict[str, Any]:
        """The keys of a row's answer that its prediction fills; raises Ridgeline's errors with a refusal's reason."""
        job = settled(read_served(row, self._source), row)
        if job.limits is not None:
            return {"status": "skipped", "reason": AT_LIMITS, "assumptions": list(job.assumptions)}
        found = self._served(job)
        row.positive()
        predicted = _value(job, found, found.replay, found.metrics) / job.unit_si
        if not math.isfinite(predicted):
            raise InputError(f"requests of one token have no {job.metric}", field="metric")
        predicted, (low, high) = self._composed(job, found, predicted)
        evidence = Evidence.ASSUMED if job.stand_ins else found.evidence
        named = {"device": job.cluster.accelerator.name, "engine": job.deployment.engine, "model": job.model.name}
        said = [*job.assumptions, *found.said]
        return scored(row, predicted, low, high, evidence=evidence, rung=_rung(found), assumptions=said, **named)

    def _composed(self, job: ServedJob, found: ReplayedJob, value: float) -> tuple[float, tuple[float, float]]:
        """What is predicted, and its interval: causes that are independent, each with its ends.

        They are the mechanisms, what whole runs of other people take beyond them, and of each setting that the row
        leaves unsaid the least and the most of its alternatives. As likely as the job itself are those `as_likely`:
        predicted is the geometric mean, and all of them are ends.
        """
        causes = [end / value for end in (*_interval(job, found, value), *_of_runs(job, found, value))]
        settings: dict[str, list[float]] = defaultdict(lambda: [value])
        for other in (*job.otherwise, *job.alike):
            settings[other.differs] += self._values(other)
        likely = [value, *(one for other in job.as_likely for one in self._values(other))]
        middle = math.prod(likely) ** (1.0 / len(likely))
        for values, of in ((likely, middle), *((one, value) for one in settings.values())):
            causes += [min(values) / of, max(values) / of]
        return middle, joined(middle, [middle * one for one in causes])

    def _values(self, job: ServedJob) -> list[float]:
        """The metric of another run in the row's unit, if that one starts."""
        try:
            found = self._runs.of((*job.key, "middle"), lambda: serve(job, ends=False))
        except RidgelineError:
            return []
        return [_value(job, found, found.replay, found.metrics) / job.unit_si]

    def _served(self, job: ServedJob) -> ReplayedJob:
        return self._runs.of(job.key, lambda: serve(job))


def by_recipe(row: Row, usual: str) -> Row:
    """A row as of the source of the recipe that it names in its own column, else of `usual`; itself where none is.

    Raises `InputError` for a recipe of another engine.
    """
    name = row.text("recipe").strip() or ("" if row.text("source").strip() else usual)
    if not name:
        return row
    one, (engine, _) = recipe(name), engine_of(row)
    if one.engine and engine.casefold() != one.engine.casefold():
        raise InputError(f"recipe '{one.name}' is of {one.engine}, and the row's engine is {engine}", field="recipe")
    return replace(row, cells={**row.cells, "source": one.code})


def settled(job: ServedJob, row: Row) -> ServedJob:
    """The job with what public sources say of how its benchmark was run, where the row leaves it out."""
    date = re.search(r"\b20\d\d-\d\d-\d\d\b", row.text("note"))
    nominal = sum(job.spread) / 2  # settings follow from the lengths that were asked for
    prompt = None if job.prompt_tokens is None else job.prompt_tokens / nominal
    output = None if job.output_tokens is None else job.output_tokens / nominal

    then = release_then(job.deployment.engine, job.deployment.version, row.text("note"))

    names = {"code": row.source, "engine": job.deployment.engine, "model": row.text("model")}
    names |= {"device": row.text("hardware"), "precision": row.text("precision_weights")}

    def of(role: str, pool: Deployment) -> RunSettings:
        run: Run = {
            "concurrency": job.batch, "isl": prompt, "osl": output, "devices": instance_devices(pool),
            "instances": pool.instances, "ep": pool.ep, "dp": pool.dp,
            "disaggregated": float(job.prefill is not None), "date": date[0] if date else "",
            "scenario": row.text("scenario"), "role": role if job.prefill is not None else "",
        }  # fmt: skip
        return settings_of(names, run, version=job.deployment.version, then=then)

    pools, divided = as_divided({"prefill": job.prefill, "decode": job.deployment}, of)
    found = {role: of(role, pool) for role, pool in pools.items()}
    others: tuple[str, ...] = ()
    if found["decode"].version is None:
        then, others, about = _unstated(job, row, then)
        pools = {role: replace(pool, version=then or pool.version) for role, pool in pools.items()}
        divided = (*divided, *about)
    job = replace(job, deployment=pools["decode"], prefill=pools.get("prefill"), releases=others)
    told = tuple(dict.fromkeys(text for settings in found.values() for text in settings.told))
    own = {role: settings.without_assumed() for role, settings in found.items()}
    job = replace(job, assumptions=(*job.assumptions, *divided, *told))
    limited = any(settings.assumed & LIMITS for settings in found.values())
    run = _as_run(job, found)
    otherwise = [replace(_as_run(job, own), differs="limits")] if limited else []
    if not job.statistic and found["decode"].statistic_unsaid:
        otherwise.append(replace(run, statistic="p50", differs="statistic"))
    cache_known = found["decode"].kv is not None
    alike = (*might_be(run, row.source, cache_known=cache_known), *(_by(run, name) for name in job.stand_ins))
    likely = as_likely(run, row.source)
    said = ("lengths may be all alike or drawn: the middle of both",) if likely else ()
    return replace(
        run, otherwise=tuple(otherwise), alike=alike, as_likely=likely, assumptions=(*run.assumptions, *said)
    )


def _unstated(job: ServedJob, row: Row, then: str | None) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """The release of a row that states none, by its day or its model's; others that it may have been; what is said."""
    if then is not None:
        return then, (), (f"release not stated: {then}, the newest on the day of the run",)
    if job.deployment.version or not job.dated:
        return None, (), ()
    usual, *others = usual_releases(job.deployment.engine, row.text("model"), job.cluster.accelerator) or (None,)
    said = f"release not stated: {usual}, the newest {AGES[0]} months after model and device could be had (assumed)"
    return usual, tuple(str(one) for one in others), (said,) if usual else ()


def _by(job: ServedJob, engine: str) -> ServedJob:
    """The same job run by another engine, in the release of it that is usual where the row's is not stated."""
    found: dict[str, Any] = {"engine": engine}
    if job.releases:
        found["version"] = (usual_releases(engine, job.model.name, job.cluster.accelerator) or ("",))[0]
    prefill = None if job.prefill is None else replace(job.prefill, **found)
    return replace(
        job,
        deployment=replace(job.deployment, **found),
        prefill=prefill,
        stand_ins=(),
        key=(*job.key, engine),
        differs="engine",
    )


def _as_run(job: ServedJob, found: dict[str, RunSettings]) -> ServedJob:
    """The job with the settings of each of its pools."""
    ours = found["decode"]
    changes = tuple(str(value) for value in (ours, found.get("prefill")))
    return replace(
        job,
        deployment=tuned(
            with_settings(job.deployment, ours),
            ours,
            job.model,
            job.cluster.accelerator,
            isl=job.prompt_tokens,
            osl=job.output_tokens,
        ),
        prefill=None if job.prefill is None else with_settings(job.prefill, found["prefill"]),
        statistic=job.statistic or ours.statistic or "mean",
        speculative=job.speculative if job.speculative is not None else ours.draft_tokens,
        open_s=ours.duration_s,
        requests=job.requests or ours.requests,
        queued=job.requests if job.arrivals == "queue" else None,
        limits=Objective.of(ours.limits) if ours.limits and job.arrivals == "poisson" else None,
        fronts=None if ours.frontends is None else max(1, min(ours.frontends, _nodes(job.cluster) - 1)),
        rounds=job.rounds or ours.requests_per_user,
        key=(*job.key, *changes),
    )


def _nodes(cluster: Cluster) -> int:
    """Hosts of a cluster [1]."""
    return -(-cluster.count // cluster.node_devices)


def _interval(job: ServedJob, found: ReplayedJob, predicted: float) -> tuple[float, float]:
    """The ends of a metric's 80 % interval, in the row's unit: replayed, or a share where no time is behind it."""
    if job.metric == "power":
        fit = power_of(job.cluster.accelerator.name)
        return predicted * min(1.0, fit.low), predicted * max(1.0, fit.high)
    if job.metric == "memory":
        loose = _beside(job, found.engines[-1]) / job.unit_si
        least, most = _BESIDE
        return predicted - (1.0 - least) * loose, predicted + (most - 1.0) * loose
    last = zip(cycle((0.1, 0.9)), found.ends, strict=False)
    ends = [_value(job, found, replayed, metrics, share) / job.unit_si for share, (replayed, metrics) in last]
    drawn = sampled_share(job, found.traffic)
    low, high = joined(predicted, ends)
    return low * (1.0 - drawn), high * (1.0 + drawn)


_RATES = frozenset(("output_rate", "total_rate", "samples_rate", "prefill_rate", "decode_rate", "user_rate"))
_RUNS = {"memory": "memory of serving", "ttft": "prompt", "prefill_rate": "prompt"}
_LOADED = ("closed", "poisson")


def _of_runs(job: ServedJob, found: ReplayedJob, value: float) -> tuple[float, float]:
    """Ends of how far whole runs of other people lie from the mechanisms, in the row's unit."""
    name = job.metric.removesuffix("_per_device")
    if name in ("power", "token_energy"):
        return value, value
    kind = "first token" if name == "ttft" and job.arrivals in _LOADED else _RUNS.get(name, "serving step")
    low, high = run_spread(kind, _rung(found))
    if name not in _RATES:
        return value * low, value * high
    rates = [_value(job, found, *one) for one in ((found.replay, found.metrics), *found.ends)]
    lasts = [one.latency.mean for one in (found.metrics, *(metrics for _, metrics in found.ends))]
    return (value / high, value / low) if bound_by_times(rates, lasts) else (value, value)


def _rung(found: ReplayedJob) -> str:
    """The lowest rung of the kernels of a replay."""
    return worst([rung for one in found.engines for rung in one.steps.prices.rungs_used.values()]).value


_BESIDE = (0.5, 2.0)
"""What is held beside weights and cache, at the ends of an interval, over what is predicted [1]; assumed within a
factor of two, as host times are: contexts and pools of buffers that were given back are known no better."""


def _value(job: ServedJob, found: ReplayedJob, replayed: Replay, metrics: Metrics, quantile: float = 0.5) -> float:
    """A job's metric in SI; of an open run's last request `quantile` of all have a shorter latency."""
    traffic = found.traffic
    statistic = job.statistic or "mean"
    latencies = {"ttft": metrics.ttft, "tpot": metrics.tpot, "itl": metrics.itl, "latency": metrics.latency}
    if job.metric == "ttft" and job.arrivals == "static":  # the call that makes one token of each ends with the last
        return float(np.nanmax(replayed.first_s))
    if job.metric in latencies:
        return float(getattr(latencies[job.metric], statistic))
    if job.metric == "memory":
        held = found.engines[-1].capacity
        return held.weights_bytes + _beside(job, found.engines[-1]) + _cache(job, held)
    if job.metric == "power":
        return _power_w(job, found)
    devices = sum(all_devices(one.deployment) for one in found.engines)
    span, requests = measured_span_s(job, traffic, replayed, metrics, quantile)
    started = max(float(np.nanmax(replayed.first_s)), 1e-12)
    more = requests / traffic.requests
    outputs, prompts = more * float(traffic.output_tokens.sum()), more * float(traffic.prompt_tokens.sum())
    steps = float(np.maximum(traffic.output_tokens - 1, 1).sum())
    decoding = span - (started if traffic.output_tokens.max() > 1 else 0.0)
    if job.arrivals != "static" and traffic.requests > 1:
        decoding = decoding_s(replayed.first_s, replayed.end_s, replayed.done)
    amounts = {
        "batch_latency": span,
        "output_rate": outputs / span,
        "total_rate": (outputs + prompts) / span,
        "samples_rate": requests / span,
        "prefill_rate": prompts / started,
        "decode_rate": steps / max(decoding, 1e-12),
    }
    if job.metric == "user_rate":
        return 1.0 / max(float(metrics.tpot.mean), 1e-12)
    if job.metric == "token_energy":
        return _power_w(job, found) * devices * span / outputs
    whole = job.metric.removesuffix("_per_device")
    if whole not in amounts:
        raise InputError(f"'{job.metric}' is not predicted for serving", field="metric")
    return amounts[whole] / (devices if whole != job.metric else 1)


def decoding_s(first_s: NDArray[np.float64], end_s: NDArray[np.float64], done: NDArray[np.bool_]) -> float:
    """Time in which at least one request that is done is between its first and its last token [s]."""
    order = np.argsort(first_s[done])
    first, end = first_s[done][order], np.maximum.accumulate(end_s[done][order])
    return float(end[-1] - first[0] - np.maximum(first[1:] - end[:-1], 0.0).sum())


def _power_w(job: ServedJob, found: ReplayedJob) -> float:
    tdp = job.cluster.accelerator.tdp_w
    if tdp is None:
        raise InputError(f"{job.cluster.accelerator.name} has no rated power", field="metric")
    return operator_power_w(tdp, found.decode.compute, found.decode.memory)


def _beside(job: ServedJob, one: Engine) -> float:
    """What a device holds beside weights and cache [byte]; buffers of a static batch are those of its own requests."""
    held = one.capacity
    if job.arrivals != "static":
        return held.workspace_bytes + held.context_bytes
    batch = job.batch or 1
    policy, each = replace(one.policy, max_seqs=batch), job.prompt_tokens or 1.0
    work = workspace_bytes(one.model, one.steps.served, one.deployment, policy, round(each * batch), each)
    return work + held.context_bytes


def _cache(job: ServedJob, held: Capacity) -> float:
    tokens = (job.prompt_tokens or 0.0) + (job.output_tokens or 0.0)
    return float(held.token_bytes * tokens * (job.batch or 1))
