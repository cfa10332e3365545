"""Strategies for each layer: a plan where they are one, bounded, and found by the search."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.build import from_dims
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import predict
from ridgeline.predict.predictor import Predictor
from ridgeline.seams.layers import LayerStrategy, layer_plans
from ridgeline.seams.resolve import rewritten
from ridgeline.search.layer_plans import LayerPlanSpace, LayerSearcher, search_layers
from ridgeline.techniques.strategies.layer_runs import LayerRuns, runs_text
from ridgeline.training.layerwise import relayout_s

BATCH, LAYERS = 32, 8
WORK = Workload(seq_len=2048, global_batch=BATCH)
MACHINE = cluster("8xA100-SXM-40GB")
PLANS = [
    Plan(dp=8, zero=3, recompute="full", micro_batch=2),
    Plan(dp=8, zero=1, micro_batch=2),
    Plan(dp=8, zero=1, micro_batch=2, overlap_gradients=False, overlap_weights=False),
    Plan(dp=8, zero=0, micro_batch=4),
    Plan(tp=2, dp=4, sequence_parallel=True, zero=2),
    Plan(tp=2, pp=2, dp=2, zero=1),
    Plan(tp=4, pp=2, dp=1, schedule="zb-h1"),
    Plan(pp=2, dp=4, chunks=2, schedule="interleaved", zero=3),
]
MIXES = ["2*tp2.zero1.full.nosp+4*plan+2*tp4.sp.zero0", "4*zero3+4*zero0", "1*zero2+6*full.zero3+1*plan"]


@cache
def model() -> Model:
    return from_dims(name="small", layers=LAYERS, hidden=2048, heads=16, vocab=32_000, positions="rope", tied=False)


def text(runs: str) -> tuple[str, ...]:
    return (f"layer-strategies(runs={runs})",)


@cache
def predictor(techniques: tuple[str, ...] = ()) -> Predictor:
    return Predictor(rewritten(model(), techniques), MACHINE, WORK)


def evaluated(plan: Plan, runs: str = ""):  # type: ignore[no-untyped-def]
    techniques = text(runs) if runs else ()
    return predictor(techniques).evaluate(replace(plan, technique=techniques))


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_one_strategy_for_all_layers_is_the_plan(plan: Plan) -> None:
    plain, mixed = evaluated(plan), evaluated(plan, "8*plan")
    assert mixed.timeline.makespan_s == pytest.approx(plain.timeline.makespan_s, rel=1e-12)
    assert mixed.bound_s == pytest.approx(plain.bound_s, rel=1e-12)
    techniques = text("8*plan")
    held = predictor(techniques).memory(replace(plan, technique=techniques))
    for name, size in predictor().memory(plan).items():
        assert np.broadcast_to(held[name], (plan.pp,)) == pytest.approx(np.broadcast_to(size, (plan.pp,)), rel=1e-12)


@pytest.mark.parametrize("runs", MIXES)
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_bound_is_not_above_the_simulation(plan: Plan, runs: str) -> None:
    slots = replace(plan, micro_batch=BATCH // plan.dp // (8 if plan.pp > 1 else 2))
    found = evaluated(slots, runs)
    assert 0.0 < found.bound_s <= found.timeline.makespan_s * (1 + 1e-12)
    if plan.pp == 1:  # without a pipeline they are equal
        assert found.bound_s == pytest.approx(found.timeline.makespan_s, rel=1e-9)


def test_layers_that_gather_once_and_always_take_their_own_exchanges() -> None:
    """Half of the layers under ZeRO-3, half under ZeRO-1: half the gathers of each."""
    plan = Plan(dp=8, zero=3, micro_batch=2)
    times, often = evaluated(plan, "4*plan+4*zero1").times, evaluated(plan).times
    ends = evaluated(replace(plan, zero=0), "8*plan").held
    layer_s = float((often.gather_s.sum() - evaluated(plan, "8*zero1").times.gather_s.sum()) / LAYERS)
    assert float(often.gather_s.sum() - np.sum(times.gather_s)) == pytest.approx(4 * layer_s)
    assert float(np.sum(times.gather_once_s)) == pytest.approx(4 * layer_s)
    assert ends.first.sum() == 1


def test_activations_are_laid_out_anew_by_the_links() -> None:
    """Without sequence parallelism twice the ranks of tensors gather twice the sequences, one way."""
    stages, plan = predictor().stages, Plan(tp=2, dp=4, micro_batch=2)
    narrow, wide = (predictor().layout(LayerStrategy(tp=tp).of(plan)) for tp in (2, 4))
    forward, backward = relayout_s(stages, narrow, wide)
    assert forward > 0.0
    assert backward == 0.0
    assert relayout_s(stages, wide, narrow) == (0.0, forward)
    assert relayout_s(stages, wide, wide) == (0.0, 0.0)
    both = [predictor().layout(LayerStrategy(tp=tp, sequence_parallel=True).of(plan)) for tp in (2, 4)]
    there, back = relayout_s(stages, *both)
    assert there == back
    assert there < forward  # each rank sends half of what it has


def test_memory_is_that_of_each_layers_own_strategy() -> None:
    """States of half of the layers whole, of the other half an eighth."""
    plan, names = Plan(dp=8, zero=0, micro_batch=2), ("weights", "optimizer")
    techniques = text("4*plan+4*zero3")
    mixed = predictor(techniques).memory(replace(plan, technique=techniques))
    alone = [predictor(text(runs)).memory(replace(plan, technique=text(runs))) for runs in ("8*plan", "8*zero3")]
    for name in names:
        assert float(mixed[name].max()) == pytest.approx(sum(float(one[name].max()) for one in alone) / 2)


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ("7*plan", "runs of 7 layers, the model has 8"),
        ("8*tp3", "nearest: tp"),
        ("8*tp16", "nearest: tp"),
        ("8*zero5", "'zero5' is unknown"),
        ("8*sp.nosp", "twice"),
        ("eight", "is no run of layers"),
        ("0*plan", "is no run of layers"),
    ],
)
def test_what_cannot_be_is_refused(runs: str, told: str) -> None:
    with pytest.raises(PlanError, match=told.replace("*", r"\*")):
        evaluated(Plan(dp=8, micro_batch=2), runs)


def test_offloaded_plans_and_frameworks_are_refused() -> None:
    with pytest.raises(PlanError, match="offload_optimizer"):
        evaluated(Plan(dp=8, zero=1, offload_optimizer=True), "8*plan")
    work = replace(WORK, framework="megatron")
    with pytest.raises(PlanError, match="all layers in one way"):
        predict(model(), MACHINE, work, Plan(dp=8, zero=1, technique=text("8*plan")))


def test_runs_are_written_as_they_are_read() -> None:
    one = LayerRuns(runs="2*tp2.zero1.nosp.full+3*plan+3*sp")
    assert runs_text(one.by_layer(8)) == one.runs
    plans = layer_plans(Plan(tp=4, dp=2, micro_batch=2, technique=(one.text,)), 8)
    assert [(each.tp, each.dp, each.micro_batch) for each in plans[:3]] == [(2, 4, 1), (2, 4, 1), (4, 2, 2)]


@cache
def tight() -> Predictor:
    """A device with room for some of the layers under quicker strategies only."""
    part = replace(MACHINE.accelerator, memory_bytes=7.0e9)
    small = replace(MACHINE, accelerator=part)
    return Predictor(model(), small, WORK)


def test_the_search_finds_what_every_mix_of_two_strategies_finds() -> None:
    """All runs of two strategies of a pipeline, with either first: none is quicker than what is found."""
    space = LayerPlanSpace(max_tp=1, zero=(1, 3), recompute=("none", "full"), max_pp=1, max_micro_batch=4)
    searcher = LayerSearcher(tight(), space)
    found = searcher.run()
    assert found.plans
    best_s, best = found.plans[0]
    assert len(set(layer_plans(best, LAYERS))) > 1  # none alone is best
    words = [f"{zero}.{rule}" for zero in ("zero1", "zero3") for rule in ("none", "full")]
    least = np.inf
    for micro in (1, 2, 4):
        for end in (1, 3):
            for a in words:
                for b in words:
                    for many in range(LAYERS):
                        runs = f"{many}*{a}+{LAYERS - many}*{b}" if many else f"{LAYERS}*{b}"
                        plan = Plan(dp=8, zero=end, micro_batch=micro, technique=text(runs))
                        own = searcher._of(plan)
                        peak = sum(float(np.max(size)) for size in own.memory(plan).values())
                        if peak <= searcher.room:
                            least = min(least, own.bound_s(plan))
    assert np.isfinite(least)
    assert best_s <= least * (1 + 1e-3)
    assert found.least_s <= best_s


def test_models_with_experts_are_refused() -> None:
    from ridgeline.graph.load import load

    with pytest.raises(PlanError, match="has experts"):
        search_layers(load("mixtral-8x7b"), MACHINE, WORK)


def test_plan_tells_the_mix_and_what_frameworks_run_beside_it() -> None:
    from ridgeline.search.layer_plans import with_layer_plans
    from ridgeline.search.search import search
    from ridgeline.search.space import Space

    small = tight().cluster
    plain = search(model(), small, WORK, limits=Space(max_tp=1, max_pp=1, max_chunks=1), top=2)
    found = with_layer_plans(plain, model(), small, WORK)
    assert found.best[0].step_time.value < plain.best[0].step_time.value
    assert found.best[0].plan.technique
    assert len(found.best) == 2
    assert all(run.why for run in found.frameworks)
    assert all(run.slowdown is None or run.slowdown > 0 for run in found.frameworks)
