"""How the benchmark behind a serving row was run, where the row does not say, and what else it may have been."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ridgeline.cost.formats import EXPERTS_ONLY, form
from ridgeline.errors import InputError
from ridgeline.facts.benchmark_settings import KINDS, UNUSED, BenchmarkSetting, Run, amount, benchmark_settings
from ridgeline.facts.benchmarks import release_at
from ridgeline.facts.readings import reading, tell_recipe
from ridgeline.facts.records import Accelerator, Evidence
from ridgeline.graph.model import Model, op_params
from ridgeline.graph.ops import Region
from ridgeline.plan.deployment import Deployment
from ridgeline.scenario.serving_words import replaced
from ridgeline.serving.metrics import Objective
from ridgeline.validate.serving_rows import ServedJob

TOOL = "trtllm-bench"
_MOST_SEQUENCES, _MOST_TOKENS, _LEAST_TOKENS, _LEAST_SEQUENCES = 4096, 32768, 2048, 64
_PACKED = 0.5 + 1.0 / 16  # numbers that a file of NVFP4 lists for a weight: half a byte, and a scale for 16 weights
_PACKED_MX = 0.5 + 1.0 / 32  # and one of MXFP4: a scale for 32
_COUNTED = {"nvfp4": 0.5, "fp8": 1.0, "fp8_block": 1.0}  # bytes that it takes each number for [byte]; else 2


def trtllm_bench(
    model: Model, part: Accelerator, pool: Deployment, *, isl: float, osl: float, fraction: float, narrow_kv: bool
) -> tuple[int, int]:
    """The largest batch and the budget of an iteration that `trtllm-bench` works out, (max_seqs, token_budget) [1].

    requests = (devices x memory - size) fraction / (2 L max(tp, K) head_bytes (isl + osl)), at most 4096, over pp;
    tokens = requests (1 + isl / osl), at most 32768. Both are rounded up in steps that widen with their size, to
    no fewer than 64 and 2048, and the budget holds a prompt beside a whole batch. `size` counts the numbers of a
    checkpoint's files, half a byte each in NVFP4, of which those that are packed are counted as half: the
    estimate is above what fits, as it is meant to be. It does not know MXFP4 and takes 2 bytes for each packed pair.
    `fraction` is that of free memory, `narrow_kv` a cache of 8 bits.
    Source: tensorrt-llm, tensorrt_llm/bench/build/tuning.py and bench/benchmark/utils/general.py.
    Raises `InputError` where not one request fits.
    """
    cores = model.graph.attentions
    if not cores or osl <= 0:
        raise InputError(f"{model.name} has no attention whose cache {TOOL} would count", field="model")
    core, devices = cores[0], pool.tp * pool.dp * pool.pp
    heads, width = (core.heads, model.graph.hidden // core.heads) if core.latent else (core.kv_heads, core.qk_dim)
    token = 2.0 * len(model.graph.layers) * max(pool.tp * pool.dp, heads) * width * (1.0 if narrow_kv else 2.0)
    left = devices * part.memory_bytes - _size_bytes(model, form(pool.weights or "bf16").name)
    requests = left * fraction / (token * (isl + osl))
    if requests < 1.0:
        raise InputError(f"{TOOL} finds no room for one request of {isl + osl:g} tokens", field="isl")
    batch = min(requests, _MOST_SEQUENCES) / pool.pp
    most = _up(batch, ((256, 32), (1024, 128), (math.inf, 256)), _LEAST_SEQUENCES)
    tokens = min(batch * (1.0 + isl / osl), _MOST_TOKENS)
    budget = _up(tokens, ((4096, 256), (8192, 512), (math.inf, 1024)), _LEAST_TOKENS)
    return most, max(budget, math.ceil(isl) + most)


def _size_bytes(model: Model, weights: str) -> float:
    """What it takes a checkpoint for [byte]."""
    graph = model.graph
    ends = float(sum(op_params(op, 1) for op in (*graph.embedding, *graph.head)))
    blocks = [graph.blocks[name] for name in graph.layers]
    apart = sum(op_params(op, block.experts) for block in blocks for op in block.ops if op.region is Region.EXPERT)
    packed = {"nvfp4": graph.params - ends} | dict.fromkeys(EXPERTS_ONLY, float(apart))
    share = _PACKED if weights == "nvfp4" else _PACKED_MX
    return (graph.params - (1.0 - share) * packed.get(weights, 0.0)) * _COUNTED.get(weights, 2.0)


def _up(value: float, steps: tuple[tuple[float, int], ...], least: int) -> int:
    """`value` rounded up to the step of the first limit that it lies below, at least `least` [1]."""
    step = next(step for limit, step in steps if value < limit)
    return max(least, step * math.ceil(value / step))


UNSAID = frozenset({Evidence.DERIVED, Evidence.ASSUMED})
"""Rungs below what a source states in so many words: these settings tell why they are believed."""

LIMITS = frozenset({"token_budget", "chunked", "mixed", "max_seqs", "fresh_kernels"})
"""Settings of an iteration: where they are assumed, an interval holds for the engine's own as well."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What the sources say of a run: `values` by the keys of `KINDS`, each an attribute, None where they say nothing.

    `version` is the engine's release where the row gives none, or gives that of a container around it; `statistic` that
    of latencies whose row names none. `kv` is a number format, '' the model's own 16 bits. `token_budget` [token]
    bounds one iteration, `physical_batch` [token] one pass of llama.cpp inside it, `max_seqs` the sequences of an
    instance, of one attention rank under attention data parallelism. With `stream_interval` N a client hears of every
    Nth token and of the last; `stream_first`: and of the first at once. With `receive_interval` N a scheduler looks
    for new requests after N decode iterations or one prefill (a prefill weighs 1000, a decode or idle turn 1). Source:
    sglang, srt/managers/scheduler_recv_skipper.py, pull request 8947. `attention_ranks` and `expert_ranks` are degrees
    of an instance whose row tells others, `cache_tokens` [token] bounds the cache of an attention rank. `frontends`
    take requests in turn, and turns of their own among the instances of a pool. `requests_per_user` and
    `warmups_per_user` are per concurrent user. `tuned_limits` names the tool that works out `max_seqs` and
    `token_budget` where nothing states them. `told` holds assumptions with their sources, `assumed` the keys whose
    evidence is no more than that.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    assumed: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> Any:
        if name in KINDS:
            return self.values.get(name)
        raise AttributeError(name)

    def without_assumed(self) -> RunSettings:
        """Without limits of an iteration that are assumed: those of the engine hold."""
        kept = {key: value for key, value in self.values.items() if key not in self.assumed & LIMITS}
        return replace(self, values=kept, assumed=frozenset())

    @property
    def statistic_unsaid(self) -> bool:
        """Whether nobody says of a latency which statistic it is: the mean is assumed, and it may be the median."""
        return self.statistic is None or "statistic" in self.assumed

    @property
    def limits(self) -> Objective | None:
        """The limits that 99 % of requests keep to at the highest load; None where the benchmark sets none."""
        found = Objective(ttft_s=self.ttft_limit_s, tpot_s=self.tpot_limit_s, latency_s=self.latency_limit_s)
        return found if found.stated else None

    def waits(self, ranks: int) -> dict[str, Any]:
        """How a scheduler of attention `ranks` lets prompts wait, in the words of a deployment; none where it does not.

        TensorRT-LLM holds prompts back: of several ranks until each has one, of one rank until they and the decoding
        sequences fill a share of an iteration's budget. Source: tensorrt-llm, py_executor.py, _balance_adp_requests
        and _waiting_requests.
        """
        if self.receive_interval is not None:
            return {"receive_interval": self.receive_interval}
        if ranks > 1 and self.attention_wait_steps:
            return {"receive_interval": self.attention_wait_steps, "hold": "all"}
        if ranks == 1 and self.batch_wait_steps:
            share = {} if self.batch_wait_share is None else {"hold_share": self.batch_wait_share}
            return {"receive_interval": self.batch_wait_steps, "hold": "full"} | share
        return {}


