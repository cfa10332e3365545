"""The search over deployments against every deployment replayed one by one."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import NoPlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.predict.serving import Operation, simulate_serving
from ridgeline.report.serving_json import ranked_as_dict
from ridgeline.scenario.serving_words import deployed, replaced
from ridgeline.seams.serving import all_devices, instance_devices
from ridgeline.search import serving
from ridgeline.search.serving import ServingSearch, search_serving
from ridgeline.search.serving_candidates import Bench, Candidate
from ridgeline.search.serving_space import ServingSpace, deployments
from ridgeline.serving.engine import engine
from ridgeline.serving.metrics import Metrics, measure
from ridgeline.serving.objective import ATTAINED, Objective
from ridgeline.serving.replay import replay
from ridgeline.serving.traffic.arrivals import poisson
from ridgeline.serving.traffic.asked import synthetic
from ridgeline.serving.traffic.lengths import Uniform
from ridgeline.serving.traffic.traffic import Traffic

MODEL, SPARSE = load("llama-3.1-8b"), load("mixtral-8x7b")
FOUR, EIGHT = cluster("4xH100-SXM"), cluster("8xH100-SXM")
BOUNDS = Objective(ttft_s=0.3, tpot_s=0.03)
WHOLE = ServingSpace(pools=False)
RATES = (30, 50, 80)


@cache
def load_of(rate: int) -> Traffic:
    return synthetic(poisson(rate, requests=300, seed=1), Uniform(low=500, high=1500), Uniform(low=50, high=150))


@cache
def found(rate: int) -> ServingSearch:
    return search_serving(MODEL, FOUR, load_of(rate), BOUNDS, space=WHOLE, top=100)


@cache
def by_hand(rate: int) -> dict[Deployment, Metrics]:
    """Every shape and every count of instances of the grid, replayed without the search."""
    where, results = machine(FOUR), {}
    for tp, pp, budget, seqs in itertools.product((1, 2, 4), (1, 2, 4), WHOLE.token_budgets, WHOLE.max_seqs):
        for instances in range(1, 4 // (tp * pp) + 1):
            one = deployed(engine="vllm", tp=tp, pp=pp, token_budget=budget, max_seqs=seqs, instances=instances)
            again = replay([engine(MODEL, where, one)], load_of(rate), router="least-loaded")
            results[one] = measure(again, load_of(rate), BOUNDS)
    return results


def order(devices: int, metrics: Metrics) -> tuple[float, float, int, bool, float, float]:
    kept = metrics.attained or 0.0
    overloaded, far = bool(metrics.overloaded), max(metrics.ttft.p99 / 0.3, metrics.tpot.p99 / 0.03)
    first = (-1.0, 0.0) if kept >= ATTAINED else (-kept, far)
    return *first, devices, overloaded, metrics.tpot.p99, metrics.ttft.p99


@pytest.mark.parametrize("rate", RATES)
def test_the_fewest_devices_are_the_fewest_of_all(rate: int) -> None:
    """Bisection over instances finds what trying every count finds."""
    least = min(all_devices(one) for one, metrics in by_hand(rate).items() if (metrics.attained or 0.0) >= ATTAINED)
    fewest = found(rate).fewest
    assert fewest is not None
    assert fewest.devices == least
    assert (fewest.metrics.attained or 0.0) >= ATTAINED


def test_fewer_devices_do_with_less_traffic() -> None:
    needed = [fewest.devices for rate in RATES if (fewest := found(rate).fewest)]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]


@pytest.mark.parametrize("rate", RATES)
def test_every_candidate_replays_as_it_does_alone(rate: int) -> None:
    for one in found(rate).ranked:
        (shape,) = one.deployments
        assert one.metrics == by_hand(rate)[shape]


@pytest.mark.parametrize("rate", RATES)
def test_the_best_is_the_best_of_all_that_fill_the_cluster(rate: int) -> None:
    """Or it needs fewer devices than they do."""
    fills = {one: metrics for one, metrics in by_hand(rate).items() if one.instances == 4 // instance_devices(one)}
    best = found(rate).ranked[0]
    assert found(rate).considered == len(fills) == 36
    least = min(order(all_devices(one), metrics) for one, metrics in fills.items())
    assert order(best.devices, best.metrics) <= least
    assert [order(one.devices, one.metrics) for one in found(rate).ranked] == sorted(
        order(one.devices, one.metrics) for one in found(rate).ranked
    )


def test_of_an_objective_that_nothing_keeps_the_nearest_comes_first() -> None:
    """All keep 0 % to 1 ms: neither the fewest devices nor the slowest, and the least of each time is told."""
    bounds = Objective(ttft_s=1e-3, tpot_s=1e-3)
    result = search_serving(MODEL, FOUR, load_of(30), bounds, space=WHOLE, top=100)
    far = [max(one.metrics.ttft.p99, one.metrics.tpot.p99) / 1e-3 for one in result.ranked]
    assert {one.metrics.attained for one in result.ranked} == {0.0}
    assert far == sorted(far)
    assert result.fewest is None
    for name, one in result.attainable.items():
        seen = [getattr(each.metrics, name.removesuffix("_s")).p99 for each in result.ranked]
        assert getattr(one.metrics, name.removesuffix("_s")).p99 == min(seen)
    assert result.missed in " ".join(str(result).split())
    assert found(30).missed == ""


def test_without_an_objective_the_most_tokens_come_first() -> None:
    result = search_serving(MODEL, FOUR, load_of(80), Objective(), space=WHOLE, top=100)
    rates = [one.metrics.output_tokens_per_s for one in result.ranked]
    assert rates == sorted(rates, reverse=True)
    assert result.fewest is None
    assert result.ranked[0].good_rps == result.ranked[0].metrics.requests_per_s


def test_rates_of_a_candidate_by_hand() -> None:
    best = found(50).ranked[0]
    assert best.good_rps == best.metrics.goodput_rps
    assert FOUR.price_usd_per_device_h is not None
    price = FOUR.price_usd_per_device_h.value * best.devices
    assert best.usd_per_h == pytest.approx(price)
    assert best.good_per_usd == pytest.approx(best.good_rps * 3600 / price)
    free = Candidate(deployments=best.deployments, metrics=best.metrics, usd_per_h=None)
    assert free.good_per_usd is None


# what is not replayed to its end -----------------------------------------------------------------------


@pytest.mark.parametrize("rate", [30, 80, 120, 300])
def test_who_is_stopped_would_not_have_been_among_the_best(rate: int) -> None:
    """The whole search's best, exactly, from fleets that all keep to the objective to fleets of which none does."""
    whole = search_serving(MODEL, FOUR, load_of(rate), BOUNDS, top=1000)
    assert not whole.pruned
    for top in (1, 3, 8):
        brief = search_serving(MODEL, FOUR, load_of(rate), BOUNDS, top=top)
        assert brief.ranked == whole.ranked[:top]
        assert brief.fewest == whole.fewest
        assert brief.considered == whole.considered
        assert sum(brief.pruned.values()) < brief.considered
        assert bool(brief.pruned) == (rate > 30)


