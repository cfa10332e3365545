"""A recipe applied: the settings of a public benchmark in the deployments and the traffic of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ridgeline.errors import InputError
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.benchmark_settings import Run
from ridgeline.facts.engines import engine_named
from ridgeline.facts.readings import reading
from ridgeline.facts.recipes import BenchmarkRecipe, recipe, recipes
from ridgeline.facts.records import Accelerator
from ridgeline.facts.run_settings import RunSettings, settings_of
from ridgeline.graph.load import find
from ridgeline.graph.model import Model
from ridgeline.plan.checkpoint_formats import with_formats
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.plan.engine_options import EngineOptions
from ridgeline.predict.trtllm_bench import TOOL, trtllm_bench
from ridgeline.scenario.serving import ServingScenario
from ridgeline.scenario.serving_words import replaced
from ridgeline.seams.serving import instance_devices

ACCEPTANCE = 0.7  # of a drafted token, where a source says only how many are drafted (assumed)
OF_POOLS = (
    "token_budget", "max_seqs", "chunked", "mixed", "memory_fraction", "prefix_cache", "graphs", "block_tokens", "kv",
    "graph_max", "prefill_graphs", "beam_width", "expert_backend", "out_weights", "product_backend", "tf32",
    "fresh_kernels", "cache_tokens", "overlap",
)  # fmt: skip
"""Settings that a deployment holds under the same names."""

_DEGREES = ("attention_ranks", "expert_ranks")
_NARROW = ("fp8", "nvfp4")  # weights whose checkpoints name a cache of 8 bits, or such a cache
_FRACTION = 0.9  # of free memory, unless said; source: tensorrt-llm, bench/benchmark/throughput.py
_WAITS = ("receive_interval", "hold", "hold_share")
_DRAFTS = ("draft_tokens", "draft_tree", "draft_model", "acceptance")
_COMES = ("rate", "concurrency", "trace", "arrivals")


def with_settings(pool: Deployment, settings: RunSettings) -> Deployment:
    """A deployment with the settings of its benchmark; what the deployment itself says stays."""
    changes: dict[str, Any] = {
        name: settings.values[name] for name in OF_POOLS if settings.values.get(name) is not None
    }
    changes |= settings.waits(pool.dp)
    if pool.kv:
        changes.pop("kv", None)
    unsaid = EngineOptions()
    stated = {name for name in changes if getattr(pool.options, name, None) != getattr(unsaid, name, None)}
    changes = {name: value for name, value in changes.items() if name not in stated}
    if settings.preemption is not None:
        changes["preemption"] = settings.preemption
    if settings.same_prompts and settings.greedy:
        changes["alike"] = True
    if settings.version:
        changes["version"] = settings.version
    return replaced(pool, **changes)


def tuned(
    pool: Deployment, settings: RunSettings, model: Model, part: Accelerator, *, isl: float | None, osl: float | None
) -> Deployment:
    """The deployment with limits of an iteration that its benchmark's tool works out, where nothing states them."""
    if settings.tuned_limits != TOOL or isl is None or osl is None:
        return pool
    most, budget = trtllm_bench(
        model, part, pool, isl=isl, osl=osl, fraction=settings.memory_fraction or _FRACTION,
        narrow_kv=(pool.kv or pool.weights) in _NARROW,
    )  # fmt: skip
    return replaced(
        pool,
        max_seqs=most if pool.options.max_seqs is None else pool.options.max_seqs,
        token_budget=budget if pool.options.token_budget is None else pool.options.token_budget,
    )


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
            said += [f"{role}: {line}" for line in settings.told if line.startswith(_DEGREES)]
    return found, tuple(said)


