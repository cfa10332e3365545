"""End to end: better machines and less work are never slower, FLOP are conserved, reports add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.machine import Machine, machine
from ridgeline.errors import PlanError, RidgelineError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.records import Evidence
from ridgeline.graph.build import from_dims
from ridgeline.graph.load import load
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Task, Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import Evaluation, Predictor, predict
from ridgeline.seams.registry import names
from ridgeline.training.pipeline import pipeline_schedule

ROUNDING = 1 + 1e-9
CLUSTERS = ("16xH100-SXM", "32xA100-SXM-80GB", "16xV100-SXM2-32GB", "16xGB200", "16xMI300X", "8xRTX-4090")
CHUNKS = {"interleaved": 2, "zb-v": 2, "v-half": 2, "v-min": 2, "combined-1f1b": 2, "dualpipe": 2, "dualpipev": 2}


@cache
def made_model(layers: int, hidden: int, experts: int = 0) -> Model:
    return from_dims(
        name="small",
        layers=layers,
        hidden=hidden,
        heads=16,
        vocab=50304,
        max_positions=2048,
        experts=experts,
        top_k=2 if experts else None,
        expert_ffn=hidden if experts else None,
    )


@cache
def found(name: str) -> Machine:
    return machine(cluster(name))


@st.composite
def scenarios(
    draw: st.DrawFn, schedules: tuple[str, ...] = names("schedules")
) -> tuple[str, int, int, int, Workload, Plan]:
    """Cluster, layers, hidden width, experts, workload and a plan that is usually legal."""
    name = draw(st.sampled_from(CLUSTERS))
    count = cluster(name).count
    schedule = draw(st.sampled_from(schedules))
    pp, tp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    cp = draw(st.sampled_from([1, 1, 2]))
    dp = max(1, count // (pp * tp * cp))
    experts = draw(st.sampled_from([0, 0, 8]))
    workload = Workload(
        seq_len=2048,
        global_batch=draw(st.sampled_from([32, 64])),
        precision="fp16",
        execution=draw(st.sampled_from(["compiled", "eager", "graph"])),
        attention_kernel=draw(st.sampled_from(["flash", "unfused"])),
    )
    plan = Plan(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        ep=draw(st.sampled_from([1, 2])) if experts else 1,
        schedule=schedule,
        chunks=CHUNKS.get(schedule, 1),
        micro_batch=draw(st.sampled_from([1, 2])),
        sequence_parallel=tp > 1 and draw(st.booleans()),
        context_style=draw(st.sampled_from(["ring", "ulysses"])),
        zero=draw(st.integers(0, 3)),
        zero_group=draw(st.sampled_from([None, 2])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        offload_optimizer=draw(st.booleans()),
        overlap_gradients=draw(st.booleans()),
        overlap_weights=draw(st.booleans()),
        overlap_tensor=draw(st.booleans()),
    )
    return name, draw(st.sampled_from([8, 13])), draw(st.sampled_from([512, 2048])), experts, workload, plan


def evaluated(model: Model, m: Machine, workload: Workload, plan: Plan) -> Evaluation | None:
    """The plan evaluated, or None when it is illegal."""
    try:
        return Predictor(model, m.cluster, workload, resolved=m).evaluate(plan)
    except PlanError:
        return None


def step_s(model: Model, m: Machine, workload: Workload, plan: Plan) -> float:
    return Predictor(model, m.cluster, workload, resolved=m).evaluate(plan).timeline.makespan_s


# bound and simulation ------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(scenarios())
def test_bound_is_never_above_the_simulation(scenario: tuple[str, int, int, int, Workload, Plan]) -> None:
    name, layers, hidden, experts, workload, plan = scenario
    it = evaluated(made_model(layers, hidden, experts), found(name), workload, plan)
    if it is not None:
        assert 0 < it.bound_s <= it.timeline.makespan_s * ROUNDING
        if plan.pp == 1 and plan.chunks == 1 and plan.zero < 2:
            assert it.bound_s == pytest.approx(it.timeline.makespan_s)


# monotone ------------------------------------------------------------------------------------------


def more_flop(m: Machine) -> Machine:
    return replace(m, device=replace(m.device, matrix={k: 1.5 * v for k, v in m.device.matrix.items()}))


def more_memory(m: Machine) -> Machine:
    return replace(m, device=replace(m.device, memory_bytes_per_s=1.5 * m.device.memory_bytes_per_s))


def more_links(m: Machine) -> Machine:
    return replace(m, tiers=tuple(replace(tier, bytes_per_s=1.5 * tier.bytes_per_s) for tier in m.tiers))


def nearer_links(m: Machine) -> Machine:
    return replace(m, tiers=tuple(replace(tier, latency_s=tier.latency_s / 2) for tier in m.tiers))


BETTER: Mapping[str, Callable[[Machine], Machine]] = {
    "FLOP/s": more_flop,
    "memory bandwidth": more_memory,
    "link bandwidth": more_links,
    "latency": nearer_links,
}
# Weights gathered ahead and sends between stages share a link in the order in which they are asked for, and shorter
# tasks may change that order for the worse (Graham 1969): of 8,500 drawn plans three were slower, by 1.0 % at most.
ANOMALY = 1.02
# schedules whose order is made to measure: other times make another order, of which none is promised to be best
FIXED = ("gpipe", "1f1b", "interleaved")
GREEDY = ("zb-h1", "zb-h2", "zb-v", "v-half", "v-min")


@settings(deadline=None, max_examples=60)
@given(scenarios(FIXED), st.sampled_from(list(BETTER)))
def test_a_better_machine_is_never_slower(scenario: tuple[str, int, int, int, Workload, Plan], what: str) -> None:
    name, layers, hidden, experts, workload, plan = scenario
    model, m = made_model(layers, hidden, experts), found(name)
    base = evaluated(model, m, workload, plan)
    if base is None:
        return
    queued = plan.zero == 3 and plan.pp > 1
    most = base.timeline.makespan_s * (ANOMALY if queued else ROUNDING)
    assert step_s(model, BETTER[what](m), workload, plan) <= most


@settings(deadline=None, max_examples=40)
@given(scenarios(FIXED))
def test_fewer_layers_are_never_slower(scenario: tuple[str, int, int, int, Workload, Plan]) -> None:
    name, _, hidden, experts, workload, plan = scenario
    base = evaluated(made_model(16, hidden, experts), found(name), workload, plan)
    if base is None:
        return
    fewer = step_s(made_model(8, hidden, experts), found(name), workload, plan)
    assert fewer <= base.timeline.makespan_s * ROUNDING


@settings(deadline=None, max_examples=40)
@given(scenarios(FIXED))
def test_a_smaller_batch_is_never_slower(scenario: tuple[str, int, int, int, Workload, Plan]) -> None:
    name, layers, hidden, experts, workload, plan = scenario
    model, m = made_model(layers, hidden, experts), found(name)
    base, half = (evaluated(model, m, replace(workload, global_batch=b), plan) for b in (64, 32))
    if base is None or half is None:
        return
    assert half.timeline.makespan_s <= base.timeline.makespan_s * ROUNDING


@pytest.mark.parametrize("schedule", GREEDY)
def test_zero_bubble_orders_profit_from_much_better_machines(schedule: str) -> None:
    plan = Plan(pp=4, dp=4, schedule=schedule, chunks=CHUNKS.get(schedule, 1))
    workload, m = Workload(seq_len=2048, global_batch=64), found("16xH100-SXM")
    model = made_model(8, 2048)
    assert step_s(model, more_flop(more_memory(more_links(m))), workload, plan) < step_s(model, m, workload, plan)


# conservation --------------------------------------------------------------------------------------


def rank_flop(model: Model, workload: Workload, plan: Plan) -> float:
    """FLOP of the products and attention of one rank for one micro-batch, all layers and both ends."""
    cost = Predictor(model, found("16xH100-SXM").cluster, workload, resolved=found("16xH100-SXM")).price(plan)
    counts = {name: model.graph.layers.count(name) for name in cost.blocks}
    blocks = [(cost.blocks[name], n) for name, n in counts.items()] + [(cost.embedding, 1), (cost.head, 1)]
    phases = ("forward", "backward_input", "backward_weight")
    return sum(n * float(np.asarray(getattr(block, phase).flop)) for block, n in blocks for phase in phases)


@pytest.mark.parametrize("experts", [0, 8])
@pytest.mark.parametrize(
    "plan",
    [
        Plan(tp=2),
        Plan(tp=4, sequence_parallel=True),
        Plan(cp=2),
        Plan(tp=2, cp=2, context_style="ulysses"),
        Plan(tp=2, cp=2, dp=2, sequence_parallel=True),
        Plan(tp=2, dp=4, micro_batch=2, sequence_parallel=True),
    ],
)
def test_flop_of_all_ranks_is_the_flop_of_one_device(experts: int, plan: Plan) -> None:
    model = made_model(2, 512, experts)
    workload = Workload(seq_len=2048, global_batch=8, attention_kernel="unfused")
    whole = rank_flop(model, workload, Plan(micro_batch=plan.micro_batch))
    choices = [(1, 1)] if not experts else [(1, 1), (2, 1), (2, plan.tp)]
    for ep, etp in choices:
        if plan.tp * plan.cp * plan.dp % (ep * etp) or (experts and plan.tp > 1 and not plan.sequence_parallel):
            continue  # without sequence parallelism every tensor rank routes all tokens
        spread = replace(plan, ep=ep, etp=etp)
        assert rank_flop(model, workload, spread) * plan.tp * plan.cp == pytest.approx(whole)


def test_model_flop_are_six_per_parameter_and_token() -> None:
    model = made_model(8, 2048)
    report = predict(model, cluster("16xH100-SXM"), Workload(seq_len=2048, global_batch=32), Plan(tp=2, dp=8))
    tokens = 32 * 2048
    matrices = 8 * 12 * 2048**2 + 50304 * 2048
    # attention over all pairs: 4 S D a token and layer, three passes
    assert report.model_flop == pytest.approx(tokens * (6 * matrices + 3 * 4 * 8 * 2048 * 2048))


# reports -------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(scenarios())
def test_reports_add_up(scenario: tuple[str, int, int, int, Workload, Plan]) -> None:
    name, layers, hidden, experts, workload, plan = scenario
    try:
        report = predict(made_model(layers, hidden, experts), cluster(name), workload, plan)
    except RidgelineError:
        return
    step = report.step_time
    assert sum(share.seconds for share in report.shares) == pytest.approx(step.value)
    assert all(share.seconds >= 0 for share in report.shares)
    assert step.low <= step.high
    assert report.bound_s <= step.value * ROUNDING
    assert report.tokens_per_s == pytest.approx(workload.step_tokens / step.value)
    assert 0 < report.mfu <= 1
    assert report.mfu >= report.causal_mfu <= report.hfu <= 1
    assert report.step_time.low * 1.0000001 >= step.value * report.hfu
    assert len(report.memory) == plan.pp
    assert report.energy_j_per_step == pytest.approx(report.power_w * step.value)


def test_operators_tell_forward_from_backward() -> None:
    """Products of 8,192 tokens: backward has twice the FLOP of forward, a loss no backward product at all."""
    report = predict(
        made_model(2, 4096), cluster("1xH100-SXM"), Workload(seq_len=2048, global_batch=4), Plan(micro_batch=4)
    )
    rows = {f"{row.block}.{row.op}": row for row in report.ops}
    (up,) = (row for name, row in rows.items() if name.endswith("mlp_up"))
    assert up.flop == pytest.approx(3 * 2 * 4 * 2048 * 4096 * 16384)
    assert 1.8 < up.backward_s / up.forward_s < 2.4
    assert up.layers == 2


def test_parts_grow_with_the_micro_batches() -> None:
    """Eight micro-batches take eight times the products of one; the weights are updated once."""
    shares = []
    for batch in (1, 8):
        workload = Workload(seq_len=2048, global_batch=batch)
        report = predict(made_model(2, 4096), cluster("1xH100-SXM"), workload, Plan())
        shares.append({share.label: share.seconds for share in report.shares})
    one, eight = shares
    assert eight["matrix"] == pytest.approx(8 * one["matrix"])
    assert eight["update"] == pytest.approx(one["update"])


@pytest.mark.parametrize(("offload", "kind"), [(False, "hbm"), (True, "host")])
def test_an_optimizer_in_host_memory_is_updated_by_the_host(offload: bool, kind: str) -> None:
    workload, plan = Workload(seq_len=2048, global_batch=1), Plan(offload_optimizer=offload)
    report = predict(made_model(2, 4096), cluster("1xH100-SXM"), workload, plan)
    assert [share.kind for share in report.shares if share.label == "update"] == [kind]


def test_datasheet_evidence_is_faster_and_says_so() -> None:
    arguments = (made_model(8, 2048), cluster("16xH100-SXM"), Workload(seq_len=2048, global_batch=32), Plan(dp=16))
    measured, sheet = predict(*arguments), predict(*arguments, evidence="datasheet")
    assert sheet.step_time.value < measured.step_time.value
    assert (
        sheet.evidence["matrix rate"] is sheet.evidence["memory rate"] is sheet.evidence["links"] is Evidence.DATASHEET
    )


def test_adapters_are_faster_than_full_training_and_recompute_is_slower() -> None:
    arguments = (made_model(8, 4096), cluster("16xH100-SXM"))  # narrower ones gain less than the adapters' passes take
    base = Workload(seq_len=2048, global_batch=64)
    full = predict(*arguments, base, Plan(dp=16, micro_batch=4)).step_time.value
    adapted = predict(*arguments, replace(base, task=Task.LORA), Plan(dp=16, micro_batch=4)).step_time.value
    again = predict(*arguments, base, Plan(dp=16, micro_batch=4, recompute="full")).step_time.value
    half = predict(*arguments, base, Plan(dp=16, micro_batch=4, recompute="full", recompute_layers=4))
    assert adapted < full < half.step_time.value < again


def test_an_illegal_plan_is_refused_before_anything_is_priced() -> None:
    with pytest.raises(PlanError, match="32 devices, the cluster has 16; nearest: dp 16"):
        predict(made_model(8, 512), cluster("16xH100-SXM"), Workload(seq_len=2048, global_batch=32), Plan(dp=32))


def test_the_same_question_gets_the_same_answer() -> None:
    arguments = (made_model(8, 512), cluster("16xH100-SXM"), Workload(seq_len=2048, global_batch=32))
    plan = Plan(tp=2, pp=2, dp=4, zero=1)
    first, second = (Predictor(*arguments).evaluate(plan) for _ in range(2))
    assert first.timeline.end_s.tolist() == second.timeline.end_s.tolist()
    assert first.bound_s == second.bound_s


def test_the_gradients_of_a_tied_embedding_are_a_link_s_time_not_the_optimizer_s() -> None:
    """The first and the last stage add them up before the update; on two nodes over the network between them."""
    model = load("bert-large")
    found = {}
    for nodes in (1, 2):
        plan = Plan(tp=4, pp=2, dp=nodes, micro_batch=4, recompute="full")
        work = Workload(seq_len=512, global_batch=4 * nodes)
        report = predict(model, cluster(f"{8 * nodes}xRTX-4090"), work, plan)
        found[nodes] = {share.label: share.seconds for share in report.shares}
        assert sum(found[nodes].values()) == pytest.approx(report.step_time.value)
    assert found[1]["update"] == pytest.approx(found[2]["update"])  # the same states on each device
    assert found[2]["data link"] > 20 * found[1]["data link"]
    assert report.limit.startswith("data link (link)")


def test_interleaving_one_chunk_is_refused() -> None:
    predictor = Predictor(load("gpt2"), cluster("4xT4"), Workload(seq_len=512, global_batch=16))
    with pytest.raises(
        PlanError, match="schedule interleaved: chunks = 1, needs >= 2; set chunks = 2 or schedule = '1f1b'"
    ):
        predictor.evaluate(Plan(pp=2, schedule="interleaved"))


@pytest.mark.parametrize("schedule", [one for one in names("schedules") if not pipeline_schedule(one).alone])
def test_a_schedule_for_several_stages_is_refused_on_one(schedule: str) -> None:
    predictor = Predictor(load("gpt2"), cluster("4xT4"), Workload(seq_len=512, global_batch=16))
    with pytest.raises(PlanError, match=rf"schedule {schedule} needs pp >= 2, got pp 1; nearest: schedule 1f1b"):
        predictor.evaluate(Plan(schedule=schedule, chunks=2, dp=4))
