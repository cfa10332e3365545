"""A deployment's devices, gains and rules."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import PlanError
from ridgeline.plan.deployment import Deployment, Role
from ridgeline.scenario.serving_words import deployed
from ridgeline.seams.serving import Speculation, all_devices, instance_devices, of, step_tokens

DEGREES = st.integers(1, 16)


def speculation(one: Deployment) -> Speculation:
    return of(one, Speculation)


def test_a_deployment_leaves_choices_to_the_engine() -> None:
    one = deployed()
    assert (one.engine, one.tp, one.pp, one.dp, one.ep, one.instances) == ("vLLM", 1, 1, 1, 1, 1)
    assert (one.technique, one.role, speculation(one).drafted) == ((), Role.WHOLE, 0)
    assert (one.version, one.weights, one.other_weights, one.kv) == ("", "", "", "")
    left = ("token_budget", "max_seqs", "chunked", "mixed", "prefix_cache", "graphs", "memory_fraction")
    assert [one.said[name] for name in left] == [None] * len(left)


@given(tp=DEGREES, pp=DEGREES, dp=DEGREES, instances=DEGREES)
def test_devices_are_the_product_of_degrees(tp: int, pp: int, dp: int, instances: int) -> None:
    one = deployed(tp=tp, pp=pp, dp=dp, instances=instances, ep=tp * dp)
    assert instance_devices(one) == tp * pp * dp
    assert all_devices(one) == tp * pp * dp * instances


@pytest.mark.parametrize(
    ("drafts", "acceptance", "gained"),
    [(0, 0.9, 1.0), (3, 0.0, 1.0), (1, 0.5, 1.5), (3, 0.5, 1 + 0.5 + 0.25 + 0.125), (4, 1.0, 5.0)],
)
def test_tokens_gained_by_drafting(drafts: int, acceptance: float, gained: float) -> None:
    """A drafted token counts only if those before it were accepted: 1 + a + a^2 + ..."""
    assert speculation(deployed(draft_tokens=drafts, acceptance=acceptance)).gained == pytest.approx(gained)


def test_a_request_takes_a_token_of_a_step_for_each_beam_and_gains_one() -> None:
    one = deployed(beam_width=4)
    assert (step_tokens(one), speculation(one).gained) == (4, 1.0)
    assert step_tokens(deployed(draft_tokens=3)) == 4


@given(drafts=st.integers(0, 20), acceptance=st.floats(0, 1))
def test_a_step_gains_between_one_token_and_all_drafts(drafts: int, acceptance: float) -> None:
    assert 1.0 <= speculation(deployed(draft_tokens=drafts, acceptance=acceptance)).gained <= 1.0 + drafts


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"tp": 0}, "tp = 0, needs >= 1"),
        ({"instances": -2}, "instances = -2, needs >= 1"),
        ({"max_seqs": 0}, "max_seqs = 0"),
        ({"cache_tokens": 0}, "cache_tokens = 0"),
        ({"memory_fraction": 1.5}, "memory_fraction = 1.5, needs 0 < memory_fraction <= 1"),
        ({"memory_fraction": 0.0}, "memory_fraction = 0.0"),
        ({"draft_tokens": 2, "acceptance": 1.2}, "acceptance = 1.2"),
        ({"draft_tokens": -1}, "draft_tokens = -1"),
        ({"beam_width": 0}, "beam_width = 0 beams, needs 1 to"),
        ({"beam_width": 4, "draft_tokens": 2}, "draft_tokens"),
        ({"tp": 4, "dp": 2, "ep": 3}, "ep = 3 does not divide tp 4 * dp 2 = 8"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(words: dict[str, float], told: str) -> None:
    with pytest.raises(PlanError, match="deployment: ") as refused:
        deployed(**words)  # type: ignore[arg-type]
    assert told in str(refused.value)


def test_a_tree_gains_what_its_paths_are_worth() -> None:
    """Rival: every node of the tree counts with the probability that all candidates on its way are the ones."""
    tree, ranked = (3, 2, 2), (0.55, 0.2, 0.1)
    one = deployed(draft_tree=tree, acceptance=ranked[0], next_acceptance=ranked[1:])
    paths = (path for depth in (1, 2, 3) for path in product(*(range(width) for width in tree[:depth])))
    assert speculation(one).gained == pytest.approx(1 + sum(prod(ranked[rank] for rank in path) for path in paths))
    assert (speculation(one).depth, step_tokens(one)) == (3, 22)


def test_a_tree_of_one_candidate_a_place_is_the_chain() -> None:
    tree = deployed(draft_tree=(1, 1, 1, 1), acceptance=0.7, next_acceptance=())
    chain = deployed(draft_tokens=4, acceptance=0.7)
    assert speculation(tree).gained == pytest.approx(speculation(chain).gained)
    assert speculation(tree).depth == speculation(chain).depth == 4
    assert step_tokens(tree) == step_tokens(chain) == 5


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"draft_tree": (2, 2), "draft_tokens": 4}, "leave draft_tokens or draft_tree out"),
        ({"draft_tree": (2,), "acceptance": 0.6, "next_acceptance": ()}, "2 candidates at one place of the tree, but"),
        ({"draft_tree": (2,), "acceptance": 0.6, "next_acceptance": (0.5,)}, "sum is 1 at most"),
        ({"draft_tree": (0,)}, "draft_tree = 0 tokens, needs 1 to 64"),
        ({"draft_tree": 4}, "draft_tree = 4, needs numbers as 4/2/1"),
        ({"draft_tokens": 2, "acceptance": 0.6, "next_acceptance": (0.1,)}, "next_acceptance is about draft_tree"),
    ],
)
def test_trees_that_cannot_be_are_refused(words: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        deployed(**words)
