"""Two levels of drafts, by hand and against what a step reads."""

from __future__ import annotations

import pytest

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import engine
from ridgeline.techniques.speculation.triforce import TriForce


def test_rounds_and_gains_by_hand() -> None:
    one = TriForce(tokens=3, acceptance=0.5, small_tokens=2, small_acceptance=0.5)
    assert one.gained == 1 + 0.5 + 0.25 + 0.125
    assert one.rounds == pytest.approx(3 / 1.75)
    assert TriForce(tokens=3, small_tokens=0).rounds == 3  # no small model: a pass for each token


def test_a_pass_reads_weights_and_the_part_of_the_cache_alone() -> None:
    """Llama-2 7B: 13.5 GB of weights and 0.5 MiB a token; at 4,096 tokens of 124,928 a fifth is read."""
    text = "triforce(context=124928,small_share=0.01)"
    where = machine(cluster("1xA100-80GB-SXM"))
    one = engine(load("llama-2-7b"), where, deployed(technique=(text,), instances=1))
    read = [13.48e9 + tokens * 524_288 for tokens in (4096, 124_928)]
    spent = TriForce(context=124_928, small_share=0.01)
    step, prompts = spent.shares(one)
    passes = step / spent.rounds / (1 + 2 * 0.01)
    assert read[0] / read[1] <= passes < 1.25 * read[0] / read[1]  # small kernels reach less of the memory's rate
    assert prompts == 0.0
    wider = TriForce(context=124_928, budget=65_536, small_share=0.01).shares(one)[0]
    assert wider / step == pytest.approx((13.48e9 + 65_536 * 524_288) / read[0], rel=0.15)
    whole = TriForce(context=4096, small_share=0.01).shares(one)[0]
    assert whole == pytest.approx(spent.rounds * 1.02)  # the part is the whole
