"""Reports made by hand, so that what is printed can be checked to the letter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.facts.records import Accelerator, Cluster, Evidence, Host, Tier
from ridgeline.graph.model import Block, Graph, Model
from ridgeline.graph.ops import EmbeddingOp, GemmOp, Region
from ridgeline.graph.workload import Workload
from ridgeline.lower.tasks import TaskGraph
from ridgeline.plan.plan import Plan
from ridgeline.report.evidence import Known, Sensitivity
from ridgeline.report.report import Estimate, Infeasible, OpRow, Report, SearchReport, Share, StageMemory
from ridgeline.timeline.simulate import Timeline

GIB = 2.0**30


def made_model() -> Model:
    """One block of one 4 x 4 matrix, two layers, a vocabulary of 8: 32 + 32 parameters."""
    matrix = GemmOp(name="up", region=Region.TENSOR, k=4, n=4, params=16)
    table = EmbeddingOp(name="embedding", region=Region.VOCAB, k=4, n=8, params=32)
    graph = Graph(
        blocks={"dense": Block(name="dense", ops=(matrix,), boundaries=())},
        layers=("dense", "dense"),
        embedding=(table,),
        head=(),
        hidden=4,
        vocab=8,
        tied_embeddings=True,
    )
    return Model(name="tiny", model_type="llama", graph=graph, max_positions=128, source="made by hand")


def made_cluster() -> Cluster:
    """Two devices of 10 GiB in one node."""
    device = Accelerator(
        name="Toy",
        vendor="none",
        architecture="hopper",
        year=None,
        peak_flop_per_s={"bf16": 1e12},
        vector_flop_per_s=1e11,
        memory_bytes=10 * GIB,
        memory_bytes_per_s=1e12,
        l2_bytes=None,
        sm_count=None,
        boost_hz=None,
        link_name=None,
        link_bytes_per_s=None,
        host_bytes_per_s=None,
        tdp_w=1000.0,
    )
    host = Host(
        devices=2,
        dram_bytes=1e11,
        dram_bytes_per_s=1e11,
        device_bytes_per_s=1e10,
        nvme_bytes=1e12,
        nvme_bytes_per_s=1e9,
        idle_w=100.0,
    )
    tier = Tier(name="node", size=2, bytes_per_s=1e10, latency_s=1e-6, topology="switch")
    return Cluster(name="2xToy", accelerator=device, count=2, tiers=(tier,), host=host)


def made_tasks() -> tuple[TaskGraph, Timeline]:
    """Two stages, two micro-batches forward, one send between them on a link of stage 0."""
    tasks = TaskGraph(
        duration_s=np.array([1e-3, 1e-3, 5e-4, 1e-3, 2e-3]),
        stream=np.array([0, 0, 1, 2, 0], dtype=np.int32),
        dep_start=np.array([0, 0, 0, 1, 2, 2], dtype=np.int64),
        dep=np.array([0, 2], dtype=np.int64),
        stream_names=("compute", "send", "compute"),
        stream_device=(0, 0, 1),
        kind=np.array([0, 0, 1, 0, 2], dtype=np.int16),
        label=("F", "S", "optimizer"),
        micro_batch=np.array([0, 1, 0, 0, -1], dtype=np.int32),
        chunk=np.zeros(5, dtype=np.int16),
    )
    start = np.array([0.0, 1e-3, 1e-3, 1.5e-3, 2e-3])
    return tasks, Timeline(start_s=start, end_s=start + tasks.duration_s, makespan_s=4e-3)


@pytest.fixture
def report() -> Report:
    """A plan of two stages that fits, with round numbers."""
    tasks, timeline = made_tasks()
    categories = {"weights": 4 * GIB, "gradients": 2 * GIB, "activations": 1 * GIB}
    return Report(
        model=made_model(),
        cluster=made_cluster(),
        workload=Workload(seq_len=128, global_batch=4, tokens=1_024_000),
        plan=Plan(pp=2, recompute="full"),
        step_time=Estimate(value=2.0, low=1.8, high=2.4, unit="s", evidence=Evidence.DERIVED),
        bound_s=1.5,
        tokens_per_s=256.0,
        model_flop=6e6,
        hardware_flop=8e6,
        mfu=0.25,
        causal_mfu=0.25,
        hfu=0.3333,
        run_time_s=4000.0,
        energy_j_per_step=7200.0,
        power_w=3600.0,
        power_range=(0.9, 1.1),
        usd_per_step=0.01,
        carbon_kg_per_step=None,
        memory=(
            StageMemory(stage=0, categories=categories, capacity_bytes=10 * GIB),
            StageMemory(stage=1, categories=categories, capacity_bytes=10 * GIB),
        ),
        shares=(
            Share(label="matrix products", kind="compute", seconds=1.5),
            Share(label="bubble", kind="bubble", seconds=0.5),
        ),
        limit="matrix products take 75 % of the step",
        ops=(
            OpRow(
                block="dense",
                op="up",
                layers=2,
                forward_s=0.001,
                backward_s=0.002,
                flop=2e6,
                bytes=2048.0,
                bound="compute",
                evidence=Evidence.DATASHEET,
            ),
        ),
        assumptions=("devices are alike",),
        sources=("made by hand",),
        evidence={"matrix rate": Evidence.DATASHEET, "links": Evidence.ASSUMED},
        known=(Known(part="matrix rate", evidence=Evidence.DERIVED, share=0.75),),
        what_if=(Sensitivity(resource="links", gain=0.05), Sensitivity(resource="everything", gain=0.08)),
        tasks=tasks,
        timeline=timeline,
    )


@pytest.fixture
def found(report: Report) -> SearchReport:
    """Two ranked plans, the second slower by half."""
    slower = replace(report, plan=Plan(tp=2), step_time=replace(report.step_time, value=3.0, low=2.7, high=3.6))
    return SearchReport(
        best=(report, slower),
        covered=1200,
        legal=300,
        feasible=40,
        simulated=12,
        pruned_by_bound=28,
        infeasible=(Infeasible(reason="exceeds memory", plans=260, nearest="tp 2 needs 1.5 GiB less"),),
        bound_gap=0.02,
        seconds=1.25,
    )
