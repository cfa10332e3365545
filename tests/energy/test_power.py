"""Joules of a step by hand: shares of the rated power by what the devices do, the host, and the building."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ridgeline.energy.power import hosts_w, operator_power_w, step_energy_j, step_power_range
from ridgeline.facts.clusters import cluster
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Cluster, Evidence, Fact


def made(**changes: object) -> Cluster:
    """Sixteen A100 of 400 W in two nodes that idle at 100 W, in a building without overhead."""
    base = cluster("16xA100-SXM-80GB")
    accelerator = replace(base.accelerator, tdp_w=400.0)
    host = replace(base.host, devices=8, idle_w=100.0)
    return replace(base, **({"accelerator": accelerator, "host": host, "pue": None} | changes))  # type: ignore[arg-type]


def test_each_part_draws_its_share_of_the_rated_power() -> None:
    parts = {"matrix": 2.0, "memory": 1.0, "launch": 0.5}
    watt_s = 400 * (2.0 * constant("power.matrix") + constant("power.memory") + 0.5 * constant("power.idle"))
    assert step_energy_j(parts, made()) == pytest.approx(16 * watt_s + 2 * 100 * 3.5)


@pytest.mark.parametrize(
    ("part", "state"),
    [("attention", "matrix"), ("update", "memory"), ("data link", "link"), ("tensor link", "link"), ("bubble", None)],
)
def test_states_of_other_parts(part: str, state: str | None) -> None:
    device_j = step_energy_j({part: 1.0}, made()) - 200.0
    if state is None:  # nothing runs: no more than waiting on a link, no less than idle
        assert 16 * 400 * constant("power.idle") * 0.999 <= device_j <= 16 * 400 * constant("power.link") * 1.001
    else:
        assert device_j == pytest.approx(16 * 400 * constant(f"power.{state}"))


def test_a_device_answers_for_its_share_of_a_host() -> None:
    """Nine of sixteen devices in nodes of eight that idle at 100 W: 9/8 of a node, as their price is 9 devices'."""
    assert step_energy_j({"matrix": 1.0}, made(count=9)) == pytest.approx(9 * 400 * constant("power.matrix") + 112.5)
    assert hosts_w(made(), 16) == 200.0
    assert hosts_w(made(), 1) == 12.5


def test_the_building_multiplies_everything() -> None:
    overhead = Fact(value=1.5, unit="1", source="made by hand", conditions="", evidence=Evidence.ASSUMED)
    parts = {"matrix": 2.0, "bubble": 1.0}
    assert step_energy_j(parts, made(pue=overhead)) == pytest.approx(1.5 * step_energy_j(parts, made()))


def test_without_a_rated_power_only_the_hosts_count() -> None:
    bare = made()
    bare = replace(bare, accelerator=replace(bare.accelerator, tdp_w=None))
    assert step_energy_j({"matrix": 2.0}, bare) == pytest.approx(2 * 100 * 2.0)


def test_products_that_the_power_limit_holds_draw_all_of_it() -> None:
    more = step_energy_j({"matrix": 2.0, "attention": 1.0}, made(), held=True) - step_energy_j(
        {"matrix": 2.0, "attention": 1.0}, made()
    )
    assert more == pytest.approx(16 * 400 * 2.0 * (1 - constant("power.matrix")))


def test_states_and_hosts_err_by_themselves() -> None:
    # 1 s of products at the limit, 1 s of copies: 6400 W, 0.598 x 6400 W and two hosts of 100 W for 2 s
    products, copies, hosts = 6400.0, 0.598 * 6400, 400.0
    whole = products + copies + hosts
    low, high = step_power_range({"matrix": 1.0, "memory": 1.0}, made(), held=True)
    assert low == pytest.approx(1 - math.hypot(products * 0.154, hosts * 0.2) / whole)
    assert high == pytest.approx(1 + math.hypot(6400 * (0.828 - 0.598), hosts * 0.5) / whole)


def test_a_step_is_known_better_than_any_of_its_states() -> None:
    parts = {"matrix": 1.0, "memory": 1.0, "tensor link": 1.0, "launch": 1.0}
    alone = [step_power_range({name: 1.0}, made()) for name in parts]
    low, high = step_power_range(parts, made())
    assert min(one for one, _ in alone) < low < 1.0 < high < max(one for _, one in alone)


def test_energy_lies_between_idle_and_rated_power() -> None:
    everything = dict.fromkeys(("matrix", "attention", "memory", "launch", "update", "data link", "bubble"), 1.0)
    assert 16 * 400 * 7 * constant("power.idle") < step_energy_j(everything, made()) - 1400 < 16 * 400 * 7


@pytest.mark.parametrize(
    ("compute", "memory", "said"),
    [(0.0, 0.0, "idle"), (1.0, 0.0, "matrix"), (0.0, 1.0, "memory"), (3.0, 0.0, "matrix"), (0.0, 3.0, "memory")],
)
def test_a_board_that_does_one_thing_draws_what_that_takes(compute: float, memory: float, said: str) -> None:
    """Shares above one are one: no board is busier than always."""
    assert operator_power_w(400.0, compute, memory) == pytest.approx(400.0 * constant(f"power.{said}"))


def test_a_mix_adds_what_it_draws_above_idle_and_stops_at_the_rated_power() -> None:
    idle, matrix, memory = (constant(f"power.{name}") for name in ("idle", "matrix", "memory"))
    mixed = operator_power_w(400.0, 0.5, 0.25)
    assert mixed == pytest.approx(400.0 * (idle + 0.5 * (matrix - idle) + 0.25 * (memory - idle)))
    assert operator_power_w(400.0, 1.0, 1.0) == 400.0


def test_devices_without_work_draw_idle_power() -> None:
    parts = {"matrix": 2.0}
    few, most = (step_energy_j(parts, made(), used=used) for used in (12, 16))
    assert most == step_energy_j(parts, made())
    assert most - few == pytest.approx(4 * 400 * 2.0 * (constant("power.matrix") - constant("power.idle")))
    assert step_energy_j(parts, made(), used=0) == pytest.approx(16 * 400 * 2.0 * constant("power.idle") + 2 * 100 * 2)
    low, high = step_power_range(parts, made(), used=12)
    assert low < 1 < high