def test_equal_engines_are_replayed_once() -> None:
    """vLLM's own budget and batch on an H100, stated, are no other engine."""
    one = deployed(engine="vllm", tp=2)
    policy = engine(MODEL, machine(FOUR), one).policy
    bench = Bench(
        model=MODEL, machine=machine(FOUR), cluster=FOUR, traffic=load_of(30), objective=BOUNDS,
        router="least-loaded",
    )  # fmt: skip
    said = replaced(one, token_budget=policy.token_budget, max_seqs=policy.max_seqs)
    other = replaced(one, token_budget=policy.token_budget // 2)
    assert bench.number((one,)) == bench.number((said,)) != bench.number((other,))
    assert bench.number((one,)) != bench.number((replace(one, instances=2),))
    alike = bench.all_tried([(one,), (said,), (other,)], 0.0, lambda _: None)
    assert [found.deployments for found in alike if isinstance(found, Candidate)] == [(one,), (said,), (other,)]
    assert isinstance(alike[0], Candidate)
    assert isinstance(alike[1], Candidate)
    assert alike[0].metrics == alike[1].metrics


# pools -----------------------------------------------------------------------------------------------


def test_pools_are_tried_beside_whole_instances() -> None:
    result = search_serving(MODEL, FOUR, load_of(50), BOUNDS, top=1000)
    pools = [one for one in result.ranked if len(one.deployments) == 2]
    assert len(result.ranked) > len(pools) > 3
    for one in pools:
        assert [each.role for each in one.deployments] == [Role.PREFILL, Role.DECODE]
        assert one.devices <= 4
    assert order(result.ranked[0].devices, result.ranked[0].metrics) <= order(
        found(50).ranked[0].devices, found(50).ranked[0].metrics
    )


# the grid --------------------------------------------------------------------------------------------


def test_the_grid_of_a_dense_model_by_hand() -> None:
    """Degrees (1,1) (1,2) (1,4) (2,1) (2,2) (4,1), three budgets, two batches."""
    grid = list(deployments(MODEL, FOUR, WHOLE))
    assert {(one.tp, one.pp) for one in grid} == {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)}
    assert len(grid) == len(set(grid)) == 6 * 3 * 2
    assert {(one.dp, one.ep, one.weights) for one in grid} == {(1, 1, "")}


