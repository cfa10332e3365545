"""Techniques of another package: one file each, found by its entry points, without a change of the product.

The package is a folder with its metadata, as an installation leaves it; the commands run with it on their path.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline.seams.loss import CrossEntropy, Logits

PACKAGE = Path(__file__).parent / "strangers"


def ridgeline(*words: str, package: bool = True) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([*([str(PACKAGE)] if package else []), os.environ.get("PYTHONPATH", "")])
    code = "import sys; from ridgeline.cli.main import run; sys.exit(run(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def answer(*words: str) -> dict[str, Any]:
    done = ridgeline(*words, "--json")
    assert done.returncode == 0, done.stderr + done.stdout[-500:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def held(found: dict[str, Any], category: str) -> float:
    """Bytes of a category on the first stage."""
    return float(found["memory"][0]["categories_bytes"][category])


TRAINED = ("predict", "llama-3.1-8b", "--on", "8xH100-SXM", "--seq-len", "4096", "--zero", "1")


def test_galores_states_shrink_the_optimizer_and_take_their_time() -> None:
    usual, shrunk = (answer(*TRAINED, "--optimizer", name) for name in ("adamw", "galore-stranger"))
    wide = answer(*TRAINED, "--optimizer", "galore-stranger(rank=1024)")
    assert held(shrunk, "optimizer") < held(wide, "optimizer") < held(usual, "optimizer")
    assert wide["step_time_s"]["value"] > shrunk["step_time_s"]["value"]


def test_chimera_holds_two_copies_and_leaves_less_idle_than_1f1b() -> None:
    words = ("predict", "llama-3.1-8b", "--on", "8xH100-SXM", "--seq-len", "2048", "--global-batch", "32")
    plain = answer(*words, "--pp", "8", "--micro-batch", "1")
    both = answer(*words, "--pp", "8", "--micro-batch", "1", "--schedule", "chimera-stranger", "--chunks", "2")
    assert sum(one["categories_bytes"]["weights"] for one in both["memory"]) == pytest.approx(
        2 * sum(one["categories_bytes"]["weights"] for one in plain["memory"])
    )
    assert both["step_time_s"]["value"] < plain["step_time_s"]["value"]


LARGE_VOCABULARY = ("gemma-2-2b", "--seq-len", "8192", "--task", "lora")


def test_cut_cross_entropy_holds_no_logits_and_makes_them_again() -> None:
    words = ("predict", *LARGE_VOCABULARY, "--on", "1xA100-80GB-SXM", "--global-batch", "1")
    names = ("whole", "fused", "cut-cross-entropy", "cut-cross-entropy(skipped=0.5)")
    whole, fused, cut, skipping = found = [answer(*words, "--recompute", "full", "--loss", name) for name in names]
    peaks = [sum(one["memory"][0]["categories_bytes"].values()) for one in found]
    assert peaks[2] <= peaks[1] < peaks[0] / 2
    assert skipping["step_time_s"]["value"] == fused["step_time_s"]["value"] == whole["step_time_s"]["value"]
    product = 2 * 8192 * 2304 * 256_000  # FLOP
    assert cut["hardware_flop"] - whole["hardware_flop"] == pytest.approx(product)
    assert product / 312e12 < cut["step_time_s"]["value"] - whole["step_time_s"]["value"] < product / 200e12
    assert sum(one["seconds"] for one in cut["shares"]) == pytest.approx(cut["step_time_s"]["value"])


def test_cut_cross_entropy_holds_what_its_authors_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """1.1 MiB forward, 1,163 backward with both gradients: Gemma 2 2B, 8,192 tokens (README of ml-cross-entropy)."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    loss: CrossEntropy = import_module("strangers.cut_cross_entropy").CutCrossEntropy()
    logits = Logits(
        tokens=np.array(8192.0), vocab=256_000, share=np.array(1.0), hidden=2304, element_bytes=2.0,
        waiting=np.array(0.0), copies=1.0, fp32_copies=4.0, eager=True,
    )  # fmt: skip
    assert loss.held_bytes(logits) == pytest.approx(1.1 * 2**20, rel=0.06)
    assert loss.backward_bytes(logits) + 2 * 2304 * 256_000 == pytest.approx(1163 * 2**20, rel=1e-3)


