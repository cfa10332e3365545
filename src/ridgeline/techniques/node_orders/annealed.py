"""Pipette's worker dedication: simulated annealing over which node stands at which place.

Shape letters: N nodes, C chains that are annealed side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import numpy as np

from ridgeline.facts.records import Fact
from ridgeline.seams.node_order import Integers, NodeOrder, NodeOrderProblem
from ridgeline.seams.technique import EXACT, param

_EXACT = 7  # nodes up to which every order is looked at


@dataclass(frozen=True, kw_only=True)
class Annealed(NodeOrder):
    """Nodes are put to stages and copies so that slow links carry what hurts least (Pipette's worker dedication).

    Of up to 7 nodes every order is looked at. Of more, simulated annealing walks from the given order, each step by one
    of Pipette's five moves: two nodes swapped, a node put elsewhere, a run of nodes reversed, moved, or moved and
    reversed; several walks side by side, cooled by the same factor a step. What is minimized is the closed-form bound
    of the whole step, with every exchange and send at the speed of its own links. An order is taken only if it beats
    the given one. A ring of a data-parallel group goes over its nodes in their order, and waits for its slowest link.

    Left out: placing single devices of a node apart (the authors' program moves whole nodes too), rings that the
    collective library finds by itself, and links that several groups share.
    """

    key: ClassVar[str] = "annealed"
    source: ClassVar[tuple[str, ...]] = ("pipette2024",)
    quality: ClassVar[Fact | None] = EXACT
    steps: int = param(200, "steps", "steps of each walk", low=1, high=100_000)
    chains: int = param(32, "1", "walks side by side", low=1, high=10_000)
    cooling: float = param(0.97, "1", "temperature of a step over that of the one before", low=0.1, high=0.99999)
    seed: int = param(0, "1", "seed of the walks", low=0, high=2**31)

    def order(self, problem: NodeOrderProblem) -> Integers:
        """The best order found (N,) [1]."""
        given = np.arange(problem.nodes)
        best = self._exact(problem) if problem.nodes <= _EXACT else self._walked(problem)
        first, second = problem.seconds(np.stack([given, best]))
        return np.asarray(best if second < first else given)

    def _exact(self, problem: NodeOrderProblem) -> Integers:
        orders = np.array(list(permutations(range(problem.nodes))), dtype=np.int64)
        return np.asarray(orders[int(np.argmin(problem.seconds(orders)))])

    def _walked(self, problem: NodeOrderProblem) -> Integers:
        draw = np.random.default_rng(self.seed)
        now = np.tile(np.arange(problem.nodes), (self.chains, 1))
        for chain in now[1:]:  # one walk begins where the cluster does
            draw.shuffle(chain)
        cost = problem.seconds(now)
        heat = float(cost.max() - cost.min()) or float(cost[0]) * 1e-3
        best, best_s = now[int(np.argmin(cost))].copy(), float(cost.min())
        for _ in range(self.steps):
            there = np.stack([_moved(chain, draw) for chain in now])
            asked = problem.seconds(there)
            taken = draw.random(self.chains) < np.exp(np.minimum(0.0, (cost - asked) / heat))
            now, cost = np.where(taken[:, None], there, now), np.where(taken, asked, cost)
            if float(cost.min()) < best_s:
                best, best_s = now[int(np.argmin(cost))].copy(), float(cost.min())
            heat *= self.cooling
        return np.asarray(best)


def _moved(order: Integers, draw: np.random.Generator) -> Integers:
    """An order after one of the five moves (N,)."""
    first, last = sorted(draw.integers(0, len(order) + 1, 2).tolist())
    move = int(draw.integers(5))
    found = order.copy()
    if move == 0:  # swap two nodes
        one, two = draw.integers(0, len(order), 2)
        found[[one, two]] = found[[two, one]]
        return found
    if move == 1:  # put one node elsewhere
        last = min(first + 1, len(order))
    if move == 2:  # reverse a run
        found[first:last] = found[first:last][::-1]
        return found
    run, rest = order[first:last], np.concatenate([order[:first], order[last:]])
    where = int(draw.integers(len(rest) + 1))
    return np.concatenate([rest[:where], run[::-1] if move == 4 else run, rest[where:]])
