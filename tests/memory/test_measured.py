"""Predicted against measured allocator peaks.

Megatron-LM: `mem-max-allocated-bytes` of the golden runs under tests/functional_tests/test_cases
(NVIDIA/Megatron-LM@d98e8a6), on the last pipeline stage of one node of eight devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from ridgeline.graph.build import from_dims
from ridgeline.graph.model import Graph
from ridgeline.graph.workload import Workload
from ridgeline.memory.runtime import named_runtime
from ridgeline.memory.stage import allocator_peak, stage_memory

MEGATRON, TORCH = (named_runtime(name) for name in ("megatron", "torch"))

GIB = 2.0**30
CHUNKED: dict[str, Any] = {"loss": "chunked"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A golden run gpt3_mcore_te_`case`: 12 layers, hidden 512, 8 heads, sequence 1024, micro-batch 4."""

    case: str
    device: str
    measured_bytes: float
    tp: int = 1
    pp: int = 1
    cp: int = 1
    chunks: int = 1
    zero: int = 0
    kernel: str = "flash"
    recompute: str = "none"
    deterministic: bool = True
    dropout: bool = True
    sequence_parallel: bool = False


RUNS = (
    Run(case="tp2_pp2", device="ampere", measured_bytes=1_900_158_464, tp=2, pp=2, kernel="unfused"),
    Run(case="tp2_pp2_resume_torch_dist", device="ampere", measured_bytes=1_409_821_184, tp=2, pp=2),
    Run(
        case="tp1_pp1_uniform_full_recompute",
        device="ampere",
        measured_bytes=2_534_070_272,
        recompute="full",
        kernel="unfused",
    ),
    Run(
        case="tp1_pp4_vp1_calculate_per_token_loss",
        device="ampere",
        measured_bytes=4_120_607_232,
        pp=4,
        chunks=3,
        kernel="unfused",
    ),
    Run(
        case="tp4_pp1_dist_optimizer_overlap_grad_reduce",
        device="ampere",
        measured_bytes=1_515_628_032,
        tp=4,
        zero=1,
        kernel="unfused",
    ),
    Run(
        case="tp4_pp1_resume_torch_dist_dist_optimizer_overlap_grad_reduce",
        device="hopper",
        measured_bytes=1_042_465_280,
        tp=4,
        zero=1,
    ),
    Run(case="tp1_pp1_frozen_resume_torch_dist_dist_optimizer", device="hopper", measured_bytes=2_690_742_784, zero=1),
    Run(
        case="tp2_pp2_cp2_nondeterministic",
        device="hopper",
        measured_bytes=935_777_792,
        tp=2,
        pp=2,
        cp=2,
        deterministic=False,
        dropout=False,
        sequence_parallel=True,
    ),
)


def gpt(vocab: int, *, dropout: bool) -> Graph:
    return from_dims(layers=12, hidden=512, heads=8, vocab=vocab, max_positions=1024, dropout=dropout).graph


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.case)
def test_megatron_golden_runs(run: Run) -> None:
    step = 128 * run.tp
    vocab = -(-50257 // step) * step  # Megatron pads the GPT-2 vocabulary to a multiple of 128 tp
    held = stage_memory(
        gpt(vocab, dropout=run.dropout),
        Workload(seq_len=1024, global_batch=32, attention_kernel=run.kernel),
        layers={"dense": 12 / run.pp},
        tp=run.tp,
        cp=run.cp,
        dp=8 // (run.tp * run.pp * run.cp),
        sequence_parallel=run.sequence_parallel,
        micro_batch=4,
        zero=run.zero,
        recompute=run.recompute,
        first=run.pp == 1,
        in_flight=((run.chunks - 1) * run.pp + 1) / run.chunks,
        runtime=replace(MEGATRON, architecture=run.device, deterministic=run.deterministic),
    )
    assert float(allocator_peak(held)) == pytest.approx(run.measured_bytes, rel=0.04)


@pytest.mark.parametrize(
    ("execution", "options", "measured_gib"),
    [
        ("eager", {}, 60.0),
        ("compiled", {}, 51.0),
        ("compiled", CHUNKED, 42.9),
        ("compiled", CHUNKED | {"recompute": "full"}, 24.9),
        ("compiled", CHUNKED | {"recompute": "full", "optimizer_in_backward": True}, 23.1),
        ("compiled", CHUNKED | {"recompute": "full", "optimizer_in_backward": True, "offload_activations": True}, 21.8),
    ],
    ids=["packed", "compile", "chunked loss", "checkpointing", "optimizer in backward", "activation offloading"],
)
def test_torchtune_ladder(execution: str, options: dict[str, Any], measured_gib: float) -> None:
    """Llama 3.2 3B, one A100, sequence 4096, micro-batch 2 (pytorch/torchtune@bd2a0fc, README)."""
    graph = from_dims(
        layers=28, hidden=3072, heads=24, kv_heads=8, vocab=128256, ffn=8192, gated=True, activation="silu",
        norm="rms", bias=False, tied=True, positions="rope",
    ).graph  # fmt: skip
    workload = Workload(
        seq_len=4096, global_batch=2, precision="bf16-pure", optimizer="adamw-bf16", execution=execution
    )
    runtime = replace(TORCH, architecture="ampere")
    held = stage_memory(graph, workload, layers={"dense": 28}, micro_batch=2, runtime=runtime, **options)
    assert float(allocator_peak(held)) / GIB == pytest.approx(measured_gib, rel=0.06)
