"""What users of a served model see: latencies by quantile, goodput under an objective, overload, intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.seconds import Seconds
from ridgeline.facts.mechanisms import constant
from ridgeline.lower.work import Number
from ridgeline.seams.serving import (
    Disaggregation,
    KVEviction,
    NanoBatches,
    Speculation,
    instance_devices,
    of,
    overlapping,
    step_tokens,
)
from ridgeline.serving.attention_ffn import expert_layers, micro_batches_s
from ridgeline.serving.engine import Engine
from ridgeline.serving.nano import Overlap, side_by_side
from ridgeline.serving.objective import Objective, Percentile
from ridgeline.serving.replay import Replay
from ridgeline.serving.rule import masks_told
from ridgeline.serving.state import Array
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import Traffic

_NANO = ("compute, overlapped", "memory, overlapped", "links, overlapped")  # shares of two nano-batches' time


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """A latency over requests [s]; nan where nothing was measured."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What came out of a replay.

    Rates are over `window_s` [s]: of a `steady` load the time in which requests come, else that from the first arrival
    to the last token. `attained` [1] is the share of requests that kept to the objective, `goodput_rps` their rate,
    never above `requests_per_s`; both None without bounds of every request. `at_percentiles` [s] are the values of the
    objective's percentiles, in its order, and `kept` says whether all of the objective holds (None without one); an
    overloaded fleet may still keep it for so many requests. `overloaded` says why, '' if it is not.
    """

    ttft: Quantiles
    tpot: Quantiles
    itl: Quantiles
    latency: Quantiles
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    attained: float | None
    goodput_rps: float | None
    overloaded: str
    hit_share: float
    refused: int
    output_tokens: int
    window_s: float
    steady: bool
    at_percentiles: tuple[float, ...] = ()
    kept: bool | None = None


def quantiles(values: Array) -> Quantiles:
    """Mean and quantiles of the values that exist [s]."""
    known = values[np.isfinite(values)]
    if not known.size:
        return Quantiles(**dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), float("nan")))
    p50, p90, p95, p99 = (float(value) for value in np.percentile(known, (50, 90, 95, 99)))
    return Quantiles(mean=float(np.mean(known)), p50=p50, p90=p90, p95=p95, p99=p99)


def latencies(found: Replay) -> tuple[Array, Array, Array]:
    """TTFT, TPOT and latency of each request [s]; nan where there is none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(found.output > 1, (found.end_s - found.first_s) / (found.output - 1), np.nan)
    return found.first_s - found.came_s, tpot, found.end_s - found.came_s


def kept_to(found: Replay, objective: Objective) -> NDArray[np.bool_]:
    """Which requests ended and kept to every bound; who has no second token keeps to any TPOT."""
    kept = found.done.copy()
    bounds = (objective.ttft_s, objective.tpot_s, objective.latency_s)
    for bound, values in zip(bounds, latencies(found), strict=True):
        if bound is not None:
            kept &= ~(values > bound)
    return kept


def steady_s(found: Replay, traffic: Traffic) -> float | None:
    """Time in which the requests of a steady load come [s]: N of them at N / rate; None of any other traffic.

    A load is steady where requests come by themselves for at least as long as half of them take, and the fleet keeps up
    with them: what then comes in that time is served at the rate at which it comes, though the last answers end later.
    Bursts, closed loops, turns that wait and overload are judged until the last token: their drain is part of the work.
    """
    last = float(traffic.arrival_s[-1])
    if traffic.concurrency is not None or (traffic.after >= 0).any() or _few(traffic):
        return None
    taken = (found.end_s - found.came_s)[found.done]
    if last <= 0.0 or not taken.size or last < float(np.median(taken)) or overload(found, traffic):
        return None
    return last * traffic.requests / (traffic.requests - 1)


