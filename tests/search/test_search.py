"""The search: what it covers, what it proves, what it says when nothing fits, and how it completes a plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ridgeline.errors import NoPlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.build import from_dims
from ridgeline.graph.load import load
from ridgeline.graph.workload import Task, Workload
from ridgeline.plan.plan import Plan
from ridgeline.plan.rules import check
from ridgeline.predict import Predictor
from ridgeline.report.report import SearchReport
from ridgeline.seams.context import context_style
from ridgeline.seams.setting import Setting
from ridgeline.search.complete import complete
from ridgeline.search.grid import PricedGrid
from ridgeline.search.groups import Group
from ridgeline.search.search import Searcher, search
from ridgeline.search.space import Space, chunk_choices, data_parallel, degrees, legal
from ridgeline.training.bounds import StepBound
from ridgeline.training.exchanges import exchange_rules
from ridgeline.training.pipeline import pipeline_schedule

MODEL = from_dims(name="small", layers=8, hidden=1024, heads=8, vocab=32000, max_positions=2048)
SPARSE = from_dims(
    name="sparse", layers=4, hidden=512, heads=8, vocab=32000, max_positions=2048, experts=8, top_k=2, expert_ffn=1024
)
NODE = cluster("8xA100-SXM-80GB")
JOB = Workload(seq_len=2048, global_batch=32)
FAST = Space(max_micro_batch=4)


@cache
def found() -> SearchReport:
    return search(MODEL, NODE, JOB, limits=FAST, top=3)


def searcher(space: Space = FAST) -> Searcher:
    result = Searcher(Predictor(MODEL, NODE, JOB), space)
    result.bound()
    return result


def whole(it: Searcher) -> list[Group]:
    """The groups of a search with all their plans, legal or not."""
    asked = it.predictor.limits, it.predictor.workload, it.predictor.cluster
    every = list(degrees(it.space, *asked))
    kept = [one for one, keeps in zip(every, legal(every, *asked)[0], strict=True) if keeps]
    return list(PricedGrid(it.predictor, it.space, kept).groups())


# the account ---------------------------------------------------------------------------------------


def test_best_plans_come_in_order_and_each_is_legal_and_fits() -> None:
    times = [report.step_time.value for report in found().best]
    assert times == sorted(times)
    assert len(times) == 3
    for report in found().best:
        check(
            report.plan, context_style(report.plan.context_style), Predictor(MODEL, NODE, JOB).limits, JOB, NODE.count
        )
        assert report.fits


def test_numbers_of_plans_add_up() -> None:
    it = found()
    assert it.covered >= it.legal >= it.feasible >= it.simulated > 0
    assert it.pruned_by_bound == it.feasible - it.simulated
    assert it.covered == it.legal + sum(item.plans for item in it.infeasible if item.reason != "memory")
    assert it.bound_gap == 0.0


def test_only_the_best_plan_asks_what_would_change_it() -> None:
    first, *others = found().best
    assert first.what_if
    assert all(not report.what_if for report in others)


def test_the_same_search_gives_the_same_plans() -> None:
    again = search(MODEL, NODE, JOB, limits=FAST, top=3)
    assert [r.plan for r in again.best] == [r.plan for r in found().best]


def test_a_small_budget_says_how_far_from_the_best_it_may_be() -> None:
    result = Searcher(Predictor(MODEL, NODE, JOB), FAST).run(top=1, budget=1)
    assert result.simulated == 1
    best, proven = result.plans[0][0], found().best[0].step_time.value
    assert best * (1 - result.gap) <= proven <= best


# the grid ------------------------------------------------------------------------------------------


def test_bounds_of_the_grid_are_below_the_simulation_of_their_plans() -> None:
    it = searcher(replace(FAST, zero=(0, 1, 2, 3), overlap_weights=(True, False), overlap_gradients=(True, False)))
    random = np.random.default_rng(0)
    for group in it.groups:
        for number in random.permutation(len(group.bound_s))[:4]:  # the others do not fit or repeat another
            evaluation = it.predictor.evaluate(group.plan(group.place(number)))
            assert group.bound_s[number] <= evaluation.timeline.makespan_s * (1 + 1e-9)
            assert group.bound_s[number] == pytest.approx(evaluation.bound_s)


def test_memory_of_the_grid_is_the_memory_of_the_plan() -> None:
    it = searcher()
    random = np.random.default_rng(1)
    for group in whole(it):
        index = tuple(int(random.integers(n)) for n in group.bound_s.shape)
        plan = group.plan(index)
        if plan.pp > 3:
            continue  # the grid looks at the first two stages and the last
        peaks = np.broadcast_to(sum(it.predictor.memory(plan).values()), (plan.pp,))  # type: ignore[arg-type]
        excess = float(peaks.max()) - NODE.accelerator.memory_bytes
        assert group.excess_bytes[index[1:]] == pytest.approx(excess, rel=1e-6)


def test_a_group_keeps_its_feasible_plans_alone() -> None:
    it = searcher()
    for group, kept in zip(whole(it), it.groups, strict=True):
        fits = np.isfinite(group.bound_s) & (group.excess_bytes <= 0) & ~group.host_full
        assert [tuple(one) for one in np.argwhere(fits).tolist()] == [kept.place(i) for i in range(len(kept.bound_s))]
        assert np.array_equal(kept.bound_s, group.bound_s[fits])
        assert kept.least[0] == group.excess_bytes.min() == group.excess_bytes[kept.least[1][1:]]
        assert np.array_equal(kept.among(group.host_full), np.zeros(len(kept.bound_s), dtype=bool))


@pytest.mark.parametrize("framework", ["megatron", "fsdp"])
def test_threads_change_neither_the_order_of_groups_nor_a_bit(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for threads in (1, 3):
        monkeypatch.setattr("ridgeline.search.grid._THREADS", threads)
        it = Searcher(Predictor(MODEL, NODE, replace(JOB, framework=framework)), replace(FAST, zero=(0, 2, 3)))
        it.bound()
        answers.append([(g.schedule, g.chunks, g.bound_s.tobytes(), g.where.tobytes(), g.least) for g in it.groups])
    assert answers[0] == answers[1]


def test_exchanges_priced_for_all_layouts_are_those_of_each_plan() -> None:
    it = searcher(replace(FAST, zero=(0, 1, 3)))
    group = next(group for group in it.groups if group.schedule == "interleaved")
    seen = set()
    for number in range(0, len(group.bound_s), 7):
        plan = group.plan(group.place(number))
        seen.add((plan.zero, plan.micro_batch, plan.tp))
        times = it.predictor.prepare(plan)[-1]
        alone = StepBound(pipeline_schedule(plan.schedule), plan.micro_batches(JOB.global_batch), times)
        assert group.bound_s[number] == float(alone.seconds(exchange_rules(plan)))
    assert len(seen) > 8


def test_every_schedule_and_degree_has_its_group() -> None:
    it = searcher()
    assert {group.schedule for group in it.groups} == set(FAST.schedules)
    assert {entry.degrees.pp for group in it.groups for entry in group.axes.entries} == {1, 2, 4, 8}


# the space -----------------------------------------------------------------------------------------


def test_degrees_use_all_devices_that_the_batch_allows() -> None:
    limits = Predictor(MODEL, NODE, JOB).limits
    for item in degrees(FAST, limits, JOB, NODE):
        ranks = NODE.count // (item.tp * item.cp * item.pp)
        assert item.dp == max(d for d in range(1, ranks + 1) if 32 // item.micro_batch % d == 0)
        assert item.dp * item.micro_batch * item.micro_batches == 32


@pytest.mark.parametrize(("ranks", "batch", "expected"), [(8, 32, 8), (8, 12, 6), (7, 12, 6), (5, 7, 1), (1, 5, 1)])
def test_data_parallel_degree_divides_the_batch(ranks: int, batch: int, expected: int) -> None:
    assert data_parallel(ranks, batch) == expected


def test_experts_spread_over_groups_they_divide() -> None:
    limits = Predictor(SPARSE, NODE, JOB).limits
    items = list(degrees(FAST, limits, JOB, NODE))
    assert {item.ep for item in items} == {1, 2, 4, 8}
    assert all(item.tp * item.cp * item.dp % (item.ep * item.etp) == 0 for item in items)
    keep, broken = legal(items, limits, JOB, NODE)
    assert all(keep)
    assert not broken


@pytest.mark.parametrize(
    ("schedule", "pp", "expected"),
    [
        ("1f1b", 1, [1]),
        ("zb-h1", 1, []),
        ("interleaved", 2, [2, 4]),  # 8 layers over 4 or 8 places
        ("interleaved", 8, []),
        ("zb-v", 4, [2]),
        ("zb-v", 8, []),
        ("zb-h2", 8, [1]),
    ],
)
def test_chunks_that_a_schedule_may_have(schedule: str, pp: int, expected: list[int]) -> None:
    assert chunk_choices(pipeline_schedule(schedule), pp, 8, FAST) == expected


@pytest.mark.parametrize(("layers", "expected"), [(126, [7]), (110, [7]), (109, [])])  # 112 places
def test_stated_chunks_need_not_divide_the_layers(layers: int, expected: list[int]) -> None:
    assert chunk_choices(pipeline_schedule("interleaved"), 16, layers, replace(FAST, fixed={"chunks": 7})) == expected


@pytest.mark.parametrize(
    "stated",
    [
        {"tp": 2, "pp": 2},
        {"micro_batch": 2, "zero": 1},
        {"schedule": "zb-h1", "pp": 4},
        {"recompute": "full", "offload_optimizer": True},
        {"sequence_parallel": True, "tp": 4, "overlap_gradients": False},
        {"pp": 2, "layer_split": (5, 3)},
    ],
)
def test_what_is_stated_is_kept(stated: dict[str, object]) -> None:
    best = search(MODEL, NODE, JOB, limits=replace(FAST, fixed=stated), top=1).best[0].plan
    assert {name: getattr(best, name) for name in stated} == stated


# spaces with few choices ---------------------------------------------------------------------------


@pytest.mark.parametrize("zero", [(2,), (3,), (2, 3)])
def test_a_space_of_deep_sharding_alone_is_searched(zero: tuple[int, ...]) -> None:
    # pipelines do not shard gradients or weights by default; what is left is pp = 1
    best = search(MODEL, NODE, JOB, limits=replace(FAST, zero=zero), top=1).best[0].plan
    assert best.zero in zero


def test_selective_recompute_stands_in_for_none_where_none_is_no_choice() -> None:
    # with a fused kernel selective recompute costs nothing: full recompute cannot be faster
    both = replace(FAST, recompute=("selective", "full"), recompute_shares=(1.0,))
    alone = replace(FAST, recompute=("selective",))
    times = [search(MODEL, NODE, JOB, limits=space, top=1).best[0].step_time.value for space in (both, alone)]
    assert times[0] == times[1]


def test_states_of_experts_are_sharded_over_tensor_ranks_too() -> None:
    # tp 8 x dp 1: the dense weights have no replicas, but eight ranks hold each expert, so sharding its states helps
    space = Space(fixed={"tp": 8, "ep": 1, "etp": 1, "micro_batch": 1}, zero=(0, 1), recompute=("none",))
    wide = from_dims(
        name="wide",
        layers=4,
        hidden=1024,
        heads=8,
        vocab=32000,
        max_positions=2048,
        experts=8,
        top_k=2,
        expert_ffn=4096,
    )
    job = replace(JOB, global_batch=8)
    predictor = Predictor(wide, NODE, job)
    plans = [
        Plan(tp=8, zero=zero, sequence_parallel=parallel, overlap_tensor=overlap)
        for zero in (0, 1)
        for parallel in (False, True)
        for overlap in (False, True)
    ]
    fastest = min(predictor.evaluate(plan).timeline.makespan_s for plan in plans)
    assert search(wide, NODE, job, limits=space, top=1).best[0].step_time.value <= fastest


# nothing fits --------------------------------------------------------------------------------------


def test_when_nothing_fits_the_nearest_miss_is_named() -> None:
    small = replace(NODE, accelerator=replace(NODE.accelerator, memory_bytes=0.9e9))
    with pytest.raises(NoPlanError) as error:
        search(MODEL, small, JOB, limits=FAST, top=1)
    text = str(error.value)
    assert "no plan of small fits on 8 x A100-SXM-80GB" in text
    assert "the nearest misses by" in text
    assert error.value.exit_code == 1


def test_an_impossible_wish_says_which_rule_it_breaks() -> None:
    with pytest.raises(NoPlanError, match=r"heads|width"):
        search(MODEL, NODE, JOB, limits=replace(FAST, fixed={"tp": 3}), top=1)


# completion ----------------------------------------------------------------------------------------


def test_completion_keeps_what_is_stated_and_is_the_fastest_that_fits() -> None:
    stated = {"tp": 2, "pp": 1, "dp": 4, "zero": 1}
    plan = complete(MODEL, NODE, JOB, stated)
    assert {name: getattr(plan, name) for name in stated} == stated
    predictor = Predictor(MODEL, NODE, JOB)
    best = predictor.evaluate(plan).timeline.makespan_s
    for micro, parallel, again in [(1, True, "none"), (2, True, "none"), (8, True, "none"), (4, False, "full")]:
        other = Plan(tp=2, dp=4, zero=1, micro_batch=micro, sequence_parallel=parallel, recompute=again)
        assert best <= predictor.evaluate(other).timeline.makespan_s


def test_completion_chooses_the_chunks_that_nobody_stated() -> None:
    """Few micro-batches on four stages: more chunks of a stage shorten the bubble by more than the host takes."""
    stated = {"tp": 1, "pp": 4, "dp": 2, "zero": 1, "micro_batch": 4, "recompute": "full"}
    chosen, plain = (complete(MODEL, NODE, JOB, {**stated, **more}) for more in ({}, {"chunks": 1}))
    assert chosen.chunks > 1
    assert (plain.chunks, plain.schedule) == (1, "1f1b")
    predictor = Predictor(MODEL, NODE, JOB)
    assert predictor.evaluate(chosen).timeline.makespan_s < predictor.evaluate(plain).timeline.makespan_s


def test_completion_returns_the_least_excess_when_nothing_fits() -> None:
    small = replace(NODE, accelerator=replace(NODE.accelerator, memory_bytes=0.9e9))
    plan = complete(MODEL, small, JOB, {"tp": 1, "dp": 8})
    assert plan.tp == 1
    # the most frugal choices
    assert (plan.micro_batch, plan.recompute, plan.zero) == (1, "full", 3)


# what fine-tunes may leave out -----------------------------------------------------------------------


@cache
def tuned(name: str, batch: int, **words: object) -> SearchReport:
    job = Workload(task=Task.FULL, seq_len=2048, global_batch=batch, precision="bf16-pure", **words)  # type: ignore[arg-type]
    return search(load(name), cluster("1xRTX-4090"), job, top=5)


def test_a_full_fine_tune_of_8b_fits_on_one_consumer_card() -> None:
    """torchtune publishes 18.9 GiB: paged 8-bit AdamW, optimizer in backward, checkpointing, chunked loss."""
    best = tuned("llama-3.1-8b", 2, optimizer="paged-adamw-8bit").best
    assert all(report.fits for report in best)
    space = Space(fixed={"offload_weights": False, "offload_optimizer": False})
    job = Workload(task=Task.FULL, seq_len=2048, global_batch=2, precision="bf16-pure", optimizer="paged-adamw-8bit")
    kept = search(load("llama-3.1-8b"), cluster("1xRTX-4090"), job, limits=space, top=1).best[0].plan
    assert kept.optimizer_in_backward
    assert not kept.offload_weights


def test_zero_2_offload_on_one_device_is_found() -> None:
    """`predict` accepts it, so `plan` must: gradients leave with the optimizer (gpt3-13b on a V100)."""
    job = Workload(seq_len=1024, global_batch=8, precision="fp16")
    found = search(load("gpt3-13b"), cluster("1xV100-SXM2-32GB"), job, top=1).best[0]
    assert found.fits
    assert (found.plan.zero, found.plan.offload_optimizer) == (2, True)


def test_savings_of_the_grid_are_bounded_and_measured_as_predict_does() -> None:
    job = Workload(task=Task.LORA, seq_len=2048, global_batch=8)
    predictor = Predictor(MODEL, cluster("2xRTX-4090"), job)
    asked = Setting(model=MODEL, cluster=predictor.cluster, workload=job)
    it = Searcher(predictor, replace(FAST, schedules=("1f1b",)).thrifty(asked))
    random = np.random.default_rng(1)
    seen = set()
    for group in whole(it):
        kept = np.argwhere(np.isfinite(group.bound_s) & (group.excess_bytes <= 0) & ~group.host_full)
        for place in random.permutation(kept)[:40]:
            index = tuple(place.tolist())
            plan = group.plan(index)
            seen.add((plan.offload_weights, plan.offload_activations, plan.optimizer_in_backward, plan.loss))
            step_s = predictor.evaluate(plan).timeline.makespan_s
            assert group.bound_s[index] <= step_s * (1 + 1e-9)
            stages = sum(np.broadcast_to(value, (plan.pp,)) for value in predictor.memory(plan).values())
            excess = np.max(stages) - predictor.cluster.accelerator.memory_bytes
            assert group.excess_bytes[index[1:]] == pytest.approx(excess, rel=1e-6)
    assert len(seen) >= 8
