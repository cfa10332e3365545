"""What a search tries where prompts are long: instances that merge, and that borrow room of each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import said
from ridgeline.search.serving import search_serving
from ridgeline.search.serving_space import ServingSpace, deployments
from ridgeline.serving.objective import Objective
from ridgeline.serving.traffic.traffic import Traffic, traffic

MODEL, FOUR = load("llama-2-7b"), cluster("4xA100-SXM-40GB")
SPACE = ServingSpace(token_budgets=(None,), max_seqs=(None,), pools=False)


def asked(longest: int) -> Traffic:
    prompts = np.array([longest, 300, 300, 300, 300, 300])
    return traffic(np.arange(6) * 2.0, prompts, np.full(6, 16))


def best(longest: int, **stated: Any) -> Any:
    found = search_serving(
        MODEL, FOUR, asked(longest), Objective(), space=replace(SPACE, fixed={"tp": 1, "pp": 1, **stated}), top=9
    )
    return found.ranked


def test_short_requests_need_neither() -> None:
    assert not any(one.technique for found in best(2_000) for one in found.deployments)


def test_long_prompts_are_also_merged() -> None:
    found = {said(found.deployments[0])["elastic_tokens"]: found for found in best(34_000)}
    assert set(found) == {None, 8192}
    assert found[8192].metrics.ttft.p99 < 0.6 * found[None].metrics.ttft.p99


def test_requests_beyond_a_cache_borrow() -> None:
    """By every technique of remote KV that there is."""
    found = {one.deployments[0].technique: one.metrics.refused for one in best(60_000)}
    merged = next(texts for texts in found if "elastic" in str(texts))
    assert found == {(): 1, merged: 1, ("remote-kv",): 0, ("planned-remote-kv",): 0}


def test_what_is_stated_is_kept_to_degrees_that_it_has() -> None:
    mixtral, eight = load("mixtral-8x7b"), cluster("8xH100-SXM")
    for stated in ({"borrows": True}, {"elastic_tokens": 4096}):
        grid = list(deployments(mixtral, eight, ServingSpace(pools=False, fixed=stated), longest=100_000))
        assert grid
        assert {(one.dp, one.pp, one.kv_ranks) for one in grid} == {(1, 1, 1)}
