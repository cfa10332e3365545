"""A forward and a backward of two micro-batches as one pass: by hand, against the timeline, and in a mixture's step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost.paired import Legs, _pieces, exchange_share, paired_layer
from ridgeline.cost.price import Pricer
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.graph.workload import Workload
from ridgeline.lower.work import Phase
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor, predict
from ridgeline.seams.experts import finished_s
from ridgeline.seams.schedule import FORWARD
from ridgeline.training.paired import PAIRED, hidden_s, with_pairs
from ridgeline.training.pipeline import order, pipeline_schedule, pipeline_tasks

MODEL = load("olmoe-1b-7b")
FORWARD_LEGS = Legs(near_s=2.0, there_s=1.0, experts_s=2.0, back_s=1.0)
WEIGHT_LEGS = Legs(near_s=1.0, there_s=0.0, experts_s=1.0, back_s=0.0)


def finished(layers: int, link_s: float) -> float:
    legs = replace(FORWARD_LEGS, there_s=link_s, back_s=link_s)
    return float(np.asarray(finished_s(_pieces(legs, legs, WEIGHT_LEGS, layers))))


def test_layers_of_two_micro_batches_by_hand() -> None:
    # forward 0-2 beside the gradient of combine 0-1; experts: backward 2-4, its weights 4-5, forward 5-7; dispatch 2-3,
    # its gradient 4-5; backward of the rest 7-9, its weights 9-10, combine 7-8
    assert finished(1, 1.0) == pytest.approx(10.0)
    # the second layer's gradient of combine 9-10, its forward 10-12: all four exchanges of each layer are hidden
    assert finished(2, 1.0) == pytest.approx(20.0)
    # exchanges of 5 are longer than 10 of products: four of 5 a layer, one after the other
    assert finished(3, 5.0) - finished(2, 5.0) == pytest.approx(20.0)


def priced(dispatch: str) -> tuple[Pricer, Predictor]:
    workload = Workload(seq_len=2048, global_batch=64, expert_dispatch=dispatch)
    predictor = Predictor(MODEL, cluster("16xH100-SXM"), workload)
    return predictor.stages.pricer, predictor


def test_what_an_exchange_holds_of_the_device() -> None:
    assert exchange_share(priced("deepep")[0]) == pytest.approx(20 / 132)
    assert exchange_share(priced("alltoall")[0]) == pytest.approx(0.1256 / 1.1256)


def test_a_layer_saves_no_more_than_its_exchanges() -> None:
    pricer, predictor = priced("alltoall")
    cost = predictor.price(Plan(dp=16, ep=16, zero=1))
    block = next(iter(cost.blocks.values()))
    assert block.pairing is not None
    saved = block.pairing()
    phases = (block.forward, block.backward_input, block.backward_weight)
    link_s = sum(float(np.asarray(one.parts["expert link"])) for one in phases)
    rest_s = sum(float(np.asarray(one.seconds)) for one in phases) - link_s
    free = 1.0 - exchange_share(pricer)
    assert 0.0 < saved.each_s <= free * min(link_s, rest_s) * (1 + 1e-9)
    assert 0.0 <= saved.ends_s < saved.each_s
    nothing = dict.fromkeys(Phase, (1.0, 0.0))
    none = paired_layer(pricer, {phase: [] for phase in Phase}, nothing)  # type: ignore[arg-type]
    assert float(np.asarray(none.each_s)) == 0.0


def test_a_pass_starts_when_both_may_and_ends_for_both() -> None:
    # one stage, three micro-batches: F0, (F1 B0), (F2 B1), B2; forward 1, backward 2, both at once 2.5
    asked = order(pipeline_schedule("combined-1f1b"), 1, 3)
    assert asked.paired is not None
    assert asked.paired[0].tolist() == [False, True, False, True, False, False]
    base = pipeline_tasks(asked, forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    tasks = with_pairs(base, asked, np.full((1, 1, 1), 0.5))
    assert tasks.duration_s.tolist() == [1.0, 2.5, 0.0, 2.5, 0.0, 2.0]
    assert (tasks.kind == PAIRED).sum() == 2
    assert hidden_s(asked, np.full((1, 1, 1), 0.5), 0) == pytest.approx(1.0)


def test_both_waits_hold_up_a_pass() -> None:
    asked = order(pipeline_schedule("dualpipe"), 4, 8, 2)
    base = pipeline_tasks(asked, forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    tasks = with_pairs(base, asked, np.full((4, 2, 2), 0.5))
    first = np.flatnonzero(np.asarray(asked.paired).ravel())
    for one in first.tolist():
        mine = set(tasks.dep[tasks.dep_start[one] : tasks.dep_start[one + 1]].tolist())
        both = {base.dep[at] for row in (one, one + 1) for at in range(base.dep_start[row], base.dep_start[row + 1])}
        assert mine == both
        assert asked.kind.ravel()[one] == FORWARD
    assert tasks.duration_s.sum() == pytest.approx(base.duration_s.sum() - 0.5 * len(first))


@pytest.mark.parametrize(
    ("plan", "plain"),
    [
        (Plan(dp=16, ep=16, zero=1, schedule="combined-1f1b"), Plan(dp=16, ep=16, zero=1)),
        (
            Plan(pp=2, dp=8, ep=8, zero=1, schedule="combined-1f1b", chunks=2),
            Plan(pp=2, dp=8, ep=8, zero=1, schedule="interleaved", chunks=2),
        ),
        (
            Plan(pp=2, dp=8, ep=8, zero=1, schedule="dualpipev", chunks=2),
            Plan(pp=2, dp=8, ep=8, zero=1, schedule="zb-v", chunks=2),
        ),
    ],
)
def test_exchanges_hide_and_memory_grows(plan: Plan, plain: Plan) -> None:
    workload = Workload(seq_len=2048, global_batch=128)
    ours, usual = (predict(MODEL, cluster("16xH100-SXM"), workload, one) for one in (plan, plain))
    parts = [{share.label: share.seconds for share in one.shares} for one in (ours, usual)]
    assert parts[0]["expert link"] < parts[1]["expert link"]
    assert ours.step_time.value < usual.step_time.value
    assert ours.bound_s <= ours.step_time.value
    assert sum(parts[0].values()) == pytest.approx(ours.step_time.value)
    held = [max(stage.categories["activations"] for stage in one.memory) for one in (ours, usual)]
    assert held[0] > held[1]


def test_a_model_without_experts_gains_nothing() -> None:
    workload = Workload(seq_len=2048, global_batch=32)
    dense, machine = load("llama-3.1-8b"), cluster("8xH100-SXM")
    plans = (Plan(dp=8, zero=1), Plan(dp=8, zero=1, schedule="combined-1f1b"))
    plain, ours = (predict(dense, machine, workload, plan).step_time.value for plan in plans)
    assert ours == pytest.approx(plain)
