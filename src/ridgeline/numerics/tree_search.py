"""Trees of reasoning steps: what a search keeps of their cache, by REBASE and by ETS's program.

Shape letters: I leaves of a level, B continuations of a level, N nodes of the tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import WorkloadError
from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.programs import Draft
from ridgeline.seams.technique import param
from ridgeline.serving.traffic.traffic import Traffic, traffic

Whole = NDArray[np.int64]
_MOST_BLOCKS = 5e6  # of a trace, chosen: some seconds to draw
_BLOCK = 4  # blocks of a step in a trace: what of one is found again is whole blocks


def shares(rewards: Floats, budget: int, sharpness: float) -> Whole:
    """REBASE's continuations of each leaf: the budget by a softmax of rewards, the largest remainders rounded up.

    >>> shares(np.array([0.0, np.log(3.0)]), 8, 1.0).tolist()
    [2, 6]
    """
    raised = np.exp(sharpness * (rewards - rewards.max()))
    exact = budget * raised / raised.sum()
    found: Whole = np.floor(exact).astype(np.int64)
    found[np.argsort(found - exact, kind="stable")[: budget - int(found.sum())]] += 1
    return found


def path(parents: Sequence[int], leaf: int) -> set[int]:
    """A node and those above it, the root 0 too."""
    found = {leaf}
    while leaf:
        leaf = parents[leaf]
        found.add(leaf)
    return found


def kept(
    paths: Sequence[set[int]], weights: Floats, groups: Whole, *, nodes: float, spread: float
) -> NDArray[np.bool_]:
    """The leaves that ETS keeps, by a mixed-integer program; all proven best.

    maximise  sum w_i / W - nodes |V| / |V all| + spread |C| / |C all|

    V are the nodes of kept leaves' paths, C the groups of alike leaves that have one, w_i a leaf's continuations.
    """
    names = sorted(set.union(*paths))
    place = {node: at for at, node in enumerate(names)}
    kinds = sorted(set(groups.tolist()))
    draft = Draft()
    leaves = draft.variable(len(paths), cost=-weights / weights.sum(), high=1.0, whole=True)
    held = draft.variable(len(names), cost=nodes / len(names), high=1.0)
    covered = draft.variable(len(kinds), cost=-spread / len(kinds), high=1.0)
    needs = np.array([(place[node], leaf) for leaf, own in enumerate(paths) for node in own])
    draft.row((held[needs[:, :1]], 1.0), (leaves[needs[:, 1:]], -1.0), low=0.0)
    for at, kind in enumerate(kinds):
        inside = np.flatnonzero(groups == kind)
        draft.row((leaves[inside], np.ones(len(inside))), (covered[at], -1.0), low=0.0)
    draft.row((leaves, np.ones(len(paths))), low=1.0)
    found = draft.solve()
    assert found is not None, "any leaf alone satisfies the rows"
    return np.asarray(found.values[leaves] > 0.5)


@dataclass
class _Tree:
    """Nodes with parents, rewards and what they say; cache of each level [node]."""

    parents: list[int] = field(default_factory=lambda: [0])
    rewards: list[float] = field(default_factory=lambda: [0.0])
    said: list[int] = field(default_factory=lambda: [0])
    held: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class TreeSearch(ArrayAlgorithm):
    """ETS: a tree search keeps leaves by a program over reward, cache and variety, beside REBASE's, which keeps all.

    A level has `width` continuations, shared among its leaves by REBASE's softmax of rewards. ETS keeps the leaves that
    maximise their share of continuations, less `nodes` times the share of nodes whose cache they need, plus `spread`
    times the share of groups of alike leaves that are covered, and shares the level among these. Measured: nodes whose
    cache is held, the mean over levels, of REBASE over ETS's and over beam search's (the `beams` best); groups that the
    last level covers, and the best reward, of ETS over REBASE's.

    A reward is its parent's and normal noise; a step says one of `ways` things, alike steps after one parent are a
    group (both assumed: the paper's come from models). Checked: shares by hand, the program against every subset. Left
    out: leaves that end before others, and unlike lengths of steps.

    `--trace tree-search(...)` replays `searches` at once, found `by` one of the three: a request is a step of `step`
    tokens after the steps above it, whose blocks it shares, and a level begins when the one before it has ended. A step
    is computed once more as a prompt by the first that follows it; time of the rewards' model is left out.
    """

    key: ClassVar[str] = "tree-search"
    source: ClassVar[tuple[str, ...]] = ("ets",)
    width: int = param(64, "1", "continuations of a level", low=2, high=1024)
    depth: int = param(10, "1", "levels", low=1, high=100)
    beams: int = param(8, "1", "leaves that beam search keeps", low=1, high=1024)
    sharpness: float = param(
        5.0, "1", "of the softmax: a reward of 1 more has e to this as many continuations", low=0.0
    )
    noise: float = param(0.2, "1", "standard deviation of what a step adds to a reward", low=0.0, high=100.0)
    ways: int = param(3, "1", "things that steps after one parent may say", low=1, high=1024)
    nodes: float = param(1.0, "1", "weight of cache in ETS", low=0.0, high=1e3)
    spread: float = param(1.0, "1", "weight of variety in ETS", low=0.0, high=1e3)
    by: str = param("ets", "", "search of a trace", choices=("ets", "rebase", "beam"))
    searches: int = param(4, "1", "searches of a trace, all at once", low=1, high=1000)
    step: int = param(64, "tokens", "a step of a trace", low=4, high=100_000)
    prompt: int = param(2, "steps", "prompt of a trace", low=1, high=100_000)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Cache of REBASE over that of ETS and of beam search, groups and rewards over REBASE's [1]."""
        found = {way: self._searched(way, arrays.seed) for way in ("rebase", "ets", "beam")}
        held = {way: float(np.mean(tree.held)) for way, tree in found.items()}
        last = {way: len({(tree.parents[n], tree.said[n]) for n in self._last(tree)}) for way, tree in found.items()}
        best = {way: max(tree.rewards[n] for n in self._last(tree)) for way, tree in found.items()}
        return {
            "nodes": held["rebase"], "cache_ratio": held["rebase"] / held["ets"],
            "beam_cache_ratio": held["rebase"] / held["beam"], "groups_ratio": last["ets"] / last["rebase"],
            "beam_groups_ratio": last["beam"] / last["rebase"], "reward_ratio": best["ets"] / best["rebase"],
        }  # fmt: skip

    def traffic(self, seed: int) -> Traffic:
        """Searches as requests: prompts share the blocks of the steps above, levels wait for each other."""
        blocks = self.searches * self.width * self.depth * _BLOCK * (self.prompt + self.depth / 2.0)
        if blocks > _MOST_BLOCKS:
            raise WorkloadError(
                f"{self.text} has {blocks:.3g} prefix blocks, the limit is {_MOST_BLOCKS:.3g}; fewer searches, or less"
                " width or depth"
            )
        levels, prefixes, after, nodes = [], [], [], 0
        for search in range(self.searches):
            tree = self._searched(self.by, seed + search)
            for node in range(1, len(tree.parents)):
                level = (node - 1) // self.width
                above = sorted(path(tree.parents, tree.parents[node]) - {0})
                steps = [nodes + at for at in (*range(self.prompt), *(self.prompt - 1 + one for one in above))]
                prefixes.append((_BLOCK * np.array(steps)[:, None] + np.arange(_BLOCK)).ravel())
                levels.append(self.prompt + level)
                first = len(levels) - 1 - (node - 1) % self.width
                after.append(first - 1 if level else -1)
            nodes += self.prompt + len(tree.parents) - 1
        return traffic(
            np.zeros(len(levels)), self.step * np.array(levels), np.full(len(levels), self.step),
            prefix_start=np.cumsum([0, *map(len, prefixes)]), prefix_blocks=np.concatenate(prefixes),
            prefix_block_tokens=self.step // _BLOCK, after=np.array(after), name=self.text,
            source=f"tree search, seed {seed}",
        )  # fmt: skip

    def _last(self, tree: _Tree) -> range:
        return range(len(tree.parents) - self.width, len(tree.parents))

    def _searched(self, way: str, seed: int) -> _Tree:
        draw, tree = np.random.default_rng(seed), _Tree()
        leaves, counts = [0], np.array([self.width])
        for _ in range(self.depth):
            grown = []
            for leaf, count in zip(leaves, counts.tolist(), strict=True):
                for _ in range(count):
                    grown.append(len(tree.parents))
                    tree.parents.append(leaf)
                    tree.rewards.append(tree.rewards[leaf] + self.noise * float(draw.standard_normal()))
                    tree.said.append(int(draw.integers(self.ways)))
            tree.held.append(len(set.union(*(path(tree.parents, one) for one in grown))))
            leaves, counts = self._chosen(way, tree, grown)
        return tree

    def _chosen(self, way: str, tree: _Tree, grown: list[int]) -> tuple[list[int], Whole]:
        rewards = np.array([tree.rewards[one] for one in grown])
        if way == "beam":
            order = np.argsort(-rewards, kind="stable")[: self.beams]
            return [grown[at] for at in order], shares(np.zeros(len(order)), self.width, 0.0)
        counts = shares(rewards, self.width, self.sharpness)
        if way == "ets":
            able = np.flatnonzero(counts)
            kinds = {(tree.parents[grown[at]], tree.said[grown[at]]): None for at in able}
            groups = np.array([list(kinds).index((tree.parents[grown[at]], tree.said[grown[at]])) for at in able])
            own = [path(tree.parents, grown[at]) for at in able]
            good = able[kept(own, counts[able].astype(float), groups, nodes=self.nodes, spread=self.spread)]
            counts = np.zeros_like(counts)
            counts[good] = shares(rewards[good], self.width, self.sharpness)
        return [one for one, count in zip(grown, counts, strict=True) if count], counts[counts > 0]
