"""The words and keys of serving's reports, on numbers made by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from io import StringIO
from typing import Any

import numpy as np
import pytest

from ridgeline.facts.clusters import cluster
from ridgeline.facts.records import Evidence, Fact
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.predict.serving import simulate_serving
from ridgeline.report.blocks import show
from ridgeline.report.deployments import deployment_text
from ridgeline.report.serving import ServingReport, serving_blocks
from ridgeline.report.serving_json import ranked_as_dict, serving_as_dict
from ridgeline.report.serving_search import Candidate, ServingSearch, fleet_text
from ridgeline.scenario.serving_words import deployed, said
from ridgeline.serving.metrics import Metrics, Quantiles
from ridgeline.serving.objective import Objective
from ridgeline.serving.traffic.traffic import traffic

NAN = float("nan")


@pytest.fixture(autouse=True)
def _no_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals of the numbers made by hand alone."""
    monkeypatch.setattr("ridgeline.report.serving.run_spread", lambda *_: (1.0, 1.0))


@cache
def real() -> ServingReport:
    asked = traffic(0.5 * np.arange(40), np.full(40, 100), np.full(40, 10), name="forty")
    return simulate_serving(load("llama-3.1-8b"), cluster("1xH100-SXM"), [deployed()], asked)


def made(**words: Any) -> ServingReport:
    """A real report with round numbers in their place."""
    metrics = replace(
        real().metrics,
        ttft=Quantiles(mean=0.2, p50=0.1, p90=0.3, p95=0.35, p99=0.4),
        tpot=Quantiles(mean=0.02, p50=0.01, p90=0.03, p95=0.035, p99=0.04),
        requests_per_s=2.0, output_tokens_per_s=1000.0, total_tokens_per_s=5000.0, output_tokens=20_000,
    )  # fmt: skip
    ends = tuple(
        replace(metrics, ttft=replace(metrics.ttft, p50=ttft), tpot=replace(metrics.tpot, p50=tpot))
        for ttft, tpot in ((0.05, 0.009), (0.2, 0.012))
    )
    return replace(
        real(), metrics=metrics, ends=ends, usd_per_h=3.6, power_w=1000.0, energy_j=20_000.0,
        replay=replace(real().replay, span_s=20.0), **words,
    )  # fmt: skip


def test_intervals_hold_for_the_draw_of_the_requests() -> None:
    """TTFT from 50 to 200 ms of a median of 100, and as far again for the draw: ln 2 twice, in quadrature."""
    drawn = real().sampled
    assert drawn is not None
    wide = made(sampled=replace(drawn, ttft=replace(drawn.ttft, p50=0.1), output_tokens_per_s=500.0))
    assert wide.intervals()["ttft_p50_s"] == pytest.approx((0.1 / 2**2**0.5, 0.1 * 2**2**0.5))
    told = " ".join(text(wide).split())
    assert "TTFT 100 ms (80 % interval 37.52 ms to 266.5 ms) median" in told
    assert "1,000 output tokens/s (80 % interval 667 to 1,500; 1,000 per device)" in told
    assert "rates over the 20 s in which requests come; intervals hold for the draw of 40 requests too" in told
    answer = serving_as_dict(wide)
    assert answer["intervals"]["ttft_p50_s"] == list(wide.intervals()["ttft_p50_s"])
    assert (answer["sampling"]["method"], answer["sampling"]["ttft"]["p50_s"]) == ("sectioning", 0.1)


def text(report: ServingReport) -> str:
    out = StringIO()
    show(serving_blocks(report), out)
    return out.getvalue()


def test_the_answer_comes_first() -> None:
    lines = text(made()).splitlines()
    assert lines[0].startswith("llama-3.1-8b on 1xH100-SXM: forty, 40 requests, 2 requests/s, prompts of 100 and")
    assert "  TTFT        100 ms (80 % interval 50 ms to 200 ms) median" in lines
    assert "  TPOT        10 ms (80 % interval 9 ms to 12 ms) median" in lines
    assert "  throughput  2 requests/s, 1,000 output tokens/s (1,000 per device), 5,000 with prompts" in lines
    assert "  power       1 kW at the wall, 5.556 Wh, 1 J a token" in lines  # 20 kJ for 20,000 tokens
    assert "  cost        $1 per million output tokens at $3.6 an hour" in lines  # 3.6 M tokens an hour
    assert not any(line.startswith("  goodput") for line in lines)


def test_goodput_names_its_bounds() -> None:
    goal = Objective(ttft_s=1.0, latency_s=20.0)
    report = made(objective=goal)
    report = replace(report, metrics=replace(report.metrics, attained=0.975, goodput_rps=1.95))
    assert "  goodput     1.95 requests/s keep to TTFT <= 1 s, latency <= 20 s: 97.5% of all\n" in text(report)


