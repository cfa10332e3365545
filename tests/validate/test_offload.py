"""Rows of measured offloading are answered with every key, from facts alone, and refused with a reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.validate.offload import OffloadRows
from ridgeline.validate.rows import Row

BASE = {
    "model": "DeepSeek-V3", "gpu": "RTX-4090-24GB", "n_gpu": "1", "gpu_mem_gb": "24",
    "cpu": "2 x Xeon Gold 6454S (32 cores each)", "host_mem": "1 TB DDR5-4800, 8 channels per socket",
    "technique": "experts on CPU, attention+shared on GPU", "engine": "KTransformers", "engine_version": "0.2.1",
    "precision_weights": "Q4_K_M", "placement": "8 experts used of 8", "batch": "1", "isl": "500", "osl": "300",
    "metric": "decode_tok_s", "value": "13", "unit": "tok/s", "source": "KT",
}  # fmt: skip
ALONE = {
    "model": "Qwen3-1.7B", "gpu": "none", "n_gpu": "", "cpu": "Raspberry Pi 5", "host_mem": "", "placement": "",
    "technique": "on-device CPU", "engine": "llama.cpp", "precision_weights": "Q4_0", "isl": "", "osl": "",
}  # fmt: skip
KEYS = {
    "status", "device", "engine", "model", "measured", "predicted", "low", "high", "ape", "evidence", "rung",
    "assumptions",
}  # fmt: skip


def row(**cells: str) -> Row:
    return Row(line=2, id="off1", cells={**BASE, **cells})


def answered(**cells: str) -> float:
    found = OffloadRows().answer(row(**cells))
    assert set(found) == KEYS
    assert found["low"] < found["predicted"] < found["high"]
    return float(found["predicted"])


def test_a_token_takes_at_least_the_reading_of_its_experts() -> None:
    read_s = 58 * 8 * 3 * 7168 * 2048 * 4.89 / 8 / (0.78 * 0.85 * 614.4e9)
    rate = answered()
    assert 0.3 / read_s < rate < 1.0 / read_s


def test_fewer_experts_and_more_sockets_are_faster() -> None:
    assert answered(placement="6 experts used of 8") > answered()
    assert answered(cpu="1 x Xeon Gold 6454S (32 cores each)") < answered()


def test_a_prompt_and_a_whole_request_agree_with_their_parts() -> None:
    prompt, token = answered(metric="prefill_tok_s"), answered()
    whole = answered(metric="generation_tok_s")
    assert whole == pytest.approx(300 / (500 / prompt + 300 / token), rel=1e-9)
    assert answered(metric="latency_s", unit="s") == pytest.approx(300 / whole, rel=1e-9)
    assert answered(metric="ttft_ms", unit="ms") == pytest.approx(5e5 / prompt, rel=1e-9)


def test_copies_of_weights_that_do_not_fit_leave_sockets_reading_from_each_other() -> None:
    assert answered(host_mem="512 GB DDR5-4800, 8 channels per socket") < 0.5 * answered()


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RidgelineError, match="do not fit"):
        answered(host_mem="256 GB DDR5-4800", engine="kt-kernel", engine_version="0.5")


def test_processors_alone_and_from_disk() -> None:
    inside = answered(**ALONE)
    assert 5 < inside < 20
    outside = answered(**{**ALONE, "technique": "on-device CPU with disk offload", "host_mem": "limit 1 GiB"})
    assert outside < 0.1 * inside


def test_layers_by_the_flag_of_llama_cpp() -> None:
    cells = {"model": "Llama-2-7B", "engine": "llama.cpp", "placement": "", "precision_weights": "Q4_0"}
    by_flag = answered(**cells, technique="offload (-ngl 16)")
    assert by_flag == pytest.approx(answered(**cells, technique="16 of 32 layers on GPU"), rel=1e-9)


def test_drafts_that_are_kept_are_gained() -> None:
    drafted = answered(technique="experts on CPU, NextN depth 1, 90% accept")
    assert drafted == pytest.approx(1.9 * answered(), rel=1e-9)


def test_what_is_not_stated_is_said_and_widens_the_interval() -> None:
    stated, blank = (OffloadRows().answer(row(**cells)) for cells in ({}, {"isl": "", "batch": ""}))
    assert any("concurrency not stated" in words for words in blank["assumptions"])
    assert blank["high"] / blank["low"] > stated["high"] / stated["low"]
    assert (stated["evidence"], blank["evidence"]) == ("derived", "assumed")


def test_the_same_run_is_made_ready_once() -> None:
    rows = OffloadRows()
    assert rows.answer(row())["predicted"] == rows.answer(row())["predicted"]
    assert rows.answer(row(metric="prefill_tok_s"))["predicted"] != rows.answer(row())["predicted"]


def test_a_processor_of_no_table_is_answered_with_a_wider_interval() -> None:
    known, told = (OffloadRows().answer(row(cpu=name, host_mem="")) for name in ("EPYC 9654", "EPYC 9634"))
    assert told["evidence"] == "assumed"
    assert any("as EPYC 9004 have" in words for words in told["assumptions"])
    assert told["high"] / told["low"] > 1.2 * known["high"] / known["low"]
    other = OffloadRows().answer(row(cpu="Cray-1", host_mem=""))
    assert any("Cray-1 is not known" in words for words in other["assumptions"])


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"value": "fast"}, "no positive|not a positive"),
        ({"metric": "avg_power_w", "unit": "W"}, "not predicted"),
    ],
)
def test_refusals_say_why(cells: dict[str, str], reason: str) -> None:
    with pytest.raises(RidgelineError, match=reason):
        OffloadRows().answer(row(**cells))


@given(
    st.fixed_dictionaries(
        {
            "technique": st.sampled_from(
                ["expert offload", "8 of 61 layers on GPU", "weights on disk", "hot neurons on GPU", "hybrid", "x"]
            ),
            "engine": st.sampled_from(["Fiddler", "vLLM", "DeepSpeed", "HF Accelerate", "ollama", "PowerInfer", ""]),
            "model": st.sampled_from(["Mixtral-8x7B", "OPT-30B", "Llama-3.1-70B", "?"]),
            "batch": st.sampled_from(["", "1", "16", "0", "-3", "1e9"]),
            "isl": st.sampled_from(["", "0", "1", "4096", "nan"]),
            "precision_weights": st.sampled_from(["", "fp16", "Q4_0", "int8", "zz"]),
            "cpu": st.sampled_from(["", "EPYC 9654", "2 x Ice Lake"]),
        }
    )
)
@settings(max_examples=60, deadline=None)
def test_any_row_is_answered_or_refused(cells: dict[str, str]) -> None:
    try:
        found = OffloadRows().answer(row(host_mem="", placement="", **cells))
    except RidgelineError:
        return
    assert 0 < found["low"] <= found["predicted"] <= found["high"] < float("inf")