def measure(found: Replay, traffic: Traffic, objective: Objective | None = None) -> Metrics:
    """The metrics of a replay; requests that were refused count against the objective."""
    ttft, tpot, latency = latencies(found)
    span = max(float(np.nanmax(found.end_s, initial=0.0)) - float(np.nanmin(found.came_s, initial=np.inf)), 1e-12)
    window = steady_s(found, traffic)
    rated_s = span if window is None else window
    done = found.done
    goal = objective or Objective()
    kept = kept_to(found, goal) if goal.bounds else None
    attained = None if kept is None else float(kept.mean())
    good = None if kept is None else float(kept.sum() / rated_s)
    at = tuple(at_percentile(found, one) for one in goal.percentiles)
    served = float(done.sum() / rated_s)
    itl = [found.itl_quantile(share) for share in (0.5, 0.9, 0.95, 0.99)]
    return Metrics(
        ttft=quantiles(np.where(done, ttft, np.nan)),
        tpot=quantiles(np.where(done, tpot, np.nan)),
        itl=Quantiles(mean=_mean_itl(found), p50=itl[0], p90=itl[1], p95=itl[2], p99=itl[3]),
        latency=quantiles(np.where(done, latency, np.nan)),
        requests_per_s=served,
        output_tokens_per_s=float(found.output[done].sum() / rated_s),
        total_tokens_per_s=float((found.output[done] + found.prompt[done]).sum() / rated_s),
        attained=attained,
        goodput_rps=good,
        overloaded=overload(found, traffic),
        hit_share=float(found.hit_tokens.sum() / max(found.prompt.sum(), 1)),
        refused=int(found.refused.sum()),
        output_tokens=int(found.output[done].sum()),
        window_s=rated_s,
        steady=window is not None,
        at_percentiles=at,
        kept=_keeps(goal, attained, at, served if good is None else good) if goal.stated else None,
    )


def _keeps(goal: Objective, attained: float | None, at: Sequence[float], good_rps: float) -> bool:
    """Whether all of an objective holds."""
    least = goal.least_goodput_rps
    return (
        (attained is None or attained >= goal.least_share)
        and all(value <= one.most_s for value, one in zip(at, goal.percentiles, strict=True))
        and (least is None or good_rps >= least)
    )


def at_percentile(found: Replay, one: Percentile) -> float:
    """The value of a statistic of a latency [s], linear between requests; one that never ended is infinitely late.

    Of ITL it is over the tokens of requests that ended. Without any value it is 0: nothing is late.
    """
    if one.metric == "itl":
        return _mean_itl(found) if one.share is None else found.itl_quantile(one.share)
    place = ("ttft", "tpot", "latency").index(one.metric)
    counted = found.output > 1 if one.metric == "tpot" else np.ones(len(found.output), dtype=bool)
    values = np.sort(np.where(found.done, latencies(found)[place], np.inf)[counted])
    if not values.size:
        return 0.0
    if one.share is None:
        return float(values.mean())
    rank = one.share * (len(values) - 1)
    low, high = values[int(rank)], values[math.ceil(rank)]
    return float(low if low == high else low + (rank - int(rank)) * (high - low))


def _mean_itl(found: Replay) -> float:
    steps = found.output[found.done] - 1
    spent = (found.end_s - found.first_s)[found.done]
    return float(spent.sum() / steps.sum()) if steps.sum() else float("nan")


def _few(traffic: Traffic) -> bool:
    """Whether there are too few requests to tell a queue's growth from chance."""
    return traffic.requests < 2 * constant("serve.overload_slack")


def overload(found: Replay, traffic: Traffic) -> str:
    """Why the fleet cannot keep up with open traffic, '' when it can.

    It cannot when the queue of requests without a first token has grown by half from the middle of the arrivals to
    their end (an even overload doubles it) and the rest takes more than a tenth of their span to serve.
    """
    if traffic.concurrency is not None or (traffic.after >= 0).any():
        return ""
    last = float(traffic.arrival_s[-1])
    if last <= 0 or _few(traffic):
        return ""
    middle = float(np.median(traffic.arrival_s))
    waiting = [int(((found.came_s <= at) & ~(found.first_s <= at) & ~found.refused).sum()) for at in (middle, last)]
    drain = found.span_s - last
    grown = constant("serve.overload_growth") * waiting[0] + constant("serve.overload_slack")
    if waiting[1] > grown and drain > constant("serve.overload_drain") * last:
        return (
            f"{waiting[1]} requests wait when the last arrives, {waiting[0]} did halfway;"
            f" {drain:.0f} s more are needed to serve them"
        )
    return ""


@dataclass(frozen=True, kw_only=True)
class Band:
    """Factors of the ends of an 80 % interval around a time [1], and the busy shares of what makes it up [1]."""

    low: float
    high: float
    compute: float
    memory: float


def decode_parts(one: Engine, tables: StepTables, sequences: float, context: float) -> dict[str, float]:
    """What a decode iteration at a mean batch of one rank and a mean context is made of [s]."""
    found = {name: float(part.mid) for name, part in _decode(one, tables, sequences, context).items()}
    return {**found, "host": _host_s(one, sequences), **masks_told(one, sequences, sum(found.values()))}


