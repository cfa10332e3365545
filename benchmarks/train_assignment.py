"""Trains the scores of `learned-assignment` in the simulation, and writes data/learned_assignment.toml.

    python benchmarks/train_assignment.py            # some 15 minutes; the same seed gives the same file
    python benchmarks/train_assignment.py --score    # held-out pools, every rule

An evolution strategy with covariance adaptation (Hansen, arXiv:1604.00772) looks for the weights that end the most
jobs in time in random pools: devices, regions, links, arrivals, stays and jobs all differ. A generation's candidates
meet the same pools. Pools that are reported on are drawn from other seeds.
"""

import sys
from pathlib import Path
from typing import ClassVar

import numpy as np

from ridgeline.facts.job_pools import job_pool
from ridgeline.predict.job_pools import pool_world
from ridgeline.seams.registry import names, technique
from ridgeline.techniques.assignments.learned import LearnedAssignment
from ridgeline.training.job_pool import PoolWorld, run_pool

FILE = Path(__file__).parents[1] / "src/ridgeline/data/learned_assignment.toml"
NAMES = {
    "jobs": ("high", "deadline_soon", "work_short", "devices_few", "arrival_early"),
    "devices": ("speed", "stay", "memory_tight", "data_region"),
    "sets": (
        "bias", "leaves", "high_leaves", "time_of_deadline", "moves_of_time", "memory_spare", "speed", "speed_uneven",
        "free", "high",
    ),
}  # fmt: skip
SIZES = {of: len(weights) for of, weights in NAMES.items()}
START = np.array([0.0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])  # greedy: first come, fastest, at once
HELD_OUT, TRAINED_ON = 10_000, 1_000_000  # seeds
GENERATIONS, CANDIDATES, POOLS, STEP, SEED = 45, 12, 5, 0.3, 0


class Trial(LearnedAssignment):
    """The same rule with weights that are tried."""

    vector: ClassVar[np.ndarray] = START

    def weights(self, of: str) -> np.ndarray:
        """Part of the vector [1]."""
        before = {"jobs": 0, "devices": SIZES["jobs"], "sets": SIZES["jobs"] + SIZES["devices"]}[of]
        return self.vector[before : before + SIZES[of]]


def random_pool(seed: int, jobs: int = 80) -> PoolWorld:
    """A pool like no other: devices, stays, regions, links, arrivals, sizes, deadlines."""
    draw = np.random.default_rng(seed)

    def between(low: float, high: float) -> float:
        return float(np.exp(draw.uniform(np.log(low), np.log(high))))

    base = job_pool("reach-community")
    kinds = [
        {"name": one.name, "count": int(draw.integers(2, 28)), "mtbf_h": between(2, 60), "away_h": between(0.5, 4)}
        for one in base.device
    ]
    table = base.jobs.model_dump() | {
        "count": jobs, "per_h": between(0.4, 4) * sum(one["count"] for one in kinds),
        "data": (1e9, between(5e9, 1e11)), "exchange": (5e9, between(2e10, 4e11)),
        "slack": (1.2, between(1.6, 4.0)), "high_share": float(draw.uniform(0.1, 0.5)),
    }  # fmt: skip
    drawn = {"regions": int(draw.integers(2, 8)), "between": between(2e7, 3e8), "seed": int(draw.integers(2**31))}
    return pool_world(base.model_copy(update=drawn | {
        "device": [type(base.device[0]).model_construct(**one) for one in kinds],
        "jobs": type(base.jobs).model_construct(**table),
    }))  # fmt: skip


def reward(vector: np.ndarray, worlds: list[PoolWorld]) -> float:
    """Mean share in time of all jobs and of those of priority, and a twentieth of an hour lost to links [1]."""
    Trial.vector = vector
    found = [run_pool(world, Trial()) for world in worlds]
    return float(np.mean([one.completed_share + one.high_completed_share - one.moves_s / 72_000 for one in found]) / 2)


