"""Trees of reasoning steps as requests: a small tree by hand, and replays against the slow simulator."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_serving_reference import Case, FakeEngine, differences

from ridgeline.cost.machine import machine
from ridgeline.errors import WorkloadError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import engine
from ridgeline.serving.traffic.named import named_traffic


def blocks(found: Any, request: int) -> list[int]:
    start = found.prefix_start
    return found.prefix_blocks[start[request] : start[request + 1]].tolist()


def test_steps_share_the_blocks_of_those_above() -> None:
    """Two searches of two levels of two steps of 8 tokens: a prompt of one step is blocks 0 to 3, then steps' own."""
    found = named_traffic("tree-search(by=rebase,width=2,depth=2,searches=2,step=8,prompt=1,noise=0)")
    assert found.prompt_tokens.tolist() == [8, 8, 16, 16] * 2
    assert found.output_tokens.tolist() == [8] * 8
    assert found.after.tolist() == [-1, -1, 1, 1, -1, -1, 5, 5]
    assert [blocks(found, at) for at in range(4)] == [
        [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 8, 9, 10, 11]
    ]  # alike rewards: one continuation each  # fmt: skip
    assert set(blocks(found, 6)).isdisjoint(range(12))


def test_a_kept_leaf_alone_is_what_all_continue() -> None:
    """Cache weighs so much that one path is left: both steps of a level follow the same one."""
    found = named_traffic("tree-search(width=2,depth=3,searches=1,step=8,prompt=1,nodes=100,spread=0)")
    assert blocks(found, 2) == blocks(found, 3)
    assert blocks(found, 4) == blocks(found, 5)


def test_a_trace_has_a_limit() -> None:
    with pytest.raises(WorkloadError, match="prefix blocks"):
        named_traffic("tree-search(width=1024,depth=100,searches=100)")


@cache
def served(tokens: int) -> Any:
    made = deployed(engine="sglang", cache_tokens=tokens, max_seqs=16, prefix_cache=True)
    return engine(load("qwen3-0.6b"), machine(cluster("1xA100-80GB-SXM")), made)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("by", ["ets", "rebase"])
def test_replays_end_every_step_as_the_slow_simulator_says(by: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    width, depth, step = (int(draw.integers(*ends)) for ends in ((2, 9), (2, 6), (16, 65)))
    asked = named_traffic(
        f"tree-search(by={by},width={width},depth={depth},searches={1 + seed % 3},step={step // 4 * 4})", seed=seed
    )
    one = served(int(draw.choice([512, 1024, 8192])))
    tables = one.tables(longest_prompt=1024, longest=1200)
    rule = one.rule(tables, prefix_tokens=asked.prefix_block_tokens)
    values = {name: rule[name].item() for name in rule.dtype.names}
    front = SimpleNamespace(exposed_host_s=1e-4, request_host_s=0.0, prompt_token_host_s=0.0)
    told = FakeEngine(one.deployment, values, one.graphs, front)
    case = Case(engines=[told], tables=[tables], traffic=asked, router="round-robin")
    names, slow = differences(case)
    assert names == []
    assert sum(each.made for each in slow.asked) == asked.output_tokens.sum()
