"""Exchanges of tokens between experts' ranks: by hand, as engines call them, read from tables, and who answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline.cost import expert_tables, questions
from ridgeline.cost.answer import Rung
from ridgeline.cost.expert_tables import exchanges
from ridgeline.cost.families.exchange import ENGINE_EXCHANGE, EXCHANGE
from ridgeline.cost.fit_choice import find_fits
from ridgeline.cost.fitted import model_of
from ridgeline.cost.machine import Machine, machine
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.clusters import cluster
from ridgeline.facts.fits import fits
from ridgeline.facts.opdata import OpTable

DEVICE = np.array([100.0, 1e15, 1e12, 5e7, 1e9, 1e13, 1e15])  # 100 SMs
VALUES = {
    "start_s_": 1e-5, "expert_s_": 1e-9, "message_s_": 1e-7, "sm_bytes_per_s_": 1e11, "link_share_": 0.5,
    "nic_share_": 0.5, "net_hop_s_": 1e-6, "overlap_": 8.0, "combine_start_s_": 2e-5, "combine_message_s_": 2e-7,
}  # fmt: skip
HOST = {"issue_s_": 5e-4, "combine_issue_share_": 0.5}
SHAPE = {
    "quick": 0.0, "combine": 0.0, "tokens": 1000.0, "row_bytes": 8000.0, "top_k": 2.0, "experts": 64.0, "ranks": 4.0,
    "nodes": 1.0, "sms": 20.0, "link_bytes_per_s": 1e11, "nic_bytes_per_s": 1e10,
}  # fmt: skip


def exchange_s(**sizes: float) -> float:
    return float(EXCHANGE.seconds({**SHAPE, **sizes}, DEVICE, EXCHANGE.vector(VALUES)))


def called_s(**sizes: float) -> float:
    return float(ENGINE_EXCHANGE.seconds({**SHAPE, **sizes}, DEVICE, ENGINE_EXCHANGE.vector(VALUES | HOST)))


def eighth(*parts: float) -> float:
    return float(sum(part**8 for part in parts) ** (1 / 8))


def test_a_dispatch_by_hand() -> None:
    """4 (1 - (3/4)^2) = 1.75 ranks a token; on 20 SMs 1,750 (0.1 + 0.08) us / 20; three quarters over the link."""
    work, wire = 1750 / 20 * (1e-7 + 8e-8), 0.75 * 1750 * 8000 / 5e10
    assert exchange_s() == pytest.approx(1e-5 + 64e-9 + eighth(work, wire))


def test_a_combine_for_few_tokens_by_hand() -> None:
    """2,000 messages, an SM busy for each of 64 experts, half as many handled; all but a quarter leaves."""
    work, wire = 1000 / 64 * (2e-7 + 8e-8), 0.75 * 2000 * 8000 / 5e10
    assert exchange_s(quick=1, combine=1) == pytest.approx(2e-5 + 64e-9 + eighth(work, wire))


def test_a_dispatch_over_two_nodes_by_hand() -> None:
    """2 (1 - 1/4) = 1.5 nodes a token, half of them others; inside a node half of its messages."""
    work, wire, network = 1750 / 20 * 1.8e-7, 0.5 * 1750 * 8000 / 5e10, 0.75 * 1000 * 8000 / 5e9
    assert exchange_s(nodes=2) == pytest.approx(1e-5 + 64e-9 + 1e-6 + eighth(work, wire, network))


def test_a_call_takes_its_host_or_its_kernels_whichever_is_longer() -> None:
    assert called_s() == pytest.approx(5e-4, rel=1e-2)  # kernels take 0.2 ms
    assert called_s(combine=1) == pytest.approx(eighth(exchange_s(combine=1), 2.5e-4))
    assert called_s(tokens=1e5) == pytest.approx(exchange_s(tokens=1e5))


CALLED = {  # two dispatches and their combines, of 100 tokens each
    "comm_backend": [*["trtllm_deepep_ht"] * 2, *["trtllm_deepep_ll"] * 2, "deepep_v2_context"],
    "phase": ["dispatch", "combine", "dispatch", "combine", "combine"],
    "comm_dtype": ["nvfp4", "nvfp4", "fp8", "fp4", "default"],
}  # fmt: skip
RACK = {  # milliseconds; NVLinkTwoSided prepares first
    "kernel_source": ["NVLinkTwoSided"] * 4,
    "op_name": ["alltoall_prepare", "alltoall_dispatch", "alltoall_combine", "alltoall_combine_low_precision"],
    "moe_dtype": ["nvfp4"] * 4,
}


def read_from(columns: dict[str, list[Any]], name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    count = len(next(iter(columns.values())))
    numbers = {
        "ep_size": 8, "moe_ep_size": 16, "hidden_size": 1024, "topk": 8, "num_experts": 256, "num_tokens": 100,
        "sms": 0,
    }  # fmt: skip
    whole: dict[str, Any] = {key: np.array(words, dtype=object) for key, words in columns.items()}
    whole |= {key: np.full(count, value) for key, value in numbers.items()}
    whole["latency"] = np.arange(1, count + 1)
    monkeypatch.setattr(expert_tables, "read", lambda table, names: {key: whole[key] for key in names})
    device = "GB200" if name == "trtllm_alltoall_perf" else "H200-SXM"
    table = OpTable(accelerator=device, family="comm", engine="trtllm", version="1", name=name, path=Path("a/b/c/d/e"))
    return list(exchanges(table))


def test_calls_are_read_by_backend_in_the_formats_that_they_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """Combines are in bf16 whatever was sent; those in 4 bits and DeepEP's second version are left out."""
    normal, quick = read_from(CALLED, "moe_a2a_perf", monkeypatch)
    assert (normal[0], quick[0]) == ("deepep normal", "deepep low latency")
    assert normal[1]["row_bytes"].tolist() == [1024 * (0.5 + 1 / 16), 2048]
    assert normal[1]["sms"].tolist() == [20, 20]
    assert normal[2].tolist() == pytest.approx([1e-6, 2e-6])
    assert quick[1]["row_bytes"].tolist() == [1024]
    assert quick[2].tolist() == pytest.approx([3e-6])
    assert quick[1]["link_bytes_per_s"].tolist() == [450e9]


