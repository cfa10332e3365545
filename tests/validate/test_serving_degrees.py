"""Degrees of a row whose configuration names others than its launch script, by hand."""

from __future__ import annotations

import pytest

from ridgeline.errors import InputError
from ridgeline.facts.benchmark_settings import Run
from ridgeline.facts.run_settings import RunSettings, settings_of
from ridgeline.plan.deployment import Role
from ridgeline.predict.recipes import as_divided
from ridgeline.scenario.serving_words import deployed


def said(**degrees: int) -> RunSettings:
    return RunSettings(values=degrees, told=("attention_ranks 1 (derived: a script; here)", "kv fp8 (there)"))


def test_a_pool_has_the_degrees_that_its_script_has_and_the_devices_of_its_row() -> None:
    """Four devices that a row calls four attention ranks are one, with every expert divided over all of them."""
    named = deployed(tp=1, dp=4, ep=4, role=Role.PREFILL)
    pools, told = as_divided({"prefill": named, "decode": None}, lambda *_: said(attention_ranks=1, expert_ranks=1))
    assert list(pools) == ["prefill"]
    assert (pools["prefill"].tp, pools["prefill"].dp, pools["prefill"].ep) == (4, 1, 1)
    assert told == ("prefill: attention_ranks 1 (derived: a script; here)",)


def test_what_a_row_tells_stays_where_nothing_is_known_better() -> None:
    named = deployed(tp=2, dp=4, ep=8)
    assert as_divided({"decode": named}, lambda *_: said()) == ({"decode": named}, ())


def test_devices_that_are_no_multiple_of_the_ranks_are_refused() -> None:
    with pytest.raises(InputError, match="3 attention and 1 expert ranks on 4 devices"):
        as_divided({"decode": deployed(tp=4)}, lambda *_: said(attention_ranks=3))


@pytest.mark.parametrize(
    ("date", "precision", "role", "dp", "instances", "ranks"),
    [
        ("2025-12-21", "nvfp4", "prefill", 4, 1, (1, None)),
        ("2025-12-21", "nvfp4", "decode", 32, 1, (None, 32)),
        ("2025-12-21", "fp8", "prefill", 8, 5, (None, 8)),
        ("2026-02-08", "nvfp4", "prefill", 4, 1, (None, None)),
    ],
)
def test_scripts_of_2025_had_degrees_of_their_own(
    date: str, precision: str, role: str, dp: int, instances: int, ranks: tuple[int | None, int | None]
) -> None:
    names = {"code": "IX", "engine": "SGLang", "model": "DeepSeek-R1", "device": "GB200", "precision": precision}
    run: Run = {
        "concurrency": 32, "isl": 1024, "osl": 1024, "devices": dp, "instances": instances, "ep": 1, "dp": dp,
        "date": date, "role": role, "disaggregated": 1.0,
    }  # fmt: skip
    found = settings_of(names, run, version="0.5.5.post2")
    assert (found.attention_ranks, found.expert_ranks) == ranks
