"""Attention on devices of one kind and experts on devices of another: by hand, and against fleets of one kind."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ridgeline.cost.machine import machine, of_kind, outside
from ridgeline.errors import ClusterError, DomainError, InputError, NoPlanError, PlanError
from ridgeline.facts.clusters import cluster, with_secondary
from ridgeline.facts.records import Cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.fleet import fleet_power_w, fleet_usd_per_h, instance_usd_per_h
from ridgeline.scenario.serving import fitting_instances, serving_from_words
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.serving import Disaggregation, expert_devices, of, other_devices, own_devices
from ridgeline.search.serving import search_serving
from ridgeline.search.serving_space import ServingSpace, deployments, fleets
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.metrics import Band
from ridgeline.serving.objective import Objective
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import traffic

MIXED = {
    "kind": "L40S",
    "expert_kind": "H100-SXM",
    "dp": 4,
    "expert_devices": 4,
    "micro_batches": 2,
    "token_budget": 2048,
}


@cache
def both() -> Cluster:
    return with_secondary(cluster("8xL40S"), cluster("8xH100-SXM"))


@cache
def made(on: str = "", **words: Any) -> tuple[Engine, StepTables]:
    where = machine(cluster(on) if on else both())
    one = engine(load("mixtral-8x7b"), where, deployed(**words))
    return one, one.tables(longest_prompt=2048, longest=4096)


# the machine -----------------------------------------------------------------------------------------


def test_each_kind_sees_the_other_beside_it() -> None:
    here, there = both(), both().of_kind("H100-SXM")
    assert (here.of_kind("L40S"), here.of_kind("")) == (here, here)
    assert there.accelerator.name == "H100-SXM"
    assert there.secondary is not None
    assert there.secondary.cluster.accelerator.name == "L40S"
    assert there.of_kind("L40S").accelerator.name == "L40S"
    assert of_kind(machine(here), "H100-SXM").cluster == there


def test_devices_of_one_kind_are_no_second_kind() -> None:
    with pytest.raises(ClusterError, match="both are H100-SXM"):
        with_secondary(cluster("8xH100-SXM"), cluster("16xH100-SXM"))
    with pytest.raises(DomainError, match="no devices of another kind beside it"):
        outside(machine(cluster("8xL40S")))


def test_a_send_runs_at_the_network_of_its_end() -> None:
    """A box of 8 L40S has one port of 100 Gb/s: 12.5 / 8 GB/s each, 0.8 of it reached, 30 us away."""
    one, _ = made(**MIXED)
    found = one.steps.prices.outward(np.array([1e6])).mid
    assert found.tolist() == pytest.approx([1e6 / (12.5e9 / 8 * 0.8) + 30e-6])
    assert one.steps.expert_prices.outward(np.array([1e6])).mid[0] < found[0] / 5


def test_the_busier_end_of_an_exchange_binds() -> None:
    """128 tokens in two micro-batches: 64, each to 4 (1 - 0.75^2) = 1.75 devices, 8,192 bytes: 917,504, 32 layers.

    Both ends carry as much, the L40S at 1.25 GB/s. With two expert devices each takes in 64 x 1.5 x 4 / 2: 192 rows
    where an attention device sends 96, and still L40S is slower: 786,432 bytes against 1.57 MB at 50 GB/s.
    """
    _, tables = made(**MIXED)
    at = list(tables.tokens).index(128.0)
    assert tables.attention_ffn is not None
    assert tables.attention_ffn.send.mid[at] == pytest.approx(32 * (917_504 / 1.25e9 + 30e-6))
    _, fewer = made(**{**MIXED, "expert_devices": 2})
    assert fewer.attention_ffn is not None
    assert fewer.attention_ffn.send.mid[at] == pytest.approx(32 * (786_432 / 1.25e9 + 30e-6))


# the sides -------------------------------------------------------------------------------------------


def test_each_side_is_priced_as_on_its_own_kind() -> None:
    words = {name: value for name, value in MIXED.items() if "kind" not in name}
    _, mixed = made(**MIXED)
    _, slow = made("8xL40S", **{**words, "expert_devices": 4})
    _, fast = made("8xH100-SXM", **words)
    np.testing.assert_array_equal(mixed.group.mid, fast.group.mid)
    np.testing.assert_array_equal(mixed.lane.mid, slow.lane.mid)
    np.testing.assert_array_equal(mixed.decode.mid, slow.decode.mid)
    assert (slow.group.mid > fast.group.mid).all()


def test_each_side_has_its_own_memory() -> None:
    """Mixtral's experts, 2 of 3 x 4,096 x 14,336 in 32 layers and 2 bytes, on H100; the rest and caches on L40S."""
    one, _ = made(**MIXED)
    held = one.capacity
    assert held.memory_bytes == both().accelerator.memory_bytes
    assert held.experts_bytes == 2 * 3 * 4096 * 14336 * 32 * 2
    assert held.experts_memory_bytes == both().of_kind("H100-SXM").accelerator.memory_bytes
    with pytest.raises(NoPlanError, match=r"its experts take .* of each of 1 devices"):
        _ = made(**{**MIXED, "expert_devices": 1})[0].capacity
    swapped = {**MIXED, "kind": "H100-SXM", "expert_kind": "L40S"}
    assert made(**swapped)[0].capacity.cache_tokens > 1.5 * held.cache_tokens
    with pytest.raises(NoPlanError, match="of each of 2 devices"):  # 4 experts of 352 MB in 32 layers: 42 GiB
        _ = made(**{**swapped, "expert_devices": 2})[0].capacity


