"""What else a serving row may have been, where the source of its benchmark is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from ridgeline.facts.benchmark_settings import amount, benchmark_settings
from ridgeline.facts.benchmarks import first_release, model_day, release_at
from ridgeline.facts.readings import reading
from ridgeline.facts.records import Accelerator
from ridgeline.scenario.serving_words import replaced
from ridgeline.validate.serving_rows import ServedJob

SPREAD = (0.8, 1.0)
"""Shares of a nominal length between which a closed loop may draw it. Source: inferencex, --random-range-ratio 0.8;
vLLM's, TensorRT-LLM's and AIPerf's own benchmarks draw all alike where nothing is asked."""

AGES = (8, 3, 15)
"""Months between the day from which a run is possible and that of the release which ran, where neither is stated: the
median of the runs whose row tells, and the ends of their middle 80 %, between which the interval holds.

Source: 50 models of 9 sources of serving rows that state a release or a day; quantiles 3.0, 8.2 and 14.5 months."""

NEWER = frozenset({"blackwell", "rubin"})
"""Architectures younger than such a release may be: the newest runs there."""

NARROW = frozenset({"fp8", "nvfp4", "mxfp4"})
"""Weights beside which a cache of 8 bits is usual, and a flag where the engine does not take it from the checkpoint."""


def usual_releases(engine: str, model: str, device: Accelerator) -> tuple[str, ...]:
    """Releases that may have run where a row states neither one nor a day: the likeliest, then the ends' [release].

    Each is the newest of its engine `AGES` months after model and device were both to be had; empty where the model's
    day or the engine's releases are unknown, and for devices of `NEWER`.
    """
    day, first = model_day(model), first_release(engine)
    if day is None or first is None or device.architecture in NEWER:
        return ()
    began = max(day, f"{device.year or 0:04d}-07-01")
    found = [release_at(engine, _later(began, months)) or first for months in AGES]
    return tuple(dict.fromkeys(found))


def _later(day: str, months: int) -> str:
    """The day so many months after one such as '2024-07-23'."""
    count = 12 * int(day[:4]) + int(day[5:7]) - 1 + months
    return f"{count // 12}-{count % 12 + 1:02d}{day[7:]}"


@cache
def known(source: str) -> bool:
    """Whether anything is known of how the runs of a source were made."""
    return any(setting.code == source for setting in benchmark_settings())


def might_be(job: ServedJob, source: str, *, cache_known: bool = False) -> tuple[ServedJob, ...]:
    """Jobs that the interval holds for as well where the source is unknown; each changes one thing of the job.

    `cache_known`: the source says of this run which format its cache has. Where none does, a narrow one counts too.
    """
    narrow = not cache_known and not job.deployment.kv and job.deployment.weights in NARROW
    caches = (replace(_changed(job, kv="fp8"), differs="cache"),) if narrow else ()
    return caches if known(source) else (*_others(job), *caches)


def as_likely(job: ServedJob, source: str) -> tuple[ServedJob, ...]:
    """Jobs that nothing said makes less likely than the job itself: where the source is unknown and users wait for
    their answers, lengths that are drawn. Requests all alike end together and come together, so that each prompt waits
    for all others; of drawn lengths none does."""
    if known(source) or job.arrivals != "closed" or job.spread != (1.0, 1.0) or job.lengths is not None:
        return ()
    mean = sum(SPREAD) / 2
    prompt, output = (job.prompt_tokens or 1.0) * mean, (job.output_tokens or 1.0) * mean
    return (replace(job, spread=SPREAD, prompt_tokens=prompt, output_tokens=output, key=(*job.key, "lengths")),)


def _others(job: ServedJob) -> Iterator[ServedJob]:
    engine = job.deployment.engine
    for other in job.releases:
        yield replace(_changed(job, version=other), differs="release")
    pooled = reading("pooled_sequences", program=engine)
    if pooled is not None and job.prefill is not None and job.deployment.options.max_seqs is None:
        pool = job.deployment
        most = amount(pooled.text, {"concurrency": job.batch, "instances": pool.instances, "dp": pool.dp})
        if most is not None:
            held = replaced(pool, max_seqs=round(most), graph_max=round(most))
            yield replace(job, deployment=held, key=(*job.key, "pooled"), differs="pool")
    device = job.cluster.accelerator.name
    if job.deployment.options.graphs is None and reading("graphs_in_doubt", program=engine, device=device) is not None:
        eager = replaced(job.deployment, graphs=False)
        yield replace(job, deployment=eager, key=(*job.key, "eager"), differs="graphs")
    for part in job.sizes:
        yield replace(job, cluster=replace(job.cluster, accelerator=part), key=(*job.key, part.name), differs="device")


def _changed(job: ServedJob, **changes: Any) -> ServedJob:
    """The job with fields of its pools changed."""
    prefill = None if job.prefill is None else replace(job.prefill, **changes)
    return replace(
        job, deployment=replace(job.deployment, **changes), prefill=prefill, key=(*job.key, *map(str, changes.values()))
    )
