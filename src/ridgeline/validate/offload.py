"""Answers rows of measured offloading: an iteration of the row's placement, and the row's own metric."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.cost.answer import Rung, worst
from ridgeline.cost.formats import form
from ridgeline.cost.host import Kernel, Processors, disk
from ridgeline.cost.machine import machine
from ridgeline.errors import InputError
from ridgeline.facts.readings import reading
from ridgeline.facts.records import Evidence
from ridgeline.plan.deployment import Deployment
from ridgeline.serving.hybrid import decode, prefill
from ridgeline.serving.hybrid_model import Hybrid
from ridgeline.serving.hybrid_placement import DeviceOrder, Habits, HostPlacement, OffloadMethod, habits_of
from ridgeline.serving.hybrid_sides import SIDES, HybridParts, band
from ridgeline.serving.streamed_fill import as_placed
from ridgeline.serving.streamed_machine import in_blocks, job_of, machine_of
from ridgeline.serving.streamed_schedule import scheduled
from ridgeline.validate.machines import Machines, machines, place
from ridgeline.validate.offload_host import SIZE, memory_of, sized_bytes, usual_host
from ridgeline.validate.offload_rows import OffloadedJob, read_offloaded
from ridgeline.validate.rows import Row
from ridgeline.validate.score import Memo, scored

PROMPT_TOKENS, OUTPUT_TOKENS = 220.0, 200.0  # where a row tells none (assumed)
LAYERWISE_FROM = 400  # token; doc/en/kt-kernel/Kimi-K2-Thinking-Native.md of KTransformers
ACCEPTANCE = 0.7  # of a drafted token, where a source says only how many are drafted (assumed)


@dataclass(frozen=True, kw_only=True)
class Offloaded:
    """A job made ready: the model with its sides, the lengths of its requests, and what was assumed."""

    job: OffloadedJob
    hybrid: Hybrid
    batch: float
    prompt_tokens: float
    output_tokens: float
    context_tokens: float
    assumptions: tuple[str, ...]


class OffloadRows:
    """Answers rows one by one; rows that one run answers are made ready once."""

    def __init__(self, source: Machines | None = None) -> None:
        self._source = source
        self._runs = Memo[Offloaded]()

    def answer(self, row: Row) -> dict[str, Any]:
        """The keys of a row's answer that its prediction fills; raises Ridgeline's errors with a refusal's reason."""
        job = read_offloaded(row, self._source)
        found = self._runs.of(job.key, lambda: ready(job, row, self._source))
        row.positive()
        value, inverse, spent = _value(found, job)
        predicted = value / job.unit_si
        said = (*job.assumptions, *found.assumptions)
        assumed = any("not stated" in words or _DESCRIBED.search(words) for words in said)
        evidence = Evidence.ASSUMED if assumed else Evidence.DERIVED
        low, high = _band(spent, said, prompt=job.metric in ("prefill_rate", "ttft"))
        if inverse:
            low, high = 1.0 / high, 1.0 / low
        rungs = () if found.hybrid.prices is None else tuple(found.hybrid.prices.rungs_used.values())
        device = job.part.name if job.part is not None else job.host.cpu.name if job.host else "not stated"
        named = {"device": device, "engine": job.engine, "model": job.model.name, "assumptions": list(said)}
        rung = (worst(rungs) if rungs else Rung.COMMON).value
        return scored(row, predicted, predicted * low, predicted * high, evidence=evidence, rung=rung, **named)


def ready(job: OffloadedJob, row: Row, source: Machines | None = None) -> Offloaded:
    """The model of a job on its device, processors and disk."""
    said: list[str] = []
    technique = job.technique
    host = _processors(job, row, said)
    host_format = job.host_weights or job.weights
    matrix = host is not None and host.has_matrix_units
    if "native" in row.text("precision_weights"):
        host_format = "native"
    habits = habits_of(job.engine, version=job.version, weights=host_format or "bf16", matrix_units=matrix)
    made = None
    if job.part is not None:
        cluster, notes = place(job.part, max(1, job.devices), (row.text("note"),), source or machines())
        made = machine(cluster)
        said += notes
    deployment = _deployment(job, technique)
    hybrid = Hybrid(
        job.model, made, host, _placement(job, row, technique, said), deployment=deployment,
        habits=_stated(habits, job, row), host_bytes=_host_bytes(job),
        top_k=job.experts_used,
    )  # fmt: skip
    if hybrid.placement.resident_bytes is None and hybrid.resident_bytes(job.device_share or 0.0) is not None:
        drive = "" if row.text("disk") else f"; storage not stated: {hybrid.placement.storage}"
        said.append(f"weights are more than host memory: pages of the mapped file are read again{drive}")
    return _with_lengths(job, hybrid, said)


