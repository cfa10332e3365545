"""ETS's program against every subset, REBASE's shares by hand, and what a search keeps."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from ridgeline.numerics.algorithm import algorithm, drawn
from ridgeline.numerics.tree_search import kept, path, shares


def test_shares_add_up_and_follow_rewards() -> None:
    assert shares(np.zeros(3), 8, 1.0).tolist() == [3, 3, 2]
    assert shares(np.array([5.0, 0.0]), 4, 100.0).tolist() == [4, 0]


@pytest.mark.parametrize("seed", range(6))
def test_the_program_is_as_good_as_the_best_subset(seed: int) -> None:
    draw = np.random.default_rng(seed)
    parents = [0, *(int(draw.integers(at)) for at in range(1, 14))]
    paths = [path(parents, leaf) for leaf in range(8, 14)]
    weights, groups = draw.integers(1, 6, 6).astype(float), draw.integers(0, 3, 6)
    every, kinds = set.union(*paths), len(set(groups.tolist()))

    def worth(some: tuple[int, ...]) -> float:
        held = len(set.union(*(paths[at] for at in some))) / len(every)
        return weights[list(some)].sum() / weights.sum() - 1.5 * held + 0.7 * len(set(groups[list(some)])) / kinds

    best = max(worth(some) for count in range(1, 7) for some in combinations(range(6), count))
    found = kept(paths, weights, groups, nodes=1.5, spread=0.7)
    assert worth(tuple(np.flatnonzero(found))) == pytest.approx(best)


def test_ets_holds_less_than_rebase_and_beam_search_the_least_variety() -> None:
    found = algorithm("tree-search(width=32,depth=6,beams=4)").run(drawn(2, 2, 2))
    assert found["cache_ratio"] > 1.0
    assert found["groups_ratio"] <= 1.0 + 1e-9
    free = algorithm("tree-search(width=32,depth=6,nodes=0)").run(drawn(2, 2, 2))
    assert free["cache_ratio"] == pytest.approx(1.0, rel=0.02)  # no weight on cache: all are kept, as REBASE does
