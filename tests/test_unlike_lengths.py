"""A step of unlike sequences: equal ones cost what they cost elsewhere, more memory or links never harm."""

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor
from ridgeline.predict.unlike_lengths import Costs, best_lengths, predict_lengths

MODEL, MACHINE = load("llama-3.2-1b"), cluster("8xA100-SXM-40GB")
PLAN = Plan(dp=8, zero=3, context_style="ulysses")
UNLIKE = Workload(seq_len=65_536, global_batch=64, lengths="lognormal(median=1500,sigma=1.6)")


def test_equal_sequences_cost_what_a_step_of_them_costs() -> None:
    costs = Costs(MODEL, MACHINE, UNLIKE, PLAN)
    tokens = costs._whole(1, costs.tokens)
    even = Workload(seq_len=tokens, global_batch=64)
    step_s = Predictor(MODEL, MACHINE, even).evaluate(PLAN).bound_s
    own = replace(even, lengths=f"lognormal(median={tokens},sigma=0)")
    assert predict_lengths(MODEL, MACHINE, own, PLAN).step_s == pytest.approx(step_s, rel=2e-3)


def test_memory_holds_what_is_packed() -> None:
    costs = Costs(MODEL, MACHINE, UNLIKE, PLAN)
    tokens = costs._whole(1, costs.tokens)
    predictor, plan = costs._at(1, tokens, tokens)
    held = sum(float(np.max(part)) for part in predictor.memory(plan).values())
    assert held == pytest.approx(MACHINE.accelerator.memory_bytes, rel=1e-3)
    assert held <= MACHINE.accelerator.memory_bytes


def test_every_way_is_ranked_and_bounded() -> None:
    found = best_lengths(MODEL, MACHINE, UNLIKE, PLAN)
    times = [one.step_s for one in found]
    assert times == sorted(times)
    by_key = {one.plan.length_balance: one for one in found}
    assert by_key["flexsp"].step_s < by_key["packed"].step_s
    for one in found:
        assert one.bound_s is None or one.bound_s <= one.step_s * (1 + 1e-9)
        assert one.low_s < one.step_s < one.high_s
        assert sum(use.sequences for use in one.degrees) == one.sequences == 64
        assert sum(use.tokens for use in one.degrees) == pytest.approx(one.tokens)
        assert 0.0 <= one.waiting < 1.0


def test_a_faster_device_is_never_slower() -> None:
    slow, fast = cluster("8xA100-SXM-40GB"), cluster("8xH100-SXM")
    assert predict_lengths(MODEL, fast, UNLIKE, PLAN).step_s < predict_lengths(MODEL, slow, UNLIKE, PLAN).step_s


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PlanError, match="pp 2"):
        predict_lengths(MODEL, MACHINE, UNLIKE, replace(PLAN, dp=4, pp=2))
    with pytest.raises(NoPlanError, match="1,024 tokens take"):
        predict_lengths(load("llama-3.1-70b"), MACHINE, UNLIKE, replace(PLAN, zero=1))
    huge = replace(UNLIKE, seq_len=10**7, lengths="lognormal(median=9000000,sigma=0)")
    with pytest.raises(NoPlanError, match="ranks, the plan has 8"):
        predict_lengths(MODEL, MACHINE, huge, PLAN)
