"""Mixes of blocks under a limit of time: the program beside greedy steps, equal layers and whole layers left out.

    python benchmarks/mixed_blocks.py > benchmarks/mixed_blocks.md

Llama-3.1-70B on an H100, 64 sequences of 2,048 tokens. Losses are made up: the square of the share of weights that
goes, times a weight of each part of a layer that is drawn from a lognormal (sigma 1) and twice as high at both ends.
"""

import csv
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.graph.load import load
from ridgeline.techniques.graphs.mixed_blocks import OPTIONS, MixedBlocks

Floats = NDArray[np.float64]
GRAPH = load("llama-3.1-70b").graph
PARTS = list(OPTIONS) * len(GRAPH.layers)


def tables(seed: int) -> tuple[list[Floats], list[Floats]]:
    """Losses and seconds of the options of each part of each layer."""
    draw, one = np.random.default_rng(seed), MixedBlocks()
    losses, seconds = [], []
    for number, name in enumerate(GRAPH.layers):
        end = 2.0 if number in (0, len(GRAPH.layers) - 1) else 1.0
        for part in OPTIONS:
            rows = np.array(one.table(GRAPH, name, part))
            losses.append(rows[:, 0] * end * draw.lognormal(0.0, 1.0))
            seconds.append(rows[:, 1])
    return losses, seconds


def program(losses: list[Floats], seconds: list[Floats], share: float) -> list[int]:
    """The technique's own mix, its losses from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "losses.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["layer", "part", "option", "loss"])
            for place, (part, row) in enumerate(zip(PARTS, losses, strict=True)):
                writer.writerows([place // 2, part, name, loss] for name, loss in zip(OPTIONS[part], row, strict=True))
        mix = MixedBlocks(seconds=share, losses=str(path)).mix(GRAPH)
    names = [name for pair in mix for name in pair]
    return [OPTIONS[part].index(name) for part, name in zip(PARTS, names, strict=True)]


def greedy(losses: list[Floats], seconds: list[Floats], share: float) -> list[int]:
    """From the model as it is, the change that loses least for each second that it saves, until the limit is kept."""
    now = [0] * len(losses)
    spent = sum(row[0] for row in seconds)
    limit = share * spent
    while spent > limit:
        best = None
        for place, (loss, cost) in enumerate(zip(losses, seconds, strict=True)):
            at = now[place]
            for option in range(len(loss)):
                saved = cost[at] - cost[option]
                if saved > 0:
                    rate = (loss[option] - loss[at]) / saved
                    if best is None or rate < best[0]:
                        best = (rate, place, option, saved)
        assert best is not None
        now[best[1]], spent = best[2], spent - best[3]
    return now


def equal(losses: list[Floats], seconds: list[Floats], share: float) -> list[int]:
    """The same attention and the same feed-forward in every layer, the best of all pairs."""
    limit = share * sum(row[0] for row in seconds)
    first, second = sum(losses[::2]), sum(losses[1::2])
    one, two = sum(seconds[::2]), sum(seconds[1::2])
    pairs = [(first[a] + second[f], a, f) for a in range(len(one)) for f in range(len(two)) if one[a] + two[f] <= limit]
    _, attention, feed = min(pairs)
    return [attention, feed] * len(GRAPH.layers)


def dropped(losses: list[Floats], seconds: list[Floats], share: float) -> list[int]:
    """Whole layers left out, those of the least loss first."""
    order = np.argsort([losses[place][-1] + losses[place + 1][-1] for place in range(0, len(losses), 2)])
    now, spent = [0] * len(losses), sum(row[0] for row in seconds)
    limit = share * spent
    for layer in order:
        if spent <= limit:
            break
        for place in (2 * int(layer), 2 * int(layer) + 1):
            now[place] = len(losses[place]) - 1
            spent -= seconds[place][0]
    return now


def main() -> None:
    """Prints the table."""
    ways: dict[str, Callable[[list[Floats], list[Floats], float], list[int]]] = {
        "program": program, "greedy": greedy, "equal layers": equal, "layers left out": dropped,
    }  # fmt: skip
    print("# Mixes of blocks under a limit of time\n")
    print("Total loss over that of the program; `python benchmarks/mixed_blocks.py` writes this page.\n")
    print("| losses | time left | " + " | ".join(ways) + " | program, s |")
    print("|---|---|" + "---|" * (len(ways) + 1))
    for seed in (0, 1):
        losses, seconds = tables(seed)
        for share in (0.75, 0.5, 0.3):
            found, taken = {}, 0.0
            for name, way in ways.items():
                began = time.perf_counter()
                picks = way(losses, seconds, share)
                taken = taken or time.perf_counter() - began
                spent = sum(row[one] for row, one in zip(seconds, picks, strict=True))
                assert spent <= share * sum(row[0] for row in seconds) * (1 + 1e-6)
                found[name] = float(sum(row[one] for row, one in zip(losses, picks, strict=True)))
            cells = " | ".join(f"{found[name] / found['program']:.3f}" for name in ways)
            print(f"| draw {seed} | {share:.0%} | {cells} | {taken:.1f} |")


if __name__ == "__main__":
    main()