def test_experts_are_divided_or_whole() -> None:
    grid = list(deployments(SPARSE, EIGHT, WHOLE))
    assert {one.ep for one in grid if one.dp > 1 and one.tp == 1} == {2, 4, 8}
    assert all((one.tp * one.dp) % one.ep == 0 and 8 % one.ep == 0 for one in grid)
    assert all(instance_devices(one) <= 8 for one in grid)


def test_narrower_formats_are_those_of_the_device() -> None:
    def weights(name: str) -> set[str]:
        return {one.weights for one in deployments(MODEL, cluster(name), ServingSpace(quantize=True))}

    assert weights("1xA100-SXM-80GB") == {""}
    assert weights("1xH100-SXM") == {"", "fp8"}
    assert weights("1xB200-SXM") == {"", "fp8", "nvfp4"}


def test_stated_words_hold_everywhere() -> None:
    stated = {"tp": 2, "kv": "fp8", "token_budget": 999, "engine": "sglang 0.4"}
    grid = list(deployments(MODEL, FOUR, replace(WHOLE, fixed=stated)))
    assert {(one.tp, one.kv, one.options.token_budget, one.engine, one.version) for one in grid} == {
        (2, "fp8", 999, "sglang", "0.4")
    }


@pytest.mark.parametrize(
    "stated", [{"kv_fetched": 512}, {"nano_tokens": 512}, {"two_batch_overlap": True}, {"split": True}]
)
def test_words_for_one_stage_leave_pipelines_out(stated: dict[str, int]) -> None:
    assert {(one.tp, one.pp) for one in deployments(MODEL, FOUR, replace(WHOLE, fixed=stated))} == {
        (1, 1),
        (2, 1),
        (4, 1),
    }
    assert {one.pp for one in deployments(MODEL, FOUR, replace(WHOLE, fixed={"kv_kept": 512}))} == {1, 2, 4}


def test_nano_batches_are_searched_with_attention_ranks() -> None:
    grid = list(deployments(SPARSE, EIGHT, replace(WHOLE, fixed={"nano_tokens": 512})))
    assert {one.pp for one in grid} == {1}
    assert {one.tp for one in grid} == {one.dp for one in grid} == {1, 2, 4, 8}
    assert {one.ep for one in grid} > {1}


def test_cut_caches_are_not_sent_between_pools() -> None:
    result = search_serving(
        MODEL, FOUR, load_of(50), BOUNDS, space=ServingSpace(fixed={"kv_kept": 512, "tp": 1}), top=1000
    )
    assert {len(one.deployments) for one in result.ranked} == {1}
    assert {each.technique for one in result.ranked for each in one.deployments} == {("kv-budget(tokens=512)",)}
    assert not result.refused


def test_divided_devices_are_searched_without_pools() -> None:
    result = search_serving(
        MODEL, FOUR, load_of(50), BOUNDS, space=ServingSpace(fixed={"split": True, "tp": 1}), top=1000
    )
    assert {len(one.deployments) for one in result.ranked} == {1}
    assert {(each.technique, each.pp) for one in result.ranked for each in one.deployments} == {
        (("divided-device",), 1)
    }
    assert not result.refused


