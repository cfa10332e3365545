"""A deployment under traffic, composed: what the report adds to a replay, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import NoPlanError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Evidence
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.predict.serving import Operation, queue_of, simulate_serving
from ridgeline.report.serving import ServingReport
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import engine
from ridgeline.serving.fleet_events import Autoscale, FleetEvents
from ridgeline.serving.objective import Objective
from ridgeline.serving.replay import replay
from ridgeline.serving.traffic.asked import asked_traffic
from ridgeline.serving.traffic.traffic import Traffic, traffic

MODEL = load("llama-3.1-8b")
TWO = cluster("2xH100-SXM")


def steady(count: int = 60, gap_s: float = 0.2) -> Traffic:
    return traffic(gap_s * np.arange(count), np.full(count, 200), np.full(count, 20), name="steady")


@cache
def told(**words: int) -> ServingReport:
    return simulate_serving(MODEL, TWO, [deployed(**words)], steady(), objective=Objective(ttft_s=1.0))  # type: ignore[arg-type]


def test_a_report_holds_the_replay_itself() -> None:
    alone = replay([engine(MODEL, machine(TWO), deployed(instances=2))], steady())
    report = told(instances=2)
    np.testing.assert_array_equal(report.replay.end_s, alone.end_s)
    np.testing.assert_array_equal(report.replay.first_s, alone.first_s)
    assert (report.metrics.attained, report.traffic_name, report.engines) == (1.0, "steady", ("vLLM",))


@pytest.mark.parametrize(("ep", "told_so"), [(1, True), (8, False)])
def test_a_report_says_where_the_engine_would_refuse_to_load_experts(ep: int, told_so: bool) -> None:
    """MiniMax-M2's experts are 1,536 wide: eight ranks hold 192 of each, one and a half blocks, or whole ones."""
    one = deployed(tp=8, ep=ep, weights="fp8_block")
    report = simulate_serving(load("minimax-m2"), cluster("8xH200-SXM"), [one], steady(count=4))
    assert any("blocks of 128" in note for note in report.assumed) is told_so


@pytest.mark.parametrize(("ep", "backend", "told_so"), [(16, "", True), (8, "", False), (16, "none", False)])
def test_a_report_says_by_what_experts_on_many_ranks_run(ep: int, backend: str, told_so: bool) -> None:
    """And no word of the many ranks where a backend is named. Prompts and steps have kernels of their own."""
    one = deployed(engine="SGLang", dp=ep, ep=ep, weights="fp8_block", expert_backend=backend)
    report = simulate_serving(load("deepseek-v3"), cluster("16xH200-SXM"), [one], steady(count=4))
    assert any("experts on 16 ranks run by deepep" in note for note in report.assumed) is told_so
    assert ({"wide_experts", "wide_experts_decode"} <= set(report.rungs)) is told_so


def test_money_by_hand() -> None:
    """Devices times the price of one; a million tokens at the rate that came out."""
    report = told(instances=2)
    assert TWO.price_usd_per_device_h is not None
    assert report.devices == 2
    assert report.usd_per_h == pytest.approx(2 * TWO.price_usd_per_device_h.value)
    hours = 1e6 / report.metrics.output_tokens_per_s / 3600
    assert report.usd_per_million_output_tokens == pytest.approx(2 * TWO.price_usd_per_device_h.value * hours)
    free = simulate_serving(MODEL, replace(TWO, price_usd_per_device_h=None), [deployed()], steady())
    assert (free.usd_per_h, free.usd_per_million_output_tokens) == (None, None)


def test_power_by_hand() -> None:
    """Busy at what its iterations keep busy, idle else, hosts beside it, times the building's overhead."""
    report = told(instances=2)
    found, tdp = report.replay, TWO.accelerator.tdp_w
    assert tdp is not None
    assert TWO.pue is not None
    idle, matrix, memory = (constant(f"power.{name}") for name in ("idle", "matrix", "memory"))

    def working(compute: float, moved: float) -> float:
        return min(1.0, idle + (matrix - idle) * min(compute, 1.0) + (memory - idle) * min(moved, 1.0))

    busy = found.busy_s.mean() / found.span_s
    share = found.prefill_s / (found.prefill_s + found.decode_s)
    level = share * working(report.prefill.compute, report.prefill.memory)
    level += (1 - share) * working(report.decode.compute, report.decode.memory)
    each = tdp * (busy * level + (1 - busy) * idle)
    hosts = 2 / TWO.host.devices * TWO.host.idle_w
    assert report.power_w == pytest.approx((2 * each + hosts) * TWO.pue.value)
    assert report.energy_j == pytest.approx((report.power_w or 0.0) * found.span_s)
    assert 0 < busy < 1


def test_a_device_without_a_rated_power_has_no_watts() -> None:
    silent = replace(TWO, accelerator=replace(TWO.accelerator, tdp_w=None))
    report = simulate_serving(MODEL, silent, [deployed()], steady())
    assert (report.power_w, report.energy_j) == (None, None)


def test_what_waits_is_told_beside_what_computes() -> None:
    """A lone request's TTFT is its prompt's iteration and the way to the engine; in a crowd most of it is waiting."""
    alone = simulate_serving(MODEL, TWO, [deployed()], steady(1), operation=Operation(offline=True))
    assert alone.metrics.ttft.p50 == pytest.approx(sum(alone.prefill_parts.values()), rel=0.1)
    assert alone.queue_share == pytest.approx(0.0, abs=0.1)
    crowd = simulate_serving(MODEL, TWO, [deployed()], steady(2000, 0.0))
    assert crowd.queue_share > 0.9


