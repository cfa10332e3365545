"""Experts in host memory: layers against exhaustive search and drawn routing, replays against the slow simulator."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_serving_reference import Case, FakeEngine, differences

from ridgeline.cost.machine import machine
from ridgeline.errors import InputError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.metrics.expert_routes import ExpertRoutes
from ridgeline.metrics.results import read_results
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.host_experts import HostedLayer
from ridgeline.seams.registry import technique
from ridgeline.serving.engine import engine
from ridgeline.serving.replay import replay
from ridgeline.serving.traffic.traffic import traffic

TEXTS = (
    "fiddler(share=0.2)",
    "hybrimoe(share=0.2)",
    "expertflow(share=0.2)",
    "host-computed(share=0.2)",
    "fiddler(share=0)",
)


STREAMED = (
    "moe-gen", "moe-gen(processors_attend=0)", "moe-lens", "moe-lightning(padding=3)", "peer-memory(share=0.1)"
)  # fmt: skip


def hosted(experts: int, top_k: int, tokens: list[float], **changes: Any) -> HostedLayer:
    t = np.array(tokens)
    told: dict[str, Any] = {
        "expert_bytes": 1e8, "row_flop": 2e8, "device_s": 1e-4 * t, "other_s": 0.0 * t, "start_s": 0.0 * t,
        "link_bytes_per_s": 2.5e10, "read_bytes_per_s": 1e11, "host_flop_per_s": 1e12,
    }  # fmt: skip
    return HostedLayer(experts=experts, top_k=top_k, tokens=t, **told | changes)


def made(text: str) -> Any:
    return technique("host_experts", text)


def test_one_token_is_computed_where_its_experts_lie() -> None:
    """Two of eight experts, none on the device: each is read in 1 ms, which is less than 4 ms over the link."""
    found = made("fiddler(share=0)").layer(hosted(8, 2, [1.0]))
    assert found.host[0] == pytest.approx(2e-3)
    assert found.link[0] == 0.0
    half = made("fiddler(share=0.5)").layer(hosted(8, 2, [1.0]))
    assert half.host[0] == pytest.approx(1e-3)


def test_fiddler_is_the_mean_over_drawn_rows() -> None:
    one = hosted(8, 2, [80.0], device_s=np.array([1.6e-3]))
    found = made("fiddler(share=0)").layer(one)
    draw, per = np.random.default_rng(0), 1.6e-3 / one.touched[0]
    rows = draw.binomial(80, 0.25, size=(20_000, 8))
    host_s = np.maximum(1e-3, 2e-4 * rows)
    stays = host_s <= 4e-3 + per
    host = np.where((rows > 0) & stays, host_s, 0.0).sum(axis=1).mean()
    link = 4e-3 * ((rows > 0) & ~stays).sum(axis=1).mean()
    assert found.host[0] == pytest.approx(host, rel=0.01)
    assert found.link[0] == pytest.approx(link, rel=0.05)


@pytest.mark.parametrize("skew", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("seed", range(10))
def test_hybrimoe_shares_out_as_well_as_any_assignment(skew: float, seed: int) -> None:
    """Every way to give the experts away to processors or link; all are taken, so that nothing is a mean."""
    draw = np.random.default_rng(seed)
    device = draw.uniform(1e-4, 2e-2)
    one = hosted(
        6, 4, [2000.0], device_s=np.array([device]), host_flop_per_s=draw.uniform(1e12, 1e14),
        link_bytes_per_s=draw.uniform(1e10, 1e11), start_s=np.array([1e-4]),
    )  # fmt: skip
    from ridgeline.techniques.host_experts.hybrimoe import taken_by_rank

    taken, rows = taken_by_rank(made(f"hybrimoe(skew={skew})").chances(one)[0], 2000.0)
    assert taken == pytest.approx(np.ones(6))
    held, each = 2, device / 6
    best = np.inf
    for away in product((False, True), repeat=4):  # whether each of the four crosses the link
        brought = sum(away)
        host = sum(float(one.host_s(np.array(r))) for r, over in zip(rows[held:], away, strict=True) if not over)
        arrives = brought * one.fetch_s + (each if brought else 0.0)
        best = min(best, max(host + (1e-4 if host else 0.0), arrives, (held + brought) * each))
    assert made(f"hybrimoe(share=0.34,skew={skew},foreseen=0)").layer(one).total[0] == pytest.approx(best)


def test_what_is_foreseen_is_hidden_beside_the_layer_before() -> None:
    """Four experts of 4 ms each: 16 ms of link, of which 10 ms run beside the rest of the layer before."""
    one = hosted(4, 4, [1.0], other_s=np.array([1e-2]))
    assert made("expertflow(share=0,foreseen=1,skew=0,predictor_m=0)").layer(one).total[0] == pytest.approx(6e-3)
    assert made("expertflow(share=0,foreseen=0,skew=0,predictor_m=0)").layer(one).total[0] == pytest.approx(
        1e-4 + 1.6e-2
    )


@pytest.mark.parametrize("text", TEXTS)
def test_more_on_the_device_is_never_slower(text: str) -> None:
    one = hosted(64, 8, [1.0, 4.0, 64.0, 1024.0], device_s=np.array([1e-4, 4e-4, 1e-3, 2e-3]))
    key = text.partition("(")[0]
    totals = [made(f"{key}(share={share})").layer(one).total for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    for more, less in pairwise(totals):
        assert (less <= more * (1 + 1e-9)).all()


@cache
def served(text: str) -> Any:
    made_ = deployed(technique=(text,), cache_tokens=4096, max_seqs=8)
    return engine(load("olmoe-1b-7b"), machine(cluster("2xA100-80GB-SXM")), made_)


@pytest.mark.parametrize("text", TEXTS + STREAMED)
def test_replays_end_every_request_as_the_slow_simulator_says(text: str) -> None:
    one = served(text)
    tables = one.tables(longest_prompt=1024, longest=1200)
    rule = one.rule(tables)
    values = {name: rule[name].item() for name in rule.dtype.names}
    front = SimpleNamespace(exposed_host_s=1e-4, request_host_s=0.0, prompt_token_host_s=0.0)
    told = FakeEngine(one.deployment, values, one.graphs, front)
    for seed in range(25):
        draw = np.random.default_rng(seed)
        count = int(draw.integers(3, 13))
        asked = traffic(
            np.sort(draw.uniform(0.0, float(draw.choice([0.1, 1.0, 5.0])), count)), draw.integers(1, 1024, count),
            draw.integers(1, 40, count),
        )  # fmt: skip
        case = Case(engines=[told], tables=[tables], traffic=asked, router="round-robin")
        assert differences(case)[0] == []


def test_the_device_holds_its_share_of_experts() -> None:
    whole = engine(load("olmoe-1b-7b"), machine(cluster("1xA100-80GB-SXM")), deployed()).capacity
    experts = 16 * 64 * 3 * 2048 * 1024 * 2.0
    assert whole.weights_bytes - served("fiddler(share=0.2)").capacity.weights_bytes == pytest.approx(0.8 * experts)


def test_a_fixed_split_reads_what_the_host_holds() -> None:
    """Six of eight experts away, all of them taken by 1,000 tokens: 250 rows each of 0.2 ms, 300 ms in all."""
    found = made("host-computed(share=0.25)").layer(hosted(8, 2, [1000.0], start_s=np.array([1e-4])))
    assert found.total[0] == pytest.approx(0.3001)


def test_prompts_of_a_fixed_split_run_on_the_device() -> None:
    """Six of eight experts of 4 ms each cross the link, then all are computed: 24 ms and 100."""
    one = hosted(8, 2, [100.0, 1000.0], start_s=np.array([1e-4, 1e-4]))
    found = made("host-computed(share=0.25,device_tokens=1000)").layer(one)
    assert found.total[1] == pytest.approx(0.024 + 0.1)
    assert found.total[0] == made("host-computed(share=0.25)").layer(one).total[0]


def with_loads(path: Path, rows: list[list[float]]) -> str:
    lines = [f"{layer},{expert},{load}" for layer, row in enumerate(rows) for expert, load in enumerate(row)]
    path.write_text("\n".join(["layer,expert,load", *lines]), encoding="utf-8")
    return str(path)


def test_loads_of_a_trace_decide_what_the_device_holds(tmp_path: Path) -> None:
    """Two of four held. Loads 3, 2, 2, 1: a token takes 0.5 and 0.25 of the others, 3 ms; loads 4, 4, 0, 0: none."""
    file = with_loads(tmp_path / "loads.csv", [[2, 1, 3, 2], [0, 4, 0, 4]])
    one = hosted(4, 2, [1.0], layers=2)
    found = made(f"expertflow(share=0.5,foreseen=0,predictor_m=0,loads={file})").layer(one)
    assert found.link[0] == pytest.approx((3e-3 + 0.0) / 2)
    assert found.total[0] == pytest.approx(1e-4 + (3e-3 + 0.0) / 2)
    shared = made(f"hybrimoe(share=0.5,foreseen=0,loads={file})").layer(one)
    assert shared.host[0] == pytest.approx((0.75e-3 + 0.0) / 2)  # 1 ms to read one, 4 ms to fetch it


@pytest.mark.parametrize("seed", range(5))
def test_hits_are_those_of_the_tokens_of_the_trace(seed: int, tmp_path: Path) -> None:
    """Counted token by token: uses of the three experts that most tokens of the trace take."""
    draw = np.random.default_rng(seed)
    picks = [draw.choice(8, 2, replace=False, p=np.arange(1.0, 9.0) / 36.0) for _ in range(200)]
    trace = tmp_path / "routes.csv"
    rows = "".join(f"{at},0,{one} {two}\n" for at, (one, two) in enumerate(picks))
    trace.write_text("token,layer,experts\n" + rows, encoding="utf-8")
    found = ExpertRoutes(rows="loads").score(read_results(str(trace)))
    count = [row["load"] for row in found.rows]
    held = set(np.argsort(count)[::-1][:3].tolist())
    misses = sum(expert not in held for pick in picks for expert in pick.tolist()) / len(picks)
    file = with_loads(tmp_path / "loads.csv", [count])
    link = made(f"expertflow(share=0.375,loads={file})").layer(hosted(8, 2, [1.0])).link[0]
    assert link == pytest.approx(misses * 4e-3)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([[1, 2, 3]], "1 layers of 3 experts, the model has 1 layers of 4"),
        ([[1, 2, 3, 4], [1, 2, 3, 4]], "loads of 2 layers"),
        ([[0, 0, 0, 0]], "layer 0 .* no load at all"),
        ([[1, 2, 3, -4]], "-4' is not a load of 0 or more"),
    ],
)
def test_loads_that_fit_no_layer_are_refused(rows: list[list[float]], told: str, tmp_path: Path) -> None:
    file = with_loads(tmp_path / "loads.csv", rows)
    with pytest.raises(InputError, match=told) as caught:
        made(f"hybrimoe(loads={file})").layer(hosted(4, 2, [1.0]))
    assert str(caught.value).startswith(file)


def test_prompts_of_the_hybrid_run_on_the_device() -> None:
    """Four of eight experts of 4 ms each cross beside 100 ms of products: the processors have none of them."""
    one = hosted(8, 2, [100.0, 1000.0], start_s=np.array([1e-4, 1e-4]))
    found = made("hybrimoe(share=0.5,foreseen=0,device_tokens=1000)").layer(one)
    assert found.host[1] == 0.0
    assert found.link[1] == pytest.approx(16e-3)
    assert found.total[1] == pytest.approx(100e-3)
    assert found.total[0] == made("hybrimoe(share=0.5,foreseen=0)").layer(one).total[0]


def test_a_predictor_goes_over_all_tokens_before_the_pass() -> None:
    """200e6 weights, two experts' of 1e8: as long as two of four experts with one token each, in one of 10 layers."""
    one = hosted(4, 4, [1.0], layers=10, device_s=np.array([4e-3]))
    more, none = (made(f"expertflow(share=1,skew=0,predictor_m={size})").layer(one) for size in (200, 0))
    assert more.total[0] - none.total[0] == pytest.approx(2 * 1e-3 / 10)


