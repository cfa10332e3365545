"""Kernels taken alone: a table that was timed at the pace of its host says nothing of what is shorter."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost import questions
from ridgeline.cost.answer import Question, Rung
from ridgeline.cost.fit_choice import device_only_fits, find_fits
from ridgeline.cost.machine import machine
from ridgeline.cost.served import Formats, ServedPrices
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.clusters import cluster
from ridgeline.lower.pieces import Product


def asked(form: str, engine: str = "vllm", family: str = "gemm") -> Question:
    return Question(family=family, sizes={}, form=form, engine=engine)


@pytest.mark.parametrize("device", ["GB200", "B200-SXM", "H100-SXM"])
def test_block_scaled_products_of_vllm_are_those_of_a_library_whose_host_is_quick(device: str) -> None:
    part = accelerator(device)
    hidden = find_fits(asked("fp8_block"), part, Rung.FITTED)
    assert all(fit.values["issue_s_"] > 5e-5 for fit in hidden)
    shown = device_only_fits(asked("fp8_block"), part, Rung.FITTED)
    assert {fit.engine for fit in shown} == {"sglang"}
    assert all(fit.values["issue_s_"] < 1e-5 for fit in shown)


@pytest.mark.parametrize("device", ["MI300X", "A100-SXM-80GB", "H100-PCIe", "RTX-4090"])
def test_what_a_host_hides_is_not_lent_to_kernels_taken_alone(device: str) -> None:
    part = accelerator(device)
    for rung in (Rung.BORROWED, Rung.COMMON):
        lent = device_only_fits(asked("fp8_block"), part, rung)
        assert all(fit.values["issue_s_"] < 4e-5 for fit in lent)
    assert lent


def test_what_a_host_does_not_hide_is_the_engine_s_own() -> None:
    part = accelerator("H100-SXM")
    for question in (asked("bf16"), asked("fp8_block", "trtllm"), asked("bf16", family="experts")):
        assert device_only_fits(question, part, Rung.FITTED) == find_fits(question, part, Rung.FITTED)


def test_a_served_product_in_blocks_of_fp8_is_no_slower_than_in_16_bits() -> None:
    """4,096 x 4,096 weights on a GB200: 98 us where the host's pace was taken for the kernel's."""
    part = machine(cluster("1xGB200"))
    piece, rows = Product(name="up", n=4096, k=4096), np.array([16.0])
    narrow, wide = (
        float(ServedPrices(part, Formats(feed=form), engine="vLLM").product(piece, rows).mid[0])
        for form in ("fp8_block", "bf16")
    )
    assert narrow < 1.5 * wide < 3e-5


@pytest.mark.parametrize("engine", ["vLLM", "SGLang", "TensorRT-LLM"])
@pytest.mark.parametrize(
    "device",
    ["A100-SXM-80GB", "H100-SXM", "H200-SXM", "H20", "B200-SXM", "GB200", "B300-SXM", "L40S", "RTX-4090", "MI300X"],
)
def test_few_rows_never_take_much_longer_by_weights_of_fewer_bits(device: str, engine: str) -> None:
    """Of 14,336 x 4,096 weights a step waits for half the bytes or fewer; starts and casts may cost half as much."""
    piece, rows, part = Product(name="up", n=14336, k=4096), np.array([4.0]), machine(cluster(f"1x{device}"))

    def seconds(form: str) -> float:
        return float(ServedPrices(part, Formats(feed=form), engine=engine).product(piece, rows).mid[0])

    assert all(seconds(form) < 1.5 * seconds("bf16") for form in ("fp8", "fp8_block", "int4_wo"))


@pytest.mark.parametrize("device", ["H100-SXM", "H200-SXM", "H20", "L40S", "RTX-PRO-6000", "RTX-5090"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_prompts_of_latent_attention_are_not_those_of_kernels_that_absorb(device: str, engine: str) -> None:
    """Engines widen a prompt's latent to keys of 192 and values of 128; one that timed 576 and 512 is left aside."""
    part = accelerator(device)
    rung = next(
        one for one in (Rung.FITTED, Rung.BORROWED) if find_fits(asked("bf16", engine, "mla_prefill"), part, one)
    )
    timed, run = (find(asked("bf16", engine, "mla_prefill"), part, rung) for find in (find_fits, device_only_fits))
    assert {fit.engine for fit in timed} == {"sglang"}
    assert {fit.engine for fit in run} == {"trtllm"}


def test_a_prompt_of_latent_attention_by_hand() -> None:
    """8,192 tokens of 128 heads: 2 x 128 x (192 + 128) x 8192^2 / 2 = 2.75 TFLOP, 4.8 ms in TensorRT-LLM's table of an
    H200 and 15.9 ms in SGLang's, which does (576 + 512) / (192 + 128) = 3.4 times as much."""
    where = machine(cluster("1xH200-SXM"))
    asked_of = questions.mla_prefill(1.0, np.array(8192.0), 128.0)
    seconds = [
        float(ServedPrices(where, Formats(), engine=one).ask(asked_of).mid)
        for one in ("vLLM", "SGLang", "TensorRT-LLM")
    ]
    assert seconds == pytest.approx([4.816e-3] * 3, rel=0.15)
    assert 15.875e-3 / seconds[1] == pytest.approx(3.4, rel=0.15)


@pytest.mark.parametrize(("engine", "microseconds"), [("vLLM", 118.6), ("SGLang", 1041.8), ("TensorRT-LLM", 118.6)])
def test_only_sglang_widens_its_pool_of_8_bit_latents_before_a_step(engine: str, microseconds: float) -> None:
    """64 sequences of 8,192 tokens, 16 heads, on an H200: 302 MB of cache are read in 63 us at 4.8 TB/s."""
    prices = ServedPrices(machine(cluster("1xH200-SXM")), Formats(cache="fp8"), engine=engine)
    asked_of = questions.mla_decode(np.array(64.0), np.array(8192.0), 16.0, cache_dtype="fp8")
    assert float(prices.ask(asked_of).mid) == pytest.approx(1e-6 * microseconds, rel=0.1)


def test_kernels_that_widen_prompts_stay_an_engines_own() -> None:
    for family, device in (("mla_prefill", "B200-SXM"), ("mla_decode", "H100-SXM")):
        found = device_only_fits(asked("bf16", "sglang", family), accelerator(device), Rung.FITTED)
        assert {fit.engine for fit in found} == {"sglang"}
