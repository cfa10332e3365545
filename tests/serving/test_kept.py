"""Cut caches by hand: what stays, what a step reads and fetches, who fits, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Role
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.serving import KVEviction, of
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.metrics import decode_parts
from ridgeline.serving.replay import Replay
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import traffic

Replays = Callable[..., Replay]
LLAMA, ONE = load("llama-3.1-8b"), machine(cluster("1xA100-SXM-80GB"))


def tabled(**words: Any) -> tuple[Engine, StepTables]:
    made = engine(LLAMA, ONE, deployed(**words))
    return made, made.tables(longest_prompt=4096, longest=8192)


# the clock -------------------------------------------------------------------------------------------


def test_steps_read_what_is_kept_and_what_is_new(replayed: Replays) -> None:
    """A prompt of 10 and 3 tokens, 1 s a token of context: 11 + 12 s, and with 4 kept 5 + 6 s; 12 kept are all."""
    asked = traffic(np.zeros(1), np.array([10]), np.array([3]))
    for kept, end_s in ((0, 23.0), (4, 11.0), (12, 23.0)):
        assert replayed(asked, context_s=1.0, kept=kept).end_s.tolist() == pytest.approx([end_s])


def test_blocks_go_back_when_the_prompt_is_done(replayed: Replays) -> None:
    """Of 6 blocks a prompt of 64 takes 4; with 16 tokens kept the next one starts an iteration later, not after it."""
    asked = traffic(np.zeros(2), np.full(2, 64), np.full(2, 5))
    whole = replayed(asked, lane_s=1.0, capacity=6)
    assert (whole.first_s.tolist(), whole.end_s.tolist()) == ([1.0, 6.0], [5.0, 10.0])
    cut = replayed(asked, lane_s=1.0, capacity=6, kept=16)
    assert (cut.first_s.tolist(), cut.end_s.tolist()) == ([1.0, 2.0], [5.0, 6.0])
    short = replayed(asked, lane_s=1.0, capacity=5, kept=16)  # 1 + 1 to grow + 4 do not fit
    assert short.first_s.tolist() == [1.0, 6.0]


def test_early_cuts_take_and_see_less(replayed: Replays) -> None:
    """64 tokens in chunks of 16 with 16 kept take 2 blocks, not 4, one chunk an iteration."""
    asked = traffic(np.zeros(2), np.full(2, 64), np.full(2, 1))
    numbers = {"lane_s": 1.0, "token_budget": 16, "kept": 16}
    assert replayed(asked, capacity=3, early=1, **numbers).end_s.tolist() == [4.0, 8.0]
    assert replayed(asked, capacity=3, **numbers).refused.all()
    whole = replayed(asked, capacity=99, past_s=1.0, **numbers)  # chunks see 0, 16, 32 and 48 tokens
    assert whole.first_s.tolist() == [4.0 + 96.0, 2 * (4.0 + 96.0)]
    early = replayed(asked, capacity=99, past_s=1.0, early=1, **numbers)  # 0, 16, 16 and 16
    assert early.first_s.tolist() == [4.0 + 48.0, 2 * (4.0 + 48.0)]


def test_what_was_set_aside_goes_back_as_well(replayed: Replays) -> None:
    """Answers set aside whole: (64 + 5) of 16 are 5 blocks, then (16 + 4) of 16 are 2; 7 hold both, 6 do not."""
    asked = traffic(np.zeros(2), np.full(2, 64), np.full(2, 5))
    for capacity, first_s in ((7, [1.0, 2.0]), (6, [1.0, 6.0])):
        found = replayed(asked, lane_s=1.0, capacity=capacity, kept=16, reserve=1.0)
        assert found.first_s.tolist() == first_s


def test_a_step_is_no_shorter_than_what_it_fetches(replayed: Replays) -> None:
    """8 tokens a sequence of 0.25 s each: 2 s a step beside 1 s of the device; of 12 tokens nothing is fetched."""
    numbers = {"kept": 4, "fetched": 8, "fetch_s": 0.25, "lane_s": 1.0}
    for prompt, count, step_s in ((100, 1, 2.0), (100, 2, 4.0), (12, 1, 1.0), (13, 1, 2.0)):
        asked = traffic(np.zeros(count), np.full(count, prompt), np.full(count, 4))
        assert replayed(asked, **numbers).end_s.tolist() == pytest.approx([1.0 + 3 * step_s] * count)


def test_a_prompt_goes_to_the_host_beside_its_iteration(replayed: Replays) -> None:
    asked = traffic(np.zeros(1), np.array([100]), np.array([1]))
    for store_s, first_s in ((0.005, 1.0), (0.05, 5.0)):
        assert replayed(asked, kept=4, fetched=8, store_s=store_s, lane_s=1.0).first_s.tolist() == [first_s]


def test_landmarks_are_read_and_held(replayed: Replays) -> None:
    """Of 100 tokens 12 and a tenth for landmarks are read, 22: steps of 23 and 24 s."""
    asked = traffic(np.zeros(1), np.array([100]), np.array([3]))
    found = replayed(asked, context_s=1.0, kept=4, fetched=8, read_share=0.1, held_share=0.2)
    assert found.end_s.tolist() == pytest.approx([47.0])
    assert found.mean_context == pytest.approx(23.5)  # of the run


def test_host_memory_is_finite(replayed: Replays) -> None:
    """190 tokens hold one prompt of 100 at a time, or two of 90; one with more than that is refused."""
    numbers = {"kept": 4, "fetched": 8, "host_tokens": 190, "lane_s": 1.0}
    for prompt, first_s in ((100, [1.0, 5.0]), (90, [1.0, 1.0])):
        assert replayed(traffic(np.zeros(2), np.full(2, prompt), np.full(2, 4)), **numbers).first_s.tolist() == first_s
    assert replayed(traffic(np.zeros(1), np.array([188]), np.array([3])), **numbers).refused.tolist() == [True]


# the numbers of an engine ----------------------------------------------------------------------------


def test_words_are_techniques() -> None:
    assert deployed(kv_kept=64, kv_early=True).technique == ("kv-budget(tokens=64,early=True)",)
    assert deployed(kv_kept=64, kv_fetched=8).technique == ("kv-retrieval(tokens=8,kept=64)",)


def kept(made: Engine) -> Mapping[str, float]:
    return of(made.deployment, KVEviction).numbers(made, 0)


def test_numbers_of_llama_by_hand() -> None:
    """Keys and values are 65,536 byte a token each; landmarks of 8 are 8,192 and keys of rank 160 are 10,240."""
    host = ONE.cluster.host
    found = kept(engine(LLAMA, ONE, deployed(kv_fetched=2048, kv_rank=160, kv_kept=384, kv_reused=0.6)))
    assert found["held_share"] == pytest.approx((8192 + 10240) / 131072)
    assert found["read_share"] == pytest.approx(1 / 16)
    assert found["fetch_s"] == pytest.approx(65536 * 0.4 / host.device_bytes_per_s)
    assert found["store_s"] == pytest.approx(65536 / host.device_bytes_per_s)
    assert found["host_tokens"] == int(host.dram_bytes / 65536)
    keys_too = kept(engine(LLAMA, ONE, deployed(kv_fetched=2048, kv_chunk=32)))
    assert keys_too["held_share"] == pytest.approx(1 / 64)
    assert keys_too["fetch_s"] == pytest.approx(131072 / host.device_bytes_per_s)
    assert kept(engine(LLAMA, ONE, deployed(kv_kept=1024))) == {"kept": 1024, "early": False}
    assert kept(engine(LLAMA, ONE, deployed())) == {}


def test_ranks_share_the_memory_of_their_host() -> None:
    """Four ranks hold a quarter of the values each; no device gets more than its share of the host's memory rate."""
    where = machine(cluster("8xH100-SXM"))
    host, words = where.cluster.host, {"kv_fetched": 2048, "kv_rank": 160}
    one, four = (kept(engine(LLAMA, where, deployed(tp=tp, **words))) for tp in (1, 4))
    rates = [min(host.device_bytes_per_s, host.dram_bytes_per_s / devices) for devices in (1, 4)]
    assert one["fetch_s"] == pytest.approx(65536 / rates[0])
    assert four["fetch_s"] == pytest.approx(65536 / 4 / rates[1])
    assert four["host_tokens"] == pytest.approx(one["host_tokens"], abs=1)


