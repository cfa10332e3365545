"""Every framework on five scenarios: the plan that is returned is legal by that framework's own rules, or none is."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.errors import NoPlanError, WorkloadError
from ridgeline.facts.policies import FRAMEWORKS
from ridgeline.plan.runnable import why_not
from ridgeline.predict import Predictor
from ridgeline.scenario.training import Scenario, scenario_from_words
from ridgeline.search.search import search

SCENARIOS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qlora on two cards": ("llama-3.1-8b", "2xRTX-4090", {"task": "qlora", "seq_len": 2048, "global_batch": 16}),
    "full fine-tune": ("llama-3.1-8b", "8xH100-SXM", {"task": "full", "seq_len": 4096, "global_batch": 64}),
    "pretraining": ("llama-3.1-70b", "64xH100-SXM", {"seq_len": 8192, "global_batch": 512}),
    "experts": ("mixtral-8x7b", "128xH100-SXM", {"seq_len": 4096, "global_batch": 1024}),
    "long context": ("llama-3.1-8b", "64xH100-SXM", {"seq_len": 131_072, "global_batch": 32}),
}
RUNS_NONE = {
    "qlora on two cards": {"LitGPT", "Megatron-Bridge", "Megatron-LM", "Megatron-zero-bubble", "torchtitan"},
    "full fine-tune": {"DDP", "plain PyTorch"},
    "pretraining": {"DDP", "plain PyTorch", "torchtune"},
    "experts": {"DDP", "plain PyTorch", "torchtune"},
    "long context": {"DDP", "FSDP1", "FSDP2", "LitGPT", "Transformers", "plain PyTorch", "torchtune"},
}
"""Frameworks that run no plan of a scenario which fits: it is refused, with the reason."""


def asked(name: str, **more: Any) -> Scenario:
    model, cluster, workload = SCENARIOS[name]
    return scenario_from_words(
        {"model": {"name": model}, "cluster": {"name": cluster}, "workload": {**workload, **more}}
    )


@pytest.mark.parametrize("framework", FRAMEWORKS.names())
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_best_plan_of_a_framework_is_one_that_it_runs(name: str, framework: str) -> None:
    one = asked(name, framework=framework)
    if framework in RUNS_NONE[name]:
        with pytest.raises((NoPlanError, WorkloadError), match=r"fits|does not run"):
            search(one.model, one.cluster, one.workload, top=1)
        return
    best = search(one.model, one.cluster, one.workload, top=1).best[0]
    predictor = Predictor(one.model, one.cluster, one.workload)
    layers, experts = predictor.split(best.plan), predictor.limits.experts > 0
    assert not why_not(best.plan, one.workload.policy, one.workload, layers, experts=experts)
    assert best.fits


@pytest.mark.parametrize("name", SCENARIOS)
def test_without_a_framework_each_is_compared_at_the_same_prices(name: str) -> None:
    one = asked(name)
    found = search(one.model, one.cluster, one.workload, top=1)
    assert {run.name for run in found.frameworks} == set(FRAMEWORKS.names())
    assert any(run.slowdown is not None for run in found.frameworks)
    predictor = Predictor(one.model, one.cluster, one.workload)
    best_s = found.best[0].step_time.value
    for run in found.frameworks:
        assert bool(run.why) == (run.plan != found.best[0].plan)
        if run.plan is None:
            assert run.slowdown is None
            continue
        step_s = predictor.evaluate(run.plan).timeline.makespan_s
        assert run.slowdown == pytest.approx(step_s / best_s - 1.0, abs=1e-9)
        assert run.slowdown >= -1e-9