def _processors(job: OffloadedJob, row: Row, said: list[str]) -> Processors | None:
    side = job.host
    if side is not None:
        return Processors(
            cpu=side.cpu, sockets=side.sockets, cores=side.cores, memory_bytes_per_s=side.memory_bytes_per_s,
            memory_bytes=side.memory_bytes,
        )  # fmt: skip
    if job.technique is OffloadMethod.FETCHED:
        return None
    params = job.model.graph.params * (1.0 - (job.device_share or 0.0)) * _host_bytes(job)
    stated = memory_of(row)
    found = usual_host(stated or params)
    said.append(f"processor not stated: {found.name} assumed, by the memory that it needs")
    return Processors(cpu=found, sockets=1, cores=found.cores, memory_bytes_per_s=found.memory.value)


def _deployment(job: OffloadedJob, technique: OffloadMethod) -> Deployment:
    degrees = {"pp" if technique is OffloadMethod.LAYERS else "tp": max(1, job.devices)}
    return Deployment(engine=job.engine, weights=job.weights, kv=job.kv, **degrees)  # type: ignore[arg-type]


def _host_bytes(job: OffloadedJob) -> float:
    return form(job.host_weights or job.weights or "bf16").weight_bytes


def _stated(habits: Habits, job: OffloadedJob, row: Row) -> Habits:
    """Habits that the words of a row or its model change."""
    if reading("routes_before_attention", model=job.model.name, program=job.engine) is not None:
        habits = replace(habits, prefetch=True)
    pass_tokens = re.search(r"\b(?:ubatch|-ub)[ =](\d{2,6})", f"{row.text('placement')} {row.text('note')}")
    if pass_tokens:
        habits = replace(habits, chunk=int(pass_tokens[1]))
    if habits.kernel is Kernel.LLAMA_CPP and re.match(r"iq[1-3]_", row.text("precision_weights"), re.IGNORECASE):
        habits = replace(habits, kernel=Kernel.CODEBOOK)
    if re.search(r"\bno[- ]mmap\b", f"{row.text('placement')} {row.text('note')}", re.IGNORECASE):
        habits = replace(habits, pinned=True, pages=False)  # weights lie in pinned memory: the file is not mapped
    elif re.search(r"\bmmap\b", row.text("placement"), re.IGNORECASE):
        habits = replace(habits, mapped=True, pages=True)
    if re.search(r"(?:^|\s)-rtr\b", row.text("note")):
        habits = replace(habits, lends=False, streams=0)  # rows laid out for processors: no device multiplies them
    if job.layerwise_prefill and not re.search(r"long prompt", row.text("technique"), re.IGNORECASE):
        habits = replace(habits, streams=LAYERWISE_FROM)
    return habits


def _placement(job: OffloadedJob, row: Row, technique: OffloadMethod, said: list[str]) -> HostPlacement:
    text = f"{row.text('placement')} {row.text('technique')}"
    named = reading("offload_order", words=text)
    order = DeviceOrder.UNIFORM if named is None else DeviceOrder(named.value)
    if technique is OffloadMethod.FETCHED or (technique is OffloadMethod.DISK and order is DeviceOrder.UNIFORM):
        order = DeviceOrder.RECENT
    share = job.device_share
    layers = re.search(r"-ngl[ =](\d{1,4})", text)
    if share is None and technique is OffloadMethod.LAYERS and layers:
        share = min(1.0, int(layers[1]) / len(job.model.graph.layers))
    if share is None and technique not in (OffloadMethod.HOST, OffloadMethod.DISK):
        said.append(f"what the devices hold is not stated: as many {job.share_of} as fit beside cache and workspace")
    cell = f"{row.text('disk')} {row.text('cpu')} {job.host.cpu.name if job.host else ''}"
    held_there = re.search(r"(?<!\b0 on )(?:disk|nvme|ssd)", text, re.IGNORECASE) is not None
    streamed = technique is OffloadMethod.STREAMED and held_there
    on_disk = _disk_share(job, row)
    streamed = streamed and on_disk > 0.0
    drive = reading("storage", words=cell)
    storage = "nvme" if drive is None else drive.text
    rate = _disk_rate(row.text("disk"))
    cache = re.search(r"KV cache (?:on )?(?:the )?(CPU|host|GPU)", text, re.IGNORECASE)
    limit = job.host.limit_bytes if job.host is not None else None
    if (technique is OffloadMethod.DISK or streamed) and not row.text("disk"):
        said.append(f"storage not stated: {storage}")
    return HostPlacement(
        technique=technique, share=share, order=order, resident_bytes=limit, storage=storage, from_disk=streamed,
        layerwise=job.layerwise_prefill, read_bytes_per_s=rate,
        disk_share=on_disk, cache_on_host=None if cache is None else cache[1].casefold() != "gpu",
    )  # fmt: skip


def _disk_rate(cell: str) -> float | None:
    """Sequential reads that a row states, or by its drive's generation of PCIe, of which each has twice the last's."""
    rate = re.search(r"(\d{1,3}(?:\.\d{1,3})?) ?GB/s", cell)
    link = re.search(r"PCIe ?(?:Gen ?)?([345])", cell, re.IGNORECASE)
    if rate is None and link is not None:
        return disk("nvme").bytes_per_s * 2.0 ** (int(link[1]) - 4)
    return float(rate[1]) * 1e9 if rate else None


