"""Devices that a plan leaves without work are told, in words and in JSON."""

from __future__ import annotations

import json

import pytest

from ridgeline.cli.main import run

TRAIN = ["predict", "gpt2", "--on", "9xA100", "--tp", "4", "--dp", "2", "--global-batch", "64"]
SERVE = ["simulate", "llama-3.1-8b", "--on", "8xH100-SXM", "--rate", "1", "--requests", "20", "--tp", "2"]


def told(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    assert run(words) == 0
    return capsys.readouterr().out


def test_a_plan_that_leaves_devices_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert "1 of 9 device is idle: it draws idle power and is paid for" in told(capsys, TRAIN)
    found = json.loads(told(capsys, [*TRAIN, "--json"]))
    assert found["idle_devices"] == 1
    whole = json.loads(told(capsys, [*TRAIN[:3], "8xA100", *TRAIN[4:], "--json"]))
    assert whole["idle_devices"] == 0
    assert "idle:" not in told(capsys, [*TRAIN[:3], "8xA100", *TRAIN[4:]])
    assert found["usd_per_step"] / found["step_time_s"]["value"] == pytest.approx(
        9 / 8 * whole["usd_per_step"] / whole["step_time_s"]["value"]
    )
    assert whole["power_w"] < found["power_w"] < 9 / 8 * whole["power_w"]


def test_instances_that_leave_devices_say_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert "6 devices have no instance; power and cost are of the 2 others" in told(
        capsys, [*SERVE, "--instances", "1"]
    )
    assert json.loads(told(capsys, [*SERVE, "--instances", "1", "--json"]))["idle_devices"] == 6
    assert "have no instance" not in told(capsys, SERVE)
