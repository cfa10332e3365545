"""Active experts of each layer: the exact program beside evolution (LExI's search), greedy steps and equal numbers.

    python benchmarks/active_experts.py > benchmarks/active_experts.md

Losses are measured on random inputs of made-up layers of 16 experts, 4 of which a token visits, whose weights grow or
shrink with depth; a layer's loss is in units of its output, times that output's size.
"""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ridgeline.numerics.active_experts import ActiveExpertLosses
from ridgeline.numerics.algorithm import Arrays
from ridgeline.techniques.graphs.active_experts import ActiveExperts

Floats = NDArray[np.float64]
TOP_K = 4
MODEL = ActiveExpertLosses(experts=16, top_k=TOP_K)


def losses(layers: int, seed: int) -> Floats:
    """Losses (L, K) of layers whose weights are scaled by a random walk."""
    draw = np.random.default_rng(seed)
    table = np.zeros((layers, TOP_K))
    scale = np.exp(np.cumsum(0.2 * draw.standard_normal(layers)))
    for layer in range(layers):
        weight = scale[layer] * draw.standard_normal((64, 24)) / np.sqrt(24)
        found = MODEL.run(Arrays(weight=weight, inputs=draw.standard_normal((128, 24)), seed=seed + layer))
        table[layer, : TOP_K - 1] = [scale[layer] ** 2 * found[f"loss_{count}"] for count in range(1, TOP_K)]
    return table


def exact(table: Floats, share: float) -> NDArray[np.int64]:
    """The planner's own counts (L)."""
    one = ActiveExperts(share=share, losses=tuple(table.ravel().tolist()))
    return np.array(one.counts([TOP_K] * len(table)))


def equal(table: Floats, share: float) -> NDArray[np.int64]:
    """The same number in every layer, the rest one more from the first on."""
    budget = int(share * TOP_K * len(table) + 1e-9)
    counts = np.full(len(table), budget // len(table))
    counts[: budget - int(counts.sum())] += 1
    return counts


def greedy(table: Floats, share: float) -> NDArray[np.int64]:
    """From one expert each, the next to the layer that it helps most."""
    counts = np.ones(len(table), dtype=np.int64)
    for _ in range(int(share * TOP_K * len(table) + 1e-9) - len(table)):
        gains = [row[k - 1] - row[k] if k < TOP_K else -1.0 for row, k in zip(table, counts, strict=True)]
        counts[int(np.argmax(gains))] += 1
    return counts


def evolved(table: Floats, share: float) -> NDArray[np.int64]:
    """100 choices over 200 generations: of the better half pairs are crossed, a visit moves, and sums are mended."""
    draw, layers = np.random.default_rng(0), len(table)
    budget = int(share * TOP_K * layers + 1e-9)

    def mended(counts: NDArray[np.int64]) -> NDArray[np.int64]:
        while (over := int(counts.sum()) - budget) != 0:
            free = np.flatnonzero(counts > 1) if over > 0 else np.flatnonzero(counts < TOP_K)
            counts[draw.choice(free)] -= np.sign(over)
        return counts

    def loss(counts: NDArray[np.int64]) -> float:
        return float(table[np.arange(layers), counts - 1].sum())

    alive = [mended(draw.integers(1, TOP_K + 1, layers)) for _ in range(100)]
    for _ in range(200):
        alive = sorted(alive, key=loss)[:50]
        for _ in range(50):
            first, second = (alive[int(one)] for one in draw.integers(0, 50, 2))
            child = np.where(draw.random(layers) < 0.5, first, second)
            child[draw.integers(layers)] = draw.integers(1, TOP_K + 1)
            alive.append(mended(child))
    return min(alive, key=loss)


def main() -> None:
    """Prints the table."""
    ways: dict[str, Callable[[Floats, float], NDArray[np.int64]]] = {
        "exact": exact, "evolution": evolved, "greedy": greedy, "equal": equal,
    }  # fmt: skip
    print("# Active experts of each layer\n")
    print("Total loss over that of the exact program; `python benchmarks/active_experts.py` writes this page.\n")
    print("| layers | visits left | " + " | ".join(ways) + " | exact, ms | evolution, ms |")
    print("|---|---|" + "---|" * (len(ways) + 2))
    for layers in (24, 48):
        table = losses(layers, layers)
        for share in (0.75, 0.5):
            found, taken = {}, {}
            for name, way in ways.items():
                began = time.perf_counter()
                counts = way(table, share)
                taken[name] = time.perf_counter() - began
                assert counts.sum() <= share * TOP_K * layers + 1e-9
                found[name] = float(table[np.arange(layers), counts - 1].sum())
            cells = " | ".join(f"{found[name] / found['exact']:.3f}" for name in ways)
            print(f"| {layers} | {share:.0%} | {cells} | {1e3 * taken['exact']:.0f} | {1e3 * taken['evolution']:.0f} |")


if __name__ == "__main__":
    main()