def test_they_are_in_help_and_refused_where_they_are_not_installed() -> None:
    told = ridgeline("predict", "--help-all").stdout
    assert "galore-stranger" in told
    assert "cut-cross-entropy" in told
    refused = ridgeline(*TRAINED, "--optimizer", "galore-stranger", package=False)
    assert refused.returncode == 2
    assert "'galore-stranger' is not one of them" in refused.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--optimizer", "galore-stranger(rank=0)"), "galore-stranger: rank = 0, needs 1 to 65536"),
        (("--optimizer", "galore-stranger(size=3)"), "galore-stranger: unknown parameter 'size'; it has rank, gap"),
        (("--loss", "cut-cross-entropy(skipped=2)"), "cut-cross-entropy: skipped = 2, needs 0 to 1"),
        (("--loss", "cut-cross-entropy(fp32=3)"), "cut-cross-entropy: fp32 = 3, needs true or false"),
        (("--loss", "chunked(chunks=0)"), "chunked: chunks = 0, needs 1 to"),
        (
            ("--schedule", "chimera-stranger", "--pp", "8", "--chunks", "3"),
            "chimera-stranger: chunks = 3, needs exactly 2",
        ),
        (
            ("--schedule", "chimera-stranger", "--pp", "8", "--chunks", "2", "--micro-batch", "2"),
            "needs a multiple of 8; nearest: 8",
        ),
    ],
)
def test_bad_values_are_refused(words: tuple[str, ...], told: str) -> None:
    done = ridgeline("predict", "llama-3.1-8b", "--on", "8xH100-SXM", "--global-batch", "8", *words)
    assert done.returncode == 2
    assert told in done.stderr


def test_plan_keeps_to_a_strangers_schedule() -> None:
    words = ("plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--seq-len", "2048", "--global-batch", "32")
    found = answer(*words, "--schedule", "chimera-stranger")
    assert found["best"][0]["plan"]["schedule"] == "chimera-stranger"


LONG = ("predict", "llama-3.1-8b", "--on", "8xH100-SXM", "--tp", "8", "--seq-len", "65536", "--global-batch", "1")
LONG = (*LONG, "--sequence-parallel", "--recompute", "full")


def test_sparse_attention_pays_with_the_length_of_sequences() -> None:
    plain, sparse = (answer(*LONG, *more) for more in ((), ("--technique", "nsa")))
    assert sparse["plan"]["technique"] == ["nsa"]
    assert any("2502.11089" in source for source in sparse["sources"])
    saved = plain["step_time_s"]["value"] - sparse["step_time_s"]["value"]
    attention = next(share["seconds"] for share in plain["shares"] if share["label"] == "attention")
    assert 0.5 * attention < saved < attention
    wide = answer(*LONG, "--technique", "nsa(chosen=64, window=4096)")
    assert sparse["step_time_s"]["value"] < wide["step_time_s"]["value"] < plain["step_time_s"]["value"]


def test_a_scenario_lists_techniques_and_is_written_as_it_was_read(tmp_path: Path) -> None:
    file = tmp_path / "sparse.toml"
    file.write_text(
        'model = "llama-3.1-8b"\ncluster = "8xH100-SXM"\n[workload]\nseq_len = 65536\nglobal_batch = 1\n'
        '[plan]\ntp = 8\nsequence_parallel = true\nrecompute = "full"\n'
        '[[plan.technique]]\nname = "nsa"\nwindow = 256\n',
        encoding="utf-8",
    )
    found = answer("predict", str(file))
    assert found["plan"]["technique"] == ["nsa(window=256)"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--technique", "nsa,nsa(window=64)"), "nsa and nsa both fill 'attention'; leave one of them out"),
        (("--technique", "galore-stranger"), "galore-stranger is one of the optimizers; write"),
        (("--technique", "nsb"), "nearest: nsa"),
        (("--technique", "nsa(window=0)"), "nsa: window = 0 tokens, needs 1 to 1e+06"),
    ],
)
def test_techniques_that_do_not_go_together_are_refused(words: tuple[str, ...], told: str) -> None:
    done = ridgeline(*LONG, *words)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_technique_that_does_not_apply_says_why() -> None:
    done = ridgeline("predict", "mistral-7b-v0.1", "--on", "8xH100-SXM", "--technique", "nsa")
    assert done.returncode == 2
    assert "nsa does not apply" in done.stderr
    assert "leave it out" in done.stderr


