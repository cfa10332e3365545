"""A row of a table of measured serving, read as a job: model, machine, deployment, requests and what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ridgeline.errors import InputError
from ridgeline.facts.benchmarks import RequestLengths, request_lengths
from ridgeline.facts.readings import reading
from ridgeline.facts.records import Accelerator, Cluster
from ridgeline.graph.model import Model
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.serving.objective import Objective
from ridgeline.validate.machines import Machines, find, machines, meant, put
from ridgeline.validate.rows import Row
from ridgeline.validate.serving_flags import CONVERSATION, conversation, options_of, requests_of
from ridgeline.validate.serving_formats import GGUF, ServedPrecision, precision_of
from ridgeline.validate.serving_layout import DegreesAsked, PoolDegrees, ServedLayout, layout_of
from ridgeline.validate.serving_models import model_of
from ridgeline.validate.serving_words import (
    ANY_ENGINE,
    StandIn,
    arrivals_of,
    engine_of,
    metric_of,
    number,
    release_of,
    stand_in,
    whole,
)

PHASES = frozenset({"prefill_rate", "decode_rate"})
"""Metrics of one phase alone: all prompts of a static batch are computed before its first token of decode. Source:
llama-cpp, examples/batched-bench."""

OF_OUTPUT = frozenset(
    {"output_rate", "output_rate_per_device", "decode_rate", "user_rate", "tpot", "itl", "token_energy"}
)
"""Metrics of tokens that are generated."""

NEVER_SCORED = re.compile(r"burst|all-at-once|offline", re.IGNORECASE)
BURST = re.compile(r"burst|all-at-once", re.IGNORECASE)
DEPTH = re.compile(r"(?:\b(?:depth|N_KV)(?: of)?[ =:]*|@ ?d|(?<!\S)-d )(\d{3,})\b", re.IGNORECASE)
"""Tokens that the cache holds before a prompt is timed, as benchmarks of prompts at a depth print them."""
DRAFT_LENGTH = 5.0  # speculate_k of gpt-fast's generate.py, where a row names a draft model and no length


@dataclass(frozen=True, kw_only=True)
class ServedJob:
    """What a row of a serving table ran and measured.

    `deployment` is that of a whole instance, of a disaggregated row the decode side; `prefill` is then the pool of
    prompts. `prompt_tokens` and `output_tokens` are means [token]; each length is uniform between the shares
    `spread` of a nominal length, mean / ((low + high) / 2), or `lengths` holds their laws by side, of a data set.
    `open_s` is how long requests arrive, or at least wait in a queue [s], `requests` how many wait [1], all of them
    where `queued` says so, `limits` what 99 % of requests keep to at the highest load; None where nobody says.
    `speculative` is the draft length [token]. A measured value times `unit_si` is SI. `key` is equal for rows that one
    run answers. `stand_ins` are engines that the row's own may be like, where it has no policy, `sizes` the devices of
    other memory that a cell which states none may mean, `releases` those that may have run as well as its own where the
    row states none; of an engine that is not `dated` the newest runs. The interval holds for the value of `otherwise`,
    the job under the engine's own limits, where those of its benchmark are assumed, or with the median for an unsaid
    statistic, and for `alike`: with each of the stand-ins, and what else it may have been where the source is
    unknown. `differs` says which setting such a job has otherwise; settings are independent. What is predicted is the
    geometric mean of the job and those `as_likely`.
    `ahead_tokens` of each sequence are in the cache before its prompt is timed.
    `rounds` are the requests of each user of a closed loop. `fronts` are the front ends that take turns among the
    instances of each pool; None where whoever has the fewest requests is next. `cut` says whether a sequence may end at
    the model's context: where the engine or that length is not known, what was measured is what the row states.
    """

    model: Model
    cluster: Cluster
    deployment: Deployment
    prefill: Deployment | None
    arrivals: str
    batch: int | None
    rate_rps: float | None
    prompt_tokens: float | None
    output_tokens: float | None
    spread: tuple[float, float]
    lengths: Mapping[str, RequestLengths] | None
    metric: str
    statistic: str
    speculative: float | None
    assumptions: tuple[str, ...]
    unit_si: float
    key: tuple[str, ...]
    open_s: float | None = None
    requests: int | None = None
    limits: Objective | None = None
    fronts: int | None = None
    rounds: float | None = None
    ahead_tokens: float = 0.0
    cut: bool = True
    queued: int | None = None
    stand_ins: tuple[str, ...] = ()
    sizes: tuple[Accelerator, ...] = ()
    releases: tuple[str, ...] = ()
    dated: bool = True
    otherwise: tuple[ServedJob, ...] = ()
    alike: tuple[ServedJob, ...] = ()
    as_likely: tuple[ServedJob, ...] = ()
    differs: str = ""


def read_served(row: Row, source: Machines | None = None) -> ServedJob:
    """The job of a serving row; raises a Ridgeline error with the reason when it cannot be read."""
    if row.problem is not None:
        raise InputError(row.problem)
    known = source or machines()
    metric, arrivals = metric_of(row), arrivals_of(row)
    _refuse_drains(row, metric.name)
    named, said = engine_of(row)
    release = release_of(row, named)
    cell, dies, about_device = meant(row.source, row.text("engine"), row.text("hardware"))
    device = find(cell, known)
    part = device.accelerator
    files = row.text("precision_weights").strip().casefold().startswith(GGUF)
    answering = stand_in(named, release, device=part.name, files=files)
    if not row.text("engine").strip():
        answering = replace(answering, others=ANY_ENGINE)
    engine = answering.policy
    model, about_model = model_of(row)
    precision = precision_of(row, model, part, engine, release)
    batch, rate, about_load = _load(row, arrivals)
    ask = DegreesAsked(
        model=model,
        part=part,
        weight_bytes=precision.weight_bytes,
        engine=engine,
        alone=arrivals == "static",
        dies=dies,
    )
    layout = layout_of(row, ask)
    where = put(cell, layout.devices, (row.text("note"), row.text("interconnect")), known)
    lengths = _lengths(row, arrivals, metric.name)
    speculative, about_draft = _draft(row.text("note"))
    requests = _requests(row, arrivals, batch)
    about = (
        about_device,
        about_model,
        precision.assumptions,
        layout.assumptions,
        where.assumptions,
        about_load,
        lengths.said,
    )
    return ServedJob(
        model=model,
        cluster=where.cluster,
        deployment=_deployment(row, answering, release, precision, layout, layout.main),
        prefill=None
        if layout.prefill is None
        else _deployment(row, answering, release, precision, layout, layout.prefill),
        arrivals=arrivals,
        batch=batch,
        rate_rps=rate,
        prompt_tokens=lengths.prompt,
        output_tokens=lengths.output,
        spread=lengths.spread,
        lengths=lengths.laws,
        metric=metric.name,
        statistic=metric.statistic,
        speculative=speculative,
        requests=requests,
        ahead_tokens=_ahead(row, metric.name),
        rounds=requests / batch if requests and batch and arrivals == "closed" else None,
        cut=bool(row.text("engine").strip() and (model.max_positions or model.config.get("model_type") != "explicit")),
        stand_ins=answering.others,
        dated=answering.dated,
        sizes=device.sizes,
        assumptions=(*said, *answering.said, *(words for group in about for words in group), *about_draft),
        unit_si=metric.unit_si,
        key=(*_key(row), "phases" if metric.name in PHASES else ""),
    )


@dataclass(frozen=True, kw_only=True)
class _Lengths:
    prompt: float | None
    output: float | None
    spread: tuple[float, float] = (1.0, 1.0)
    laws: Mapping[str, RequestLengths] | None = None
    said: tuple[str, ...] = ()


def _refuse_drains(row: Row, metric: str) -> None:
    """Times of requests that all wait in a queue from the start say how long the queue is."""
    scenario = row.text("scenario")
    stated = requests_of(row.text("note")) or (BURST.search(scenario) and row.text("batch_or_concurrency").strip())
    if metric in ("ttft", "latency") and NEVER_SCORED.search(scenario) and not stated:
        raise InputError(
            f"{metric} of '{scenario[:40]}' is the drain of a queue, which its length decides", field="metric"
        )


def _requests(row: Row, arrivals: str, batch: int | None) -> int | None:
    """Requests of a whole run where the row says how many [1]: in its note, of a burst in its size."""
    stated = requests_of(row.text("note"))
    if arrivals == "queue" and stated is None and BURST.search(row.text("scenario")):
        return batch
    return stated if arrivals in ("queue", "closed", "poisson") else None


def _load(row: Row, arrivals: str) -> tuple[int | None, float | None, tuple[str, ...]]:
    """Sequences and requests a second, as far as the way of arriving needs them."""
    batch, rate = whole(row, "batch_or_concurrency"), number(row, "rate_rps")
    if arrivals == "static" and batch is None:
        if "single" not in row.text("scenario").casefold():
            raise InputError("a static batch whose size is not stated", field="batch_or_concurrency")
        batch = 1
    if arrivals == "closed" and batch is None:
        raise InputError("a closed loop whose number of users is not stated", field="batch_or_concurrency")
    if arrivals == "poisson" and rate is None:
        raise InputError("arrivals whose rate is not stated", field="rate_rps")
    if "open-loop" in row.text("scenario").casefold():
        return batch, rate, ("open loop: Poisson arrivals assumed",)
    return batch, rate, ()


def _lengths(row: Row, arrivals: str, metric: str) -> _Lengths:
    """Prompt and output of a row, its data set's or its source's usual ones where blank."""
    prompt, output = number(row, "isl", zero=True), number(row, "osl", zero=True)
    if output is not None and output < 1 and metric in OF_OUTPUT:
        raise InputError(f"{output:g} tokens of output: at least 1 is needed for {row.text('metric')}", field="osl")
    if arrivals == "cold" or metric == "load_time":
        return _Lengths(prompt=prompt, output=output)
    drawn = reading("length_spread", runs=row.source)
    low, high = (1.0, 1.0) if drawn is None else map(float, drawn.text.split())
    if (low, high) != (1.0, 1.0) and prompt is not None and output is not None:
        mean = (low + high) / 2
        said = (f"lengths drawn between {low:.0%} and {high:.0%} of {prompt:g} and {output:g} tokens",)
        return _Lengths(prompt=prompt * mean, output=output * mean, spread=(low, high), said=said)
    named = reading("lengths_of_data_set", runs=row.source)
    data = None if named is None else request_lengths(row.text("model"))
    if data is not None:
        return _of_data(data, prompt, output)
    if prompt is not None and output is not None:
        drawn_as = conversation(prompt, output, "; ".join((row.text("scenario"), row.text("note"))))
        return _Lengths(prompt=prompt, output=output, laws=drawn_as, said=(CONVERSATION,) if drawn_as else ())
    usual = reading("lengths", runs=row.source)
    if usual is not None:
        sizes = [float(size) for size in usual.text.split()]
        chosen = sizes[0] if prompt is None else prompt, sizes[1] if output is None else output
        return _Lengths(prompt=chosen[0], output=chosen[1], said=(usual.told,))
    if metric in ("ttft", "prefill_rate") and prompt is not None:
        return _Lengths(prompt=prompt, output=1.0, said=("output not stated: one token",))
    if arrivals == "static":
        words = "lengths not stated: 128 tokens each assumed where blank"
        chosen = 128.0 if prompt is None else prompt, 128.0 if output is None else output
        return _Lengths(prompt=chosen[0], output=chosen[1], said=(words,))
    blank = "isl" if prompt is None else "osl"
    raise InputError("the length of requests is not stated", field=blank)


def _of_data(data: Mapping[str, RequestLengths], prompt: float | None, output: float | None) -> _Lengths:
    """Lengths as a data set spreads them, around the means that a row states or else its own."""
    said = tuple(f"{side} of {one.dataset}: {one.said}" for side, one in data.items())
    return _Lengths(prompt=prompt or data["prompt"].mean, output=output or data["output"].mean, laws=data, said=said)


def _ahead(row: Row, metric: str) -> float:
    """Tokens in the cache before a timed prompt, where a note tells of a depth [token]."""
    found = DEPTH.search(row.text("note")) if metric == "prefill_rate" else None
    return float(found[1]) if found else 0.0


def _draft(note: str) -> tuple[float | None, tuple[str, ...]]:
    """The draft length that a note tells of, None without speculation [token]."""
    if re.search(r"specul\w* (?:decoding )?off|MTP off|no (?:MTP|speculat)", note, re.IGNORECASE):
        return None, ()
    if not re.search(r"specul|\bMTP\b|eagle|nextn|medusa", note, re.IGNORECASE):
        return None, ()
    match = re.search(r"(?:nextn|\bk|MTP|depth|draft(?: length| tokens)?)\s*[=:]?\s*(\d{1,2})\b", note, re.IGNORECASE)
    if match:
        return float(match[1]), ()
    return DRAFT_LENGTH, (f"draft length not stated: {DRAFT_LENGTH:g} tokens, gpt-fast's default",)


def _deployment(
    row: Row, answering: StandIn, release: str, precision: ServedPrecision, layout: ServedLayout, degrees: PoolDegrees
) -> Deployment:
    apart = layout.prefill is not None
    role = Role.WHOLE if not apart else Role.DECODE if degrees is layout.main else Role.PREFILL
    return Deployment(
        engine=answering.policy,
        version=release if answering.own else "",
        tp=degrees.tp,
        pp=degrees.pp,
        dp=degrees.dp,
        ep=degrees.ep,
        instances=degrees.instances,
        weights=precision.weights,
        other_weights=precision.other,
        kv=precision.kv,
        options=options_of(row.text("note")),
        role=role,
    )


_RUN = (
    "source", "model", "params_b", "hardware", "n_devices", "tp", "pp", "ep", "precision_weights", "precision_kv",
    "engine", "engine_version", "scenario", "batch_or_concurrency", "rate_rps", "isl", "osl",
)  # fmt: skip


def _key(row: Row) -> tuple[str, ...]:
    """What decides the prediction: the cells of the configuration and the note without its dates."""
    note = re.sub(r"\d{4}-\d{2}-\d{2}", "", row.text("note")).strip("; ")
    return (*(row.text(name) for name in _RUN), note)
