"""The busiest stage of a step with states in other tiers takes no longer alone than in the whole step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict.on_lanes import busiest_stage_s
from ridgeline.predict.predictor import Predictor
from ridgeline.seams.resolve import rewritten

WAYS = ("fuyou", "ssdtrain", "superpipeline(resident=2)", "deep-optimizer-states")


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("way", WAYS)
def test_the_busiest_stage_alone_bounds_the_step(way: str, schedule: str) -> None:
    where = cluster("16xA100-SXM-80GB")
    host = replace(where.host, nvme_bytes=1e14, nvme_bytes_per_s=4e9, dram_bytes=1e14)
    plan = Plan(tp=4, pp=4, dp=1, schedule=schedule, technique=(way,))
    model = rewritten(load("llama-2-7b"), plan.technique)
    one = Predictor(model, replace(where, host=host), Workload(seq_len=2048, global_batch=8))
    whole_s = one.evaluate(plan).timeline.makespan_s
    assert 0.3 * whole_s < busiest_stage_s(one, plan) <= whole_s


def test_plans_that_keep_all_on_the_device_have_no_such_bound() -> None:
    one = Predictor(load("llama-2-7b"), cluster("8xH100-SXM"), Workload(seq_len=2048, global_batch=8))
    assert busiest_stage_s(one, Plan(dp=8)) == 0.0
