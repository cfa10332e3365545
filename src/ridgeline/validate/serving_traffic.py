"""The requests of a serving row, and what a longer run of them than the replayed one would have measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ridgeline.errors import InputError
from ridgeline.serving.engine import Engine
from ridgeline.serving.metrics import Metrics, measure
from ridgeline.serving.replay import Replay
from ridgeline.serving.traffic.arrivals import burst, poisson
from ridgeline.serving.traffic.asked import closed_loop, synthetic
from ridgeline.serving.traffic.lengths import Fixed, LengthLaw, LengthQuantiles, Uniform
from ridgeline.serving.traffic.traffic import Traffic
from ridgeline.validate.serving_rows import ServedJob

ROUNDS = 10  # requests of a closed loop for each user, as InferenceMAX and vLLM's benchmark send them
FEWEST, MOST = 32, 8_000  # requests of a closed loop; of more than these, some rounds stand for others
LEAST_ROUNDS = 3  # that are replayed: a first, one that stands for those between, and a last


def asked_requests(users: int, rounds: float | None) -> int:
    """Requests of a closed loop of so many users, ten each where `rounds` are not said [1]."""
    return round(max((rounds or ROUNDS) * users, FEWEST))


def replayed_requests(users: int, rounds: float | None) -> int:
    """Requests of a closed loop that are replayed [1]."""
    return min(asked_requests(users, rounds), max(MOST, LEAST_ROUNDS * users))


def lengthened(found: Replay, users: int, requests: int) -> Replay:
    """A replay of a closed loop as if it had gone on: rounds between the first and the last come again.

    Everyone begins at once, and that crowd counts once however long the loop is. Totals and times stay those of what
    was replayed.
    """
    known = len(found.came_s)
    between = np.arange(users, known - users)
    if requests <= known or not between.size:
        return found
    again = np.resize(between, requests - 2 * users)
    order = np.concatenate([np.arange(users), again, np.arange(known - users, known)])
    names = ("came_s", "first_s", "end_s", "prompt", "output", "done", "refused", "hit_tokens", "preempted")
    return replace(found, **{name: getattr(found, name)[order] for name in names})


def looped(job: ServedJob, found: Replay, traffic: Traffic) -> Metrics:
    """The metrics of a job's replay, of a closed loop those of all its rounds."""
    if job.arrivals != "closed":
        return measure(found, traffic)
    users = max(job.batch or 1, 1)
    return measure(lengthened(found, users, asked_requests(users, job.rounds)), traffic)


OPEN_S, OPEN_MOST = 600.0, 60_000  # of Poisson arrivals that last a stated time [s], the part replayed; most requests
CLIENT_REQUESTS = 1000
"""Requests of Poisson arrivals where nothing says how long they go on: the default of vLLM's and SGLang's clients.

Source: vllm, benchmarks/benchmark_serving.py, and sglang, python/sglang/bench_serving.py: --num-prompts."""
QUEUED_ROUNDS = 4  # requests of a saturated queue for each sequence that can run
SPREAD_ROUNDS = 8  # where their lengths are spread: the last to end are a smaller part of it
UNSTATED_CONTEXT = 2048  # token; of configs that state no length (vllm/config.py of 0.5.3, _get_and_verify_max_len)
_SETTLED = 0.3  # share of the time until the last request starts, from which a queue's rate is steady (assumed)
_RATES = {"output_rate", "output_rate_per_device", "total_rate", "samples_rate"}
_Z = 1.2816  # standard deviations of a normal law's 80 % interval


def traffic_of(job: ServedJob, engines: Sequence[Engine]) -> Traffic:
    """The requests of a job: a burst, a closed loop, Poisson arrivals or a saturated queue."""
    made = job.output_tokens if not engines else gained_tokens(job, engines[-1])
    prompt, output = _law(job, "prompt", job.prompt_tokens), _law(job, "output", made)
    if job.arrivals == "static":
        return synthetic(burst(max(job.batch or 1, 1)), prompt, output)
    if job.arrivals == "closed":
        users = max(job.batch or 1, 1)
        return closed_loop(users, replayed_requests(users, job.rounds), prompt, output)
    if job.arrivals == "poisson":
        if not job.rate_rps:
            raise InputError("Poisson arrivals without a rate", field="rate_rps")
        return synthetic(poisson(job.rate_rps, requests=_arriving(job, job.rate_rps)), prompt, output)
    slots = sum(one.policy.max_seqs * one.deployment.dp * one.deployment.instances for one in engines[-1:])
    fitting = sum(_fitting(one, job) for one in engines[-1:])
    rounds = QUEUED_ROUNDS if job.lengths is None else SPREAD_ROUNDS
    count = job.queued or int(rounds * max(1, min(slots, fitting)))
    return synthetic(burst(min(max(count, 1 if job.queued else FEWEST), OPEN_MOST)), prompt, output)


