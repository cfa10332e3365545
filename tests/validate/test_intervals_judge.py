"""The judge of intervals: ends of whole runs are found from other sources on other devices."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ridgeline.facts.transfer import run_spread

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="judge")
def judge_(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    try:
        yield import_module("intervals")
    finally:
        for name in ("intervals", "bench_strangers", "strangers_page"):
            sys.modules.pop(name, None)


ANSWER = {
    "status": "scored", "metric": "tpot_mean_ms", "unit": "ms", "scenario": "fixed-concurrency", "measured": 15.0,
    "predicted": 10.0, "low": 8.0, "evidence": "derived", "rung": "borrowed", "source": "A", "device": "H100-SXM",
    "assumptions": ["release not stated: 0.6.3", "dimensions of the config"],
}  # fmt: skip


def test_what_whole_runs_add_is_taken_out_of_the_ends(judge: Any) -> None:
    low, high = run_spread("serving step", "borrowed")
    kernels = 0.3
    far = math.hypot(kernels, math.log(high))
    row = judge.row_of("serving", ANSWER | {"high": 10.0 * math.exp(far)})
    assert (row.kind, row.rung, row.unsaid) == ("serving step", "lent", 1)
    assert row.error == pytest.approx(math.log(1.5))
    assert row.rest[1] == pytest.approx(kernels)
    assert row.rest[0] == pytest.approx(math.sqrt(max(math.log(10 / 8) ** 2 - math.log(low) ** 2, 0.0)))
    assert row.with_run((0.0, math.log(high)))[1] == pytest.approx(far)


def test_a_rate_is_a_time_the_other_way_round(judge: Any) -> None:
    """Half the tokens a second are twice the time."""
    rate = ANSWER | {"metric": "output_tok_s", "unit": "tok/s", "measured": 5.0, "high": 11.0}
    row = judge.row_of("serving", rate)
    assert row.error == pytest.approx(math.log(2.0))
    assert row.stated == pytest.approx((math.log(1.1), math.log(10 / 8)))


def test_ends_are_of_other_sources_on_other_devices(judge: Any) -> None:
    """Twenty rows of one source on one device, each 1.5 times too slow, do not set their own ends; others' do."""
    own = [judge.Row("TPOT", "k", "any", ("A", "H100"), 0, math.log(1.5) + 1e-9 * n, (0, 0), (0, 0)) for n in range(20)]
    same = [
        judge.Row("TPOT", "k", "any", ("B", "H100"), 0, math.log(3.0) + 1e-9 * n, (0, 0), (0, 0)) for n in range(20)
    ]
    else_ = [judge.Row("TPOT", "k", "any", ("C", "A100"), 0, 0.1 + 1e-9 * n, (0, 0), (0, 0)) for n in range(20)]
    ends = judge.left_out([*own, *same, *else_])
    assert ends[own[0]] == pytest.approx((0.0, 0.1))
    assert not own[0].inside(ends[own[0]])


def test_misread_rows_set_no_end(judge: Any) -> None:
    good = [judge.Row("TPOT", "k", "any", (f"S{n}", "D"), 0, 0.2, (0, 0), (0, 0)) for n in range(10)]
    wrong = [judge.Row("TPOT", "k", "any", (f"W{n}", "D"), 0, 5.0, (0, 0), (0, 0)) for n in range(5)]
    assert judge.found([*good, *wrong]) == pytest.approx((0.0, 0.2))


def test_shipped_ends_say_where_they_come_from(judge: Any) -> None:
    lines = judge.TABLE.read_text(encoding="utf-8").splitlines()
    assert "no prediction uses them" in lines[0]
    rows = [dict(zip(lines[1].split("\t"), line.split("\t"), strict=True)) for line in lines[2:]]
    assert {(row["kind"], row["rung"]) for row in rows} == {
        (kind, rung) for kind, rungs in judge.RUNGS.items() for rung in rungs
    }
    page = (BENCHMARKS.parent / "docs" / "intervals.md").read_text(encoding="utf-8")
    for row in rows:
        assert float(row["low"]) <= 1.0 <= float(row["high"])
        assert 0.6 < float(row["inside"]) < 0.95
        assert f"| {row['kind']} | {row['rung']} | {row['low']} | {row['high']} |" in page
