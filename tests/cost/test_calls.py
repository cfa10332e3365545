"""What the calls of a processor's programs are sums over."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost.own_host import ARRAYS, features

PROMPT = {"batch": 1.0, "tokens": 256.0, "kv_heads": 3.0, "group": 4.0, "head_dim": 64.0, "threads": 2.0}


def test_causal_attention_visits_all_keys_of_short_prompts_and_half_of_long_ones() -> None:
    short, long = (features("attention.forward", {**PROMPT, "tokens": tokens})["pair_s_"] for tokens in (512.0, 2**15))
    assert short == pytest.approx(12 * 512.0**2)
    assert long == pytest.approx(12 * 2.0**30 / 2, rel=0.02)


@pytest.mark.parametrize(("kv_heads", "threads", "times"), [(1, 2, 2.0), (3, 2, 4 / 3), (4, 2, 1.0), (1, 1, 1.0)])
def test_backward_of_grouped_heads_waits_for_the_thread_with_most(kv_heads: int, threads: int, times: float) -> None:
    found = features("attention.backward", {**PROMPT, "kv_heads": float(kv_heads), "threads": float(threads)})
    assert np.asarray(found["busiest_s_"]) == pytest.approx(times * np.asarray(found["multiply_s_"]))


def test_elements_beyond_the_cache_count_apart() -> None:
    cache = 3.2e7
    room = cache / 4 / ARRAYS
    found = features("gated.forward", {"elements": np.array([room / 2, 3 * room]), "cache_bytes": cache})
    assert np.asarray(found["beyond_s_"]) == pytest.approx([0.0, 2 * room])