def _arriving(job: ServedJob, rate_rps: float) -> int:
    """Requests that arrive while a run is replayed [1]: those stated, or in the time stated, or a client's default."""
    stated = job.requests or (min(job.open_s, OPEN_S) * rate_rps if job.open_s else CLIENT_REQUESTS)
    return int(min(max(stated, FEWEST), OPEN_MOST))


def gained_tokens(job: ServedJob, one: Engine) -> float | None:
    """What each sequence gains [token]: of a static batch no more than reach one beyond the model's context length.

    A sequence whose last token lies beyond it ends, so that a prompt of the whole context gains one token.
    """
    limit, made = one.model.max_positions or UNSTATED_CONTEXT, job.output_tokens
    if not job.cut or job.arrivals != "static" or not one.policy.ends_at_context or made is None:
        return made
    return min(made, max(1.0, limit + 1.0 - (job.prompt_tokens or 0.0)))


def _fitting(one: Engine, job: ServedJob) -> int:
    each = (job.prompt_tokens or 1.0) + (job.output_tokens or 1.0)
    ranks = one.deployment.dp * one.deployment.pp * one.deployment.instances
    return int(one.capacity.cache_tokens * ranks / each) + 1


def _law(job: ServedJob, side: str, mean_tokens: float | None) -> LengthLaw:
    """Lengths of one side of the requests: a data set's, uniform, or all alike, and alike in a static batch."""
    mean = max(mean_tokens or 1.0, 1.0)
    data = None if job.lengths is None else job.lengths[side]
    if data is not None and data.levels and job.arrivals != "static":
        return LengthQuantiles(levels=data.levels, tokens=data.at_mean(mean))
    low, high = job.spread
    if low == high:
        return Fixed(tokens=max(1, round(mean)))
    nominal = mean / ((low + high) / 2)
    return Uniform(low=max(1, round(low * nominal)), high=max(1, round(high * nominal)))


def measured_span_s(
    job: ServedJob, traffic: Traffic, replayed: Replay, metrics: Metrics, quantile: float = 0.5
) -> tuple[float, float]:
    """Time of the run that was measured [s], and its requests [1].

    Poisson arrivals of `open_s` go on for longer than those replayed, at the stated rate. They end with the request
    that comes last, whose latency is that of any request and of which `quantile` are shorter; where the queue grows,
    what is left to serve grows with it. A queue that has to last `open_s`, or of so many `requests`, is emptied at the
    rate at which requests end between its warm-up and the start of its last. Arrivals without a stated length are
    those replayed. Source: mlperf-inference, loadgen/results.cc (final_query_all_samples_done_time).
    """
    span = max(float(np.nanmax(replayed.end_s)), 1e-12)
    count = float(traffic.requests)
    if job.arrivals == "poisson" and job.rate_rps and job.open_s:
        arriving = float(traffic.arrival_s[-1])
        if metrics.overloaded and arriving:
            drain = max(span - arriving, 0.0) * job.open_s / arriving
        else:
            drain = float(np.nanquantile(replayed.end_s - replayed.came_s, quantile))
        return job.open_s + drain, job.rate_rps * job.open_s
    if job.arrivals != "queue" or job.lengths is None:
        return span, count
    last = float(np.nanmax(replayed.first_s))
    ends = replayed.end_s[np.isfinite(replayed.end_s)]
    within = int(((ends > _SETTLED * last) & (ends <= last)).sum())
    if within < FEWEST:
        return span, count
    rate = within / ((1.0 - _SETTLED) * last)
    wanted = max(count, float(job.requests or 0), rate * (job.open_s or 0.0))
    return span + (wanted - count) / rate, wanted


def sampled_share(job: ServedJob, traffic: Traffic) -> float:
    """How far a measured rate of Poisson arrivals may be from its mean for the draws of its run alone, 80 % [1].

    N requests of which each brings a number of tokens with coefficient of variation c: sqrt((1 + c^2) / N).
    """
    if job.arrivals != "poisson" or job.metric not in _RATES or not job.rate_rps:
        return 0.0
    tokens = {"samples_rate": np.ones(1), "total_rate": traffic.output_tokens + traffic.prompt_tokens}.get(
        job.metric, traffic.output_tokens
    )
    spread = float(np.std(tokens) / np.mean(tokens))
    return _Z * float(np.sqrt((1.0 + spread**2) / (job.rate_rps * job.open_s if job.open_s else traffic.requests)))
