"""Fleets of whole instances or pools on devices of unlike kinds: one reader, and rivals of one kind."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ridgeline.cli.main import run
from ridgeline.cost.machine import machine, outside
from ridgeline.cost.network import send_seconds
from ridgeline.energy.power import hosts_w, operator_power_w
from ridgeline.errors import ClusterError, InputError, PlanError
from ridgeline.facts.clusters import cluster, outward, price, side_by_side
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.predict.fleet import busy_shares, fleet_power_w, group_uses
from ridgeline.predict.serving import Operation, simulate_serving
from ridgeline.scenario.serving import ServingScenario, serving_from_words
from ridgeline.scenario.serving_words import deployed
from ridgeline.search.serving import search_serving
from ridgeline.search.serving_candidates import Bench
from ridgeline.search.serving_space import ServingSpace
from ridgeline.serving.engine import engine
from ridgeline.serving.fleet_events import Failures, FleetEvents
from ridgeline.serving.metrics import Band, measure
from ridgeline.serving.objective import Objective
from ridgeline.serving.replay import Replay, replay, replay_tables, tables_of
from ridgeline.serving.rule import moving
from ridgeline.serving.traffic.arrivals import poisson
from ridgeline.serving.traffic.asked import synthetic
from ridgeline.serving.traffic.lengths import Uniform
from ridgeline.serving.traffic.traffic import Traffic

MODEL = load("llama-3.1-8b")
BOTH = "4xH100-SXM+4xL40S"


@cache
def both() -> Cluster:
    return side_by_side(cluster(BOTH))


@cache
def coming(rate: float = 20.0, requests: int = 300) -> Traffic:
    return synthetic(poisson(rate, requests=requests, seed=1), Uniform(low=200, high=3000), Uniform(low=20, high=200))


def asked(plan: dict[str, Any], on: str = BOTH, **more: Any) -> ServingScenario:
    tables = {"model": {"name": "llama-3.1-8b"}, "cluster": {"name": on, **more}, "workload": {"rate": 2}, "plan": plan}
    return serving_from_words(tables)


def replayed(*fleet: Deployment, router: str = "least-loaded", on: Cluster | None = None) -> Replay:
    where = machine(on or both())
    return replay([engine(MODEL, where, one) for one in fleet], coming(), router=router)


# one reader for training and serving -------------------------------------------------------------------


def test_a_sum_of_clusters_is_groups_of_unlike_devices() -> None:
    found = cluster(" 4xH100-SXM + 2x8xL40S ")
    assert found.mixed is not None
    assert (found.name, found.count) == ("4xH100-SXM+16xL40S", 20)
    first, second = found.mixed.groups
    assert (first, second) == (cluster("4xH100-SXM"), cluster("2x8xL40S"))
    links = outward(first), outward(second)
    assert found.mixed.between.bytes_per_s == min(one.bytes_per_s for one in links)
    assert found.mixed.between.latency_s == max(one.latency_s for one in links)
    seen = side_by_side(found)
    assert seen.secondary is not None
    assert (seen.name, seen.count, seen.secondary.cluster.count) == ("4xH100-SXM+16xL40S", 4, 16)
    assert side_by_side(first) is first


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("8xH100-SXM+16xH100-SXM", "names H100-SXM twice"),
        ("8xH100-SXM+", "a group without a name"),
        ("8xH100-SXM+8xH200-SXN", "nearest"),
    ],
)
def test_a_sum_that_cannot_be_read_is_told(text: str, told: str) -> None:
    with pytest.raises(Exception, match=told):
        cluster(text)
    with pytest.raises(ClusterError, match="3 types of devices; serving takes two at most"):
        side_by_side(cluster("1xH100-SXM+1xL40S+1xA100-SXM-80GB"))


def test_each_group_has_a_price_of_its_own() -> None:
    found = asked({}, price="2.5, 0.8")
    uses = simulate_serving(found.model, found.cluster, found.deployments, coming()).groups
    assert [one.usd_per_h for one in uses] == [10.0, pytest.approx(3.2)]
    with pytest.raises(InputError, match="has 1 prices for 2 types of devices"):
        asked({}, price="2.5")


def test_whole_instances_fill_both_kinds_and_pools_have_one_each() -> None:
    whole = asked({"tp": 2}).deployments
    assert [(one.kind, one.instances, one.tp) for one in whole] == [("H100-SXM", 2, 2), ("L40S", 2, 2)]
    groups = asked({"fleet": "1xtp4@h100 + 3xtp1@L40S"}).deployments
    assert [(one.kind, one.instances, one.tp) for one in groups] == [("H100-SXM", 1, 4), ("L40S", 3, 1)]
    pools = asked({"prefill": "2xtp1", "decode": "1xtp4"}).deployments
    assert [(one.kind, one.role) for one in pools] == [("H100-SXM", Role.PREFILL), ("L40S", Role.DECODE)]
    turned = asked({"prefill": "2xtp1@L40S", "decode": "1xtp4@H100-SXM"}).deployments
    assert [one.kind for one in turned] == ["L40S", "H100-SXM"]
    alike = asked({"fleet": "2xtp2 + 4xtp1"}, on="8xH100-SXM").deployments
    assert [(one.kind, one.instances) for one in alike] == [("", 2), ("", 4)]


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"instances": 2}, r"say how many of each: --fleet 4xtp2@H100-SXM\+8xtp1@L40S"),
        ({"fleet": "1xtp1@A100-SXM-80GB"}, "of which 4xH100-SXM.4xL40S has none; it has H100-SXM, L40S"),
        ({"fleet": "5xtp1@L40S"}, "5 devices are asked for, 4xL40S has 4"),
        ({"fleet": "1xtp1@L40S", "prefill": "1xtp1", "decode": "1xtp1"}, "leave out instances, prefill and decode"),
        ({"beside": "4xA100-SXM-80GB"}, "has devices of two kinds already"),
    ],
)
def test_a_fleet_that_cannot_be_is_told(plan: dict[str, Any], told: str) -> None:
    with pytest.raises((PlanError, InputError), match=told):
        asked(plan)


# replays -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", ["least-loaded", "round-robin", "kv-usage"])
def test_two_equal_groups_are_one_fleet_bit_for_bit(router: str) -> None:
    one = deployed(instances=4)
    on = cluster("4xH100-SXM")
    whole = replayed(one, router=router, on=on)
    parts = replayed(replace(one, instances=1), replace(one, instances=3), router=router, on=on)
    for name in ("first_s", "end_s", "hit_tokens", "busy_s", "histogram", "series"):
        assert getattr(whole, name).tobytes() == getattr(parts, name).tobytes()
    assert set(parts.served_by) == {0, 1}


def test_a_group_alone_is_a_fleet_of_its_kind() -> None:
    """The fleet with nothing on the H100 serves as a cluster of L40S does, bit for bit."""
    alone = replayed(deployed(instances=4, kind="L40S"))
    plain = replayed(deployed(instances=4), on=cluster("4xL40S"))
    assert alone.end_s.tobytes() == plain.end_s.tobytes()


def test_prompts_go_by_length() -> None:
    found = replayed(
        deployed(instances=2, kind="L40S"), deployed(instances=2, kind="H100-SXM"), router="prompt-length(tokens=1000)"
    )
    assert (found.served_by == (coming().prompt_tokens >= 1000)).all()


def test_the_fuller_instance_waits_for_the_emptier() -> None:
    """With caches of unlike sizes, shares of blocks go up together: the larger cache takes more requests."""
    fleet = [deployed(instances=1, kind=kind) for kind in ("H100-SXM", "L40S")]
    engines = [engine(MODEL, machine(both()), one) for one in fleet]
    larger, smaller = (one.capacity.cache_tokens for one in engines)
    by_usage = replay(engines, coming(8.0), router="kv-usage")
    by_load = replay(engines, coming(8.0), router="least-loaded")
    assert larger > 2 * smaller
    assert (by_usage.served_by == 0).sum() > (by_load.served_by == 0).sum()


def test_a_cache_goes_to_another_kind_at_the_pace_of_the_slower_end() -> None:
    where = machine(both())
    first, second = (engine(MODEL, where, deployed(kind=kind, role=role)) for kind, role in
                     (("H100-SXM", Role.PREFILL), ("L40S", Role.DECODE)))  # fmt: skip
    found = moving(first, 1, [second])
    each = first.capacity.token_bytes
    slowest = max(
        float(send_seconds(each * 1e4, end.tiers[0].size, end))
        for end in (outside(first.machine), outside(second.machine))
    )
    assert found["move_token_s"] * 1e4 == pytest.approx(slowest, rel=0.01)
    assert found["move_token_s"] > moving(first, 1, [replace(second, deployment=first.deployment)])["move_token_s"]


# what each group does, draws and costs ------------------------------------------------------------------


def test_each_group_is_as_busy_as_its_own_instances() -> None:
    fleet = [deployed(instances=1, kind="H100-SXM"), deployed(instances=2, kind="L40S", role=Role.WHOLE)]
    found: Any = SimpleNamespace(
        busy_s=np.array([5.0, 2.0, 4.0]), span_s=10.0, prefill_s=1.0, decode_s=3.0,
        done=np.array([True, True, True, False]), output=np.array([10, 20, 30, 40]), served_by=np.array([0, 1, 1, 1]),
        paid_s=np.full(3, 10.0),
    )  # fmt: skip
    assert busy_shares(fleet, found) == pytest.approx([0.5, 0.3])
    first, second = group_uses(both(), fleet, found)
    assert (first.request_share, second.request_share) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert (first.output_token_share, second.output_token_share) == (pytest.approx(1 / 6), pytest.approx(5 / 6))
    assert second.usd_per_h is not None
    assert second.usd_per_million_output_tokens == pytest.approx(second.usd_per_h * 10 / 3600 / 50 * 1e6)
    assert group_uses(both(), [fleet[0]], found) == ()
    busy, calm = Band(low=1, high=1, compute=1.0, memory=0.0), Band(low=1, high=1, compute=0.0, memory=0.5)
    total = 0.0
    for one, share, count in ((both(), 0.5, 1), (both().of_kind("L40S"), 0.3, 2)):
        tdp = one.accelerator.tdp_w or 0.0
        working = 0.25 * operator_power_w(tdp, 1.0, 0.0) + 0.75 * operator_power_w(tdp, 0.0, 0.5)
        device = share * working + (1 - share) * constant("power.idle") * tdp
        total += (device * count + hosts_w(one, count)) * (one.pue.value if one.pue else 1.0)
    assert fleet_power_w(both(), fleet, found, [(busy, calm)] * 2) == pytest.approx(total)


# search ------------------------------------------------------------------------------------------------


def test_the_cheapest_mix_is_that_of_trying_all() -> None:
    """Every number of instances of one device on either kind, at prices of one's own."""
    found = asked({}, price="3,0.5")
    goal, line = Objective(ttft_s=0.4, tpot_s=0.03), coming(24.0)
    space = ServingSpace(pools=False, aim="dollars", token_budgets=(None,), max_seqs=(None,), fixed={"tp": 1, "pp": 1})
    best = search_serving(MODEL, found.cluster, line, goal, space=space, top=50).ranked[0]
    bench = Bench(
        model=MODEL, machine=machine(found.cluster), cluster=found.cluster, traffic=line, objective=goal,
        router="least-loaded",
    )  # fmt: skip
    cheapest = np.inf
    for counts in itertools.product(range(5), range(5)):
        fleet = tuple(
            deployed(engine="vllm", kind=kind, instances=count)
            for kind, count in zip(("H100-SXM", "L40S"), counts, strict=True)
            if count
        )
        if fleet and (one := bench.tried(fleet)) and not isinstance(one, str) and getattr(one, "metrics", None):
            cheapest = min(cheapest, one.usd_per_h) if one.metrics.kept else cheapest
    assert best.usd_per_h == pytest.approx(cheapest)


