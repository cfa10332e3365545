"""All-reduces beside the next part: by hand, within their bounds, and at the throughputs that its authors measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.machine import machine
from ridgeline.errors import PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.mechanisms import constant
from ridgeline.graph.load import load
from ridgeline.lower.inference import serve
from ridgeline.lower.pieces import Reduce
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.deployment_slots import check_techniques
from ridgeline.serving.deferred import beside_link_s, hidden, parts
from ridgeline.serving.engine import Engine, engine
from ridgeline.techniques.graphs.ladder_residual import LadderResidual

TIMES = st.floats(1e-6, 10.0)
EIGHT = machine(cluster("8xH100-SXM"))


def made(**words: object) -> Engine:
    return engine(load("llama-3-70b"), EIGHT, deployed(engine="gpt-fast", tp=8, max_seqs=16, **words))  # type: ignore[arg-type]


def ladder() -> Engine:
    one = made()
    return engine(replace(one.model, graph=LadderResidual().rewrite(one.model.graph)), EIGHT, one.deployment)


def test_a_part_and_a_link_by_hand() -> None:
    share = constant("overlap.compute_slowdown") / (1.0 + constant("overlap.compute_slowdown"))
    assert beside_link_s(10.0, 10.0, 4.0) == pytest.approx(10.0 + 4.0 * share)  # products lose what the link holds
    assert beside_link_s(10.0, 0.0, 4.0) == pytest.approx(10.0)  # what waits for memory loses nothing
    assert beside_link_s(1.0, 1.0, 4.0) == pytest.approx(4.0)


@given(kernels=TIMES, share=st.floats(0.0, 1.0), link=TIMES)
def test_no_more_than_one_after_the_other_nor_less_than_either(kernels: float, share: float, link: float) -> None:
    both = float(beside_link_s(kernels, share * kernels, link))
    assert max(kernels, link) <= both <= (kernels + link) * (1 + 1e-12)


def test_each_part_of_a_layer_has_its_reduction() -> None:
    one = ladder()
    (kind,) = one.steps.served.kinds
    mixer, feed = parts(kind)
    assert kind.deferred
    assert [piece.name for piece in mixer if hasattr(piece, "role")] == ["qkv", "attention_out"]
    assert [piece.name for piece in feed if hasattr(piece, "role")] == ["mlp_up", "mlp_down"]
    assert sum(isinstance(piece, Reduce) for piece in kind.pieces) == 2


def test_a_layer_saves_what_its_longer_side_hides() -> None:
    one = ladder()
    tokens = np.array([1.0, 64.0, 4096.0])
    saved, rest = hidden(one.steps._pieces, one.steps.served.kinds, tokens)
    (kind,) = one.steps.served.kinds
    each = [one.steps._pieces.of_pieces(part, tokens) for part in parts(kind)]
    link = one.steps.prices.reduce(Reduce(width=8192), tokens, 8).mid
    expected = sum(80 * (side.mid + link - beside_link_s(side.mid, side.compute, link)) for side in each)
    np.testing.assert_allclose(saved, expected)
    np.testing.assert_allclose(rest, 80 * np.maximum(link - each[0].mid, 0.0))
    assert (saved + rest <= 160 * link).all()


def test_an_iteration_lies_between_no_collective_and_none_hidden() -> None:
    plain, beside = made().tables(longest_prompt=1024, longest=1536), ladder().tables(longest_prompt=1024, longest=1536)
    rows = plain.tokens
    links = made().steps._pieces.sum(rows, "tokens", links=True).mid
    assert (beside.lane.mid < plain.lane.mid).all()
    assert (beside.lane.mid >= plain.lane.mid - links).all()
    assert (beside.decode.mid <= plain.decode.mid).all()
    assert (beside.first.mid <= plain.first.mid).all()
    np.testing.assert_array_equal(beside.head.mid, plain.head.mid)
    assert (beside.lane.low <= beside.lane.mid).all()


def test_nothing_to_hide_on_one_rank() -> None:
    graph = LadderResidual().rewrite(load("llama-3-8b").graph)
    (kind,) = serve(replace(load("llama-3-8b"), graph=graph), deployed(tp=1)).kinds
    assert not any(isinstance(piece, Reduce) for piece in kind.pieces)


@pytest.mark.parametrize(("name", "said"), [("mixtral-8x7b", "without experts"), ("mamba2-2.7b", "attention")])
def test_what_is_refused(name: str, said: str) -> None:
    assert said in LadderResidual().refusal(load(name).graph)
    assert not LadderResidual().refusal(load("llama-3-70b").graph)


def test_not_with_nano_batches() -> None:
    with pytest.raises(PlanError, match="iterations"):
        check_techniques(deployed(tp=8, nano_tokens=2048, technique=("ladder-residual",)))
