"""Limits of an iteration that trtllm-bench works out, by hand and by their properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.facts.accelerators import accelerator
from ridgeline.graph.load import load
from ridgeline.predict.trtllm_bench import trtllm_bench
from ridgeline.scenario.serving_words import deployed

LLAMA = load("llama-3.1-8b")
H100 = accelerator("H100-SXM")


def limits(
    isl: float, osl: float, *, fraction: float = 0.95, narrow_kv: bool = True, **choices: object
) -> tuple[int, int]:
    pool = deployed(**{"weights": "fp8", **choices})  # type: ignore[arg-type]
    return trtllm_bench(LLAMA, H100, pool, isl=isl, osl=osl, fraction=fraction, narrow_kv=narrow_kv)


def test_llama_8b_on_one_h100_by_hand() -> None:
    """79.18 GiB less 8.03 GB leave 76.99 GB; 0.95 of it are 1,116,000 tokens of 65,536 bytes: 51 of 22,000."""
    tokens = 0.95 * (H100.memory_bytes - 8_030_261_248) / (2 * 32 * 8 * 128)
    assert 1_080_000 < tokens < 1_160_000
    assert limits(20_000, 2_000) == (64, 20_064)  # at least 64, and a prompt beside them
    assert limits(128, 4096) == (384, 2048)  # 264 rounded up to 128s; tokens are at least 2048
    assert limits(2048, 128) == (640, 9216)  # 513 requests; 513 x 17 = 8,721 tokens, up to 1024s
    assert limits(128, 128) == (4096, 8192)  # the most


def test_a_stage_has_its_part_of_the_batch_and_wide_groups_a_head_for_each_rank() -> None:
    assert limits(128, 128, pp=4)[0] == 1024
    whole, divided = (limits(2048, 128, tp=tp)[0] for tp in (8, 16))
    assert divided == whole  # 16 ranks have twice the memory and 16 heads of keys instead of 8
    assert limits(2048, 128, tp=4, dp=2) == limits(2048, 128, tp=8)  # the tool knows one degree


def test_four_bits_are_counted_as_half_of_what_they_take() -> None:
    """All but embedding and head: 6.98e9 weights in 0.5625 bytes each, of which the tool counts 0.28125."""
    ends = 2 * 128_256 * 4096 + 4096
    size = 0.5 * ends + 0.28125 * (8_030_261_248 - ends)
    left = 0.95 * (H100.memory_bytes - size) / 65_536 / 2176
    assert 545 < left < 560
    assert limits(128, 2048, weights="nvfp4")[0] == 640
    assert limits(128, 2048, weights="bf16")[0] == 512  # 16 GB


def test_pairs_of_mxfp4_are_counted_as_numbers_of_two_bytes() -> None:
    """gpt-oss-120b: 114.7e9 weights of experts in 0.53125 numbers each, 2.1e9 others, 126 GB at 2 bytes a number.

    36 layers, 8 heads of 64 and 16-bit keys and values are 73,728 bytes a token.
    """
    experts = 36 * 128 * 3 * 2880 * 2880
    model, part = load("gpt-oss-120b"), accelerator("H200-SXM")
    size = 2.0 * (0.53125 * experts + model.graph.params - experts)
    assert 125e9 < size < 127e9
    requests = 0.95 * (part.memory_bytes - size) / 73_728 / 2048
    assert 128 < requests < 160  # of which 32s are made
    pool = deployed(weights="w4a16_mxfp4")
    assert trtllm_bench(model, part, pool, isl=1024, osl=1024, fraction=0.95, narrow_kv=False) == (160, 2048)


@given(st.floats(0.3, 0.95), st.integers(64, 8192), st.integers(64, 8192))
def test_more_memory_never_means_less(fraction: float, isl: int, osl: int) -> None:
    some, more = limits(isl, osl, fraction=fraction), limits(isl, osl, fraction=fraction + 0.05)
    assert some[0] <= more[0] <= 4096
    assert max(2048, isl + some[0]) <= some[1] <= max(32768, isl + some[0])


def test_no_room_for_one_request_is_refused() -> None:
    with pytest.raises(InputError, match="finds no room for one request of 2e\\+06 tokens"):
        limits(1e6, 1e6)