def test_making_keys_takes_no_less_than_their_multiplications() -> None:
    """2 f r d of 8 heads in 32 layers for each of 16 sequences, and 0.4 of that where 0.6 are there already."""
    flop = 16 * 32 * 8 * 2.0 * 2048 * 160 * 128
    plain = tabled(kv_fetched=2048)[1].decode.mid
    took = {}
    for reused in (0.0, 0.6):
        _, tables = tabled(kv_fetched=2048, kv_rank=160, kv_reused=reused)
        place = int(np.searchsorted(tables.sequences, 16.0))
        assert tables.sequences[place] == 16.0
        took[reused] = float((tables.decode.mid - plain)[place, 0])
        assert took[reused] > (1.0 - reused) * flop / ONE.device.matrix_rate("bf16")
    assert took[0.6] < 0.6 * took[0.0]


def test_the_report_says_when_the_link_is_waited_for() -> None:
    made, tables = tabled(kv_fetched=2048, kv_rank=160)
    parts = decode_parts(made, tables, 24.0, 4096.0)
    device_s = sum(parts[name] for name in ("weights and links", "experts", "sampling", "attention"))
    assert device_s + parts["host link"] == pytest.approx(24 * 2048 * kept(made)["fetch_s"])
    assert "host link" not in decode_parts(made, tables, 24.0, 2048.0)
    assert "host link" not in decode_parts(*tabled(kv_kept=64), 24.0, 4096.0)