def decode_device_s(tables: StepTables, sequences: Array, context: Array) -> Array:
    """What the devices take for decode iterations of a token a sequence, at mean batches and contexts (N,) [s]."""
    return np.asarray(sum(part.mid for part in _plain_decode(tables, sequences, sequences, context).values()))


def prefill_parts(one: Engine, tables: StepTables, tokens: float) -> dict[str, float]:
    """What the iterations over one prompt are made of [s]: one, or as many as its chunks."""
    found = {name: float(part.mid) for name, part in _prefill(one, tables, tokens).items()}
    return {**found, "host": len(_chunks(one, tokens)) * _host_s(one, 1.0)}


def decode_band(one: Engine, tables: StepTables, sequences: float, context: float) -> Band:
    """The interval of decode iterations at a mean batch of one rank and a mean context."""
    return _band(list(_decode(one, tables, sequences, context).values()), one, sequences)


def prefill_band(one: Engine, tables: StepTables, tokens: float) -> Band:
    """The interval of the iterations over one prompt."""
    parts = list(_prefill(one, tables, tokens).values())
    return _band(parts, one, 1.0, iterations=len(_chunks(one, tokens)))


def _cut(one: Engine, tokens: float) -> bool:
    """Whether an iteration of so many tokens is two nano-batches."""
    told = overlapping(one.deployment).sharing(one)
    return tokens >= max(told["nano_tokens"], 2 if told.get("chain", 0.5) > 0.0 else 1)


def _halves(
    one: Engine, tables: StepTables, tokens: float, sampled: float, attention: Seconds, *, prompts: bool
) -> dict[str, Seconds]:
    """Two nano-batches, attention waiting for compute in `prompts` and else for memory, as shares of the time [s]."""
    assert tables.nano is not None
    nano, group = tables.nano, 2 if prompts else 1

    def at(table: Seconds, head: Seconds) -> Seconds:
        rows = (Seconds(**{name: value[row] for name, value in vars(table).items()}) for row in (0, group))
        own, experts = (row.at(tables.tokens, tokens) for row in rows)
        return own + experts + head.at(tables.sequences, sampled)

    compute, memory = at(nano.compute, nano.head_compute), at(nano.memory, nano.head_memory)
    network = at(nano.network, nano.head_network)
    parts = side_by_side(
        compute + attention if prompts else compute, memory, network, overlap=_overlap(one),
        attention=None if prompts else attention, sequences=sampled,
    )  # fmt: skip
    return dict(zip(_NANO, parts, strict=True))


def _overlap(one: Engine) -> Overlap:
    """How the nano-batches of an engine share its device."""
    return Overlap.of(overlapping(one.deployment).sharing(one))


def _disaggregated(
    one: Engine, tables: StepTables, tokens: float, sampled: float, attention: Seconds, *, prompts: bool
) -> dict[str, Seconds]:
    """An iteration whose experts are elsewhere: one micro-batch's way through all layers, and what it waits [s]."""
    assert tables.attention_ffn is not None
    own = tables.lane.at(tables.tokens, tokens) + attention
    both = (tables.experts(prompts=prompts), tables.attention_ffn.send)
    experts, send = (table.at(tables.tokens, tokens) for table in both)
    layers = float(sum(count for count, _ in expert_layers(one.steps.served)))
    micro = min(float(of(one.deployment, Disaggregation).micro_batches), max(tokens, 1.0))
    waits = {}
    for end in ("mid", "low", "high"):
        first, second, way = (getattr(part, end) for part in (own, experts, send))
        waits[end] = micro_batches_s(first, second, way, layers=layers, micro=micro) - first - second - 2.0 * way
    return {
        "attention's devices": own, "experts' devices": experts, "links": send.times(2.0),
        "other micro-batches": Seconds(**waits, compute=0.0 * own.mid, memory=0.0 * own.mid),
        "sampling": tables.head.at(tables.sequences, sampled),
    }  # fmt: skip