def test_dispatches_over_a_rack_begin_with_their_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    ((kernel, sizes, seconds),) = read_from(RACK, "trtllm_alltoall_perf", monkeypatch)
    assert kernel == "NVLinkTwoSided"
    assert seconds.tolist() == pytest.approx([3e-3, 3e-3])  # 1 + 2 ms, and the combine's own
    assert sizes["combine"].tolist() == [0, 1]
    assert (sizes["ranks"].tolist(), sizes["nodes"].tolist()) == ([16, 16], [1, 1])


def over(name: str) -> Machine:
    return machine(cluster(name))


def releases(name: str, *, engine: str = "", version: str = "", rung: Rung = Rung.FITTED) -> set[tuple[str, str]]:
    asked = questions.exchange(128.0, 7168.0, 8.0, 256.0, over(name), quick=True).by(engine, version)
    return {(fit.engine, fit.version) for fit in find_fits(asked.question, over(name).cluster.accelerator, rung)}


def test_a_release_that_was_measured_on_as_many_nodes_answers() -> None:
    measured = {(fit.version, fit.span["nodes"][1]) for fit in fits("exchange") if fit.device == "H200-SXM"}
    assert measured == {("0.5.6.post2", 8), ("0.5.12", 1)}
    assert releases("8xH200-SXM") == {("sglang", "0.5.12")}
    assert releases("32xH200-SXM") == releases("512xH200-SXM") == {("sglang", "0.5.6.post2")}
    assert releases("32xH200-SXM", version="0.5.12") == {("sglang", "0.5.12")}  # as asked
    assert releases("16xH800-SXM", rung=Rung.BORROWED) == {("sglang", "0.5.6.post2")}


def test_engines_that_were_measured_as_they_call_answer_for_themselves() -> None:
    assert releases("8xH200-SXM", engine="vllm") == {("vllm", "0.24.0")}
    assert releases("32xGB200", engine="trtllm") == {("trtllm", "1.3.0rc10")}  # over the links of a rack
    assert releases("4xGB200", engine="trtllm") == {("trtllm", "1.3.0rc11")}


def test_links_of_one_generation_lend_before_others() -> None:
    part = accelerator("H800-SXM")
    asked = questions.exchange(128.0, 7168.0, 8.0, 256.0, over("8xH800-SXM"), quick=True)
    for fit in find_fits(asked.question, part, Rung.BORROWED):
        assert fit.source == "borrowed from H100-SXM, H200-SXM"


def test_beyond_all_nodes_measured_the_kernel_for_few_tokens_still_answers_for_them() -> None:
    """More nodes than any fit: the kernel for many tokens, three times as long, is not taken for being the wider."""
    found = []
    for nodes in (8, 16):
        resolved = over(f"{8 * nodes}xH200-SXM")
        asked = questions.exchange(128.0, 7168.0, 8.0, 256.0, resolved, quick=True).question
        known = find_fits(asked, resolved.cluster.accelerator, Rung.FITTED)
        model = model_of("exchange", "any", resolved.cluster.accelerator, known, Rung.FITTED)
        priced, (_, _, used), _ = model.price(asked.sizes)
        assert model.kernels[int(used[0])].fit.kernel == "deepep low latency"
        found.append(float(priced[0, 0]))
    assert math.isclose(found[1], found[0], rel_tol=0.15)
