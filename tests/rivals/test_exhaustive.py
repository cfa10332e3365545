"""The rival of the search: every legal plan of small problems, each simulated, none bounded away."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, product

import pytest

from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.records import Cluster
from ridgeline.graph.build import from_dims
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor
from ridgeline.seams.registry import names
from ridgeline.search.search import search
from ridgeline.search.space import Space

PROBLEMS = 32
MOST_PLANS = 100  # of one problem
MACHINES = (
    "4xA100-SXM-80GB",
    "8xH100-SXM",
    "16xA100-SXM-80GB",
    "8xV100-SXM2-32GB",
    "4xRTX-4090",
    "8xMI300X",
    "16xH100-SXM",
)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A small model on a few devices and the choices that its search goes through."""

    model: Model
    cluster: Cluster
    workload: Workload
    space: Space


def problem(seed: int) -> Problem:
    """A random problem of at most MOST_PLANS plans; every third has little memory."""
    chance = random.Random(seed)
    while True:
        found = _draw(chance)
        drawn = list(islice(plans(found), MOST_PLANS + 1))
        if 12 < len(drawn) <= MOST_PLANS:
            return found if seed % 3 else _tight(found, drawn, chance)


def _tight(it: Problem, drawn: list[Plan], chance: random.Random) -> Problem:
    """The same problem on devices that hold about half of the plans, or now and then none."""
    predictor = Predictor(it.model, it.cluster, it.workload)
    peaks = []
    for plan in chance.sample(drawn, 12):
        try:
            peaks.append(float(max(sum(predictor.memory(plan).values()))))  # type: ignore[call-overload]
        except PlanError:
            continue
    capacity = 0.5 * min(peaks) if chance.random() < 0.25 else sorted(peaks)[len(peaks) // 2]
    return replace(it, cluster=replace(it.cluster, accelerator=replace(it.cluster.accelerator, memory_bytes=capacity)))


def _draw(chance: random.Random) -> Problem:
    machine = cluster(chance.choice(MACHINES))
    experts = chance.choice([0, 0, 0, 4])
    model = from_dims(
        name="small",
        layers=chance.choice([3, 4, 8]),
        hidden=chance.choice([256, 1024]),
        heads=chance.choice([4, 8]),
        vocab=8192,
        max_positions=2048,
        experts=experts,
        top_k=2 if experts else None,
        expert_ffn=512 if experts else None,
    )
    workload = Workload(
        seq_len=chance.choice([512, 2048]),
        global_batch=chance.choice([8, 12, 16]),
        precision="fp16",
        attention_kernel=chance.choice(["flash", "unfused"]),
    )

    def some(choices: tuple, most: int = 2) -> tuple:  # type: ignore[type-arg]
        return tuple(x for x in choices if x in chance.sample(choices, min(len(choices), chance.randint(1, most))))

    space = Space(
        max_tp=chance.choice([2, 8]),
        max_pp=chance.choice([2, 4]),
        max_cp=chance.choice([1, 2]),
        max_micro_batch=chance.choice([1, 2, 4]),
        max_chunks=2,
        schedules=some(names("schedules"), 4),
        recompute=chance.choice([("none",), ("none", "selective"), ("full",)]),
        zero=chance.choice([(0,), (1,), (0, 2), (1, 3)]),
        offload_optimizer=some((False, True)),
        sequence_parallel=some((True, False)),
        overlap_tensor=some((False, True)),
        overlap_gradients=some((True, False)),
        overlap_weights=some((True, False)),
        min_context_tokens=1024,
        balance_stages=False,
        recompute_shares=(1.0,),
    )
    return Problem(model=model, cluster=machine, workload=workload, space=space)


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def plans(it: Problem) -> Iterator[Plan]:
    """Every plan of the space, from its words alone: dp is the largest that the batch allows."""
    space, batch, limits = it.space, it.workload.global_batch, it.model
    heads, layers, experts = limits.dims["heads"], limits.dims["layers"], limits.dims.get("experts") or 0
    for tp, cp, micro in product(divisors(int(heads)), (1, 2), divisors(batch)):  # type: ignore[arg-type]
        if (
            tp > min(space.max_tp, 8)
            or cp > space.max_cp
            or micro > space.max_micro_batch
            or tp * cp > it.cluster.count
        ):
            continue
        if cp > 1 and it.workload.seq_len // cp < space.min_context_tokens:
            continue
        ranks = it.cluster.count // (tp * cp)
        for pp in divisors(ranks):
            if pp > min(space.max_pp, int(layers)):  # type: ignore[arg-type]
                continue
            dp = max(d for d in divisors(batch // micro) if d <= ranks // pp)
            for ep, etp in product(divisors(int(experts)) if experts else [1], {1, tp} if experts else {1}):  # type: ignore[arg-type]
                if tp * cp * dp % (ep * etp):
                    continue
                base = Plan(tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, etp=etp, micro_batch=micro)
                yield from _choices(base, space, int(layers))  # type: ignore[arg-type]


def _choices(base: Plan, space: Space, layers: int) -> Iterator[Plan]:
    """Every schedule and option on these degrees."""
    shapes = [(schedule, chunks) for schedule in space.schedules for chunks in _chunks(schedule, base.pp, layers)]
    zeros = [z for z in space.zero if base.pp == 1 or z <= 1]
    sequence = [s for s in space.sequence_parallel if base.tp > 1 or not s] or [False]
    pipelined = [o for o in space.overlap_tensor if base.tp > 1 or not o] or [False]
    styles = space.context_style if base.cp > 1 else ("ring",)
    for (schedule, chunks), zero, parallel, overlap, style, again, away, gradients, weights in product(
        shapes,
        zeros,
        sequence,
        pipelined,
        styles,
        space.recompute,
        space.offload_optimizer,
        space.overlap_gradients,
        space.overlap_weights,
    ):
        yield replace(
            base,
            schedule=schedule,
            chunks=chunks,
            zero=zero,
            sequence_parallel=parallel,
            overlap_tensor=overlap,
            context_style=style,
            recompute=again,
            offload_optimizer=away,
            overlap_gradients=gradients,
            overlap_weights=weights,
        )


def _chunks(schedule: str, pp: int, layers: int) -> list[int]:
    """Chunks that a schedule may have: without stages there is nothing to interleave or to fill."""
    if pp == 1:
        return [1] if schedule in ("1f1b", "gpipe", "combined-1f1b") else []
    if schedule == "interleaved":
        return [2] if layers % (2 * pp) == 0 else []
    if schedule in ("combined-1f1b", "dualpipe"):  # what is not defined for a shape is refused as it is evaluated
        return [2]
    if schedule in ("zb-v", "v-half", "v-min", "dualpipev"):
        return [2] if 2 * pp <= layers else []
    return [1]


def exhaustive_s(it: Problem) -> tuple[float | None, int, int]:
    """The fastest plan that fits, by simulating every one [s]; how many were simulated, how many fit."""
    predictor = Predictor(it.model, it.cluster, it.workload)
    times, count = [], 0
    for plan in plans(it):
        try:
            step_s = predictor.evaluate(plan).timeline.makespan_s
        except PlanError:
            continue
        count += 1
        if max(sum(predictor.memory(plan).values())) <= it.cluster.accelerator.memory_bytes:  # type: ignore[call-overload]
            times.append(step_s)
    return min(times, default=None), count, len(times)


def searched_s(it: Problem) -> float | None:
    """The fastest plan that the search finds and proves best [s], or None when it says that none fits."""
    try:
        found = search(it.model, it.cluster, it.workload, limits=it.space, top=1)
    except NoPlanError:
        return None
    assert found.bound_gap == 0.0, "not proven"
    return found.best[0].step_time.value


@pytest.mark.rival
def test_search_finds_what_trying_everything_finds() -> None:
    simulated, fitting, infeasible, wrong = 0, 0, 0, []
    for seed in range(PROBLEMS):
        it = problem(seed)
        (everything, count, fit), found = exhaustive_s(it), searched_s(it)
        simulated, fitting, infeasible = simulated + count, fitting + fit, infeasible + (everything is None)
        if found != everything:
            wrong.append((seed, found, everything))
    print(f"{PROBLEMS} problems, {simulated} plans, {fitting} fit, {infeasible} problems without")
    assert not wrong
    assert simulated > 25 * PROBLEMS
    assert 0 < infeasible < PROBLEMS / 2
    assert fitting < simulated


@pytest.mark.rival
@pytest.mark.parametrize("seed", range(100, 106))
def test_balancing_stages_is_never_worse(seed: int) -> None:
    it = problem(seed)
    even = searched_s(it)
    both = searched_s(replace(it, space=replace(it.space, balance_stages=True, recompute_shares=(1.0, 0.5))))
    assert even is None or (both is not None and both <= even)
