"""Replays with techniques of experts beside the core's: iterations a second, and the slow simulator's answers.

    PYTHONPATH=src:tests/rivals python benchmarks/bench_replay_techniques.py

Writes replay_techniques.md beside this file.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from serving_peers import machine_line, prose
from test_serving_reference import Case, FakeEngine, differences

from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.scenario.serving_words import deployed
from ridgeline.serving.engine import Engine, engine
from ridgeline.serving.replay import Replay, replay_tables
from ridgeline.serving.step import StepTables
from ridgeline.serving.traffic.traffic import Traffic, traffic

MODEL, TRIES, REQUESTS, SEEDS = "olmoe-1b-7b", 7, 20_000, 300
LONGEST_PROMPT, LONGEST = 1024, 1200
ONE = "1xA100-80GB-SXM"
EIGHT = "8xA100-80GB-SXM"
GRID: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    *((text, ONE, {}, {}) for text in (
        "host-computed(share=0.2)", "fiddler(share=0.2)", "hybrimoe(share=0.2)", "expertflow(share=0.2)",
        "moe-gen", "moe-lens", "moe-lightning(padding=3)",
    )),
    ("padded-dispatch", EIGHT, {"dp": 4, "ep": 4}, {"dp": 4, "ep": 4}),
    ("attention-ffn-disaggregation(devices=4)", EIGHT, {"dp": 4}, {"dp": 4, "ep": 4}),
    ("janus(devices=4,spare=4)", EIGHT, {"dp": 4}, {"dp": 4, "ep": 4}),
)  # fmt: skip


def served(on: str, **words: Any) -> tuple[Engine, StepTables]:
    """An engine with a small cache and its tables."""
    one = engine(load(MODEL), machine(cluster(on)), deployed(cache_tokens=65_536, max_seqs=64, **words))
    return one, one.tables(longest_prompt=LONGEST_PROMPT, longest=LONGEST)


def queue(seed: int, count: int, spread_s: float, longest: int) -> Traffic:
    """Requests of random lengths that come within a time [s]."""
    draw = np.random.default_rng(seed)
    return traffic(
        np.sort(draw.uniform(0.0, spread_s, count)), draw.integers(1, LONGEST_PROMPT, count),
        draw.integers(1, longest, count),
    )  # fmt: skip


def paired(one: tuple[Engine, StepTables], core: tuple[Engine, StepTables]) -> tuple[Replay, float, float]:
    """The replay with a technique, and iterations a second of it and of the core, medians of turns about [1/s]."""
    asked = queue(0, REQUESTS, 1.0, LONGEST - LONGEST_PROMPT)
    rates: tuple[list[float], list[float]] = ([], [])
    for turn in range(TRIES + 1):
        for (made, tables), kept in zip((one, core), rates, strict=True):
            begun = time.process_time()
            found = replay_tables([made], [tables], asked, router="least-loaded")
            if turn:
                kept.append(found.iterations / (time.process_time() - begun))
            if kept is rates[0]:
                mine = found
    return mine, statistics.median(rates[0]), statistics.median(rates[1])


def unlike(one: tuple[Engine, StepTables]) -> int:
    """Random small runs that the slow simulator ends otherwise, to the bit."""
    made, tables = one
    rule = made.rule(tables)
    values = {name: rule[name].item() for name in rule.dtype.names}
    front = SimpleNamespace(exposed_host_s=1e-4, request_host_s=0.0, prompt_token_host_s=0.0)
    told = FakeEngine(made.deployment, values, made.graphs, front)
    wrong = 0
    for seed in range(SEEDS):
        draw = np.random.default_rng(seed)
        asked = queue(seed, int(draw.integers(3, 13)), float(draw.choice([0.1, 1.0, 5.0])), 40)
        wrong += bool(differences(Case(engines=[told], tables=[tables], traffic=asked, router="round-robin"))[0])
    return wrong


def main() -> None:
    """Times every technique beside its core and writes the page."""
    rows, runs, least = [], 0, np.inf
    for text, on, words, plain in GRID:
        one, core = served(on, technique=(text,), **words), served(on, **plain)
        found, rate, cores = paired(one, core)
        assert len(found.end_s) == REQUESTS
        assert np.isfinite(found.end_s).all()
        wrong = unlike(one)
        runs += SEEDS
        least = min(least, rate / cores)
        over = rate / cores
        rows.append(
            f"| `{text}` | {on} | {found.iterations:,} | {rate:,.0f} | {cores:,.0f} | **{over:.2f}** | {wrong} |"
        )
        print(rows[-1], flush=True)
    page = [
        "# Replays with techniques of experts", "",
        prose(
            f"Written by `bench_replay_techniques.py`. {machine_line()}. {REQUESTS:,} requests of {MODEL} that come"
            f" within a second, prompts of 1 to {LONGEST_PROMPT - 1:,} tokens and outputs of 1 to"
            f" {LONGEST - LONGEST_PROMPT - 1}; a cache of 65,536 tokens and 64 sequences a rank. *Core*: the same"
            " deployment without the technique (experts on all ranks where it takes devices of their own), timed in"
            f" turns with it in the same run; medians of {TRIES}, of the processor's time. The aim is 0.8 of it;"
            f" the least is {least:.2f}. *Unlike*: of {SEEDS} random small runs each, {runs:,} in all, those that the"
            " slow, plain simulator of `tests/rivals` ends otherwise, to the bit; it counts requests and blocks."
        ),
        "", "| technique | on | iterations | iterations/s | core's | over the core's | unlike |",
        "|---|---|---|---|---|---|---|", *rows,
    ]  # fmt: skip
    (Path(__file__).parent / "replay_techniques.md").write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
