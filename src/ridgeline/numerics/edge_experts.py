"""MoE^2: whole models on edge devices behind one gate, chosen under bounds of energy and latency.

Shape letters: K models, D kinds of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import ClassVar

import numpy as np

from ridgeline.errors import NoPlanError, PlanError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.numerics.algorithm import ArrayAlgorithm, Arrays, Floats
from ridgeline.plan.deployment import Deployment
from ridgeline.predict.serving import Operation, simulate_serving
from ridgeline.seams.technique import param
from ridgeline.serving.traffic.asked import asked_traffic

Chosen = frozenset[int]
_MOST = 16  # models, of which there are 65,536 sets
_FLEET = (
    "qwen2.5-0.5b@Jetson-AGX-Orin-64GB", "llama-3.2-1b@Jetson-AGX-Orin-64GB", "qwen2.5-1.5b@Jetson-AGX-Orin-64GB",
    "llama-3.2-3b@Jetson-AGX-Orin-64GB", "qwen2.5-3b@RTX-4090", "qwen2.5-7b@RTX-4090", "llama-3.1-8b@RTX-4090",
    "gemma-2-9b@RTX-4090",
)  # fmt: skip


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

    Seconds and joules of a task are those of `simulate` for each model on its device, without a building's
    overhead. Skills are drawn: a model of P billion parameters loses 1 / log2(2 + P) on average, and each has kinds of
    tasks of its own (assumed). Checked: against every set of models. Left out: the way over a radio link, answers that
    several models give together.
    """

    key: ClassVar[str] = "edge-experts"
    source: ClassVar[tuple[str, ...]] = ("moe2-edge",)
    experts: str = param("+".join(_FLEET), "", "MODEL@MACHINE+..., the paper's devices with models of the catalog")
    engine: str = param("vllm", "", "serving engine of all devices")
    weights: str = param("bf16", "", "format of all weights")
    prompt: int = param(256, "tokens", "of a task", low=1, high=1_000_000)
    output: int = param(128, "tokens", "of an answer", low=1, high=100_000)
    domains: int = param(12, "kinds", "kinds of tasks", low=1, high=1000)
    samples: int = param(50, "tasks", "of each kind that the gate learns from", low=1, high=100_000)
    most_j: float = param(1500.0, "J", "energy of a task on all chosen models at most", low=0.0)
    most_s: float = param(5.0, "s", "time of a task on the slowest of them at most", low=0.0)

    def run(self, arrays: Arrays) -> Mapping[str, float]:
        """Losses over that of all models together, the share of sets asked [1], and each model's cost [s, J]."""
        names = self.names()
        size, seconds, energy = np.array([self.cost(name) for name in names]).T
        draw = np.random.default_rng(arrays.seed)
        true = 1.0 / np.log2(2.0 + size)[:, None] * draw.lognormal(0.0, 0.6, (len(names), self.domains))
        seen = true + 0.3 * true * draw.standard_normal((self.samples, *true.shape)).mean(axis=0)

        def loss(one: Chosen) -> float:
            return float(seen[sorted(one)].min(axis=0).mean()) if one else float("inf")

        def unseen(one: Chosen) -> float:
            rows = np.array(sorted(one))
            return float(true[rows[seen[rows].argmin(axis=0)], np.arange(self.domains)].mean())

        best, asked = chosen(loss, energy, seconds, self.most_j, self.most_s)
        if not best:
            raise NoPlanError(self._none(names, seconds, energy))
        fit = [frozenset({one}) for one in range(len(names)) if self._within(frozenset({one}), energy, seconds)]
        every, rows = unseen(frozenset(range(len(names)))), sorted(best)
        return {
            "loss_ratio": unseen(best) / every,
            "greedy_loss_ratio": unseen(self._greedy(loss, energy, seconds)) / every,
            "single_loss_ratio": unseen(min(fit, key=lambda one: (loss(one), sorted(one)))) / every,
            "models": float(len(best)), "energy_j": float(energy[rows].sum()), "slowest_s": float(seconds[rows].max()),
            "asked_share": asked / 2.0 ** len(names),
            **{f"{name}_{unit}": float(value) for one, name in enumerate(names) for unit, value in
               (("s", seconds[one]), ("j", energy[one]), ("chosen", one in best))},
        }  # fmt: skip

    def _none(self, names: list[str], seconds: Floats, energy: Floats) -> str:
        """Why no model is chosen, in a sentence."""
        each = ", ".join(f"{name} {s:.3g} s and {j:.3g} J" for name, s, j in zip(names, seconds, energy, strict=True))
        return f"no model keeps to {self.most_s:g} s and {self.most_j:g} J a task: {each}; allow more (most_s, most_j)"

    def names(self) -> list[str]:
        """MODEL@MACHINE of every expert; raises `PlanError` for one that is not written so, or too many."""
        names = [one.strip() for one in self.experts.split("+") if one.strip()]
        wrong = [one for one in names if len([part for part in one.split("@") if part]) != 2]
        if wrong or not 1 <= len(names) <= _MOST or len(set(names)) < len(names):
            said = f"'{wrong[0]}'" if wrong else f"{len(names)} models"
            raise PlanError(f"experts: {said}; write 1 to {_MOST} different MODEL@MACHINE with '+' between them")
        return names

    def cost(self, name: str) -> tuple[float, float, float]:
        """Parameters [10^9] of a model, and one task of it on its device, nothing else running [s, J]."""
        said, _, where = name.partition("@")
        model, place = load(said), replace(cluster(where), pue=None)
        traffic, _ = asked_traffic(
            {"arrivals": "burst", "requests": 1, "prompt": (self.prompt,) * 2, "output": (self.output,) * 2}
        )
        one = Deployment(engine=self.engine, weights=self.weights)
        found = simulate_serving(model, place, (one,), traffic, operation=Operation(changes=False))
        if found.energy_j is None:
            raise PlanError(f"experts: no power is known of {where}; take another machine, or a file that tells its")
        return model.graph.params / 1e9, found.metrics.latency.mean, found.energy_j

    def _within(self, one: Chosen, energy: Floats, seconds: Floats) -> bool:
        rows = sorted(one)
        return bool(energy[rows].sum() <= self.most_j and seconds[rows].max() <= self.most_s)

    def _greedy(self, loss: Callable[[Chosen], float], energy: Floats, seconds: Floats) -> Chosen:
        one: Chosen = frozenset()
        while True:
            more = [one | {model} for model in range(len(energy)) if model not in one]
            more = [each for each in more if self._within(each, energy, seconds)]
            if not more:
                return one
            now = loss(one) if one else 1e3
            one = max(more, key=lambda each: ((now - loss(each)) / energy[sorted(each - one)].sum(), sorted(each)))