def test_rates_and_shares_have_ends_where_the_load_does_not_bound_them() -> None:
    report = made(objective=Objective(ttft_s=1.0))
    rates, shares = (900.0, 1234.0), (0.8, 1.0)
    ends = tuple(replace(end, output_tokens_per_s=rates[i], attained=shares[i]) for i, end in enumerate(report.ends))
    metrics = replace(report.metrics, attained=0.975, goodput_rps=1.95)
    lines = " ".join(text(replace(report, metrics=metrics, ends=ends)).split())
    assert "1,000 output tokens/s (80 % interval 900 to 1,234; 1,000 per device)" in lines
    assert "97.5% of all (80 % interval 80.0% to 100.0%)" in lines


def test_whole_runs_of_others_widen_times_and_the_rates_that_follow_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as long in both causes is 2^sqrt(2) times; a rate that the load bounds keeps its ends."""
    monkeypatch.setattr(
        "ridgeline.report.serving.run_spread", lambda kind, _: (1.0, 4.0 if kind == "first token" else 2.0)
    )
    report = made(sampled=None)
    found = report.intervals()
    assert found["ttft_p50_s"] == pytest.approx((0.05, 0.1 * 2**5**0.5))  # 200 and 400 ms of 100
    assert found["tpot_p50_s"] == pytest.approx((0.009, 0.01 * np.exp(np.hypot(np.log(1.2), np.log(2.0)))))
    assert found["output_tokens_per_s"] == (1000.0, 1000.0)
    ends = tuple(
        replace(end, output_tokens_per_s=rate, latency=replace(end.latency, mean=1000.0 / rate * end.latency.mean))
        for end, rate in zip(report.ends, (1250.0, 500.0), strict=True)
    )
    moved = replace(report, ends=ends).intervals()
    assert moved["output_tokens_per_s"] == pytest.approx((1000.0 / 2**2**0.5, 1250.0))


def test_overload_is_said_before_anything_else() -> None:
    report = made()
    told = text(replace(report, metrics=replace(report.metrics, overloaded="many wait")))
    assert told.index("OVERLOADED: many wait") < told.index("deployment")
    assert "OVERLOADED" not in text(report)


def test_what_was_not_measured_is_no_number() -> None:
    nothing = Quantiles(mean=NAN, p50=NAN, p90=NAN, p95=NAN, p99=NAN)
    report = made()
    report = replace(
        report,
        metrics=replace(
            report.metrics, ttft=nothing, tpot=nothing, itl=nothing, latency=nothing, output_tokens_per_s=0
        ),
    )
    told = text(report)
    assert "nan" not in told
    assert "  TTFT        none measured" in told
    assert "  TTFT        -     -    -    -" in told or "TTFT        -" in told
    assert serving_as_dict(report)["ttft"] == dict.fromkeys(("mean_s", "p50_s", "p90_s", "p95_s", "p99_s"))
    assert report.usd_per_million_output_tokens is None


def test_without_price_or_power_there_is_no_number_but_a_word() -> None:
    told = text(replace(made(), usd_per_h=None, power_w=None, energy_j=None, carbon_kg=None)).splitlines()
    lines = [line for line in told if line.startswith(("  power", "  cost", "  carbon"))]
    assert [line.split("known of")[0].split(maxsplit=1) for line in lines] == [
        ["power", "no rated power is "],
        ["cost", "no price is "],
    ]


def test_rows_that_were_not_used_are_told_up_to_five() -> None:
    told = " ".join(text(made(dropped=tuple(f"line {line}, a: b" for line in range(2, 9)))).split())
    assert "7 rows of the trace not used: line 2, a: b; line 3, a: b" in told
    assert "line 6, a: b; and 2 more" in told
    assert "line 7" not in told


def test_what_was_assumed_is_told() -> None:
    assert "  - assumed: answers of 3 tokens\n" in text(made(assumed=("answers of 3 tokens",)))


def test_parts_of_the_bottleneck_add_up_to_a_whole() -> None:
    parts = {"weights and links": 0.003, "experts": 0.0, "sampling": 0.0, "attention": 0.001, "host": 0.0}
    told = text(made(decode_parts=parts, prefill_parts={**parts, "attention": 0.003}, queue_share=0.25))
    assert "limited by  decode: weights and links 75%; prompts: weights and links 50%, 25% of TTFT is waiting" in told


def test_tokens_that_wait_for_prompts_say_so() -> None:
    """A mean TPOT of 20 ms, of which a step is 4 ms; in the other case 19 ms, which is nearly all."""
    parts = {"weights and links": 0.003, "attention": 0.001}
    told = " ".join(text(made(decode_parts=parts)).split())
    assert "because a decode step takes 4 ms of a mean TPOT of 20 ms; the rest is prompts in the same" in told
    assert "a decode step takes" not in text(made(decode_parts={"weights and links": 0.019}))
    assert "a decode step takes 15 ms" in text(made(decode_parts={"weights and links": 0.015}))  # a quarter is no step
    assert "a decode step takes" not in text(made(decode_parts={"weights and links": 0.0175}))  # an eighth is none
    drafted = made(decode_parts=parts, deployments=(deployed(draft_tokens=3, acceptance=0.5),))
    assert "a decode step takes" not in text(drafted)  # several tokens a step


@pytest.mark.parametrize(
    ("used", "share", "told"),
    [
        (960.0, 0.9, "requests wait for room in the cache, which is full in 100% of the time"),
        (940.0, 0.9, "requests wait for their turn in an iteration, not for room"),
        (950.0, 0.5, "requests wait for room in the cache, which is full in 100% of the time"),
        (960.0, 0.49, ""),
    ],
)
def test_what_requests_wait_for(used: float, share: float, told: str) -> None:
    """Ten requests wait in each of 30 seconds beside a cache of 1,000 blocks; the cache is full from 950 on."""
    series = np.tile([used, 10.0, 5.0], (64, 1))
    report = made(decode_parts={"weights and links": 0.019}, queue_share=share)
    found = replace(report.replay, series=series, series_s=1.0, span_s=29.5, capacity_blocks=1000)
    reasons = serving_as_dict(replace(report, replay=found))["reasons"]
    assert len(reasons) == bool(told)
    assert not told or reasons[0].startswith(told)


def test_the_series_shows_the_most_in_each_stretch() -> None:
    """Thirty seconds of one a second in rows of three, half of the cache in use in the first."""
    report = made()
    series = np.zeros((64, 3))
    series[:30, 0], series[:30, 1], series[:30, 2] = 100, 2, 5
    series[1] = 500, 7, 9
    found = replace(report.replay, series=series, series_s=1.0, span_s=29.5, capacity_blocks=1000)
    rows = text(replace(report, replay=found)).split("Over time\n")[1].splitlines()[2:12]
    assert rows[0].split()[:5] == ["0", "s", "9", "7", "50.0%"]
    assert rows[0].count("#") == 12
    assert rows[1].split()[:5] == ["3", "s", "5", "2", "10.0%"]
    assert len(rows) == 10


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({}, "1 x (one device)"),
        ({"tp": 8, "instances": 2}, "2 x (tp 8)"),
        ({"tp": 2, "pp": 3, "dp": 4, "ep": 8}, "1 x (tp 2, pp 3, dp 4, ep 8)"),
        ({"weights": "fp8", "kv": "fp8"}, "1 x (one device) fp8 fp8 cache"),
        ({"role": Role.PREFILL, "tp": 4}, "prefill 1 x (tp 4)"),
        ({"draft_tokens": 3, "acceptance": 0.7}, "1 x (one device) 3 drafted, 70% accepted"),
        ({"beam_width": 4}, "1 x (one device) 4 beams"),
        ({"queue": "fair", "displaces": True}, "1 x (one device) fair queue urgent displace"),
        ({"adapters": 9, "adapter_slots": 4}, "1 x (one device) 9 adapters of rank 16, 4 at once"),
        ({"kv_kept": 384, "kv_fetched": 2048}, "1 x (one device) 384 tokens of cache kept 2,048 fetched a step"),
        ({"kv_kept": 384, "kv_early": True}, "1 x (one device) 384 tokens of cache kept early"),
        ({"nano_tokens": 2048}, "1 x (one device) nano-batches from 2,048 tokens"),
        ({"two_batch_overlap": True, "dp": 2}, "1 x (dp 2) two-batch overlap from 2 tokens"),
    ],
)
def test_a_deployment_in_one_line(words: dict[str, Any], told: str) -> None:
    assert deployment_text(deployed(**words)) == told


def test_keys_of_a_deployment_are_its_fields() -> None:
    found = serving_as_dict(real())["deployments"][0]
    assert set(found) == Deployment().said.keys() | said(Deployment()).keys()
    assert (found["router"], found["role"]) == ("round-robin", "whole")


# searches --------------------------------------------------------------------------------------------


def candidate(metrics: Metrics | None = None, **words: Any) -> Candidate:
    kept = replace(made().metrics, attained=0.995, goodput_rps=4.0)
    return Candidate(deployments=(deployed(**words),), metrics=metrics or kept, usd_per_h=7.2)


def search(*ranked: Candidate, fewest: Candidate | None = None, **words: Any) -> str:
    asked = {"objective": Objective(), "attainable": {}, **words}
    return str(
        ServingSearch(
            ranked=ranked, fewest=fewest, considered=1234, pruned={"stopped early": 17}, refused={"too large": 5},
            seconds=1.0, title="title", assumed=("one word",), **asked,
        )
    )  # fmt: skip


def test_a_search_in_words() -> None:
    """4 requests/s at $7.2 an hour are 2,000 for a dollar."""
    best = candidate(tp=2, token_budget=2048, max_seqs=64)
    told = search(best, fewest=best)
    assert "  best            1 x (tp 2) budget 2048, batch 64\n" in told
    assert "4 requests/s, 2 per device, 2,000 for a dollar ($500 per million requests); 99.5% of requests" in " ".join(
        told.split()
    )
    assert "  fewest devices  2: 1 x (tp 2) budget 2048, batch 64, 99.5% kept\n" in told
    assert (
        "  1,234 deployments replayed with their queues\n  - 17 of them stopped early\n  - 5 not possible: too large\n"
    ) in told
    assert told.endswith("  - assumed: one word\n")


def test_a_search_says_what_users_of_the_best_see() -> None:
    """1,000 tokens/s on two devices at $7.2 an hour: 3.6 million tokens an hour, $2 a million."""
    told = search(candidate(tp=2))
    assert "  TTFT        100 ms median, 400 ms of the slowest 1 %\n" in told
    assert "  throughput  2 requests/s, 1,000 output tokens/s (500 per device)\n" in told
    assert "  cost        $2 per million output tokens at $7.2 an hour\n" in told
    assert "NOT KEPT" not in told


def test_a_search_says_first_that_nothing_keeps_to_the_objective() -> None:
    poor = candidate(metrics=replace(candidate().metrics, attained=0.2, kept=False))
    told = " ".join(search(poor, objective=Objective(ttft_s=0.1), attainable={"ttft_s": candidate(tp=2)}).split())
    assert told.startswith("title objective NOT KEPT: no deployment keeps 99% of requests to TTFT <= 100 ms, the best")
    assert "keeps 20.0%; the least of the slowest 1 %: TTFT 400 ms by 1 x (tp 2); take more devices" in told


def test_deployments_that_come_out_equal_share_a_row() -> None:
    told = search(candidate(), candidate(max_seqs=64), candidate(tp=2))
    rows = " ".join(told.split("Best deployments\n")[1].split("\n\n")[0].split())
    assert "1-2 1 4 2,000 99.5% 400 ms 40 ms 1 x (one device), or 1 x (one device) batch 64 3 2" in rows


def test_a_candidate_that_is_overloaded_says_so() -> None:
    crowded = candidate(metrics=replace(candidate().metrics, overloaded="many wait"))
    assert "1 x (one device) OVERLOADED" in search(crowded)
    assert ranked_as_dict(crowded)["overloaded"] == "many wait"


def test_pools_in_one_line() -> None:
    pair = Candidate(
        deployments=(deployed(role=Role.PREFILL), deployed(role=Role.DECODE, tp=4)),
        metrics=made().metrics, usd_per_h=None,
    )  # fmt: skip
    assert fleet_text(pair) == "prefill 1 x (one device); decode 1 x (tp 4)"
    assert (pair.devices, ranked_as_dict(pair)["goodput_per_usd"]) == (5, None)
    assert "for a dollar" not in search(pair)


def test_carbon_is_the_energy_s_where_the_cluster_stands() -> None:
    """30 kg for 20,000 tokens are 1,500 kg a million; 0.1 mg a joule are 360 g a kilowatt-hour."""
    grid = Fact(value=1e-7, unit="kg/J", source="made by hand", conditions="", evidence=Evidence.ASSUMED)
    report = made(cluster=replace(real().cluster, carbon_kg_per_j=grid), carbon_kg=30.0)
    line = next(line for line in text(report).splitlines() if line.startswith("  carbon"))
    assert line == "  carbon      30 kg CO2e, 1.5 t CO2e per million output tokens, at 360 g a kWh"
    assert serving_as_dict(report)["carbon_kg"] == 30.0


def test_carbon_of_a_replay_is_of_its_energy() -> None:
    report, grid = real(), real().cluster.carbon_kg_per_j
    assert grid is not None
    assert report.energy_j is not None
    assert report.carbon_kg == pytest.approx(grid.value * report.energy_j)
    there = simulate_serving(
        report.model, replace(report.cluster, carbon_kg_per_j=None), report.deployments, traffic([0.0], [100], [10])
    )
    assert there.carbon_kg is None
    assert "carbon" not in text(there)