def test_a_lone_answer_takes_its_decode_parts_a_token() -> None:
    alone = simulate_serving(MODEL, TWO, [deployed()], steady(1), operation=Operation(offline=True))
    assert alone.metrics.tpot.p50 == pytest.approx(sum(alone.decode_parts.values()), rel=0.05)


def test_evidence_is_the_lowest_rung() -> None:
    """vLLM's host times are assumed, whatever the kernels are known by."""
    report = told(instances=2)
    assert report.evidence is Evidence.ASSUMED
    assert set(report.rungs) == {"gemm", "decode", "prefill"}


def test_pools_are_told_side_by_side() -> None:
    pools = [deployed(role=Role.PREFILL), deployed(role=Role.DECODE)]
    report = simulate_serving(MODEL, TWO, pools, steady())
    assert (report.devices, len(report.capacities), report.replay.moves) == (2, 2, 60)


def test_an_engine_that_will_not_start() -> None:
    with pytest.raises(NoPlanError, match="will not start on 1xH100-SXM"):
        simulate_serving(load("llama-3.1-70b"), TWO, [deployed()], steady())


def test_fewer_or_slower_devices_are_never_better() -> None:
    busy = steady(300, 0.01)
    reports = [
        simulate_serving(MODEL, cluster(on), [deployed(instances=count)], busy)
        for on, count in (("2xA100-SXM-80GB", 1), ("2xH100-SXM", 1), ("2xH200-SXM", 1), ("2xH200-SXM", 2))
    ]
    for slow, fast in pairwise(reports):
        assert fast.metrics.ttft.mean < slow.metrics.ttft.mean
        assert fast.metrics.tpot.mean < slow.metrics.tpot.mean
        assert fast.replay.span_s <= slow.replay.span_s


def test_a_queue_is_some_rounds_of_what_can_run() -> None:
    """Five rounds of the sequences that batch and cache admit, 64 requests at least and 20,000 at most."""

    def asked(deployment: Deployment, **words: tuple[int, int]) -> int:
        return queue_of(MODEL, TWO, [deployment], words)[0]

    lengths = {"prompt": (1000, 1000), "output": (200, 200)}
    held = engine(MODEL, machine(TWO), deployed(), offline=True).capacity.cache_tokens
    assert asked(deployed(max_seqs=100), **lengths) == 500
    assert asked(deployed(), **lengths) == int(5 * held / 1200)
    assert asked(deployed(max_seqs=100, instances=2), **lengths) == 1000
    assert asked(deployed(max_seqs=1), **lengths) == 64
    assert (
        asked(deployed(), prompt=(1, 1), output=(1, 1))
        == 5 * engine(MODEL, machine(TWO), deployed(), offline=True).policy.max_seqs
    )
    assert asked(deployed(max_seqs=100_000), prompt=(1, 1), output=(1, 1)) == 20_000


def test_a_large_fleet_does_as_many_small_ones() -> None:
    """Of 100,000 instances as many are replayed as 20,000 requests keep full: each makes what one alone makes."""
    lengths = {"prompt": (1024, 1024), "output": (256, 256)}

    def asked(devices: int) -> tuple[ServingReport, int]:
        where = cluster(f"{devices}xH100-SXM")
        count, part, parts = queue_of(MODEL, where, [deployed(instances=devices)], lengths)
        line = asked_traffic({**lengths, "arrivals": "burst", "requests": count})[0]
        report = simulate_serving(MODEL, where, part, line, operation=Operation(offline=True), parts=parts)
        return report, part[0].instances

    (one, alone), (many, replayed) = asked(1), asked(100_000)
    assert alone == 1
    assert replayed < 20
    assert many.metrics.output_tokens_per_s / 100_000 == pytest.approx(one.metrics.output_tokens_per_s, rel=0.02)
    assert many.metrics.tpot.p50 == pytest.approx(one.metrics.tpot.p50, rel=0.02)
    assert many.devices == many.instances_up == 100_000
    assert many.usd_per_million_output_tokens == pytest.approx(one.usd_per_million_output_tokens, rel=0.02)
    assert one.power_w is not None
    assert many.power_w == pytest.approx(100_000 * one.power_w, rel=0.02)
    ends = sorted(end.output_tokens_per_s for end in many.ends)
    assert ends[0] < many.metrics.output_tokens_per_s < ends[-1]


def test_pools_are_scaled_each_by_its_own_load() -> None:
    """One instance of each pool is up from the beginning; under the load both pools start others."""
    pools = [deployed(role=role, instances=2) for role in (Role.PREFILL, Role.DECODE)]
    busy = asked_traffic({"rate": 40.0, "prompt": (2048, 2048), "output": (64, 64), "requests": 400})[0]
    auto = FleetEvents(autoscale=Autoscale(rule="load-scaling(high=4.0,low=1.0)", period_s=1.0, start_s=1.0))
    found = simulate_serving(
        load("llama-3.1-8b"), cluster("4xH100-SXM"), pools, busy, operation=Operation(fleet_events=auto)
    ).replay
    assert found.done.all()
    assert found.starts == 2
    assert found.up_s[[0, 2]] == pytest.approx(found.span_s)
    assert (found.up_s[[1, 3]] > 0).all()
