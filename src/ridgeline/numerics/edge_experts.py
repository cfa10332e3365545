"""MoE^2: whole models on edge devices behind one gate, chosen under bounds of energy and latency.

Shape letters: K models, D kinds of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar

import numpy as np

from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.seams.technique import param

Chosen = frozenset[int]


def chosen(
    loss: Callable[[Chosen], float], energy: Floats, seconds: Floats, most_energy: float, most_seconds: float
) -> tuple[Chosen, int]:
    """The models of least loss within both bounds, and how many sets were asked for their loss [1].

    Discrete monotonic optimization: more models never lose more, so what a set loses is a bound of all sets inside it.
    From all models that are fast enough, the set of least loss is next; one within the energy is the best of all, and
    another is replaced by those with one model less. Empty where no model is within the bounds.

    >>> chosen(lambda one: 3.0 - len(one), np.array([2.0, 1.0, 1.0]), np.array([1.0, 1.0, 9.0]), 2.0, 5.0)
    (frozenset({0}), 3)
    """
    whole = frozenset(np.flatnonzero((seconds <= most_seconds) & (energy <= most_energy)).tolist())
    asked, waiting = {whole}, [(loss(whole), sorted(whole), whole)]
    while waiting:
        _, _, one = heappop(waiting)
        if sum(energy[list(one)]) <= most_energy:
            return one, len(asked)
        for less in (one - {model} for model in sorted(one)):
            if less and less not in asked:
                asked.add(less)
                heappush(waiting, (loss(less), sorted(less), less))
    return frozenset(), len(asked)


@dataclass(frozen=True, kw_only=True)
class EdgeExperts(ArrayAlgorithm):
    """Several language models on edge devices; a gate sends each task to the best of those chosen for the budgets.

    The gate keeps a score of each model for each kind of task, from `samples` tasks of it, and sends tasks to the
    highest score among the chosen models: scores of all models serve every choice of them, so that the gate is learned
    once (the paper's two levels). Models are chosen by discrete monotonic optimization within the energy of all chosen
    and the time of the slowest. Measured: loss of the gate's choices on tasks that it has not seen, for the best
    choice, a greedy one (most gain a joule first) and the single best model, and the sets asked over all sets.

    Skills are drawn: a larger model loses less on average, and each has kinds of tasks of its own. Sizes grow from 1 to
    2^3 over the models, energy and seconds with the size (both assumed: the paper's come from devices; `predict` tells
    those of a model on one). Checked: against every set of models. Left out: answers that several models give together.
    """

    key: ClassVar[str] = "edge-experts"
    source: ClassVar[tuple[str, ...]] = ("moe2-edge",)
    models: int = param(8, "models", "models to choose from", low=1, high=16)
    domains: int = param(12, "kinds", "kinds of tasks", low=1, high=1000)
    samples: int = param(50, "tasks", "of each kind that the gate learns from", low=1, high=100_000)
    most_energy: float = param(0.4, "1", "energy of the chosen models at most, over that of all", low=0.0, high=1.0)
    most_seconds: float = param(0.8, "1", "time of the slowest at most, over that of the slowest of all", high=1.0)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Losses over that of all models together, and the share of sets asked [1]."""
        draw = np.random.default_rng(arrays.seed)
        size = 2.0 ** np.linspace(0.0, 3.0, self.models)
        energy, seconds = size / size.sum(), size / size.max() * draw.uniform(0.7, 1.0, self.models)
        seconds = seconds / seconds.max()
        true = 1.0 / np.log2(2.0 + size)[:, None] * draw.lognormal(0.0, 0.6, (self.models, self.domains))
        seen = true + 0.3 * true * draw.standard_normal((self.samples, self.models, self.domains)).mean(axis=0)

        def loss(one: Chosen) -> float:
            return float(seen[sorted(one)].min(axis=0).mean()) if one else float("inf")

        def unseen(one: Chosen) -> float:
            rows = np.array(sorted(one))
            return float(true[rows[seen[rows].argmin(axis=0)], np.arange(self.domains)].mean()) if one else float("nan")

        best, asked = chosen(loss, energy, seconds, self.most_energy, self.most_seconds)
        greedy = self._greedy(loss, energy, seconds)
        fit = [one for one in range(self.models) if self._within(frozenset({one}), energy, seconds)]
        alone = frozenset(sorted(fit, key=lambda one: (loss(frozenset({one})), one))[:1])
        every = unseen(frozenset(range(self.models)))
        return {
            "loss_ratio": unseen(best) / every, "greedy_loss_ratio": unseen(greedy) / every,
            "single_loss_ratio": unseen(alone) / every, "models": float(len(best)),
            "energy_share": float(energy[sorted(best)].sum()), "asked_share": asked / 2.0**self.models,
        }  # fmt: skip

    def _within(self, one: Chosen, energy: Floats, seconds: Floats) -> bool:
        rows = sorted(one)
        return bool(energy[rows].sum() <= self.most_energy and seconds[rows].max() <= self.most_seconds)

    def _greedy(self, loss: Callable[[Chosen], float], energy: Floats, seconds: Floats) -> Chosen:
        one: Chosen = frozenset()
        while True:
            more = [one | {model} for model in range(self.models) if model not in one]
            more = [each for each in more if self._within(each, energy, seconds)]
            if not more:
                return one
            now = loss(one) if one else 1e3
            one = max(more, key=lambda each: ((now - loss(each)) / energy[sorted(each - one)].sum(), sorted(each)))
