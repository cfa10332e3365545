"""Attention in fp32 runs at the rate and with the bytes of fp32, though only 16-bit kernels were measured."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost.answer import Rung
from ridgeline.cost.ladder import price
from ridgeline.cost.questions import decode, prefill
from ridgeline.facts.accelerators import accelerator

PROMPT = (4, 2048, 32, 8, 128)
STEP = (64, 4096, 32, 8, 128)


@pytest.mark.parametrize("name", ["H100-SXM", "A100-SXM-80GB", "RTX-3090", "L40S", "T4"])
def test_a_prompt_in_fp32_is_no_faster_than_fp32_products(name: str) -> None:
    part = accelerator(name)
    wide, narrow = (prefill(*PROMPT, dtype=dtype) for dtype in ("fp32", "bf16"))
    assert wide.flop == narrow.flop
    answer = price(wide.question, part)
    rate = float(np.asarray(wide.flop) / answer.seconds)
    assert rate < part.peak_flop_per_s["fp32"]
    assert answer.rung in (Rung.BORROWED, Rung.COMMON)  # nobody measured it


@pytest.mark.parametrize("name", ["H100-SXM", "A100-SXM-80GB"])
def test_a_decode_step_in_fp32_moves_twice_the_bytes(name: str) -> None:
    part = accelerator(name)
    wide, narrow = (decode(*STEP, dtype=dtype) for dtype in ("fp32", "bf16"))
    # 64 sequences: 4096 keys and values of 8 heads of 128, queries and results of 32 heads
    assert float(np.asarray(narrow.bytes)) == 64 * 128 * (2 * 8 * 4096 + 2 * 32) * 2
    assert float(np.asarray(wide.bytes)) == 2 * float(np.asarray(narrow.bytes))
    slower = float(price(wide.question, part).seconds) / float(price(narrow.question, part).seconds)
    assert 1.5 < slower < 4
    assert float(np.asarray(wide.bytes) / price(wide.question, part).seconds) < part.memory_bytes_per_s


def test_a_narrow_cache_decides_the_format_as_before() -> None:
    assert decode(*STEP, dtype="bf16", cache_dtype="fp8").question.form == "bf16_kv8"
    assert decode(*STEP, dtype="fp16").question.form == "bf16"
    assert decode(*STEP, dtype="fp32", cache_dtype="fp8").question.form == "bf16_kv8"
