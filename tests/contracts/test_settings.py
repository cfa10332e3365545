"""Every technique says whether it applies to a setting, and what is worth trying there; declared commutation holds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.contracts.test_techniques import ALL, EVERY, PAIRS, SERVED, SERVED_PAIRS, replayed

from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.graph.workload import Task, Workload
from ridgeline.plan.deployment import Deployment
from ridgeline.plan.plan import Plan
from ridgeline.seams.graph import GraphRewrite
from ridgeline.seams.registry import families, names, technique
from ridgeline.seams.resolve import filled_slots, rewritten
from ridgeline.seams.setting import SERVING, TRAINING, Lengths, Setting, Summary
from ridgeline.seams.technique import Technique

LENGTHS = Lengths(total=100, mean=100.0, p50=100.0, p90=100.0, p99=100.0, most=100)
TRAFFIC = Summary(
    requests=10, span_s=10.0, rate_per_s=1.0, burstiness=1.0, prompt=LENGTHS, output=LENGTHS, repeated_share=None,
    sessions=0, clients=1, waiting=0, dropped=0,
)  # fmt: skip


@cache
def settings() -> dict[str, Setting]:
    model, machine = load("llama-3.1-8b"), cluster("8xH100-SXM")
    trained = Setting(
        model=model, cluster=machine, workload=Workload(seq_len=4096, global_batch=64), plan=Plan(pp=4, cp=2)
    )
    tuned = replace(trained, workload=Workload(task=Task.LORA, seq_len=4096, global_batch=64), plan=Plan(dp=8))
    served = Setting(model=model, cluster=machine, workload=TRAFFIC, plan=Deployment(tp=2, instances=4))
    return {"pipeline": trained, "data": tuned, "looked for": replace(trained, plan=None), "served": served}


@pytest.mark.parametrize("name", ["pipeline", "data", "looked for", "served"])
@pytest.mark.parametrize("key", EVERY)
def test_it_says_whether_it_applies_and_names_texts_of_itself(key: str, name: str) -> None:
    one, setting = EVERY[key], settings()[name]
    why = one.applies(setting)
    assert isinstance(why, str)
    assert why == why.strip()
    assert not why.endswith("."), "a phrase, not a sentence"
    if setting.kind not in one.kinds:
        assert why
        return
    for text in one.axes(setting):
        assert technique(one.family, text).key == key


@pytest.mark.parametrize("key", EVERY)
def test_its_kinds_are_known_and_its_quality_has_a_source(key: str) -> None:
    one = EVERY[key]
    assert one.kinds
    assert one.kinds <= {TRAINING, SERVING, "sampling", "jobs", "applications", "operator", "post-training", "fleets"}
    if one.quality is not None:
        assert one.quality.source
        assert one.quality.conditions


def test_what_techniques_of_training_say_hangs_on_the_plan() -> None:
    pipeline, data = settings()["pipeline"], settings()["data"]
    assert technique("schedules", "zb-h1").applies(pipeline) == ""
    assert "one pipeline stage" in technique("schedules", "zb-h1").applies(data)
    assert technique("contexts", "ulysses").applies(pipeline) == ""
    assert "cp 1" in technique("contexts", "ring").applies(data)
    wide = replace(pipeline, plan=Plan(cp=64))
    assert "32 heads" in technique("contexts", "ulysses").applies(wide)
    assert "fused" in technique("recompute", "core-attention").applies(data)
    assert isinstance(data.workload, Workload)
    scored = replace(data, workload=replace(data.workload, attention_kernel="unfused"))
    assert technique("recompute", "core-attention").applies(scored) == ""
    assert "bf16-pure" in technique("optimizers", "adamw-bf16").applies(data)


def test_the_slots_of_a_plan_are_its_degrees_and_techniques() -> None:
    assert filled_slots(Plan(pp=2, dp=4)) == {"stages", "data ranks"}
    assert filled_slots(Deployment(tp=2)) == frozenset()
    assert {"stages", "queues"} <= filled_slots(Deployment(pp=2, technique=("fair",)))


def commute(one: Technique, other: Technique) -> bool:
    """Whether two techniques may stand in either order: rewrites of operators say so, others do."""
    if not (isinstance(one, GraphRewrite) and isinstance(other, GraphRewrite)):
        return True
    return any(not each.commutes.isdisjoint((it.key, it.family)) for each, it in ((one, other), (other, one)))


LISTED = {key: one for key, one in ALL.items() if isinstance(one, GraphRewrite)}
REWRITES = [pair for pair in PAIRS if {*pair} <= LISTED.keys() and commute(LISTED[pair[0]], LISTED[pair[1]])]


@pytest.mark.parametrize(("one", "other"), REWRITES)
def test_rewrites_that_say_so_commute(one: str, other: str) -> None:
    model = load("llama-3.1-8b")
    both = [rewritten(model, tuple(LISTED[key].text for key in keys)) for keys in ((one, other), (other, one))]
    assert both[0].graph == both[1].graph


@pytest.mark.parametrize(("one", "other"), [pair for pair in SERVED_PAIRS if commute(*(SERVED[key] for key in pair))])
def test_techniques_of_serving_stand_in_either_order(one: str, other: str) -> None:
    try:
        found = [replayed(*(SERVED[key].text for key in keys)) for keys in ((one, other), (other, one))]
    except PlanError as error:
        pytest.skip(str(error))
    assert np.array_equal(found[0].end_s, found[1].end_s)


def test_every_family_is_asked() -> None:
    assert {one.family for one in EVERY.values()} == {family for family in families() if names(family)}