def test_a_search_tries_pools_of_unlike_kinds() -> None:
    space = ServingSpace(token_budgets=(None,), max_seqs=(None,), fixed={"tp": 1, "pp": 1})
    found = search_serving(MODEL, both(), coming(), Objective(ttft_s=1.0), space=space, top=100)
    pools = [one.deployments for one in found.ranked if one.deployments[0].role is Role.PREFILL]
    assert {tuple(each.kind for each in one) for one in pools} == {("H100-SXM", "L40S"), ("L40S", "H100-SXM")}
    again = simulate_serving(
        MODEL, both(), pools[0], coming(), objective=Objective(ttft_s=1.0), operation=Operation(router="least-loaded")
    )
    assert measure(again.replay, coming(), Objective(ttft_s=1.0)) == next(
        one.metrics for one in found.ranked if one.deployments == pools[0]
    )


# machines that go away -----------------------------------------------------------------------------------


def test_spot_machines_of_one_kind_go_away() -> None:
    """Those on L40S are up half of the time; those on H100 never fail and take over."""
    found = asked({"failures": "up=5s,down=5s,on=l40s", "fleet": "2xtp1@H100-SXM+2xtp1@L40S"})
    assert found.stated["failures"] == {"mean_up_s": 5.0, "mean_down_s": 5.0, "on": "L40S"}
    engines = [engine(MODEL, machine(both()), one) for one in found.deployments]
    tables, line = tables_of(engines, coming()), coming()
    law = FleetEvents(failures=Failures(**found.stated["failures"], seed=1))
    replayed_ = replay_tables(engines, tables, line, router="least-loaded", fleet_events=law)
    assert replayed_.failures > 0
    assert replayed_.up_s[:2].tolist() == [replayed_.span_s, replayed_.span_s]
    assert replayed_.up_s[2:].sum() < 0.8 * 2 * replayed_.span_s
    assert replayed_.done.all()
    with pytest.raises(InputError, match=r"of which 4xH100-SXM.4xL40S has none"):
        asked({"failures": "up=5s,down=5s,on=A100-SXM-80GB"})


def test_spot_prices_are_those_of_the_catalog() -> None:
    found = asked({}, on="4xA100-SXM-40GB+4xL40S", price="spot,0.8")
    own = price("A100-SXM-40GB", spot=True)
    assert own is not None
    assert found.cluster.price_usd_per_device_h == own
    with pytest.raises(InputError, match="no spot price is known of H20"):
        asked({}, on="8xH20", price="spot")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            "predict llama-3.1-8b --serve --on 1xH100-SXM+1xL40S",
            "a queue is divided evenly, and these groups are unlike",
        ),
        ("advise llama-3.1-8b --serve --on 1xH100-SXM+1xL40S --rate 1", "advice is of devices of one kind"),
        ("export llama-3.1-8b --on 1xH100-SXM+1xL40S --tp 1 --to vllm", "has groups of unlike instances"),
    ],
)
def test_what_a_mixed_fleet_has_not_is_told(command: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "'--on'" in said
    assert told in said