def settings_of(names: Mapping[str, str], run: Run, *, version: str = "", then: str | None = None) -> RunSettings:
    """The settings of the run behind a row, as far as public sources tell them.

    `names` are those of serving rows: `code` of the source, `engine` by its usual name, `model`, `device`, `precision`
    of the weights. `run` holds numbers that settings depend on (`facts.benchmark_settings.VARIABLES`) and the `date`
    of the run as 2026-01-14, the `scenario`, the `role` of a pool; what is left out decides nothing. `version` is the
    release that the row states, `then` the one that the run had where neither its row nor a source tells one.
    """
    stated = version.strip()
    found = _chosen(names, stated, stated, run, keys=frozenset({"version"}))
    used = found["version"].value if "version" in found else then or stated
    found |= _chosen(names, stated, used, run, keys=frozenset({"max_seqs"}))
    if "max_seqs" in found:
        run = {**run, "max_seqs": _number(found["max_seqs"], run)}
    found |= _chosen(names, stated, used, run, keys=frozenset(KINDS) - {"version", "max_seqs"})
    values = {key: _value(setting, run) for key, setting in found.items()}
    assumed = frozenset(key for key, setting in found.items() if setting.evidence is Evidence.ASSUMED)
    return RunSettings(values=values, told=_told(found, values), assumed=assumed)


