"""FlexGen's policy with the package's own rates: what it is made of, its rivals, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ridgeline.cli.main import run
from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.predict.offloaded import Offload, hybrid_of
from ridgeline.report.offloaded import PolicyReport
from ridgeline.scenario.serving_words import deployed
from ridgeline.search.offload_placement import best_policy
from ridgeline.serving.hybrid_placement import OffloadMethod
from ridgeline.serving.hybrid_sides import link_bytes_per_s
from ridgeline.serving.streamed_machine import job_of, machine_of
from ridgeline.serving.streamed_policy import StreamedPolicy
from ridgeline.serving.streamed_schedule import scheduled

T4 = cluster("1xT4")
LENGTHS = {"prompt_tokens": 512, "output_tokens": 32}


def asked(**words: Any) -> Offload:
    return Offload(technique=OffloadMethod.STREAMED, **({"processors": "Skylake", "dram_bytes": 208e9} | words))


def found(model: str = "opt-30b", **words: Any) -> PolicyReport:
    return best_policy(load(model), T4, deployed(weights="fp16"), asked(**words), **LENGTHS)


def test_the_policy_fits_and_no_random_one_is_faster() -> None:
    report = found()
    assert 0.0 <= report.gap < 0.25
    assert report.low < report.tokens_per_s < report.high
    most = report.tokens_per_s / (1.0 - report.gap)
    assert all(peak <= most * 1.000001 for peak, most in zip(report.peak_bytes, report.usable_bytes, strict=True))
    for shares in report.shares.values():
        assert sum(shares) == pytest.approx(1.0)
    hybrid, _ = hybrid_of(load("opt-30b"), T4, deployed(weights="fp16"), asked(), "FlexGen")
    job, rng = job_of(load("opt-30b"), 512, 32), np.random.default_rng(0)
    limits = machine_of(hybrid, job, asked().dram_bytes)
    tried = 0
    for _ in range(400):
        shares = rng.dirichlet((0.3, 1.0, 0.05), size=3) * np.array([1.0, 1.0, 0.0])
        shares /= shares.sum(axis=1, keepdims=True)
        sizes = int(rng.integers(1, 80)), int(rng.integers(1, 8))
        policy = StreamedPolicy(gpu_batch=sizes[0], gpu_batches=sizes[1], shares=shares)
        if policy.fits(job, limits):
            tried += 1
            took = scheduled(job, limits, policy)
            assert policy.block * 32 / (took.prefill_s + took.decode_s) <= most * 1.000001
    assert tried > 20


def test_rates_are_those_that_everything_is_priced_with() -> None:
    hybrid, _ = hybrid_of(load("opt-30b"), T4, deployed(weights="fp16"), asked(), "FlexGen")
    limits = machine_of(hybrid, job_of(load("opt-30b"), 512, 32), 208e9)
    assert limits.cpu_to_gpu_bytes_per_s == link_bytes_per_s(hybrid)
    assert 0.2 * 65e12 < limits.matmul_prefill_flop_per_s <= 65e12  # of the datasheet's peak
    assert limits.matmul_prefill_flop_per_s == 24e12  # what its 70 W leave, which was measured
    assert limits.cpu_to_gpu_bytes_per_s > 3 * limits.gpu_to_cpu_cache_bytes_per_s
    assert limits.gpu_bytes < T4.accelerator.memory_bytes
    assert (limits.disk_bytes, limits.cpu_bytes) == (0.0, 208e9)


def test_more_memory_and_processors_are_no_slower() -> None:
    assert found(dram_bytes=400e9).tokens_per_s >= found().tokens_per_s > found(dram_bytes=80e9).tokens_per_s
    assert found().tokens_per_s > found(processors="").tokens_per_s
    assert not found(processors="").cpu_attention


@pytest.mark.parametrize(
    ("model", "words", "error", "told"),
    [
        ("llama-3.1-8b", {}, PlanError, "llama-3.1-8b has gated feed-forwards: ask predict --serve"),
        ("falcon-40b", {}, PlanError, "falcon-40b shares keys among its heads"),
        ("opt-175b", {"dram_bytes": 100e9}, NoPlanError, "nearest change: raise"),
    ],
)
def test_what_cannot_be_placed_is_refused(model: str, words: dict[str, Any], error: Any, told: str) -> None:
    with pytest.raises(error, match=told):
        found(model, **words)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "plan",
        "opt-30b",
        "--serve",
        "--on",
        "1xT4",
        "--offload",
        "streamed",
        "--dram",
        "208GB",
        "--prompt",
        "512",
    ]
    assert run([*words, "--output", "32", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["tokens_per_s"] == pytest.approx(found(processors="").tokens_per_s, rel=0.02)  # another format
    assert set(answer["shares"]) == {"weights", "cache", "activations"}
    assert run(words) == 0
    told = capsys.readouterr().out
    for name in ("throughput", "block", "attention", "busy", "search", "rates", "cost"):
        assert f"\n  {name} " in told
    for more, said in (
        (["--offload", "fetched"], "a search places streamed weights alone"),
        (["--split"], "field '--split': is not modelled with offload"),
    ):
        assert run([*words, *more]) == 2
        assert said in capsys.readouterr().err
