"""What else a serving row may have been, where the source of its benchmark is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from ridgeline.facts.benchmark_settings import amount, benchmark_settings
from ridgeline.facts.benchmarks import release_at
from ridgeline.facts.readings import reading
from ridgeline.scenario.serving_words import replaced
from ridgeline.validate.serving_rows import ServedJob

SPREAD = (0.8, 1.0)
"""Shares of a nominal length between which a closed loop may draw it. Source: inferencex, --random-range-ratio 0.8;
vLLM's, TensorRT-LLM's and AIPerf's own benchmarks draw all alike where nothing is asked."""

EARLIER = "2024-09-01"
"""Day of the release that may have run where none is stated: of the summer of 2024, the first with Llama 3.1, from
before schedulers hid the host's time (vLLM's V1, SGLang's overlap, TensorRT-LLM's PyTorch flow) [assumed]."""

NEWER = frozenset({"blackwell", "rubin"})
"""Architectures for which that release has no kernels."""

NARROW = frozenset({"fp8", "nvfp4", "mxfp4"})
"""Weights beside which a cache of 8 bits is usual, and a flag where the engine does not take it from the checkpoint."""


@cache
def known(source: str) -> bool:
    """Whether anything is known of how the runs of a source were made."""
    return any(setting.code == source for setting in benchmark_settings())


def might_be(job: ServedJob, source: str, *, cache_known: bool = False) -> tuple[ServedJob, ...]:
    """Jobs that the interval holds for as well where the source is unknown; each changes one thing of the job.

    `cache_known`: the source says of this run which format its cache has. Where none does, a narrow one counts too.
    """
    narrow = not cache_known and not job.deployment.kv and job.deployment.weights in NARROW
    caches = (_changed(job, kv="fp8"),) if narrow else ()
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
    engine, own = job.deployment.engine, not job.stand_ins
    earlier = release_at(engine, EARLIER) if own and not job.deployment.version else None
    if earlier is not None and job.cluster.accelerator.architecture not in NEWER:
        yield _changed(job, version=earlier)
    pooled = reading("pooled_sequences", program=engine)
    if pooled is not None and job.prefill is not None and job.deployment.options.max_seqs is None:
        pool = job.deployment
        most = amount(pooled.text, {"concurrency": job.batch, "instances": pool.instances, "dp": pool.dp})
        if most is not None:
            held = replaced(pool, max_seqs=round(most), graph_max=round(most))
            yield replace(job, deployment=held, key=(*job.key, "pooled"))
    for part in job.sizes:
        yield replace(job, cluster=replace(job.cluster, accelerator=part), key=(*job.key, part.name))


def _changed(job: ServedJob, **changes: Any) -> ServedJob:
    """The job with fields of its pools changed."""
    prefill = None if job.prefill is None else replace(job.prefill, **changes)
    return replace(
        job, deployment=replace(job.deployment, **changes), prefill=prefill, key=(*job.key, *map(str, changes.values()))
    )