def _decode(one: Engine, tables: StepTables, sequences: float, context: float) -> dict[str, Seconds]:
    tokens = sequences * step_tokens(one.deployment)
    if tables.attention_ffn is not None:
        read = tables.decode.at_two(tables.sequences, tables.contexts, sequences, context)
        return _disaggregated(one, tables, tokens, sequences, read, prompts=False)
    if tables.nano is not None and _cut(one, tokens):
        attention = tables.nano.decode.at_two(tables.sequences, tables.contexts, sequences, context)
        return _halves(one, tables, tokens, sequences, attention, prompts=False)
    found = _plain_decode(tables, sequences, tokens, context)
    found |= _drafts(one, found, step=True)
    link_s = of(one.deployment, KVEviction).fetch_seconds(one, context)
    if not link_s:
        return found
    link = np.array(sequences * link_s)
    beside = sum(part.mid for name, part in found.items() if name != "drafts")
    left = np.maximum(0.0, link - beside)  # of the link, after what runs beside it
    return {**found, "host link": Seconds(mid=left, low=left, high=left, compute=0.0 * left, memory=0.0 * left)}


def _plain_decode(tables: StepTables, sequences: Number, tokens: Number, context: Number) -> dict[str, Seconds]:
    """Parts of a decode iteration that one lane of kernels makes after another [s]."""
    return {
        "weights and links": tables.lane.at(tables.tokens, tokens),
        tables.group_name: tables.group.at(tables.tokens, tokens),
        "sampling": tables.head.at(tables.sequences, sequences),
        "attention": tables.decode.at_two(tables.sequences, tables.contexts, sequences, context),
    }


def _chunks(one: Engine, tokens: float) -> list[tuple[float, float]]:
    """Tokens of each iteration over one prompt, and those before them [token]."""
    budget = float(one.policy.token_budget)
    if not one.policy.chunked or tokens <= budget:
        return [(tokens, 0.0)]
    starts = np.arange(0.0, tokens, budget)
    return [(min(budget, tokens - before), before) for before in starts.tolist()]


def _prefill(one: Engine, tables: StepTables, tokens: float) -> dict[str, Seconds]:
    """The parts of all iterations over one prompt, by name [s]."""
    total: dict[str, Seconds] = {}
    for chunk, before in _chunks(one, tokens):
        attention = tables.first.at_two(tables.chunks, tables.pasts, chunk, before)
        if tables.attention_ffn is not None:
            each = attention.times(1.0 / min(of(one.deployment, Disaggregation).micro_batches, chunk))
            parts = _disaggregated(one, tables, chunk, 1.0, each, prompts=True)
        elif tables.nano is not None and _cut(one, chunk):
            parts = _halves(one, tables, chunk, 1.0, attention, prompts=True)
        else:
            lane, group = (table.at(tables.tokens, chunk) for table in (tables.lane, tables.experts(prompts=True)))
            parts = {"weights and links": lane, tables.group_name: group, tables.prompt_name: attention}
        for name, part in parts.items():
            total[name] = total[name] + part if name in total else part
    return total | _drafts(one, total, step=False)


def _drafts(one: Engine, parts: Mapping[str, Seconds], *, step: bool) -> dict[str, Seconds]:
    """What drafting adds to the parts of a step, or of a prompt [s]; nothing where nothing is drafted."""
    of_step, of_prompt = of(one.deployment, Speculation).shares(one)
    times = of_step if step else of_prompt
    if times <= 0.0:
        return {}
    first, *others = parts.values()
    return {"drafts": sum(others, first).times(times)}


def _host_s(one: Engine, sequences: float) -> float:
    policy = one.policy
    if of(one.deployment, NanoBatches).replicas > 1:  # each waits for its own
        return policy.exposed_host_s if policy.overlapped_host else 0.0
    group = policy.group_host_s if instance_devices(one.deployment) > 1 else 0.0
    shown = policy.exposed_host_s if policy.overlapped_host else policy.step_host_s + group
    return shown if policy.overlapped_host else shown + policy.seq_host_s * sequences


def _band(parts: Sequence[Seconds], one: Engine, sequences: float, *, iterations: int = 1) -> Band:
    policy = one.policy
    host = policy.step_host_s + policy.seq_host_s * sequences
    host += policy.group_host_s if instance_devices(one.deployment) > 1 else 0.0
    host *= 0.0 if of(one.deployment, NanoBatches).replicas > 1 else iterations
    low, mid, high, compute, memory = (
        sum(float(getattr(part, name)) for part in parts) for name in ("low", "mid", "high", "compute", "memory")
    )
    ends = []
    for device, factor in ((low, constant("host.low")), (mid, 1.0), (high, constant("host.high"))):
        own = policy.exposed_host_s * factor * iterations
        ends.append(max(device, host * factor) + own if policy.overlapped_host else device + host * factor)
    total = max(ends[1], 1e-12)
    return Band(low=ends[0] / total, high=ends[2] / total, compute=compute / total, memory=memory / total)
