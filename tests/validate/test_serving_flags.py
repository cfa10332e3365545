"""Flags, counts of requests and varying lengths that notes of serving rows quote."""

from __future__ import annotations

import pytest

from ridgeline.serving.traffic.lengths import LengthQuantiles
from ridgeline.validate.rows import Row
from ridgeline.validate.serving_flags import conversation, options_of, requests_of
from ridgeline.validate.serving_rows import read_served
from ridgeline.validate.serving_traffic import traffic_of

CELLS = {
    "model": "llama-3.1-8b", "hardware": "H100-SXM", "n_devices": "1", "tp": "1", "engine": "vLLM",
    "engine_version": "0.11.0", "scenario": "burst-all-at-once", "batch_or_concurrency": "40", "isl": "219.4",
    "osl": "180.6", "metric": "output_tok_s", "unit": "tok/s", "value": "1000",
}  # fmt: skip


def job(**changes: str):  # type: ignore[no-untyped-def]
    return read_served(Row(line=2, id="u", cells=CELLS | changes))


@pytest.mark.parametrize(
    ("note", "name", "value"),
    [
        ("command: vllm serve m --max-num-seqs=12 -tp 2", "max_seqs", 12),
        ("server batch size 4; precision not stated", "max_seqs", 4),
        ("--max_running_requests 64", "max_seqs", 64),
        ("max-num-batched-tokens 8192", "token_budget", 8192),
        ("--chunked-prefill-size 4096", "token_budget", 4096),
        ("--chunked-prefill-size -1", "token_budget", None),
        ("gpu-memory-utilization 0.5", "memory_fraction", 0.5),
        ("--mem-fraction-static=.85", "memory_fraction", 0.85),
        ("--enforce-eager", "graphs", False),
        ("--enable-prefix-caching", "prefix_cache", True),
        ("--no-enable-prefix-caching", "prefix_cache", False),
        ("batch 4", "max_seqs", None),
    ],
)
def test_flags_of_notes(note: str, name: str, value: object) -> None:
    assert getattr(options_of(note), name) == value


@pytest.mark.parametrize(
    ("note", "count"),
    [("1,000 requests; c", 1000), ("500 prompts at once", 500), ("4 requests/s", None), ("2 requests per user", None)],
)
def test_requests_of_notes(note: str, count: int | None) -> None:
    assert requests_of(note) == count


def test_a_burst_has_the_requests_that_its_row_states() -> None:
    assert job().requests == 40
    assert job(note="1000 requests").requests == 1000
    assert job(scenario="offline").requests is None
    closed = job(scenario="fixed-concurrency", note="200 requests")
    assert closed.rounds == 5.0


def test_means_that_are_fractions_are_of_lengths_that_vary() -> None:
    assert conversation(219.4, 180.6, "") is not None
    assert conversation(219.4, 180.0, "") is None
    assert conversation(219.4, 180.6, "case: random 4K input") is None
    laws = conversation(219.0, 180.0, "ShareGPT")
    assert laws is not None
    law = LengthQuantiles(levels=laws["output"].levels, tokens=laws["output"].at_mean(180.0))
    drawn = law.draw(__import__("numpy").random.default_rng(1), 20_000)
    assert drawn.mean() == pytest.approx(180, rel=0.03)
    assert drawn.max() <= 6 * 180


def test_requests_of_unlike_lengths_leave_the_batch_one_by_one() -> None:
    from dataclasses import replace

    one = replace(job(), queued=40)
    traffic = traffic_of(one, ())
    assert traffic.requests == 40
    assert len(set(traffic.output_tokens.tolist())) > 10


def test_cores_that_work_as_one_are_counted_by_the_chips_that_a_row_states() -> None:
    cells = {"hardware": "Trainium2", "n_devices": "16", "engine": "vLLM (optimum-neuron)", "model": "qwen3-235b-a22b"}
    assert job(**cells, tp="64").deployment.tp == 16
    assert job(**{**cells, "n_devices": "2", "model": "qwen3-32b"}, tp="16").deployment.tp == 2


def test_words_of_4_and_8_bits_of_a_program_that_has_them() -> None:
    assert job(precision_weights="UQFF q4").deployment.weights == "q4_k"
    assert job(precision_weights="UQFF q8").deployment.weights == "q8_0"


def test_caches_whose_keys_and_values_differ() -> None:
    assert job(precision_kv="f16").deployment.kv == "bf16"
    assert job(precision_kv="k q8_0, v q8_0").deployment.kv == "q8_0"
    assert job(precision_kv="k q8_0, v fp16").deployment.kv == "bf16"
    assert job(precision_kv="k q8_0, v q4_0").deployment.kv == "q8_0"


def test_an_engine_that_is_not_stated_may_be_any() -> None:
    assert job(engine="").stand_ins
    assert not job().stand_ins
