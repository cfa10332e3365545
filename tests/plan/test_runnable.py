"""Which plans each training framework runs, worked by hand from its own repository's rules."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.errors import PlanError, WorkloadError
from ridgeline.facts.frameworks import framework_policy
from ridgeline.graph.workload import Task, Workload
from ridgeline.plan.plan import Plan
from ridgeline.plan.runnable import check_runs, check_workload, keeps_split, why_not

LAYERS = 32
ZBV = {"pp": 4, "schedule": "zb-v", "chunks": 2}
INTERLEAVED = {"pp": 4, "schedule": "interleaved", "chunks": 2}


def why(framework: str, *, split: tuple[int, ...] | None = None, job: dict[str, Any] | None = None, **plan: Any) -> str:
    """Why a framework does not run a plan of 32 layers, '' where it does."""
    one = Plan(**{"dp": 8, **plan})
    places = one.pp * one.chunks
    layers = split or tuple(LAYERS // places for _ in range(places))
    workload = Workload(**{"seq_len": 4096, "global_batch": 64, "framework": framework, **(job or {})})
    return why_not(one, workload.policy, workload, layers, experts=one.ep > 1)


@pytest.mark.parametrize(
    ("framework", "plan", "wanted"),
    [
        ("ddp", {"zero": 3}, "DDP does not run zero 3; it runs zero 0; nearest: zero 0"),
        ("ddp", {"zero": 1}, "DDP does not run zero 1"),
        ("ddp", {"pp": 2}, "DDP does not run schedule 1f1b; it has none; nearest: pp 1"),
        ("ddp", {}, ""),
        ("fsdp", ZBV, "FSDP2 does not run schedule zb-v; it has none"),
        ("fsdp", {"zero": 1}, "FSDP2 does not run zero 1; it runs zero 2, zero 3; nearest: zero 2"),
        ("fsdp", {}, "FSDP2 does not run zero 0"),
        ("fsdp", {"dp": 1}, ""),
        ("fsdp", {"zero": 3, "zero_group": 4}, ""),
        ("fsdp", {"zero": 3, "tp": 2}, "FSDP2 does not run tp 2"),
        ("fsdp", {"zero": 3, "offload_optimizer": True}, "FSDP2 does not run offload_optimizer"),
        ("fsdp", {"zero": 3, "offload_weights": True}, ""),
        ("megatron", ZBV, "Megatron-LM does not run schedule zb-v; it runs 1f1b, interleaved, combined-1f1b; nearest"),
        ("megatron", {**INTERLEAVED, "zero": 1}, ""),
        ("megatron", {**INTERLEAVED, "zero": 3}, "Megatron-LM does not run zero 3 with pp 4; it runs zero 0, zero 1"),
        ("megatron", {"zero": 3}, ""),
        ("megatron@0.9", {"zero": 3}, "Megatron-LM 0.9 does not run zero 3; it runs zero 0, zero 1"),
        ("megatron@0.9", {"cp": 2, "context_style": "ulysses"}, "Megatron-LM 0.9 does not run context_style ulysses"),
        ("megatron@0.10", {"cp": 2, "context_style": "ulysses"}, ""),
        ("megatron@0.9", {"ep": 4, "tp": 2, "etp": 1}, "Megatron-LM 0.9 does not run etp 1 with tp 2; it runs etp tp"),
        ("megatron@0.10", {"ep": 4, "tp": 2, "etp": 1}, ""),
        ("megatron", {"optimizer_in_backward": True}, "Megatron-LM does not run optimizer_in_backward"),
        ("megatron", {"offload_optimizer": True}, "Megatron-LM does not run offload_optimizer with zero 0"),
        ("megatron@0.11", {"offload_optimizer": True, "zero": 1}, "Megatron-LM 0.11 does not run offload_optimizer"),
        ("megatron", {"offload_optimizer": True, "zero": 1}, ""),
        ("megatron", {"loss": "fused"}, "Megatron-LM does not run loss fused; it runs whole"),
        ("torchtitan", {**ZBV, "zero": 3}, ""),
        ("torchtitan", {"pp": 4, "schedule": "zb-h1"}, "torchtitan does not run schedule zb-h1"),
        ("torchtitan", {"tp": 2}, "torchtitan does not run zero 0 with tp 2, pp 1, cp 1"),
        ("torchtitan", {}, ""),
        ("torchtitan@0.1", {"ep": 4, "zero": 3}, "torchtitan 0.1 does not run ep 4"),
        ("torchtitan", {"ep": 4, "zero": 3}, ""),
        ("deepspeed", {"pp": 2, "zero": 2}, "DeepSpeed does not run zero 2 with pp 2; it runs zero 0, zero 1"),
        ("deepspeed", {"pp": 2, "zero": 1}, ""),
        ("deepspeed", INTERLEAVED, "DeepSpeed does not run schedule interleaved; it runs 1f1b"),
        ("deepspeed", {"cp": 2, "zero": 3}, "DeepSpeed does not run context_style ring"),
        ("deepspeed", {"cp": 2, "zero": 3, "context_style": "ulysses"}, ""),
        ("deepspeed@0.18", {"ep": 4, "zero": 3}, "DeepSpeed 0.18 does not run zero 3 with ep 4"),
        ("deepspeed", {"ep": 4, "zero": 3}, ""),
        ("fsdp", {"zero": 3, "loss": "own-loss"}, ""),  # the model's own code
        ("megatron", {"loss": "own-loss"}, "Megatron-LM does not run loss own-loss; it runs whole"),
        ("deepspeed", {"offload_activations": True}, "DeepSpeed does not run offload_activations with recompute none"),
        ("deepspeed", {"offload_activations": True, "recompute": "full"}, ""),
        ("maxtext", {"pp": 4}, "MaxText does not run schedule 1f1b; it runs gpipe"),
        ("maxtext", {"pp": 4, "schedule": "gpipe"}, ""),
        ("none", {}, "plain PyTorch does not run dp 8; it runs dp 1; nearest: dp 1"),
        ("none", {"dp": 1, "optimizer_in_backward": True}, ""),
    ],
)
def test_a_plan_is_legal_by_the_frameworks_own_rules(framework: str, plan: dict[str, Any], wanted: str) -> None:
    found = why(framework, **plan)
    assert found.startswith(wanted) if wanted else not found


@pytest.mark.parametrize(
    ("framework", "layers", "stages", "chunks", "runs"),
    [
        ("megatron@0.5", (8, 8, 8, 8), 4, 1, True),
        ("megatron@0.5", (7, 8, 8, 9), 4, 1, False),
        ("megatron@0.9", (7, 8, 8, 9), 4, 1, True),
        ("megatron@0.9", (8, 7, 9, 8), 4, 1, False),
        ("megatron@0.9", (3, 4, 4, 5, 3, 4, 4, 5), 4, 2, False),
        ("megatron@0.11", (3, 4, 4, 5, 3, 4, 4, 5), 4, 2, True),
        ("megatron@0.11", (3, 4, 4, 4, 4, 4, 4, 5), 4, 2, False),
        ("megatron@0.13", (3, 4, 4, 4, 4, 4, 4, 5), 4, 2, True),
        ("deepspeed", (8, 8, 8, 7), 4, 1, True),
        ("deepspeed", (9, 8, 8, 7), 4, 1, False),
        ("maxtext", (8, 8, 8, 7), 4, 1, False),
        ("torchtitan", (1, 20, 4, 7), 4, 1, True),
    ],
)
def test_layers_are_divided_as_a_release_can(
    framework: str, layers: tuple[int, ...], stages: int, chunks: int, runs: bool
) -> None:
    assert keeps_split(framework_policy(framework), layers, stages=stages, chunks=chunks) is runs


def test_adapters_are_not_divided_where_a_recipe_refuses_it() -> None:
    job = {"task": Task.LORA, "precision": "bf16-pure"}
    assert "task lora with tp 2" in why("torchtune", zero=3, tp=2, job=job)
    assert not why("torchtune", zero=3, job=job)
    assert not why("nemo", tp=2, job={"task": Task.LORA})
    assert "on 8 devices" in why("litgpt", zero=3, job={"task": Task.QLORA, "precision": "bf16-pure"})


def test_jobs_that_a_framework_does_not_run_are_refused() -> None:
    with pytest.raises(WorkloadError, match="Megatron-LM does not run task qlora; it runs pretrain, full"):
        check_workload(Workload(seq_len=1, global_batch=1, task=Task.QLORA, framework="megatron"))
    with pytest.raises(WorkloadError, match=r"Megatron-LM 0\.14 does not run precision nvfp4"):
        check_workload(Workload(seq_len=1, global_batch=1, precision="nvfp4", framework="megatron@0.14"))
    check_workload(Workload(seq_len=1, global_batch=1, precision="nvfp4", framework="megatron@0.15"))
    check_workload(Workload(seq_len=1, global_batch=1, precision="int8"))


def test_without_a_framework_every_plan_is_taken() -> None:
    job = Workload(seq_len=4096, global_batch=64)
    check_runs(Plan(dp=8, **ZBV), job, (4,) * 8, experts=False)
    with pytest.raises(PlanError, match="plan: DDP does not run"):
        check_runs(Plan(dp=8, zero=3), Workload(seq_len=4096, global_batch=64, framework="ddp"), (32,), experts=False)
