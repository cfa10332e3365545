"""One static batch whose weights devices do not hold: bounds by hand, agreement with `check`, words and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.cost.formats import form
from ridgeline.cost.host import experts_touched
from ridgeline.errors import InputError, NoPlanError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.cpus import cpu
from ridgeline.graph.load import load
from ridgeline.predict.offloaded import Offload, offloaded
from ridgeline.report.offloaded import OffloadReport, offload_as_dict
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.hybrid_placement import OffloadMethod

MIXTRAL = ["predict", "mixtral-8x7b", "--serve", "--on", "1xRTX-4090"]
EXPERT = 3 * 4096 * 14336  # weights of one expert of Mixtral
KEYS = {
    "model", "cluster", "technique", "engine", "processors", "unit", "share", "device_bytes", "host_bytes", "batch",
    "prompt_tokens", "output_tokens", "ttft_s", "tpot_s", "latency_s", "output_tokens_per_s", "usd_per_h",
    "usd_per_million_output_tokens", "rungs", "evidence", "assumed", "placement", "peak_bytes",
}  # fmt: skip


def made(technique: OffloadMethod, model: str = "mixtral-8x7b", on: str = "1xRTX-4090", **words: Any) -> OffloadReport:
    """A batch whose host has 512 GB, and processors where the technique needs some."""
    of_offload = {name: words.pop(name) for name in list(words) if name in Offload.__dataclass_fields__}
    without = technique in (OffloadMethod.FETCHED, OffloadMethod.STREAMED)
    asked = {"processors": "" if without else "EPYC 9654", "dram_bytes": 512e9} | of_offload
    deployment = deployed(weights=words.pop("weights", "bf16"))
    return offloaded(load(model), cluster(on), deployment, Offload(technique=technique, **asked), **words)


def test_fetched_experts_cross_the_link() -> None:
    """A step of 4 sequences of Mixtral touches 8 (1 - 0.75^4) experts of each of 32 layers; none is on the device."""
    report = made(OffloadMethod.FETCHED, share=0.0, batch=4, prompt_tokens=512, output_tokens=64)
    size = 32 * float(experts_touched(8, 2, 4)) * EXPERT * 2
    link = cluster("1xRTX-4090").host.device_bytes_per_s
    assert size / link <= report.step.parts["link"] <= 1.3 * size / link
    assert report.step.total >= report.step.parts["link"]
    assert report.host_bytes == 32 * 8 * EXPERT * 2


def test_what_processors_compute_takes_the_reading_of_their_memory() -> None:
    report = made(OffloadMethod.COMPUTED, share=0.0, batch=1)
    size = 32 * 2 * EXPERT * 2
    assert report.step.parts["host"] >= size / cpu("EPYC 9654").memory.value
    halves = made(OffloadMethod.COMPUTED, share=0.0, batch=1, processors="2x EPYC 9654", engine="kt-kernel")
    whole = made(OffloadMethod.COMPUTED, share=0.0, batch=1, engine="kt-kernel")
    assert halves.step.parts["host"] < 0.6 * whole.step.parts["host"]  # each socket reads its own part


def test_a_host_alone_reads_all_weights_and_has_no_price() -> None:
    report = made(OffloadMethod.HOST, model="llama-3.1-8b", weights="q8_0")
    size = load("llama-3.1-8b").graph.params * form("q8_0").weight_bytes
    assert report.host_bytes == pytest.approx(size, rel=0.01)
    assert report.step.total > 0.9 * size / cpu("EPYC 9654").memory.value
    assert (report.device_bytes, report.usd_per_h, report.rungs) == (0.0, None, {})


def test_what_fits_lies_on_devices_and_more_of_it_is_faster() -> None:
    report = made(OffloadMethod.STREAMED)
    assert 0.2 < report.share < 0.3  # of 87 GiB in 22.5
    assert report.device_bytes < cluster("1xRTX-4090").accelerator.memory_bytes
    assert made(OffloadMethod.STREAMED, share=0.1).step.total > report.step.total
    assert made(OffloadMethod.STREAMED, on="4xRTX-4090").share == pytest.approx(report.share, rel=0.05)  # of one device


def test_latency_is_prompts_and_every_further_token() -> None:
    report = made(OffloadMethod.COMPUTED, batch=3, prompt_tokens=100, output_tokens=11)
    assert report.latency.total == pytest.approx(report.first.total + 10 * report.step.total)
    assert report.output_tokens_per_s == pytest.approx(33 / report.latency.total)
    for spent in (report.first, report.step, report.latency):
        assert spent.low < spent.total < spent.high


def test_flexgen_on_a_t4_is_no_faster_than_its_link() -> None:
    """FlexGen measured 7.32 tokens/s of OPT-30B in blocks of 144 sequences: less than its link alone would allow."""
    report = made(
        OffloadMethod.STREAMED,
        model="opt-30b",
        on="1xT4",
        batch=144,
        prompt_tokens=512,
        output_tokens=32,
        dram_bytes=208e9,
    )
    assert 7.32 < report.output_tokens_per_s < 2 * 7.32
    assert report.step.parts["link"] > 0.9 * report.step.total


@pytest.mark.parametrize(
    ("technique", "words", "error", "told"),
    [
        (OffloadMethod.COMPUTED, {"processors": ""}, InputError, "field '--cpu': experts computed on the host, by"),
        (OffloadMethod.COMPUTED, {"processors": "EPIC 9654"}, InputError, "unknown processor 'EPIC 9654'; nearest: EP"),
        (OffloadMethod.COMPUTED, {"model": "llama-3.1-8b"}, PlanError, "llama-3.1-8b has no experts; take layers"),
        (OffloadMethod.NEURONS, {}, PlanError, "mixtral-8x7b has experts, which move whole; take computed or fetched"),
        (OffloadMethod.FETCHED, {"dram_bytes": 32e9}, NoPlanError, "do not fit in 29.8 GiB of host memory; take"),
        (OffloadMethod.FETCHED, {"engine": "nobody"}, InputError, "field '--engine': 'nobody' is not known to keep"),
    ],
)  # fmt: skip
def test_refusals_say_what_would_do(technique: OffloadMethod, words: dict[str, Any], error: Any, told: str) -> None:
    with pytest.raises(error, match=told.replace("(", r"\(")):
        made(technique, **words)


def test_the_command_prints_and_its_json_has_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*MIXTRAL, "--offload", "computed", "--cpu", "EPYC 9654", "--dram", "512GB", "--batch", "2"]
    assert run(words) == 0
    told = capsys.readouterr().out
    for name in ("engine", "processors", "weights", "TTFT", "TPOT", "latency", "throughput", "limited by", "evidence"):
        assert f"\n  {name} " in told
    assert run([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == KEYS
    assert answer["batch"] == 2
    same = made(OffloadMethod.COMPUTED, batch=2, assumed=answer["assumed"][:2])
    assert answer == json.loads(json.dumps(offload_as_dict(same)))
    assert "<table" in same._repr_html_()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--cpu", "EPYC 9654"], "field '--cpu': is about offload, which is not said"),
        (["--offload", "computed", "--cpu", "EPYC 9654", "--split"], "field '--split': is not modelled with offload"),
        (["--offload", "fetchd"], "nearest: fetched"),
        (["--offload", "fetched", "--device-share", "1.5"], "needs 0 <= value <= 1"),
        (["--offload", "fetched", "--dram", "-1GB"], "field '--dram': '-1GB' is out of range"),
    ],
)
def test_words_that_mean_nothing_are_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*MIXTRAL, *words]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_layers_that_are_all_on_the_device_wait_for_no_processors(batch: int) -> None:
    """Nothing crosses, whatever it is that would: as long as streaming nothing, and sooner than a tenth elsewhere."""
    words: dict[str, Any] = {"model": "llama-3.1-8b", "on": "1xA100", "share": 1.0, "batch": batch}
    report = made(OffloadMethod.LAYERS, engine="llama.cpp", **words)
    split = made(OffloadMethod.LAYERS, engine="llama.cpp", **(words | {"share": 0.9}))
    streamed = made(OffloadMethod.STREAMED, engine="llama.cpp", **words)
    for name in ("first", "step"):
        spent, less, none = (getattr(one, name) for one in (report, split, streamed))
        assert spent.parts["host"] == spent.parts["link"] == 0.0
        assert spent.total == pytest.approx(none.total, rel=1e-9)
        assert spent.total < less.total
