"""The JSON form: stable keys, SI numbers, nothing that JSON cannot hold."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.report.as_json import report_as_dict, run_totals, search_as_dict
from ridgeline.report.report import Report, SearchReport

STEP_KEYS = [
    "step_time_s",
    "bound_s",
    "tokens_per_s",
    "tokens_per_s_per_device",
    "samples_per_s",
    "model_flop",
    "hardware_flop",
]
COST_KEYS = ["mfu", "hfu", "mfu_causal", "energy_j_per_step", "power_w", "usd_per_step", "carbon_kg_per_step"]
RUN_KEYS = ["run_time_s", "run_steps", "run_energy_j", "run_usd", "run_carbon_kg"]
MADE_KEYS = ["water_l", "embodied_kg", "devices_worn"]
MADE_KEYS = [*(f"{name}_per_step" for name in MADE_KEYS), *(f"run_{name}" for name in MADE_KEYS)]
REASON_KEYS = ["memory", "shares", "limit", "ops", "evidence", "known"]
REASON_KEYS += ["assumptions", "what_if", "sensitivities", "sources"]
REPORT_KEYS = [
    "model",
    "cluster",
    "workload",
    "plan",
    "idle_devices",
    "idle_why",
    "fits",
    *STEP_KEYS,
    *COST_KEYS,
    *RUN_KEYS,
    *MADE_KEYS,
    *REASON_KEYS,
]


def test_keys_are_these(report: Report, found: SearchReport) -> None:
    assert list(report_as_dict(report)) == REPORT_KEYS
    assert list(search_as_dict(found)) == [
        "best",
        "covered",
        "legal",
        "feasible",
        "simulated",
        "pruned_by_bound",
        "frameworks",
        "infeasible",
        "bound_gap",
        "search_s",
    ]


def test_plan_and_workload_say_every_field(report: Report) -> None:
    answer = report_as_dict(report)
    assert list(answer["plan"]) == [field.name for field in fields(Plan)]
    assert list(answer["workload"]) == [field.name for field in fields(Workload)]
    assert (answer["plan"]["schedule"], answer["plan"]["recompute"], answer["workload"]["task"]) == (
        "1f1b",
        "full",
        "pretrain",
    )


def test_numbers_are_si(report: Report) -> None:
    answer = report_as_dict(report)
    assert answer["step_time_s"] == {"value": 2.0, "low": 1.8, "high": 2.4, "unit": "s", "evidence": "derived"}
    assert answer["memory"][0]["headroom_bytes"] == 3 * 2**30
    ends = [answer["memory"][0][name] / 2**30 for name in ("low_bytes", "high_bytes")]
    assert ends == pytest.approx([6.41, 9.17])  # 6 GiB of states (to 1.15) + 1 of activations (0.41 to 2.27)
    assert answer["tokens_per_s_per_device"] == 128.0
    assert answer["evidence"] == {"matrix rate": "datasheet", "links": "assumed"}
    assert answer["model"]["params"] == 64


def test_a_run_is_its_steps(report: Report) -> None:
    totals = run_totals(report)  # 4000 s at 2 s a step: 2000 steps of 7.2 kJ and 1 cent
    assert totals == {
        "run_time_s": 4000.0,
        "run_steps": 2000.0,
        "run_energy_j": 14.4e6,
        "run_usd": pytest.approx(20.0),
        "run_carbon_kg": None,
    }
    assert set(run_totals(replace(report, run_time_s=None)).values()) == {None}


def test_json_can_hold_it(report: Report) -> None:
    odd = replace(report, mfu=float("nan"), bound_s=float("inf"))
    again = json.loads(json.dumps(report_as_dict(odd), allow_nan=False))
    assert (again["mfu"], again["bound_s"]) == (None, None)
