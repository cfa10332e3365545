"""Verdicts and intervals of claims, worked by hand on made-up answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ridgeline.claims.files import CommandValue, Paper, PaperClaim
from ridgeline.claims.verdicts import outcome, rows_of, summarise
from ridgeline.facts.ledger import ledger
from ridgeline.report.answer_values import ValueRange, value_at

STEP = {"step_time_s": {"value": 2.0, "low": 1.0, "high": 4.0}, "tokens_per_s": 100.0}
ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "predict a --on 8xA100-SXM": STEP,
    "predict b --on 4xA100-SXM": {"step_time_s": {"value": 6.0, "low": 3.0, "high": 12.0}},
    "predict b --on 4xH100-SXM": {"step_time_s": {"value": 6.0, "low": 3.0, "high": 12.0}},
    "predict c --on 1xT4": {"error": "does not fit; take a larger one", "exit_code": 1},
    "predict d --batch 1": {"x": 1.5},
    "predict d --batch 8": {"x": 2.5},
}


def claim(ours: str, theirs: float | None = 3.0, *, checked: str = "forward", **more: Any) -> PaperClaim:
    answers = {
        name: CommandValue(command=command, value=value)
        for name, (command, value) in more.pop("asks", {}).items()
    }  # fmt: skip
    return PaperClaim(text="t", checked=checked, theirs=theirs, ours=ours, answers=answers, **more)


A = ("predict a --on 8xA100-SXM", "step_time_s.value")
B = ("predict b --on 4xA100-SXM", "step_time_s.value")
OTHER = ("predict b --on 4xH100-SXM", "step_time_s.value")


def out(one: PaperClaim) -> tuple[Any, ...]:
    found = outcome(one, lambda command, files: ANSWERS[command])
    return found.ours, found.low, found.high, found.verdict


def test_errors_of_one_machine_cancel_in_a_ratio_and_those_of_two_do_not() -> None:
    assert out(claim("b / a", asks={"a": A, "b": B})) == (3.0, 3.0, 3.0, "within tolerance")
    assert out(claim("b / a", asks={"a": A, "b": OTHER})) == (3.0, 0.75, 12.0, "within tolerance")


def test_a_rate_of_a_step_has_the_interval_of_its_time() -> None:
    assert value_at(STEP, "tokens_per_s") == ValueRange(low=50.0, mid=100.0, high=200.0)


def test_paths_name_keys_places_the_largest_and_entries_by_a_word() -> None:
    answer = {
        "stages": [{"name": "a", "n": 1, "fits": True}, {"name": "b", "n": 5, "fits": False}],
        "ttft": {"p50": 3.0}, "ends": [{"ttft": {"p50": 2.0}}, {"ttft": {"p50": 4.5}}],
    }  # fmt: skip
    assert value_at(answer, "stages.-1.n").mid == 5
    assert value_at(answer, "stages.*.n").mid == 5
    assert value_at(answer, "stages.name=a.n").mid == 1
    assert value_at(answer, "stages.name=b.fits").mid == 0
    assert value_at(answer, "ttft.p50") == ValueRange(low=2.0, mid=3.0, high=4.5)
    for path in ("stages.2.n", "stages.name=c.n", "ttft.p51", "ttft", "ttft.p50.x", "ttft.*"):
        with pytest.raises(ValueError, match=r"no |nothing"):
            value_at(answer, path)


@pytest.mark.parametrize(
    ("theirs", "more", "verdict"),
    [
        (2.0, {}, "within tolerance"),
        (2.3, {}, "within tolerance"),
        (2.4, {}, "miss"),
        (2.4, {"tolerance": 0.2}, "within tolerance"),
        (2.4, {"bound": "up to", "unit": "x"}, "inside the range"),
        (1.0, {"bound": "up to", "unit": "x"}, "miss"),
        (1.0, {"bound": "at least"}, "inside the range"),
        (9.0, {"bound": "at least"}, "miss"),
    ],
)
def test_a_forward_claim_is_held_to_its_tolerance_or_bound(theirs: float, more: dict[str, Any], verdict: str) -> None:
    assert out(claim("a", theirs, asks={"a": A}, **more))[3] == verdict


def test_up_to_asks_for_some_effect() -> None:
    slower = claim("a / b", 3.0, asks={"a": A, "b": B}, bound="up to", unit="x")
    assert out(slower)[3] == "miss"


def test_an_open_setting_makes_a_range_that_holds_the_claim_or_not() -> None:
    ask = {"x": ("predict d --batch {batch}", "x")}
    one = {"checked": "bracketed", "settings": {"batch": (1, 8)}, "asks": ask}
    assert out(claim("x", 2.2, **one)) == (2.0, 1.5, 2.5, "inside the range")
    assert out(claim("x", 2.6, **one))[3] == "within tolerance"
    assert out(claim("x", 3.0, **one))[3] == "miss"
    assert out(claim("x", 1.0, **one))[3] == "miss"
    assert out(claim("x", 1.0, bound="at least", **one))[3] == "inside the range"
    assert out(claim("x", 3.0, bound="up to", **one))[3] == "miss"
    assert out(claim("x * batch", 15.0, **one))[:3] == (10.75, 1.5, 20.0)


def test_identities_are_held_to_two_percent_and_quotations_to_nothing() -> None:
    def identity(theirs: float) -> PaperClaim:
        return PaperClaim(text="t", checked="identity", theirs=theirs, ours="160 * 6 * 60", tolerance=0.02)

    assert out(identity(57_600))[3] == "identity holds"
    assert out(identity(50_000))[3] == "miss"
    assert out(PaperClaim(text="t", checked="quoted", theirs=1.0)) == (None, None, None, "quoted")


def test_a_refusal_is_a_verdict_with_its_reason() -> None:
    found = outcome(claim("a", asks={"a": ("predict c --on 1xT4", "x")}), lambda command, files: ANSWERS[command])
    assert found.verdict == "refused"
    assert found.reason == "ridgeline predict c --on 1xT4: does not fit; take a larger one"
    fits = claim("1 - a", 0.0, asks={"a": ("predict c --on 1xT4", "exit_code")})
    assert out(fits)[3] == "within tolerance"


def test_the_summary_counts_predictions_apart() -> None:
    forward = claim("b / a", asks={"a": A, "b": B})
    missed = claim("a", 9.0, asks={"a": A}, suspected="a kernel")
    identity = PaperClaim(text="t", checked="identity", theirs=1.0, ours="1")
    paper = Paper(paper=73, status="works", sources=(), claims=(forward, missed, identity))
    rows = [
        *rows_of(ledger()[73], paper, lambda command, files: ANSWERS[command]),
        *rows_of(ledger()[1], None, lambda command, files: ANSWERS[command]),
    ]
    told = summarise(rows)
    assert (told["papers"], told["works"], told["forward_within_15"]) == (2, 1, 1)
    assert told["claims"] == {
        "forward": 2, "bracketed": 0, "identity": 1, "inverted": 0, "quoted": 0, "not yet": 1
    }  # fmt: skip
    assert [(miss["ours"], miss["suspected"]) for miss in told["misses"]] == [(2.0, "a kernel")]
    assert told["by_kind"]["MODEL"] == {"papers": 1, "works": 1}


def test_a_scenario_is_filled_in_and_says_the_machine() -> None:
    told: list[str] = []

    def ask(command: str, files: Mapping[str, str]) -> Mapping[str, Any]:
        told.append(files["s.toml"])
        return {"x": {"value": 2.0, "low": 1.0, "high": 4.0}}

    one = claim("a", 2.0, checked="bracketed", settings={"n": (1, 2)}, asks={"a": ("predict s.toml", "x.value")})
    outcome(replace(one, files={"s.toml": "[cluster]\nname = '{n}xA40'"}), ask)
    assert told == ["[cluster]\nname = '1xA40'", "[cluster]\nname = '2xA40'"]
