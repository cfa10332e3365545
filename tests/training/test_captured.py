"""CUDA graphs of parts of a layer with experts: which operators are replayed, and what the host is spared."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.facts.clusters import cluster
from ridgeline.facts.mechanisms import constant
from ridgeline.graph.load import load
from ridgeline.graph.workload import Workload
from ridgeline.lower.work import Attention, Collective, Gemm, Phase, Stream
from ridgeline.plan.plan import Plan
from ridgeline.predict import Predictor

PLAN = Plan(dp=8, ep=8, zero=1)
FIRST = {"attention_norm", "qkv", "attention"}
ROUTER = {"mlp_norm", "router", "route"}
EXPERTS = {"dispatch", "experts_up", "experts_activation", "experts_down", "combine"}


def predictor(captured: str, model: str = "olmoe-1b-7b") -> Predictor:
    return Predictor(load(model), cluster("8xGB200"), Workload(seq_len=1024, global_batch=64, captured=captured))


def kernels(captured: str) -> list[Gemm | Attention | Stream]:
    it = predictor(captured)
    (one,) = it.stages.sharded.layers(it.layout(PLAN)).values()
    return [piece for piece in one.work if not isinstance(piece, Collective)]


@pytest.mark.parametrize(
    ("captured", "inside", "outside"),
    [
        ("none", set(), FIRST | ROUTER | EXPERTS),
        ("router", ROUTER, FIRST | EXPERTS),
        ("attention", FIRST | ROUTER, EXPERTS),
        ("layer", FIRST | ROUTER | EXPERTS, set()),
    ],
)
def test_what_is_replayed(captured: str, inside: set[str], outside: set[str]) -> None:
    replayed = {piece.name for piece in kernels(captured) if piece.captured}
    assert inside <= replayed
    assert not outside & replayed


def test_a_replayed_kernel_takes_a_graphs_share_of_the_host() -> None:
    pricer = predictor("router").stages.pricer
    router = next(p for p in kernels("router") if p.name == "router" and p.phase is Phase.FORWARD)
    asked = next(p for p in kernels("none") if p.name == "router" and p.phase is Phase.FORWARD)
    own, usual = (float(np.asarray(pricer.host_seconds(one, 1.0))) for one in (router, asked))
    assert own == pytest.approx(pricer.host_slowness * constant("launch.host.graph"))
    assert usual > 10 * own


def test_more_in_graphs_is_less_launch_and_nothing_else() -> None:
    found = [predictor(word).evaluate(PLAN) for word in ("none", "router", "attention", "layer")]
    steps = [one.timeline.makespan_s for one in found]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[1] > steps[2] > steps[3]
    matrix = [sum(float(b.forward.parts["matrix"]) for b in one.held.cost.blocks.values()) for one in found]
    assert matrix == pytest.approx([matrix[0]] * 4)


def test_layers_without_experts_are_not_captured() -> None:
    plans = [predictor(word, "llama-3.1-8b").evaluate(Plan(dp=8, zero=1)) for word in ("none", "layer")]
    assert plans[0].timeline.makespan_s == plans[1].timeline.makespan_s