def evolve() -> np.ndarray:
    """The mean of the last generation's distribution [1]."""
    draw, many = np.random.default_rng(SEED), len(START)
    half = CANDIDATES // 2
    raw = np.log(half + 0.5) - np.log(np.arange(1, half + 1))
    share = raw / raw.sum()
    effective = 1.0 / (share**2).sum()
    c_path = (4 + effective / many) / (many + 4 + 2 * effective / many)
    c_step = (effective + 2) / (many + effective + 5)
    c_one = 2 / ((many + 1.3) ** 2 + effective)
    c_rank = min(1 - c_one, 2 * (effective - 2 + 1 / effective) / ((many + 2) ** 2 + effective))
    damping = 1 + 2 * max(0.0, np.sqrt((effective - 1) / (many + 1)) - 1) + c_step
    expected = np.sqrt(many) * (1 - 1 / (4 * many) + 1 / (21 * many**2))
    mean, step, cov = START.copy(), STEP, np.eye(many)
    path_step, path_cov = np.zeros(many), np.zeros(many)
    for generation in range(GENERATIONS):
        worlds = [random_pool(TRAINED_ON + generation * POOLS + one) for one in range(POOLS)]
        values, axes = np.linalg.eigh(cov)
        scale = axes * np.sqrt(np.maximum(values, 1e-20))
        moves = draw.standard_normal((CANDIDATES, many)) @ scale.T
        rewards = np.array([reward(mean + step * one, worlds) for one in moves])
        best = moves[np.argsort(-rewards, kind="stable")[:half]]
        shift = share @ best
        mean = mean + step * shift
        white = axes @ ((axes.T @ shift) / np.sqrt(np.maximum(values, 1e-20)))
        path_step = (1 - c_step) * path_step + np.sqrt(c_step * (2 - c_step) * effective) * white
        path_cov = (1 - c_path) * path_cov + np.sqrt(c_path * (2 - c_path) * effective) * shift
        cov = (1 - c_one - c_rank) * cov + c_one * np.outer(path_cov, path_cov) + c_rank * (best.T * share) @ best
        step *= float(np.exp(c_step / damping * (np.linalg.norm(path_step) / expected - 1)))
        print(f"{generation:3} best {rewards.max():.4f} mean {rewards.mean():.4f} step {step:.3f}", flush=True)
    return mean


def write(vector: np.ndarray) -> None:
    """The weights by name."""
    lines = [
        "# Weights of `learned-assignment`, REACH's scheduler (reach2025) with linear scores: learned by",
        f"# benchmarks/train_assignment.py in {GENERATIONS * POOLS} random pools, seed {SEED}; none is reported on.",
    ]
    at = 0
    for of, weights in NAMES.items():
        lines.append(f"[{of}]")
        for name in weights:
            lines.append(f"{name} = {vector[at]:.4f}")
            at += 1
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def score(many: int = 40) -> None:
    """Prints what each rule makes of pools that were not trained on."""
    worlds = [random_pool(HELD_OUT + one, jobs=200) for one in range(many)]
    rules = [technique("assignments", name) for name in names("assignments")]
    found = {rule.key: [run_pool(world, rule) for world in worlds] for rule in rules}
    print("| rule | in time | of priority | lost to links | broken off |")
    print("|---|---|---|---|---|")
    for key, runs in found.items():
        done, high, moves, broken = (
            float(np.mean([getattr(one, name) for one in runs]))
            for name in ("completed_share", "high_completed_share", "moves_s", "broken")
        )
        print(f"| {key} | {done:.1%} | {high:.1%} | {moves:,.0f} s | {broken:.0f} |")
    for key in set(found) - {"learned-assignment"}:
        pairs = zip(found["learned-assignment"], found[key], strict=True)
        gains = np.array([one.completed_share - other.completed_share for one, other in pairs])
        error = gains.std(ddof=1) / np.sqrt(many)
        better = f"better in {(gains > 0).mean():.0%}"
        print(f"learned over {key}: {gains.mean():+.1%} of the jobs, standard error {error:.1%}, {better}")


if __name__ == "__main__":
    if "--score" in sys.argv:
        score()
    else:
        write(evolve())
