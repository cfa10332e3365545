"""The command `op`: prices, their floor, and bad words."""

from __future__ import annotations

import json

import pytest

from ridgeline.cli.main import run


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert run(["op", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_product_counts_its_flop_and_stays_above_its_roofline(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "gemm", "4096x4096x14336", "bf16", "--on", "H100-SXM,MI300X,RTX-4090")
    rows = found["rows"]
    assert [row["machine"] for row in rows] == ["H100-SXM", "MI300X", "RTX-4090"]
    for row in rows:
        assert row["flop"] == 2 * 4096 * 4096 * 14336
        assert row["bytes"] == 2 * (4096 * 14336 * 2 + 4096 * 4096)
        assert row["seconds"] >= max(row["compute_s"], row["memory_s"])
        assert row["low_s"] < row["high_s"]


def test_a_ring_all_reduce_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    row = answer(capsys, "all_reduce", "1 GB", "--on", "8xA100-SXM-80GB")["rows"][0]
    transfer = 2 * 7 / 8 * 1e9 / (300e9 * 0.783)  # NVLink 3 at the measured share of its bandwidth
    assert row["seconds"] == pytest.approx(transfer, rel=0.01)
    assert row["bound"] == "link"


def test_backward_attention_costs_more_than_forward(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("attention", "4x4096x32x8x128")
    forward, backward = (answer(capsys, *shape, *more)["rows"][0] for more in ((), ("--backward",)))
    assert backward["flop"] == pytest.approx(2.5 * forward["flop"])
    assert backward["seconds"] > 2 * forward["seconds"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gem", "1x1x1"), "nearest: gemm"),
        (("gemm", "4096x40"), "MxNxK"),
        (("gemm", "0x1x1"), "outside 1 to"),
        (("gemm", "64x64x64", "fp8", "--on", "A100-SXM-80GB"), "has no fp8 matrix rate"),
        (("gemm", "64x64x64", "bf17"), "no number format"),
        (("all_reduce", "1GiB", "--on", "H100-SXM"), "at least 2 devices"),
        (("stream", "12 parsecs"), "unknown unit"),
    ],
)
def test_bad_words_are_named(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    assert run(["op", *words]) == 2
    assert said in capsys.readouterr().err
