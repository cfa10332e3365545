"""Training on devices of unlike types: shares against exhaustive search, stages, the timeline by hand, the file."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest

from ridgeline.cli.main import run
from ridgeline.cost.machine import machine
from ridgeline.errors import ClusterError, InputError, NoPlanError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.records import Cluster
from ridgeline.graph.load import load
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor, predict
from ridgeline.predict.mixed import predict_mixed
from ridgeline.predict.mixed_stages import MixedPredictor
from ridgeline.seams.device_shares import DeviceDivision, DeviceShares, MicroBatchCost, RankKind, SharesProblem
from ridgeline.seams.registry import technique
from ridgeline.search.mixed import best_mixed
from ridgeline.timeline.simulate import simulate
from ridgeline.training.exchanges import SLOWDOWN, ShardExchange
from ridgeline.training.unlike_ranks import RankWork, UnlikeStep, unlike_tasks

JOB = Workload(seq_len=1024, global_batch=32, precision="fp16")
FILE = """[between]
bandwidth = "3 GB/s"
[[group]]
accelerator = "A100-SXM-40GB"
devices = 4
[[group]]
accelerator = "{second}"
devices = {devices}
"""


def mixed(folder: Path, second: str = "V100-SXM2-16GB", devices: int = 4, rest: str = "") -> Cluster:
    path = folder / "mixed.toml"
    path.write_text(FILE.format(second=second, devices=devices) + rest)
    return cluster(str(path))


def kind(name: str, ranks: int, each_s: float, room: float, fixed_s: float = 0.0) -> RankKind:
    """A micro-batch of n takes fixed + n each, holds 1 + 2 n, and 0.5 n more for each that waits."""
    return RankKind(
        name=name, ranks=ranks, capacity_bytes=room, idle_bytes=1.0,
        cost=lambda size: MicroBatchCost(
            forward_s=(fixed_s + size * each_s) / 3, backward_s=(fixed_s + size * each_s) * 2 / 3,
            held_bytes=1.0 + 2.0 * size, more_bytes=0.5 * size,
        ),
    )  # fmt: skip


def divide(key: str, asked: SharesProblem) -> DeviceDivision:
    found = technique("device_shares", key)
    assert isinstance(found, DeviceShares)
    return found.divide(asked)


def slowest_s(asked: SharesProblem, found: DeviceDivision) -> float:
    return max(
        one.micro_batches * asked.kinds[one.kind].cost(one.micro_batch).seconds if one.micro_batch else 0.0
        for one in found.shares
    )


def exhaustive_s(asked: SharesProblem) -> float:
    """The least seconds of the slowest rank over every size and number of every rank."""
    owners = [one for one in asked.kinds for _ in range(one.ranks)]
    ways = []
    for owner in owners:
        mine = [(0, 0.0, owner.idle_bytes)]
        for size in range(1, asked.sequences + 1):
            cost = owner.cost(size)
            for many in range(1, asked.sequences // size + 1):
                held = cost.held_bytes + (many - 1) * cost.more_bytes
                if held <= owner.capacity_bytes:
                    mine.append((size * many, many * cost.seconds, held))
        ways.append(mine)
    room = sum(one.capacity_bytes for one in owners) - asked.state_bytes
    assert prod(map(len, ways)) < 2_000_000
    fitting = (
        max(one[1] for one in way) for way in product(*ways)
        if sum(one[0] for one in way) == asked.sequences and sum(one[2] for one in way) <= room
    )  # fmt: skip
    return min(fitting, default=np.inf)


@pytest.mark.parametrize("states", [0.0, 10.0, 18.0, 26.0])
@pytest.mark.parametrize("fixed_s", [0.0, 1.5])
def test_decoupled_shares_are_the_best_of_all(states: float, fixed_s: float) -> None:
    asked = SharesProblem(
        kinds=(kind("quick", 1, 1.0, 12.0, fixed_s), kind("slow", 2, 2.5, 14.0, fixed_s)), sequences=7,
        state_bytes=states, micro_batch=1,
    )  # fmt: skip
    best = exhaustive_s(asked)
    if not np.isfinite(best):
        with pytest.raises(NoPlanError):
            divide("decoupled-shares", asked)
        return
    found = divide("decoupled-shares", asked)
    assert found.bound_s == pytest.approx(best)
    assert slowest_s(asked, found) == pytest.approx(best)
    assert sum(one.ranks * one.sequences for one in found.shares) == 7
    assert sum(one.ranks * one.state_share for one in found.shares) == pytest.approx(1.0 if states else 0.0)
    assert all(one.state_share * states <= asked.room_bytes(one) + 1e-9 for one in found.shares)


def test_shares_by_hand() -> None:
    """Speeds 1 and 1/3 on one rank each: 9 and 3 of 12; even 6 and 6; one that is full holds fewer states."""
    asked = SharesProblem(
        kinds=(kind("quick", 1, 1.0, 30.0), kind("slow", 1, 3.0, 30.0)), sequences=12, state_bytes=20.0, micro_batch=2
    )
    even, by_speed = divide("even-shares", asked), divide("speed-shares", asked)
    assert [(one.micro_batch, one.micro_batches) for one in even.shares] == [(2, 3), (2, 3)]
    assert [one.sequences for one in by_speed.shares] == [9, 3]
    assert by_speed.shares[0].held_bytes == 19.0  # one micro-batch of 9: 10 of states fit beside it
    assert slowest_s(asked, even) == 18.0
    assert slowest_s(asked, by_speed) == slowest_s(asked, divide("decoupled-shares", asked)) == 9.0
    tight = replace(asked, kinds=(kind("quick", 1, 1.0, 12.0), kind("slow", 1, 3.0, 30.0)))
    found = divide("decoupled-shares", tight)
    quick, slow = sorted(found.shares, key=lambda one: one.kind)
    assert slowest_s(tight, found) == 9.0
    assert quick.held_bytes + 20 * quick.state_share <= 12.0
    assert slow.state_share > 0.5 > quick.state_share
    with pytest.raises(PlanError, match="nearest: 12"):
        divide("even-shares", replace(asked, sequences=13))


RULES = ShardExchange(gather_once=0, gather_always=1, reduce_always=1, overlap_gather=1, overlap_reduce=1)


def taken_s(step: UnlikeStep) -> float:
    return simulate(unlike_tasks(step)).makespan_s


def test_the_timeline_by_hand() -> None:
    """Two layers without exchanges: the slower rank alone; exposed ones add up; layered ones count once."""
    ranks = tuple(
        RankWork(name=name, forward_s=each, backward_s=2 * each, micro_batches=3, update_s=0.5)
        for name, each in (("quick", 2.0), ("slow", 4.0))
    )
    bare = UnlikeStep(ranks=ranks, layers=2, gather_s=0.0, reduce_s=0.0, rules=RULES, layered=False)
    assert taken_s(bare) == pytest.approx(3 * 12 + 0.5)
    shown = replace(bare, gather_s=2.0, reduce_s=4.0, rules=replace(RULES, overlap_gather=0, overlap_reduce=0))
    assert taken_s(shown) == pytest.approx(3 * (12 + 2 * 2 + 4) + 0.5)
    layered = replace(shown, layered=True)
    assert taken_s(layered) == pytest.approx(3 * 12 + 2 * 2 + 4 + 0.5)
    hidden = replace(layered, rules=RULES)
    assert hidden.bound_s <= taken_s(hidden) <= taken_s(layered) + SLOWDOWN() * 8
    links = replace(hidden, gather_s=100.0)
    assert links.bound_s == pytest.approx(2 * 100 + 4 + 0.5)
    assert taken_s(links) >= links.bound_s


def test_alike_groups_are_the_cluster_of_one_type(tmp_path: Path) -> None:
    """Two groups of one type, pipelined, price each stage as Predictor does."""
    found = mixed(tmp_path, "A100-SXM-40GB")
    plan = Plan(pp=2, dp=4, zero=1, micro_batch=2)
    ours = MixedPredictor(load("gpt3-1.3b"), found, JOB)
    kind_alone = ours.kinds[0]
    for name in ("forward_s", "backward_input_s", "gather_s", "reduce_s", "optimizer_s"):
        np.testing.assert_allclose(
            getattr(ours.prepare(plan)[1], name), getattr(kind_alone.prepare(plan)[1], name), rtol=1e-12
        )
    assert ours.bound_s(plan) == pytest.approx(kind_alone.bound_s(plan), rel=0.02)
    assert ours.excess_bytes(plan) == kind_alone.excess_bytes(plan)


def test_each_stage_is_priced_on_its_own_device(tmp_path: Path) -> None:
    found = mixed(tmp_path)
    plan = Plan(pp=2, dp=4, zero=1, micro_batch=2)
    ours = MixedPredictor(load("gpt3-1.3b"), found, JOB)
    rows = [one.prepare(plan)[1].forward_s[place, 0] for place, one in enumerate(ours.kinds)]
    np.testing.assert_array_equal(ours.prepare(plan)[1].forward_s[:, 0], rows)
    quick, slow = ours.stage_speeds(plan)
    assert quick > 1.2 * slow
    even, balanced = (
        predict_mixed(load("gpt3-1.3b"), found, JOB, replace(plan, technique=one)) for one in ((), ("balanced-stages",))
    )
    assert balanced.step_s < even.step_s
    assert balanced.uses[0].layers > balanced.uses[1].layers
    assert even.bound_s <= even.step_s
    assert [one.device for one in even.uses] == ["A100-SXM-40GB", "V100-SXM2-16GB"]


def test_decoupled_shares_are_no_slower_than_the_others_on_real_devices(tmp_path: Path) -> None:
    found, model = mixed(tmp_path), load("gpt3-1.3b")
    plan = Plan(dp=8, zero=3, micro_batch=2, recompute="full")
    steps = {
        key: predict_mixed(model, found, JOB, replace(plan, technique=(key,)))
        for key in ("even-shares", "speed-shares", "decoupled-shares")
    }
    assert steps["decoupled-shares"].step_s <= min(one.step_s for one in steps.values())
    for one in steps.values():
        assert one.bound_s <= one.step_s * (1 + 1e-9)
        assert one.low_s < one.step_s < one.high_s
        assert sum(each.sequences for each in one.uses) == JOB.global_batch
        assert sum(each.state_share for each in one.uses) == pytest.approx(1.0)


def test_a_small_memory_holds_fewer_states(tmp_path: Path) -> None:
    """6.7B of 16 bytes a number over 4 A100 of 40 GB and 4 T4 of 16: an even share of 13.4 GB leaves a T4 no room."""
    found, model = mixed(tmp_path, "T4"), load("gpt3-6.7b")
    plan = Plan(dp=8, zero=3, recompute="full")
    with pytest.raises(NoPlanError, match="T4"):
        predict_mixed(model, found, JOB, plan)
    report = predict_mixed(model, found, JOB, replace(plan, technique=("decoupled-shares",)))
    assert report.fits
    share = {one.device: one.state_share / one.devices for one in report.uses}
    assert share["T4"] < 1 / 8 < share["A100-SXM-40GB"]


def test_commands_answer_with_each_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed(tmp_path)
    words = ["gpt3-1.3b", "--on", str(tmp_path / "mixed.toml"), "--global-batch", "32", "--seq-len", "1024"]
    words += ["--recompute", "full"]
    assert run(["predict", *words, "--zero", "3", "--technique", "decoupled-shares", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["layered_accumulation"]
    assert told["fits"]
    assert sum(one["sequences"] for one in told["devices"]) == 32
    assert {one["limit"].partition(",")[0] for one in told["devices"]} <= {
        "its own compute", "waits for others", "waits for links",
    }  # fmt: skip
    assert run(["predict", *words, "--pp", "2", "--technique", "balanced-stages"]) == 0
    assert "V100-SXM2-16GB" in capsys.readouterr().out
    assert run(["plan", *words, "--pp", "1", "--top", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["others"]) == 1
    assert run(["predict", *words[:3], "--serve"]) == 2
    assert "these groups are unlike" in capsys.readouterr().err


def test_the_planner_is_no_worse_than_even(tmp_path: Path) -> None:
    found, model = mixed(tmp_path), load("gpt3-1.3b")
    best = best_mixed(model, found, JOB, fixed={"recompute": "full"}, top=3)
    even = [
        predict_mixed(model, found, JOB, Plan(dp=8, zero=3, micro_batch=size, recompute="full")).step_s
        for size in (1, 2, 4)
    ]
    even.append(predict_mixed(model, found, JOB, Plan(pp=2, dp=4, zero=1, recompute="full", micro_batch=2)).step_s)
    assert best[0].step_s <= min(even)
    assert best[0].step_s <= best[1].step_s
    held = best_mixed(model, found, JOB, fixed={"recompute": "full", "pp": 1}, top=1)
    assert held[0].plan.pp == 1
    with pytest.raises(NoPlanError, match="fits"):
        best_mixed(load("gpt3-175b"), found, JOB, fixed={}, top=1)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (Plan(dp=4, cp=2), "cp 2"),
        (Plan(pp=2, dp=4, chunks=2, schedule="interleaved"), "chunks"),
        (Plan(pp=4, dp=2, tp=1, schedule="v-half"), "v-half"),
        (Plan(pp=3, dp=2), "the groups hold 4"),
        (Plan(pp=2, dp=4, technique=("decoupled-shares",)), "say pp 1"),
        (Plan(dp=8, technique=("balanced-stages",)), "pp 1"),
        (Plan(dp=4), "use all"),
        (Plan(dp=8, zero=1, technique=("decoupled-shares",)), "say zero 3"),
        (Plan(dp=8, offload_optimizer=True), "offload_optimizer"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(plan: Plan, told: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=told):
        predict_mixed(load("gpt3-1.3b"), mixed(tmp_path), JOB, plan)


def test_stages_lie_within_one_type(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="does not divide the 3"):
        predict_mixed(load("gpt3-1.3b"), mixed(tmp_path, "L4", 3), JOB, Plan(pp=3, dp=2, tp=1))


def test_other_commands_name_the_types(tmp_path: Path) -> None:
    found = mixed(tmp_path)
    with pytest.raises(ClusterError, match="A100-SXM-40GB, V100-SXM2-16GB"):
        machine(found)
    with pytest.raises(ClusterError, match="one of its groups"):
        Predictor(load("gpt3-1.3b"), found, JOB)


def test_shares_on_alike_devices_are_refused() -> None:
    with pytest.raises(PlanError, match="one type"):
        predict(load("gpt3-1.3b"), cluster("8xA100-SXM-40GB"), JOB, Plan(dp=8, technique=("even-shares",)))


def test_the_file(tmp_path: Path) -> None:
    found = mixed(
        tmp_path, "L4", 2, '[[group]]\naccelerator = "T4"\nnodes = 3\ndevices = 2\nbandwidth = "2 GB/s"\nprice = 0.5\n'
    )
    assert found.mixed is not None
    assert (found.count, [one.count for one in found.mixed.groups]) == (12, [4, 2, 6])
    assert [tier.size for tier in found.mixed.groups[2].tiers] == [2, 6]
    assert found.mixed.groups[2].tiers[-1].bytes_per_s == 2e9
    assert found.mixed.groups[2].price_usd_per_device_h is not None
    assert found.mixed.groups[2].price_usd_per_device_h.value == 0.5
    with pytest.raises(InputError, match="T5"):
        mixed(tmp_path, "T5")
    with pytest.raises(InputError, match="bandwith"):
        mixed(tmp_path, rest='[[group]]\naccelerator = "T4"\nbandwith = "2 GB/s"\n')
    assert cluster("cephalo-a").count == 8
