"""Boards limited below their rated power: time and energy by hand, and plans that are compared at several limits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ridgeline.api.verb import ask
from ridgeline.cli.main import run
from ridgeline.energy.power import hosts_w, step_energy_j
from ridgeline.errors import DomainError, InputError, NoPlanError, RidgelineError
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.clusters import cluster
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.rates import rated_w
from ridgeline.facts.records import Accelerator
from ridgeline.seams.power_limit import power_limit, power_share

PART = accelerator("H100-SXM")
TRAINED = {"subject": "llama-3.1-8b", "on": "8xH100-SXM", "seq_len": "4096", "global_batch": "64"}


def capped(part: Accelerator, watts: float) -> Accelerator:
    return power_limit(f"power-cap(watts={watts:g})").limited(part)


def test_a_cap_leaves_the_cube_root_of_the_power_above_idle() -> None:
    one, idle = capped(PART, 400.0), constant("power.idle") * 700.0
    assert (one.tdp_w, rated_w(one)) == (400.0, 700.0)
    assert power_share(one) == pytest.approx(((400.0 - idle) / (700.0 - idle)) ** (1 / 3))
    assert capped(PART, 700.0) == PART


def test_words_for_limits() -> None:
    assert power_limit("500W") == power_limit(500.0) == power_limit("0.5kW") == power_limit("power-cap(watts=500)")
    assert power_limit("1200MHz") == power_limit("1.2 GHz") == power_limit("clock-limit(mhz=1200)")
    for word in ("fast", "500 volts", "power-cap(watts=-1)"):
        with pytest.raises(RidgelineError, match=r"known|technique|needs|no limit of a board"):
            power_limit(word)


def test_a_clock_limit_is_the_cap_that_leaves_products_that_clock() -> None:
    """Half of the boost clock: an eighth of the power above idle."""
    assert PART.boost_hz is not None
    one, idle = power_limit(f"{PART.boost_hz / 2e6}MHz").limited(PART), constant("power.idle") * 700.0
    assert one.tdp_w == pytest.approx(idle + (700.0 - idle) / 8.0)
    assert power_share(one) == pytest.approx(0.5)
    with pytest.raises(DomainError, match="above its boost clock"):
        power_limit("9000MHz").limited(PART)


@pytest.mark.parametrize("key", ["power-cap", "clock-limit"])
def test_what_is_worth_comparing_is_possible_and_begins_without_a_limit(key: str) -> None:
    found = [power_limit(text).limited(PART).tdp_w for text in power_limit(key).tried(PART)]
    assert found[0] == 700.0
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("watts", [701.0, 10.0])
def test_a_cap_outside_the_board_is_refused(watts: float) -> None:
    with pytest.raises(DomainError, match=r"needs more than .* W, what it draws idle, to 700 W"):
        capped(PART, watts)


def test_no_state_draws_more_than_the_cap_and_idle_draws_what_it_did() -> None:
    """One second each of products, memory and a bubble on eight boards."""
    where = cluster("8xH100-SXM")
    limited = replace(where, accelerator=capped(PART, 300.0))
    assert where.pue is not None
    levels = {state: constant(f"power.{state}") * 700.0 for state in ("matrix", "memory", "idle")}
    seconds = {"matrix": 1.0, "memory": 1.0, "bubble": 1.0}
    for one, most in ((where, 700.0), (limited, 300.0)):
        drawn = sum(min(level, most) for level in levels.values())
        assert step_energy_j(seconds, one) == pytest.approx(where.pue.value * (8 * drawn + 3 * hosts_w(one, 8)))


@pytest.mark.parametrize("words", [{"on": "8xH100-SXM", "zero": "3", "micro_batch": "1"}])
def test_a_capped_step_takes_longer_and_less_energy(words: dict[str, Any]) -> None:
    free, tight = (
        ask("predict", subject="llama-3.1-8b", power_cap=cap, quick=True, **words).value for cap in (None, "400W")
    )
    assert free.step_time.value < tight.step_time.value < free.step_time.value / power_share(capped(PART, 400.0))
    assert tight.energy_j_per_step < free.energy_j_per_step


def test_plans_are_ranked_by_joules_carbon_and_dollars() -> None:
    quickest = ask("plan", **TRAINED).value.best[0]
    for aim, name in (("joules", "energy_j_per_step"), ("carbon", "carbon_kg_per_step"), ("dollars", "usd_per_step")):
        found = ask("plan", **TRAINED, aim=aim, top=20).value
        spent = [getattr(one, name) for one in found.best]
        assert spent == sorted(spent)
        assert spent[0] <= getattr(quickest, name)
        assert found.aimed.startswith(f"{aim} of a step: ")
    assert ask("plan", **TRAINED).value.aimed == ""
    with pytest.raises(InputError, match="is an option of serving"):
        ask("plan", **TRAINED, aim="goodput")


def test_the_best_cap_is_that_of_asking_for_each() -> None:
    both = ask("plan", **TRAINED, aim="joules", power_cap="700W,400W").as_dict()
    each = [ask("plan", **TRAINED, aim="joules", power_cap=cap).value.best[0] for cap in ("700W", "400W")]
    assert [row["energy_j"] for row in both["power_caps"]] == [one.energy_j_per_step for one in each]
    assert [row["time_s"] for row in both["power_caps"]] == [one.step_time.value for one in each]
    assert both["power_cap"] == "400W"
    auto = ask("plan", **TRAINED, aim="joules", power_cap="auto").as_dict()
    assert [row["power_cap"] for row in auto["power_caps"]] == list(power_limit("power-cap").tried(PART))
    assert min(row["energy_j"] for row in auto["power_caps"]) <= both["power_caps"][1]["energy_j"]
    quick = ask("plan", **TRAINED, aim="time", power_cap="400W,700W").as_dict()
    assert quick["power_cap"] == "700W"


def test_what_is_not_known_cannot_be_aimed_at(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoPlanError, match="no price is known of"):
        ask("plan", **{**TRAINED, "on": "8xH20"}, aim="dollars")
    assert run(["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--power-cap", "9W", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["field"] == "--power-cap"
    assert "a cap of 9 W; needs more than" in told["error"]


def test_serving_for_carbon_is_energy_on_the_grid() -> None:
    words = {"rate": "6", "requests": "200", "slo": "ttft=1s,tpot=50ms", "tp": "1", "pools": False, "region": "FR"}
    found = ask("plan", subject="llama-3.1-8b", on="2xH100-SXM", serve=True, aim="carbon", **words)
    best = found.value.ranked[0]
    grid = cluster("1xH100-SXM").carbon_kg_per_j
    assert grid is not None
    assert best.carbon_kg_per_token == pytest.approx(best.energy_j_per_token * 56 / 3.6e9, rel=0.02)  # France: 56 g/kWh
    caps = ask(
        "plan", subject="llama-3.1-8b", on="2xH100-SXM", serve=True, aim="carbon", power_cap="700W,400W", **words
    )
    rows = caps.as_dict()["power_caps"]
    assert rows[0]["carbon_kg"] == pytest.approx(best.carbon_kg_per_token)
    assert rows[1]["carbon_kg"] < rows[0]["carbon_kg"]