def peered(share: float, model: str = "opt-30b") -> Any:
    made_ = deployed(technique=(f"peer-memory(share={share})",) if share < 1.0 else (), max_seqs=32, engine="vllm")
    return engine(load(model), machine(cluster("2xA100-80GB-SXM")), made_)


def test_layers_of_a_peer_take_the_longer_of_computing_and_the_link() -> None:
    """Half of 60 GB at what NVLink reaches takes longer than a step; a twentieth is hidden beside it."""
    half, whole = peered(0.5), peered(1.0)
    layers = 48 * 12 * 7168**2 * 2.0
    assert whole.capacity.weights_bytes - half.capacity.weights_bytes == pytest.approx(layers / 2, rel=0.01)
    assert half.capacity.cache_tokens > whole.capacity.cache_tokens  # it stays on the device, where there is room now
    one = machine(cluster("2xA100-80GB-SXM"))
    link_s = layers / 2 / (one.tiers[0].bytes_per_s * one.efficiency[0])
    asked = traffic(np.zeros(8), np.full(8, 64), np.full(8, 33))

    def step_s(made_: Any) -> float:
        found = replay([made_], asked)
        return float(np.max((found.end_s - found.first_s) / 32))

    assert step_s(half) == pytest.approx(link_s, rel=0.05)
    assert step_s(peered(0.95)) == pytest.approx(step_s(whole), rel=0.1)


def test_a_peer_that_computes_lends_nothing() -> None:
    with pytest.raises(PlanError, match="at most 1 instances"):
        engine(
            load("opt-30b"), machine(cluster("2xA100-80GB-SXM")),
            deployed(technique=("peer-memory",), instances=2),
        )  # fmt: skip