def test_whole_caches_are_as_before() -> None:
    one, two = tabled(), tabled(kv_kept=512)
    assert np.array_equal(one[1].decode.mid, two[1].decode.mid)
    rules = [made.rule(tables) for made, tables in (one, two)]
    differ = {name for name in rules[0].dtype.names or () if rules[0][name] != rules[1][name]}
    assert differ == {"kept"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"kv_kept": 0}, "kv_kept = 0 tokens, needs 1 to"),
        ({"kv_fetched": 8, "kv_reused": 1.0}, "kv_reused = 1.0, needs 0 to 0.999"),
        ({"kv_early": True}, "say kv_kept as well"),
        ({"kv_early": True, "kv_kept": 8, "kv_fetched": 8}, "kv_early is about kv_kept"),
        ({"kv_rank": 8}, "say kv_fetched as well"),
        ({"kv_kept": 8, "role": Role.PREFILL}, "a pool"),
        ({"kv_kept": 8, "preemption": "swap"}, "preemption swap"),
        ({"kv_fetched": 8, "nano_tokens": 64}, "nano_tokens"),
        ({"kv_kept": 8, "prefix_cache": True}, "prefix_cache"),
        ({"kv_fetched": 8, "pp": 2}, "pp 2"),
        ({"kv_fetched": 8, "draft_tokens": 2}, "draft_tokens"),
    ],
)
def test_what_cannot_be_is_refused(words: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        deployed(**words)


def test_early_cuts_need_chunks() -> None:
    with pytest.raises(PlanError, match="does not cut prompts in chunks"):
        engine(LLAMA, ONE, deployed(kv_kept=64, kv_early=True, chunked=False))


def test_other_attention_and_ranks_that_save_nothing_are_refused() -> None:
    with pytest.raises(PlanError, match="not for windows, latent vectors"):
        engine(load("deepseek-v2-lite"), ONE, deployed(kv_kept=64))
    with pytest.raises(PlanError, match="take a lower rank"):
        engine(LLAMA, ONE, deployed(kv_fetched=64, kv_rank=1024))
