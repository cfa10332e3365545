"""Settings of memory that a row leaves open: the job under each alternative, and what else its number may count."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from ridgeline.errors import RidgelineError
from ridgeline.facts.readings import reading
from ridgeline.facts.transfer import joined, run_spread
from ridgeline.graph.workload import Task
from ridgeline.plan.plan import Plan
from ridgeline.report.report import Report
from ridgeline.validate.interpret import Interpretation
from ridgeline.validate.metrics import Prediction, TrainingMetric, peak_memory
from ridgeline.validate.rows import Row

Predict = Callable[[Interpretation], Report]
Jobs = tuple[Interpretation, ...]


def widened(row: Row, job: Interpretation, found: Prediction, metric: TrainingMetric, predict: Predict) -> Prediction:
    """A peak's interval with each setting that the row leaves open as an independent cause.

    The least and the most of a setting's alternatives are its ends; one that its device could not hold is none, for the
    measured run did fit.
    """
    if metric.name not in ("memory", "allocated") or metric.read is None or found.low is None or found.high is None:
        return found
    report, ends = predict(job), [found.low, found.high]
    for jobs in _open(row, job, report.plan):
        held = [found.value]
        for each in jobs:
            try:
                other = predict(each)
            except RidgelineError:
                continue
            if other.fits:
                held.append(metric.read(row, each, other).value)
        ends += [min(held), max(held)]
    ends += _counts(row, job, report) if metric.name == "memory" else []
    ends += [found.value * end for end in run_spread("memory of training")]
    low, high = joined(found.value, ends)
    return replace(found, low=low, high=high)


def _counts(row: Row, job: Interpretation, report: Report) -> list[float]:
    """The peak as an allocator and as a driver count it, where a row does not say who counted [the row's unit]."""
    if reading("memory_counter", **row.cells_of(program=job.engine.name, words=row.words)) is not None:
        return []
    return [peak_memory(row, job, report, counter).value for counter in ("allocated", "driver")]


def _open(row: Row, job: Interpretation, plan: Plan) -> Iterator[Jobs]:
    """The alternatives of each setting that is open."""
    yield from (jobs for find in (_recompute, _micro_batch, _kernel, _master) if (jobs := find(row, job, plan)))


def _planned(job: Interpretation, **fields: object) -> Interpretation:
    return replace(job, stated={**job.stated, **fields}, key=f"{job.key}; {sorted(fields.items(), key=str)}")


def _worked(job: Interpretation, **fields: str) -> Interpretation:
    workload = replace(job.workload, **fields)  # type: ignore[arg-type]
    return replace(job, workload=workload, key=f"{job.key}; {sorted(fields.items())}")


def _recompute(row: Row, job: Interpretation, plan: Plan) -> Jobs:
    if row.text("recompute") or re.search(r"checkpoint|recompute|remat", row.words, re.IGNORECASE):
        return ()
    others = {"none", "full"} - {plan.recompute}
    return tuple(_planned(job, recompute=word) for word in sorted(others))


def _micro_batch(row: Row, job: Interpretation, plan: Plan) -> Jobs:
    if row.count("micro_batch") is not None or "micro_batch" in job.stated:
        return ()
    share = job.workload.global_batch // plan.dp
    sizes = {1, 2 * plan.micro_batch} - {plan.micro_batch}
    whole = {"tp": plan.tp, "pp": plan.pp, "dp": plan.dp, "cp": plan.cp, "ep": plan.ep}
    return tuple(_planned(job, **whole, micro_batch=size) for size in sorted(sizes) if share % size == 0)


def _kernel(row: Row, job: Interpretation, plan: Plan) -> Jobs:
    """Attention of models that bring their own, where no kernel is named: which they take follows model and release."""
    words = f"{row.text('engine')}; {row.text('notes')}"
    named = reading("attention", **row.cells_of(program=job.engine.name, words=words))
    if named is not None or re.search(r"attention|\bliger\b", words, re.IGNORECASE):
        return ()
    if not (job.workload.policy.wide_scores or not job.engine.pattern):
        return ()
    other = "flash2" if job.workload.attention_kernel == "unfused" else "unfused"
    return (_worked(job, attention_kernel=other),)


def _master(row: Row, job: Interpretation, plan: Plan) -> Jobs:
    """Weights trained in 16 bits, or in fp32 beside 16-bit copies: programs that load checkpoints do either."""
    words = "; ".join(map(row.text, ("precision", "optimizer", "notes", "engine")))
    if job.workload.task in (Task.LORA, Task.QLORA) or re.search(
        r"\bpure\b|\bamp\b|mixed|master|states|weights|param|fp8|fp4|8-?bit|4-?bit|fp32|tf32", words, re.IGNORECASE
    ):
        return ()
    kind, _, half = job.workload.precision.partition("-")
    optimizer = job.workload.optimizer
    if job.engine.half == "-pure" and half == "pure":
        return (_worked(job, precision=f"{kind}-amp", optimizer=optimizer.removesuffix("-bf16")),)
    if not job.engine.pattern and not half and kind in ("bf16", "fp16"):
        narrow = f"{optimizer}-bf16" if optimizer == "adamw" else optimizer
        return (_worked(job, precision="bf16-pure", optimizer=narrow),)
    return ()
