"""Under every replay: which part is assumed, how much hangs on it, and what would change a step."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ridgeline.facts.clusters import cluster
from ridgeline.facts.records import Evidence
from ridgeline.graph.load import load
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import predict
from ridgeline.predict.serving import Operation, simulate_serving
from ridgeline.report.serving import ServingReport
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.traffic.traffic import traffic

WHOLE = 1.0 - 1.0 / 1.1
OWN = """
name = "own"
count = 8
[accelerator]
name = "Own-X1"
memory = "80 GB"
memory_bandwidth = "3 TB/s"
host_bandwidth = "64 GB/s"
LINK
[accelerator.peak]
bf16 = "900 TFLOP/s"
"""


@cache
def replayed(on: str, tp: int, engine: str = "vLLM") -> ServingReport:
    asked = traffic(0.5 * np.arange(20), np.full(20, 1000), np.full(20, 50), name="steady")
    return simulate_serving(load("llama-3.1-8b"), cluster(on), [deployed(tp=tp, engine=engine)], asked)


@pytest.mark.parametrize(("on", "tp"), [("2xH100-SXM", 2), ("8xMI300X", 4), ("2xRTX-4090", 2), ("8xTPU-v6e", 4)])
@pytest.mark.parametrize("engine", ["vLLM", "SGLang"])
def test_shares_and_gains_add_up(on: str, tp: int, engine: str) -> None:
    report = replayed(on, tp, engine)
    for known, gains in zip(report.known, report.what_if, strict=True):
        assert sum(one.share for one in known) == pytest.approx(1.0)
        assert min(one.share for one in known) >= 0.0
        *each, whole = gains
        assert sum(one.gain for one in each) == pytest.approx(whole.gain, abs=0.25 * WHOLE)
        assert 0.15 * WHOLE < whole.gain <= WHOLE * (1 + 1e-9)
    decode = {one.resource: one.gain for one in report.what_if[0]}
    assert decode["memory bandwidth"] > decode["matrix rate"]  # a step of few sequences reads its weights


@pytest.mark.parametrize(("on", "tp", "part"), [("2xH100-SXM", 2, "kernels and links"), ("1xH100-SXM", 1, "kernels")])
def test_a_quick_answer_is_the_same_without_gains(on: str, tp: int, part: str) -> None:
    asked = traffic(0.5 * np.arange(20), np.full(20, 1000), np.full(20, 50), name="steady")
    words = [deployed(tp=tp, engine="vLLM")]
    quick = simulate_serving(load("llama-3.1-8b"), cluster(on), words, asked, operation=Operation(changes=False))
    whole = replayed(on, tp)
    assert (quick.metrics.ttft, quick.metrics.itl, quick.what_if) == (whole.metrics.ttft, whole.metrics.itl, ())
    for known, all_parts in zip(quick.known, whole.known, strict=True):
        assert [one.part for one in known] == [part, "host time of the engine"]
        assert known[1] == all_parts[-1]
        assert sum(one.share for one in known) == pytest.approx(1.0)


def test_the_host_of_an_engine_is_told_apart_from_kernels() -> None:
    report = replayed("2xH100-SXM", 2)
    parts = {one.part: one for one in report.known[0]}
    assert parts["host time of the engine"].evidence is Evidence.ASSUMED
    assert parts["kernels"].evidence is Evidence.MEASURED
    share = report.decode_parts["host"] / sum(report.decode_parts.values())
    assert parts["host time of the engine"].share == pytest.approx(share)
    assert "assumed: host time of the engine" in str(report)


def test_strangers_kernels_are_assumed() -> None:
    parts = {one.part: one.evidence for one in replayed("8xTPU-v6e", 4).known[0]}
    assert parts["kernels"] is Evidence.ASSUMED


def test_a_declared_link_is_priced_and_what_is_assumed_of_it_told(tmp_path: Path) -> None:
    """An own machine's NVLink of 450 GB/s was priced as its PCIe, and read as measured."""
    steps = {}
    for name, link in (("linked", 'link = "NVLink"\nlink_bandwidth = "450 GB/s"'), ("bare", "")):
        path = tmp_path / f"{name}.toml"
        path.write_text(OWN.replace("LINK", link))
        where = cluster(str(path))
        found = predict(load("llama-3.1-8b"), where, Workload(seq_len=2048, global_batch=8), Plan(tp=8))
        links = next(one for one in found.known if one.part == "links")
        assert links.evidence is Evidence.ASSUMED
        assert links.share > 0.0
        told = [line for line in found.assumptions if f"{where.tiers[0].name}, " in line]
        assert len(told) == 1
        steps[name] = next(share.seconds for share in found.shares if share.label == "tensor link"), where.tiers[0]
    assert steps["linked"][1].bytes_per_s == 450e9
    assert steps["bare"][1].topology == "bus"
    assert steps["linked"][0] < 0.3 * steps["bare"][0]