def with_recipe(asked: ServingScenario) -> ServingScenario:
    """The scenario with the recipe that it names, under what a person said; itself where it names none.

    Raises `InputError` for a recipe of another engine or device, `UnknownNameError` for one that is not there.
    """
    if "recipe" not in asked.stated:
        return asked
    one = recipe(asked.stated["recipe"])
    _refuse_other(one, asked)
    traffic, about = _traffic(one, asked)
    fleet, told, settings = settled(asked, asked.deployments)
    bounds = settings.limits
    if "rate" in traffic and bounds and "slo" not in traffic:
        traffic["slo"] = bounds
        about += (f"objective of the benchmark: {bounds}",)
    if "concurrency" in traffic and not {"requests", "duration", "trace"} & traffic.keys():
        rounds = settings.requests_per_user
        traffic |= {} if rounds is None else {"requests": round(rounds * traffic["concurrency"])}
    if "rate" in traffic and settings.duration_s and not {"requests", "duration", "trace"} & traffic.keys():
        traffic["duration"] = settings.duration_s
    lines = tuple(f"recipe {one.name}: {line}" for line in (*about, *told))
    stated = {**({"engine": one.engine} if one.engine else {}), **asked.stated, "recipe": one.name}
    return replace(asked, deployments=fleet, traffic=traffic, stated=stated, assumed=(*asked.assumed, *lines))


def settled(
    asked: ServingScenario, fleet: tuple[Deployment, ...]
) -> tuple[tuple[Deployment, ...], tuple[str, ...], RunSettings]:
    """A fleet as the scenario's recipe sets it, what tells of it, and the settings of its last pool."""
    one, told = recipe(asked.stated["recipe"]), list[str]()
    found, settings = [], RunSettings()
    for pool in fleet:
        made, lines, settings = _applied(one, asked, pool, apart=pool.role is not Role.WHOLE)
        found.append(made)
        told += lines if pool.role is Role.WHOLE else [f"{pool.role.value}: {line}" for line in lines]
    return tuple(found), tuple(told), settings


def _applied(
    one: BenchmarkRecipe, asked: ServingScenario, pool: Deployment, *, apart: bool
) -> tuple[Deployment, list[str], RunSettings]:
    """One pool as the recipe sets it, what tells of it, and its settings."""
    stated = asked.stated
    version = str(stated.get("engine", "")).partition(" ")[2].strip()
    own = (one.pools_release, one.pools_day) if apart else (one.release, one.day)
    release, day = (version, own[1] if version == own[0] else "") if version else own
    pool = replace(pool, engine=one.engine or pool.engine, version=release)
    pool, said = _formed(one, asked, pool)
    names = one.names(
        engine=pool.engine, model=asked.model.name, device=asked.cluster.accelerator.name,
        precision=pool.weights or "bf16",
    )  # fmt: skip
    isl, osl = _mean(asked, "prompt"), _mean(asked, "output")
    run: Run = {
        **_load(asked), "isl": isl, "osl": osl, "devices": instance_devices(pool), "instances": pool.instances,
        "ep": pool.ep, "dp": pool.dp, "disaggregated": float(apart), "date": day,
        "role": pool.role.value if apart else "",
    }  # fmt: skip
    settings = settings_of(names, run, version=release)
    kept = _kept(stated, pool)
    ours = settings.without(kept)
    if version and one.versions and not any(_fits(rule.versions, version) for rule in one.rules):
        said.append(f"release {version} is in none of its rules, which name {one.versions}; only those of any hold")
    theirs = sorted(kept & settings.values.keys())
    said += [f"{key} is as you say, the recipe has {settings.values[key]}" for key in theirs]
    made = tuned(with_settings(pool, ours), ours, asked.model, asked.cluster.accelerator, isl=isl, osl=osl)
    if ours.draft_tokens:
        made = replaced(made, draft_tokens=round(ours.draft_tokens), acceptance=ACCEPTANCE)
        said.append(f"a drafted token is accepted with a probability of {ACCEPTANCE:g} (assumed)")
    if not any(line for line in ours.told):
        said.append("no rule fits this run; `ridgeline catalog recipes` with its name shows what they hold for")
    return made, [*ours.told, *said], ours


def _fits(versions: str, version: str) -> bool:
    from ridgeline.facts.benchmark_settings import release_fits

    return versions not in ("", "blank") and release_fits(versions, version, version)