def test_a_fleet_costs_and_draws_what_its_kinds_do() -> None:
    one = deployed(**MIXED, instances=2)
    here, there = both(), both().of_kind("H100-SXM")
    assert here.price_usd_per_device_h is not None
    assert there.price_usd_per_device_h is not None
    each = 4 * here.price_usd_per_device_h.value + 4 * there.price_usd_per_device_h.value
    assert instance_usd_per_h(both(), one) == pytest.approx(each)
    assert fleet_usd_per_h(both(), [one]) == pytest.approx(2 * each)
    idle: Any = SimpleNamespace(prefill_s=0.0, decode_s=0.0, busy_s=np.zeros(2), paid_s=np.ones(2), span_s=1.0)
    band = Band(low=1.0, high=1.0, compute=1.0, memory=1.0)
    parts = [fleet_power_w(where, [deployed(dp=4, instances=2)], idle, [(band, band)]) for where in (here, there)]
    assert fleet_power_w(both(), [one], idle, [(band, band)]) == pytest.approx(sum(part or 0.0 for part in parts))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"kind": "A100-SXM"}, "an instance on A100-SXM, of which 8xL40S has none"),
        ({"expert_kind": "A100-SXM", "expert_devices": 4}, "experts on A100-SXM, of which 8xL40S has none beside it"),
        ({"expert_kind": "H100-SXM", "expert_devices": 16}, "experts on 16 H100-SXM, there are 8 beside 8xL40S"),
        ({"tp": 16}, "16 devices, the cluster has 8"),
    ],
)
def test_what_is_not_there_is_refused(words: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        made(**words)


def test_a_kind_for_experts_needs_their_number() -> None:
    with pytest.raises(PlanError, match="not on how many"):
        deployed(expert_kind="H100-SXM")


# the scenario ----------------------------------------------------------------------------------------


def tables_of(**plan: object) -> dict[str, dict[str, object]]:
    return {"model": {"name": "mixtral-8x7b"}, "cluster": {"name": "8xL40S"}, "plan": plan}


def test_a_scenario_names_the_devices_beside() -> None:
    asked = serving_from_words(tables_of(beside="8xH100-SXM", expert_devices=4, dp=2))
    (one,) = asked.deployments
    assert (one.kind, one.expert_kind, own_devices(one), other_devices(one)) == ("", "H100-SXM", 2, 4)
    assert one.instances == 2  # 8 / 2 by attention's devices, 8 / 4 by the experts'
    assert fitting_instances(one, asked.cluster) == 2
    with pytest.raises(InputError, match=r"--beside.*both are L40S"):
        serving_from_words(tables_of(beside="4xL40S", expert_devices=4))
    with pytest.raises(InputError, match=r"--beside.*unknown cluster"):
        serving_from_words(tables_of(beside="8xH1000", expert_devices=4))
    with pytest.raises(PlanError, match="12 devices are asked for, 8xH100-SXM has 8"):
        serving_from_words(tables_of(beside="8xH100-SXM", expert_devices=4, instances=3))


# the search ------------------------------------------------------------------------------------------


def test_a_search_tries_both_kinds_and_splits_over_both() -> None:
    grid = list(deployments(load("mixtral-8x7b"), both(), ServingSpace(micro_batches=(3,), fixed={"tp": 1})))
    apart = {(one.kind, one.dp, expert_devices(one)) for one in grid if one.expert_kind}
    assert apart == {(kind, dp, e) for kind in ("L40S", "H100-SXM") for dp in (1, 2, 4, 8) for e in (1, 2, 4, 8)}
    assert {one.kind for one in grid if not expert_devices(one)} == {"L40S", "H100-SXM"}
    assert all(one.expert_kind != one.kind for one in grid)
    only = list(deployments(load("mixtral-8x7b"), both(), ServingSpace(fixed={"tp": 1, "apart": True})))
    assert only
    assert all(one.expert_kind for one in only)
    assert {of(one, Disaggregation).micro_batches for one in only} == {2, 3, 4}


def test_fleets_fill_both_kinds() -> None:
    shapes = [
        deployed(kind="L40S", tp=4), deployed(kind="H100-SXM", tp=2),
        deployed(kind="L40S", expert_kind="H100-SXM", dp=2, expert_devices=4),
    ]  # fmt: skip
    asked = traffic([0.0], [8], [2])

    def none(one: Deployment) -> tuple[Engine, StepTables]:
        return made(
            **{name: getattr(one, name) for name in ("kind", "expert_kind", "tp", "dp")},
            expert_devices=expert_devices(one) or None,
        )

    found = list(fleets(shapes, both(), ServingSpace(), none, asked))
    counts = [tuple(one.instances for one in fleet) for fleet in found]
    # each alone, whole instances of both kinds at once, and prefill on one and decode on the other, either way
    assert counts == [(2,), (4,), (2,), (2, 4), (2, 4), (4, 2)]


def test_the_best_of_a_fleet_of_two_kinds_is_no_worse_than_that_of_either() -> None:
    """Under an objective that all keep to, the one with the fewest devices, whichever kind it is of."""
    asked = traffic([0.5 * place for place in range(12)], [256] * 12, [32] * 12)
    space, stated = (
        ServingSpace(token_budgets=(None,), max_seqs=(None,), pools=False, micro_batches=(3,)),
        {"max_seqs": 64},
    )
    goal = Objective(ttft_s=5.0, tpot_s=1.0)
    mixed = search_serving(load("mixtral-8x7b"), both(), asked, goal, space=replace(space, fixed=stated))
    alone = [
        search_serving(load("mixtral-8x7b"), cluster(name), asked, goal, space=replace(space, fixed=stated))
        for name in ("8xL40S", "8xH100-SXM")
    ]
    assert mixed.ranked[0].devices == min(one.ranked[0].devices for one in alone)
    assert mixed.considered > sum(one.considered for one in alone)
    assert all(one.usd_per_h is not None for one in mixed.ranked)