def test_plan_applies_a_technique_to_every_plan() -> None:
    words = ("plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--seq-len", "65536", "--global-batch", "8")
    found = answer(*words, "--technique", "nsa")
    assert {tuple(one["plan"]["technique"]) for one in found["best"]} == {("nsa",)}


def test_plan_tries_a_strangers_loss_and_keeps_to_one() -> None:
    words = ("plan", *LARGE_VOCABULARY, "--on", "1xRTX-4090", "--global-batch", "4")
    without, tried = (json.loads(ridgeline(*words, "--json", package=package).stdout) for package in (False, True))
    assert tried["legal"] == without["legal"] * 3 / 2  # whole, fused and the stranger's
    assert "cut-cross-entropy" in {one["plan"]["loss"] for one in tried["best"]}
    stated = "cut-cross-entropy(skipped=0.5)"
    assert {one["plan"]["loss"] for one in answer(*words, "--loss", stated)["best"]} == {stated}


TRAFFIC = ("--rate", "6", "--prompt", "2000-8000", "--output", "100-400", "--requests", "200")
SERVED = ("simulate", "llama-3.1-8b", "--on", "1xH100-SXM", *TRAFFIC)


def test_shortest_remaining_time_first_ends_sooner_on_average() -> None:
    usual, shortest = (answer(*SERVED, "--queue", name) for name in ("arrival", "srpt"))
    assert shortest["ttft"]["mean_s"] < usual["ttft"]["mean_s"]
    assert shortest["deployments"][0]["technique"] == ["srpt"]
    assert shortest["techniques"] == ["srpt: https://arxiv.org/abs/2410.01035, section 3"]
    weighed = answer(*SERVED, "--technique", "srpt(answer=1)")
    assert weighed["ttft"]["mean_s"] != shortest["ttft"]["mean_s"]


def test_heavy_hitters_alone_leave_room_for_more_sequences() -> None:
    usual, few = (answer(*SERVED, *more) for more in ((), ("--technique", "h2o(heavy=256, recent=256)")))
    assert few["span_s"] < usual["span_s"]
    assert few["deployments"][0]["technique"] == ["h2o(heavy=256,recent=256)"]


def test_a_search_of_deployments_applies_a_strangers_queue_and_eviction() -> None:
    words = ("plan", "llama-3.1-8b", "--on", "2xH100-SXM", "--serve", *TRAFFIC, "--slo", "ttft=20s,tpot=200ms")
    found = answer(*words, "--technique", "h2o", "--queue", "srpt")
    techniques = {tuple(each["technique"]) for one in found["best"] for each in one["deployments"]}
    assert techniques == {("srpt", "h2o")}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--technique", "h2o,kv-budget"), "h2o and kv-budget (kv_kept) both fill 'cache'"),
        (("--technique", "h2o", "--kv-kept", "64"), "kv_kept and h2o both say it; leave one of them out"),
        (("--technique", "h2o", "--preemption", "swap"), "preemption swap and h2o both fill 'host copies'"),
        (("--technique", "h2o", "--prefix-cache"), "prefix_cache and h2o both fill 'prefixes'"),
        (("--technique", "srpt", "--queue", "fair"), "queue and srpt both say it"),
        (("--technique", "h2o(heavy=0)"), "h2o: heavy = 0 tokens, needs 1 to"),
        (("--queue", "srpt(answer=0)"), "srpt: answer = 0, needs 1 to"),
        (("--technique", "galore-stranger"), "galore-stranger is one of the optimizers"),
    ],
)
def test_serving_that_does_not_go_together_is_refused(words: tuple[str, ...], told: str) -> None:
    done = ridgeline(*SERVED, *words)
    assert done.returncode == 2
    assert told in done.stderr


def test_serving_techniques_are_in_help_and_listed_with_their_pages() -> None:
    assert "arrival|fair|shortest|session|srpt" in ridgeline("simulate", "--help-all").stdout
    told = ridgeline("techniques").stdout
    assert "h2o" in told
    assert "srpt" in told
    page = ridgeline("techniques", "h2o").stdout
    assert "heavy hitters that stay" in page
    assert "--technique 'h2o(heavy=512,recent=512)'" in page