def _disk_share(job: OffloadedJob, row: Row) -> float:
    """What of the weights that no device holds lies on disk, where a row says what host memory holds of them [1]."""
    stated = re.search(rf"\bCPU {SIZE}", row.text("placement"), re.IGNORECASE)
    if stated is None or job.device_share is None:
        return 1.0
    if not row.text("disk").strip():
        return 0.0
    away = job.model.graph.params * form(job.weights or "bf16").weight_bytes * (1.0 - job.device_share)
    return 1.0 - min(1.0, sized_bytes(stated[1], stated[2]) / away) if away > 0.0 else 0.0


def _with_lengths(job: OffloadedJob, hybrid: Hybrid, said: list[str]) -> Offloaded:
    batch = float(job.batch or 1)
    if job.batch is None:
        said.append("concurrency not stated: one request at a time")
    prompt, output = job.prompt_tokens, job.output_tokens
    if prompt is None and job.context_tokens is None:
        said.append(f"prompt not stated: {PROMPT_TOKENS:.0f} tokens, the mean of ShareGPT's conversations")
        prompt = PROMPT_TOKENS
    if output is None:
        said.append(f"output not stated: {OUTPUT_TOKENS:.0f} tokens, the mean of ShareGPT's conversations")
        output = OUTPUT_TOKENS
    prompt = job.context_tokens if prompt is None else prompt
    assert prompt is not None
    depth = job.context_tokens if job.context_tokens is not None else prompt
    return Offloaded(
        job=job, hybrid=hybrid, batch=batch, prompt_tokens=max(prompt, 1.0), output_tokens=max(output, 1.0),
        context_tokens=depth + output / 2.0, assumptions=tuple(said),
    )  # fmt: skip


WEIGHTY = re.compile(r"(?:concurrency|precision|accelerators|storage) not stated|hold is not stated|^'\d+ ?-")
"""What is assumed and moves a time by its own size; lengths that are not stated move one request's rates little."""


_DESCRIBED = re.compile(r"^processor .* assumed")  # not stated, or of no table


def _band(spent: HybridParts, assumed: tuple[str, ...], *, prompt: bool) -> tuple[float, float]:
    """The interval of a time as factors, wider where the job was guessed [1]."""
    if any(WEIGHTY.search(words) for words in assumed):
        return band(spent, guessed=SIDES, prompt=prompt)
    guessed = ("host",) if any(_DESCRIBED.search(words) for words in assumed) else ()
    return band(spent, guessed=guessed, prompt=prompt)


def _value(found: Offloaded, job: OffloadedJob) -> tuple[float, bool, HybridParts]:
    """The job's metric in SI, whether it is a rate (an inverse of time), and the parts of its time."""
    batch, output = found.batch, found.output_tokens
    metric = job.metric
    if metric in ("prefill_rate", "ttft"):
        before = float(job.context_tokens or 0) if job.prompt_tokens is not None else 0.0
        first = prefill(found.hybrid, batch, found.prompt_tokens, before)
        seconds = float(first.total.sum())
        return (
            (batch * found.prompt_tokens / seconds, True, first)
            if metric == "prefill_rate"
            else (seconds, False, first)
        )
    if in_blocks(found.hybrid):
        first, step = _in_blocks(found)
    else:
        first = prefill(found.hybrid, batch, found.prompt_tokens)
        step = decode(found.hybrid, batch, found.context_tokens).times(1.0 / _gained(job))
    each = float(step.total.sum())
    if metric == "decode_rate":
        return batch / each, True, step
    if metric in ("tpot", "itl"):
        return each, False, step
    spent = first + step.times(output)
    whole = float(spent.total.sum())
    if metric in ("latency", "batch_latency"):
        return whole, False, spent
    tokens = {
        "output_rate": batch * output,
        "output_rate_per_device": batch * output / max(1, job.devices),
        "total_rate": batch * (output + found.prompt_tokens),
        "samples_rate": batch,
    }
    if metric not in tokens:
        raise InputError(f"'{metric}' is not predicted for offloading", field="metric")
    return tokens[metric] / whole, True, spent


def _in_blocks(found: Offloaded) -> tuple[HybridParts, HybridParts]:
    """Prompts and a mean step by FlexGen's loop, placed as a row says [s]."""
    hybrid, batch, output = found.hybrid, int(found.batch), max(2, int(found.output_tokens))
    work = job_of(hybrid.model, int(found.prompt_tokens), output)
    policy = as_placed(hybrid, batch, batch * (found.prompt_tokens + output))
    first, rest = scheduled(work, machine_of(hybrid, work), policy).parts()
    return first, rest.times(1.0 / (output - 1))


def _gained(job: OffloadedJob) -> float:
    """Tokens of a step, with those of a draft that are kept [token]."""
    if not job.speculative:
        return 1.0
    kept = ACCEPTANCE if job.accepted is None else job.accepted
    return sum(kept**place for place in range(round(job.speculative) + 1))
