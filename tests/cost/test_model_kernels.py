"""Which of an engine's attention kernels run: by the model's kind, and by what reads an 8-bit cache."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost import questions
from ridgeline.cost.answer import Question, Rung
from ridgeline.cost.engine_kernels import OwnKernels
from ridgeline.cost.fit_choice import find_fits
from ridgeline.cost.formats import Formats
from ridgeline.cost.machine import machine
from ridgeline.cost.served import ServedPrices
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.clusters import cluster
from ridgeline.facts.fits import fits

# Llama-3.1-8B's heads (32 of 128 over 8) in SGLang 0.5.14, aiconfigurator's attention tables: milliseconds of a layer.
DECODE_MS = {("B200-SXM", "bf16"): 0.309859, ("B200-SXM", "fp8"): 0.175541, ("H100-SXM", "fp8"): 0.508414}  # 64 x 8,192
PREFILL_MS = {("B200-SXM", "bf16"): 0.501541, ("B200-SXM", "fp8"): 0.502142, ("H100-SXM", "fp8"): 0.864870}  # 1 x 8,192


def kernels(device: str, family: str, form: str, *, hybrid: bool = False, rung: Rung = Rung.FITTED) -> set[str]:
    asked = Question(family=family, sizes={}, form=form, engine="sglang", hybrid=hybrid)
    return {fit.kernel for fit in find_fits(asked, accelerator(device), rung)}


@pytest.mark.parametrize(("device", "cache"), list(DECODE_MS))
def test_a_plain_model_attends_by_the_kernels_that_sglang_takes_for_it(device: str, cache: str) -> None:
    prices = ServedPrices(machine(cluster(f"1x{device}")), Formats(cache=cache), engine="SGLang")
    step = prices.ask(questions.decode(np.array(64.0), np.array(8192.0), 32.0, 8.0, 128.0, cache_dtype=cache))
    prompt = prices.ask(questions.prefill(1.0, np.array(8192.0), 32.0, 8.0, 128.0, cache_dtype=cache))
    assert step.mid == pytest.approx(1e-3 * DECODE_MS[device, cache], rel=0.05)
    assert prompt.mid == pytest.approx(1e-3 * PREFILL_MS[device, cache], rel=0.10)


@pytest.mark.parametrize("device", ["B200-SXM", "GB300"])
def test_hybrid_models_alone_attend_by_other_kernels_on_datacenter_blackwell(device: str) -> None:
    plain = {"trtllm_mha", "triton d192"}
    assert kernels(device, "decode", "bf16") == kernels(device, "decode", "bf16_kv8") == plain
    more = {name.split()[0] for name in kernels(device, "decode", "bf16", hybrid=True) - plain}
    assert more == {"triton", "flashinfer"}
    assert kernels("RTX-PRO-6000", "decode", "bf16") >= {"flashinfer matrix", "triton d256"}  # where all take them


def test_a_hybrid_models_step_is_told_from_a_plain_ones_of_the_same_heads() -> None:
    where, asked = machine(cluster("1xB200-SXM")), questions.decode(np.array(64.0), np.array(8192.0), 16.0, 2.0, 256.0)
    plain, hybrid = (
        ServedPrices(where, Formats(), engine="SGLang", own=OwnKernels(hybrid=one)).ask(asked).mid
        for one in (False, True)
    )
    assert hybrid > 1.5 * plain  # Triton's kernels of 0.5.14 read this cache at less than 2/3 of the rate


@pytest.mark.parametrize(("device", "kernel"), [("H100-SXM", "fa3"), ("H200-SXM", "fa3"), ("GB200", "trtllm_mha")])
def test_kernels_that_cast_queries_answer_for_8_bit_caches(device: str, kernel: str) -> None:
    assert kernel in kernels(device, "prefill", "bf16_kv8")
    own = {
        one.form: one for one in fits("prefill") if (one.device, one.engine, one.kernel) == (device, "sglang", kernel)
    }
    assert own["bf16_kv8"].values == own["fp8"].values


def test_kernels_with_rows_of_their_own_for_wide_queries_keep_them() -> None:
    """TensorRT-LLM's and Triton's were timed both ways; vLLM's are asked with 16-bit queries alone."""
    for device, engine, kernel in (("H100-SXM", "trtllm", "torch_flow"), ("L40S", "sglang", "triton d192")):
        both = [one for one in fits("prefill") if (one.device, one.engine, one.kernel) == (device, engine, kernel)]
        narrow = [one for one in both if one.form == "bf16_kv8"]
        wide = [one for one in both if one.form == "fp8"]
        assert len(narrow) == len(wide) == 1
        assert narrow[0].values != wide[0].values


def test_relatives_borrow_the_kernels_that_cast_too() -> None:
    assert "fa3" in kernels("H20", "prefill", "bf16_kv8", rung=Rung.BORROWED)