@cache
def _table(keys: frozenset[str]) -> tuple[BenchmarkSetting, ...]:
    return tuple(setting for setting in benchmark_settings() if setting.key in keys)


def _chosen(
    names: Mapping[str, str], stated: str, version: str, run: Run, *, keys: frozenset[str]
) -> dict[str, BenchmarkSetting]:
    """The first setting of each key that fits the run and whose formula the run can answer."""
    found: dict[str, BenchmarkSetting] = {}
    for setting in _table(keys):
        if setting.key in found or not setting.fits(names, stated, version, run):
            continue
        if _value(setting, run) is not None:
            found[setting.key] = setting
            if setting.code:
                told = f"{setting.key} = {setting.value} ({setting.source})"
                tell_recipe(f"^{re.escape(setting.code)}$", names["code"], told)
    return found


def _value(setting: BenchmarkSetting, run: Run) -> bool | int | float | str | None:
    """The value of a setting for a run, in the type of its key."""
    kind = KINDS[setting.key]
    if kind == "flag":
        return setting.value == "yes"
    if kind == "text":
        return "" if setting.value == "auto" else setting.value
    return _number(setting, run)


def _number(setting: BenchmarkSetting, run: Run) -> float | None:
    """The number of a setting for a run, whole where its key counts."""
    number = amount(setting.value, run)
    return number if number is None or KINDS[setting.key] == "number" else round(number)


def _told(found: Mapping[str, BenchmarkSetting], values: Mapping[str, object]) -> tuple[str, ...]:
    """The settings in words, one line a source, then a line for each that no source states in so many words.

    Settings without influence on the prediction are told as such.
    """
    lines: dict[tuple[str, bool], list[str]] = {}
    more: list[str] = []
    for key, setting in found.items():
        shown = values[key]
        words = f"{key} {shown if shown != '' else 'of the model'}"
        unused = key in UNUSED
        if setting.evidence in UNSAID:
            more.append(_line([words], unused, f"{setting.evidence.label}: {setting.note}; {setting.source}"))
        else:
            lines.setdefault((setting.source, unused), []).append(words)
    return (*(_line(words, unused, source) for (source, unused), words in lines.items()), *more)


def _line(words: list[str], unused: bool, source: str) -> str:
    return f"{'known, not modelled: ' if unused else ''}{', '.join(words)} ({source})"


KEYS = ("attention_ranks", "expert_ranks")


def as_divided(
    pools: Mapping[str, Deployment | None], settings_of: Callable[[str, Deployment], RunSettings]
) -> tuple[dict[str, Deployment], tuple[str, ...]]:
    """The pools with the degrees that they ran with, and what tells of them; each has the devices of its row.

    Raises `InputError` where its devices are no multiple of them.
    """
    found: dict[str, Deployment] = {}
    said: list[str] = []
    for role, pool in pools.items():
        if pool is None:
            continue
        settings = settings_of(role, pool)
        ranks, devices = settings.attention_ranks or pool.dp, pool.tp * pool.dp
        experts = settings.expert_ranks or pool.ep
        if devices % ranks or devices % experts:
            raise InputError(f"{ranks} attention and {experts} expert ranks on {devices} devices", field="note")
        found[role] = replace(pool, tp=devices // ranks, dp=ranks, ep=experts)
        if found[role] != pool:
            said += [f"{role}: {line}" for line in settings.told if line.startswith(KEYS)]
    return found, tuple(said)


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


def _others(job: ServedJob) -> Iterator[ServedJob]:
    engine, own = job.deployment.engine, not job.stand_ins
    if job.arrivals == "closed" and job.spread == (1.0, 1.0) and job.lengths is None:
        mean = sum(SPREAD) / 2
        prompt, output = job.prompt_tokens or 1.0, job.output_tokens or 1.0
        yield replace(
            job, spread=SPREAD, prompt_tokens=prompt * mean, output_tokens=output * mean, key=(*job.key, "lengths")
        )
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
