"""Experts by the kernels of an engine's backend, against the same kernels asked for by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.cost import questions
from ridgeline.cost.all_reduce import all_reduce_seconds
from ridgeline.cost.answer import Question, Rung
from ridgeline.cost.engine_kernels import OwnKernels
from ridgeline.cost.fit_choice import find_fits
from ridgeline.cost.fitted import model_of
from ridgeline.cost.formats import Formats
from ridgeline.cost.machine import Machine, machine
from ridgeline.cost.served import ServedPrices
from ridgeline.errors import DomainError
from ridgeline.facts.clusters import cluster
from ridgeline.lower.pieces import ExpertAllToAll, Experts
from ridgeline.lower.work import CollectiveKind

B200, H200 = machine(cluster("8xB200-SXM")), machine(cluster("8xH200-SXM"))
B300 = machine(cluster("8xB300-SXM"))
EXPERTS = Experts(hidden=7168, inner=2048.0, top_k=8, count=256, gated=True, ranks=8)
TRADE = ExpertAllToAll(width=7168, top_k=8, experts=256, ranks=8)
ROWS = np.array([64.0, 8192.0])


def prices(
    engine: str, backend: str, *, prompts: bool = False, feed: str = "fp8_block", on: Machine = B200
) -> ServedPrices:
    return ServedPrices(on, Formats(feed=feed), engine=engine, expert_backend=backend, prompts=prompts)


def by_name(asked: Question) -> np.ndarray:
    """The time of kernels that are asked for by family, library and name, on the device alone [s]."""
    part = B200.cluster.accelerator
    found = find_fits(asked, part, Rung.FITTED)
    return model_of(asked.family, asked.form, part, found, Rung.FITTED, hosted=False).price(asked.sizes)[0][:, 0]


@pytest.mark.parametrize(
    ("engine", "backend", "prompts", "feed", "family", "library", "kernel"),
    [
        ("TensorRT-LLM", "TRTLLM", False, "fp8_block", "experts", "sglang", "sglang_flashinfer_trtllm_moe"),
        ("TensorRT-LLM", "DEEPGEMM", True, "fp8_block", "experts", "trtllm", "deepgemm"),
        ("TensorRT-LLM", "CUTLASS", False, "nvfp4", "experts", "trtllm", "moe_torch_flow_cutlass"),
        ("SGLang", "deepep", True, "fp8_block", "wide_experts", "sglang", "deepepmoe"),
        ("SGLang", "deepep", False, "fp8_block", "wide_experts_decode", "sglang", "deepepmoe"),
    ],
)
def test_a_backend_is_priced_as_its_kernels_are(
    engine: str, backend: str, prompts: bool, feed: str, family: str, library: str, kernel: str
) -> None:
    asked = questions.experts(ROWS, 7168.0, 2048.0, 8.0, 256.0, ranks=8.0, skew=1.01, dtype=feed).question
    named = replace(asked, family=family, engine=library, kernel=kernel)
    expected = by_name(named)
    found = prices(engine, backend, prompts=prompts, feed=feed).experts(EXPERTS, ROWS)
    np.testing.assert_allclose(found.mid, expected, rtol=1e-8)


def test_what_was_not_measured_on_a_device_changes_nothing() -> None:
    """No Hopper has generated kernels of TensorRT-LLM."""
    said, unsaid = (prices("TensorRT-LLM", backend, on=H200).experts(EXPERTS, ROWS) for backend in ("TRTLLM", ""))
    np.testing.assert_array_equal(said.mid, unsaid.mid)


def test_kernels_that_only_relatives_were_measured_with_are_lent() -> None:
    """B200's and GB200's generated kernels in NVFP4 take a third to a half of what CUTLASS does; B300 has fits of the
    latter alone, and does not run them where the recipe says the former."""
    named = prices("TensorRT-LLM", "TRTLLM", feed="nvfp4", on=B300)
    found = named.experts(EXPERTS, ROWS)
    assert named.rungs_used["experts"] is Rung.BORROWED
    there = prices("TensorRT-LLM", "TRTLLM", feed="nvfp4").experts(EXPERTS, ROWS)
    np.testing.assert_allclose(found.mid, there.mid, rtol=0.15)
    assert (found.mid < prices("TensorRT-LLM", "CUTLASS", feed="nvfp4", on=B300).experts(EXPERTS, ROWS).mid).all()


@pytest.mark.parametrize("device", ["H100-SXM", "H200-SXM", "H20"])
def test_experts_of_4_bits_stay_so_in_triton_kernels(device: str) -> None:
    """64 tokens reach 97 of gpt-oss-120b's 128 experts: 1.3 GB of 4-bit weights a layer, which 16 bits make 4.8 GB.

    The rows of vLLM's table, whose kernels these are, take 0.53 ms on an H100 and those of SGLang's own 1.69 ms.
    """
    where, layer = (
        machine(cluster(f"1x{device}")),
        Experts(hidden=2880, inner=2880.0, top_k=4, count=128, ranks=1, gated=True),
    )
    named, own = (
        prices("SGLang", backend, feed="w4a16_mxfp4", on=where).experts(layer, np.array([64.0])).mid[0]
        for backend in ("triton_kernel", "")
    )
    assert named < 0.75 * own
    if device == "H100-SXM":
        assert (1e3 * named, 1e3 * own) == pytest.approx((0.53, 1.69), rel=0.15)


@pytest.mark.parametrize("prompts", [True, False])
def test_deepep_sends_tokens_of_few_ranks_too(prompts: bool) -> None:
    """There and back, in the way of long batches for prompts and in that of few tokens for steps."""
    each = ROWS / 8.0
    ways = [
        questions.exchange(each, 7168.0, 8.0, 256.0, B200, combine=combine, quick=not prompts).question
        for combine in (False, True)
    ]
    parts = [by_name(replace(way, engine="sglang")) for way in ways]
    found = prices("SGLang", "deepep", prompts=prompts).expert_all_to_all(TRADE, ROWS)
    np.testing.assert_allclose(found.mid, parts[0] + parts[1], rtol=1e-8)
    assert (found.mid != prices("SGLang", "", prompts=prompts).expert_all_to_all(TRADE, ROWS).mid).all()


@pytest.mark.parametrize(("engine", "gather"), [("SGLang", "none"), ("vLLM", "allgather_reducescatter")])
def test_many_ranks_gather_all_tokens_where_a_backend_does(engine: str, gather: str) -> None:
    """72 ranks of H100: an all-gather and a reduce-scatter of all 18,432 tokens; kernels stay the measured ones."""
    where, rows = machine(cluster("72xH100-SXM")), np.array([18432.0])
    trade, size = replace(TRADE, ranks=72), 2.0 * 7168 * rows
    by = prices(engine, gather, on=where)
    both = by.collective(CollectiveKind.ALL_GATHER, size, 72) + by.collective(CollectiveKind.REDUCE_SCATTER, size, 72)
    np.testing.assert_allclose(by.expert_all_to_all(trade, rows).mid, both)
    assert (prices(engine, "", on=where).expert_all_to_all(trade, rows).mid < 0.5 * both).all()
    layer = replace(EXPERTS, count=288, ranks=72)
    np.testing.assert_array_equal(
        by.experts(layer, rows).mid, prices(engine, "", on=where).experts(layer, rows).mid
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["deepep_low_latency", "deepep_high_throughput"])
@pytest.mark.parametrize("prompts", [True, False])
def test_vllm_sends_tokens_in_the_way_that_its_word_says(backend: str, prompts: bool) -> None:
    """Whatever a pool does: of few tokens, or of long batches."""
    where, trade = machine(cluster("16xH100-SXM")), replace(TRADE, ranks=16)
    quick = backend == "deepep_low_latency"
    expected = prices("SGLang", "deepep", prompts=not quick, on=where)
    found = prices("vLLM", backend, prompts=prompts, on=where)
    layer = replace(EXPERTS, ranks=16)
    np.testing.assert_allclose(found.experts(layer, ROWS).mid, expected.experts(layer, ROWS).mid, rtol=1e-8)
    other = prices("vLLM", "deepep_high_throughput" if quick else "deepep_low_latency", prompts=prompts, on=where)
    assert (found.expert_all_to_all(trade, ROWS).mid != other.expert_all_to_all(trade, ROWS).mid).all()


def test_tokens_are_gathered_by_all_reduces_where_an_engine_does_so() -> None:
    """SGLang's prompts: a buffer of all ranks' tokens is summed, and the sums of all; 8,192 tokens of 7,168 in bf16."""
    own = OwnKernels(all_meet=True)
    found = ServedPrices(B200, Formats(feed="fp8_block"), engine="SGLang", own=own).expert_all_to_all(TRADE, ROWS)
    whole = all_reduce_seconds(2.0 * 7168 * ROWS, 8, B200, engine="sglang")
    np.testing.assert_allclose(found.mid, 2.0 * whole)
    gathering = prices("SGLang", "").expert_all_to_all(TRADE, ROWS)
    assert 1.5 < found.mid[1] / gathering.mid[1] < 2.5


@pytest.mark.parametrize(
    ("engine", "backend"), [("SGLang", "flashinfer_cutlass"), ("TensorRT-LLM", "TRTLLM"), ("TensorRT-LLM", "CUTLASS")]
)
def test_tokens_in_the_experts_format_are_fewer_bytes_to_gather(engine: str, backend: str) -> None:
    """NVFP4: 4 bits and a scale of 8 for each 16, 9/32 of 16; sums come back in 16 bits, whoever else meets."""
    own = OwnKernels(all_meet=True)
    named = ServedPrices(B200, Formats(feed="nvfp4"), own=own, engine=engine, expert_backend=backend, prompts=True)
    found = named.expert_all_to_all(TRADE, ROWS)
    size = 2.0 * 7168 * ROWS
    plain = prices("SGLang", "")
    parts = [
        plain.collective(kind, share * size, 8)
        for kind, share in ((CollectiveKind.ALL_GATHER, 9 / 32), (CollectiveKind.REDUCE_SCATTER, 1.0))
    ]
    np.testing.assert_allclose(found.mid, sum(parts), rtol=1e-9)


def test_a_word_that_is_no_backend_is_refused() -> None:
    with pytest.raises(DomainError, match="expert_backend = 'deepgem': none of deepep, flashinfer_trtllm"):
        prices("SGLang", "deepgem")