def test_nothing_that_starts_is_told_with_its_reason() -> None:
    with pytest.raises(NoPlanError, match="weights and workspace leave no room for the cache"):
        search_serving(load("llama-3.1-405b"), FOUR, load_of(30), BOUNDS)


def test_a_search_is_the_same_twice() -> None:
    again = search_serving(MODEL, FOUR, load_of(50), BOUNDS, space=WHOLE, top=100)
    assert again.ranked == found(50).ranked
    assert np.isfinite(again.seconds)


def test_pools_count_among_the_fewest_devices() -> None:
    """Pools of five devices are fewer than the eight that whole instances need, of which seven do not do."""
    whole = deployed(engine="vllm", instances=8)
    pools = (deployed(role=Role.PREFILL), deployed(role=Role.DECODE, tp=4))
    kept = replace(found(30).ranked[0].metrics, attained=1.0)
    both = [
        Candidate(deployments=fleet, metrics=kept, usd_per_h=None) for fleet in (pools, (whole,))
    ]  # fmt: skip

    class Bench:
        """Whatever is tried misses the objective."""

        def tried(self, fleet: tuple[Deployment, ...], least: float) -> str:
            return "it misses"

    assert not serving._fewer(both, Bench(), each=False)  # type: ignore[arg-type]
    assert not serving._fewer(both[1:], Bench(), each=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_experts_scaled_in_blocks_are_not_cut_within_one(name: str) -> None:
    """Qwen3-30B-A3B's experts are 768 wide, six blocks of 128: two ranks hold three, four would hold one and a half."""
    model, stated = load("qwen3-30b-a3b"), {"engine": name, "weights": "fp8_block"}
    result = search_serving(model, EIGHT, load_of(30), BOUNDS, space=replace(WHOLE, fixed=stated), top=1000)
    cut = {one.tp * one.dp // one.ep for each in result.ranked for one in each.deployments}
    assert cut == {1, 2}
    (why,) = (reason for reason in result.refused if "blocks of 128" in reason)
    assert result.refused[why] > 0
    with pytest.raises(NoPlanError, match="blocks of 128"):
        search_serving(
            model, EIGHT, load_of(30), BOUNDS, space=replace(WHOLE, fixed={**stated, "tp": 4, "ep": 1, "dp": 1})
        )


@pytest.mark.parametrize(("name", "weights"), [("vllm", "fp8"), ("vllm", "bf16"), ("trtllm", "fp8_block")])
def test_experts_of_one_scale_are_cut_anywhere(name: str, weights: str) -> None:
    stated = {"engine": name, "weights": weights, "tp": 4, "dp": 1, "ep": 1}
    result = search_serving(load("qwen3-30b-a3b"), EIGHT, load_of(30), BOUNDS, space=replace(WHOLE, fixed=stated))
    assert result.ranked
    assert not result.refused


def test_the_best_hangs_on_what_its_own_replay_does() -> None:
    """The search tells evidence and sensitivities of its best by the functions that `simulate` uses."""
    result = found(30)
    best, fewest = result.ranked[0], result.fewest
    report = simulate_serving(
        MODEL, FOUR, best.deployments, load_of(30), objective=BOUNDS, operation=Operation(router="least-loaded")
    )
    assert best.known == report.known
    assert best.what_if == report.what_if
    assert len(best.what_if) == 2
    assert fewest is not None
    assert fewest.known
    assert not any(one.known for one in result.ranked[1:] if one is not fewest)
    text = " ".join(str(result).split())
    assert "measured elsewhere: kernels" in text
    assert "less time of a decode step" in text
    answer = ranked_as_dict(best)
    assert all(list(answer[name]) == ["decode_step", "prompt"] for name in ("known", "what_if", "sensitivities"))
    told = {one["resource"]: one["gain"] for one in answer["sensitivities"]["prompt"]}
    assert told["everything"] > told["matrix rate"] > told["memory bandwidth"]