def _kept(stated: Mapping[str, Any], pool: Deployment) -> frozenset[str]:
    """Keys of settings that a person has said already, or that their degrees decide."""
    kept = set(stated) | set(_DEGREES)
    if any(word in stated for word in _WAITS):
        kept |= {"receive_interval", "attention_wait_steps", "batch_wait_steps"}
    if any(word in stated for word in _DRAFTS):
        kept.add("draft_tokens")
    return frozenset(kept)


def _formed(one: BenchmarkRecipe, asked: ServingScenario, pool: Deployment) -> tuple[Deployment, list[str]]:
    """The pool in the number formats of the recipe, where a person said none."""
    if not one.precision or "weights" in asked.stated:
        return pool, []
    name = asked.model.name.casefold()
    told = reading("served_format", program=pool.engine, model=name, words=one.precision)
    weights, _, other = (one.precision if told is None else told.text).partition(" ")
    formed, _ = with_formats(replace(pool, weights=weights, other_weights=other), asked.model, asked.cluster)
    return formed, [f"weights {one.precision}"]


def _load(asked: ServingScenario) -> dict[str, float | str | None]:
    """Users and the way that requests come, in the words of rules."""
    words = asked.traffic
    if not any(name in words for name in _COMES) or words.get("arrivals") == "burst":
        batch = words.get("requests")
        return {"concurrency": batch, "scenario": "offline" if batch is None else "fixed-batch"}
    if "rate" in words or "trace" in words:
        return {"concurrency": None, "scenario": "poisson-rate"}
    return {"concurrency": words.get("concurrency"), "scenario": "fixed-concurrency"}


def _mean(asked: ServingScenario, name: str) -> float | None:
    """The length that was asked for, in the middle of a range [token]."""
    ends = asked.traffic.get(name)
    return None if ends is None else sum(ends) / 2


def _traffic(one: BenchmarkRecipe, asked: ServingScenario) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The traffic as the benchmark's client draws it: lengths that vary where one length was said."""
    traffic, drawn = dict(asked.traffic), reading("length_spread", runs=one.code)
    if drawn is None:
        return traffic, ()
    low, high = map(float, drawn.text.split())
    told = []
    for name in ("prompt", "output"):
        ends = traffic.get(name)
        if ends is not None and ends[0] == ends[1]:
            traffic[name] = (max(1, round(low * ends[0])), max(1, round(high * ends[0])))
            told.append(f"{name} of {traffic[name][0]:,} to {traffic[name][1]:,} tokens, as its client draws them")
    return traffic, tuple(told)


def _refuse_other(one: BenchmarkRecipe, asked: ServingScenario) -> None:
    """Raises `InputError` for a recipe of another engine, device or model, with those that fit."""
    part, engine = asked.cluster.accelerator.name, str(asked.stated.get("engine", "")).partition(" ")[0]
    wrong = ""
    if one.engine and engine and engine_named(engine) != engine_named(one.engine):
        wrong = f"is of {one.engine}, and the engine is {engine}"
    elif one.device and accelerator(one.device).name != part:
        wrong = f"is of {one.device}, and the devices are {part}"
    elif one.models and find(asked.model.name) not in {find(name) for name in one.models.split()}:
        wrong = f"is of {one.models.replace(' ', ' and ')}, and the model is {asked.model.name}"
    if not wrong:
        return
    near = [
        each.name for each in recipes().values()
        if each.code == one.code and (not each.device or accelerator(each.device).name == part)
        and (not each.models or find(asked.model.name) in {find(name) for name in each.models.split()})
        and (not engine or not each.engine or engine_named(each.engine) == engine_named(engine))
    ]  # fmt: skip
    said = f"take {' or '.join(near[:3])}" if near else "leave it out: its source has none for this run"
    field = "--recipe" if asked.file is None else "plan.recipe"
    raise InputError(f"'{one.name}' {wrong}; {said}", file=asked.file, field=field)
