"""Layer-wise strategies: Ridgeline's search beside Hetu-Galvatron's, on the cost tables of its own shipped profile.

    python benchmarks/bench_layerwise.py TABLES.pickle [PEER.json]

`benchmarks/layerwise_peer.py` writes TABLES.pickle and prints PEER.json in the peer's own environment: of each of its
tasks (micro-batches, pipeline stages, kinds of tensor and sequence parallelism) the seconds and memory of every
strategy of a layer and of both ends. Here the same tasks are searched for the least of the peer's own pipeline cost.
"""

import json
import pickle
import sys
import time
from pathlib import Path

import numpy as np

from ridgeline.search.layerwise import LayerChoices, cheapest_layers, least_seconds


def pipeline_s(task: dict, plain: np.ndarray, synced: np.ndarray) -> float:
    """The peer's cost of a pipeline [s]: `plain` (P,) a micro-batch on each stage, `synced` with gradients summed."""
    stages, many = task["pp"], task["chunks"]
    last = plain.sum() + plain[-1] * (many - 1)
    warm = min(stages - 1, many - 1) * plain[0]
    rest = plain[1:].sum()
    first = max(warm / 3, rest / 3) + max(2 * warm / 3, 2 * rest / 3) + plain[0] * max(0, many + 1 - stages)
    late = (synced - np.cumsum(plain)).max()
    return float(max(last, first) + max(late, 0.0))


class Task:
    """One task of the peer with one strategy of both ends, as the tables of each of its stages."""

    def __init__(self, task: dict, end: int) -> None:
        self.task, self.end = task, end
        stages = task["stages"][end * task["pp"] : (end + 1) * task["pp"]]
        self.plain = np.asarray(task["plain_s"])
        self.ends = np.asarray(task["ends_plain_s"][end])
        self.room = [one["limit"] - 1 - next(iter(one["held"].values())) for one in stages]
        self.stages = stages

    def choices(self, stage: int) -> LayerChoices:
        """Seconds of a step of each strategy: all micro-batches, and the sum of gradients that outlasts them."""
        one = self.stages[stage]
        seconds = self.task["chunks"] * self.plain + one["seconds"] - self.plain
        between = one["relayout"][-1] if one["layers"] > 1 else np.zeros((self.plain.size,) * 2)
        zero = np.zeros(self.plain.size)
        return LayerChoices(seconds=seconds, bytes=one["bytes"].astype(float), relayout=between, enter=zero, leave=zero)

    def least_s(self) -> float:
        """Lower bound of the cost of the task [s]."""
        if min(self.room) < 0:
            return np.inf
        return max(
            least_seconds(self.choices(stage), room) + self.task["chunks"] * self.ends[stage]
            for stage, room in enumerate(self.room)
        )

    def best(self, below_s: float) -> tuple[float, list[np.ndarray]]:
        """The least cost [s], and the strategies of each stage."""
        chosen, plain, synced = [], [], []
        for stage, room in enumerate(self.room):
            one = self.choices(stage)
            limit = below_s - self.task["chunks"] * self.ends[stage] if self.task["pp"] == 1 else np.inf
            found = cheapest_layers(one, float(room), below_s=limit)
            if found is None:
                return np.inf, []
            chosen.append(found.strategies)
            plain.append(self.plain[found.strategies].sum() + self.ends[stage])
            synced.append(self.stages[stage]["seconds"][np.arange(found.strategies.size), found.strategies].sum())
        return pipeline_s(self.task, np.array(plain), np.array(synced)), chosen


def search(tasks: list[dict]) -> tuple[float, Task, list[np.ndarray], int]:
    """The least cost of all tasks [s], where it was found, and how many tasks were solved."""
    every = [Task(task, end) for task in tasks for end in range(len(task["ends_plain_s"]))]
    bounds = np.array([one.least_s() for one in every])
    best_s, where, chosen, solved = np.inf, every[0], [], 0
    for number in np.argsort(bounds):
        if bounds[number] >= best_s:
            break
        solved += 1
        cost_s, found = every[number].best(best_s)
        if cost_s < best_s:
            best_s, where, chosen = cost_s, every[number], found
    return best_s, where, chosen, solved


def main() -> None:
    """Prints both searches."""
    tasks = pickle.loads(Path(sys.argv[1]).read_bytes())
    started = time.perf_counter()
    cost_s, where, chosen, solved = search(tasks)
    wall_s = time.perf_counter() - started
    names = [where.task["names"][one] for stage in chosen for one in stage]
    runs = {name: names.count(name) for name in dict.fromkeys(names)}
    print(f"ridgeline: step {cost_s:.6f} s, search {wall_s:.3f} s, {solved} of {len(tasks)} tasks solved; {runs}")
    if len(sys.argv) > 2:
        peer = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()[-1])
        theirs = {name: peer["layers"].count(name) for name in dict.fromkeys(peer["layers"])}
        busy = f"{peer['search_s']:.1f} s ({peer['search_cpu_s']:.1f} s of processor)"
        print(f"galvatron: step {peer['step_s']:.6f} s, search {busy}; {theirs}")
        print(f"           tables of its {peer['tasks']} tasks from the profile {peer['tables_s']:.2f} s")


if __name__ == "__main__":
    main()
