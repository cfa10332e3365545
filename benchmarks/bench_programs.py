"""How fast the integer and linear programs are solved, beside the programs that they take after.

    PYTHONPATH=src python benchmarks/bench_programs.py

Writes programs.md beside this file. Melange's own program runs along, on the same loads, when it is told where it is:

    git clone https://github.com/tyler-griggs/melange-release
    python -m venv peers && peers/bin/pip install pulp pandas
    export MELANGE_HOME=$PWD/melange-release PEER_PYTHON=$PWD/peers/bin/python
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.search.expert_placement import PlacementProblem, place
from ridgeline.search.rent import Option, Problem, Rent, rent

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.rivals import reference_flexgen as flexgen
from tests.rivals.exact_placement import exactly_placed

HERE = Path(__file__).parent
PUBLISHED = tomllib.loads((HERE.parent / "tests" / "rivals" / "published_programs.toml").read_text(encoding="utf-8"))
TRIES = 5
BUCKETS = (60, 120)  # with 4 slices and 4 kinds of machine: 964 and 1,924 integers in Melange's program
PRICES = {"small": 0.7, "middle": 1.0, "large": 3.7, "huge": 7.5}  # USD/h, made up
SPEEDS = {"small": 1.0, "middle": 1.6, "large": 6.5, "huge": 14.0}  # of the same request, made up

PEER = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from melange.solver import MelangeSolver
asked = json.load(sys.stdin)
took = []
for _ in range(asked["tries"]):
    gpus = {name: dict(gpu) for name, gpu in asked["gpu_info"].items()}
    began = time.perf_counter()
    answer = MelangeSolver(asked["shares"], asked["rate"], gpus, asked["slices"]).run()
    took.append(time.perf_counter() - began)
print(json.dumps({"took": took, "cost": answer["cost"]}))
"""


def load(buckets: int) -> tuple[np.ndarray[Any, np.dtype[np.float64]], tuple[Option, ...]]:
    """Rates of so many buckets [1/s], and four kinds of machine; long outputs suit the larger ones better."""
    draw = np.random.default_rng(buckets)
    rates = draw.exponential(1.0, buckets)
    rates *= 32.0 / rates.sum()
    length = np.geomspace(0.05, 5.0, buckets)
    options = tuple(
        Option(
            name=name,
            accelerator=name,
            price_usd_per_hour=PRICES[name],
            most_per_s=SPEEDS[name] / (length * (1.0 + length / SPEEDS[name])) * draw.uniform(0.9, 1.1, buckets),
        )
        for name in PRICES
    )
    return rates, options


def median_s(call: Callable[[], object]) -> float:
    """Median wall-clock time of a call [s]."""
    took = []
    for _ in range(TRIES):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def melange(buckets: int, slices: int) -> dict[str, Any] | None:
    """Median time and price of Melange's program; None when there is no checkout of it."""
    if "MELANGE_HOME" not in os.environ:
        return None
    rates, options = load(buckets)
    asked = {
        "tries": TRIES,
        "slices": slices,
        "rate": float(rates.sum()),
        "shares": [(rates / rates.sum()).tolist()],
        "gpu_info": {one.name: {"cost": one.price_usd_per_hour, "tputs": [list(one.most_per_s)]} for one in options},
    }
    python = os.environ.get("PEER_PYTHON", sys.executable)
    done = subprocess.run(
        [python, "-c", PEER, os.environ["MELANGE_HOME"]],
        input=json.dumps(asked), check=True, capture_output=True, text=True,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"wall_s": statistics.median(answer["took"]), "cost": answer["cost"]}


def rent_rows() -> list[str]:
    """Loads of two sizes, cut as Melange does and not at all, with limits and failures."""
    rows = []
    for buckets in BUCKETS:
        rates, options = load(buckets)
        frail = tuple(Option(**(vars(one) | {"availability": 0.98})) for one in options)
        cases: list[tuple[str, int, Problem]] = [
            ("4 slices", 4 * buckets + 4, Problem(options=options, rates_per_s=rates, slices=4)),
            ("any share", 4, Problem(options=options, rates_per_s=rates)),
            ("any share, at most 2 huge", 4, Problem(options=options, rates_per_s=rates, limits={"huge": 2})),
            (
                "any share, up with 0.999",
                0,
                Problem(options=frail, rates_per_s=rates, availability_target=0.999),
            ),
        ]
        theirs = melange(buckets, 4)
        if theirs is not None:
            rows.append(
                f"| {buckets} | Melange's program, CBC: 4 slices | {16 * buckets + 4:,} | {theirs['wall_s']:.3f} s "
                f"| {theirs['cost']:.2f} | | |"
            )
        for name, integers, problem in cases:
            wall_s, answer = median_s(lambda problem=problem: rent(problem)), rent(problem)  # type: ignore[misc]
            rows.append(
                f"| {buckets} | {name} | {integers or 'ways to rent'} | {wall_s:.3f} s "
                f"| {answer.cost_usd_per_hour:.2f} | {answer.bound_usd_per_hour:.2f} | {mix(answer)} |"
            )
    return rows


def mix(answer: Rent) -> str:
    """Counts in words."""
    return ", ".join(f"{count} {name}" for name, count in answer.counts.items())


def expert_rows() -> list[str]:
    """Layers of 256 experts by skew and replicas, whole models, traffic, and an exact program."""
    draw = np.random.default_rng(0)
    skewed = {
        skew: draw.permutation(np.arange(1, 257) ** -skew) * draw.lognormal(0, 0.3, 256) for skew in (0.0, 0.3, 0.6)
    }
    cases: list[tuple[str, PlacementProblem, bool]] = []
    for skew, loads in skewed.items():
        for redundant in (0, 32):
            name = f"1 layer, 256 experts, 64 ranks, {redundant} replicas, skew {skew:g}"
            slots = 4 + (redundant > 0)
            cases.append(
                (name, PlacementProblem(loads=loads[None], ranks=64, slots_per_rank=slots, redundant=redundant), False)
            )
    layers = draw.lognormal(0, 0.5, (58, 256))
    cases.append(
        ("58 layers, 256 experts, 64 ranks", PlacementProblem(loads=layers, ranks=64, slots_per_rank=4), False)
    )
    flow = draw.random((3, 64, 64)) ** 6
    placed = PlacementProblem(
        loads=np.ones((4, 64)), ranks=16, slots_per_rank=4, traffic=flow, nodes=tuple(rank // 8 for rank in range(16)),
        inside_cost=0.01, between_cost=0.05,
    )  # fmt: skip
    cases.append(("4 layers, 64 experts, 16 ranks in 2 nodes, traffic", placed, False))
    alone = PlacementProblem(loads=layers[:1, :10], ranks=3, slots_per_rank=4)
    cases.append(("1 layer, 10 experts, 3 ranks, exact", alone, True))
    small = PlacementProblem(
        loads=layers[:3, :5], ranks=4, slots_per_rank=2, traffic=flow[:2, :5, :5], nodes=(0, 0, 1, 1),
        inside_cost=0.5, between_cost=2.0,
    )  # fmt: skip
    cases.append(("3 layers, 5 experts, 4 ranks in 2 nodes, traffic", small, False))
    cases.append(("the same, exact", small, True))
    rows = []
    for name, problem, exact in cases:
        find = exactly_placed if exact else place
        call = lambda problem=problem, find=find: find(problem, time_limit_s=10.0)  # noqa: E731
        answer = call()
        rows.append(f"| {name} | {1e3 * median_s(call):.1f} ms | {answer.imbalance:.4f} | {answer.gap:.2%} |")
    return rows


def offload_rows() -> list[str]:
    """FlexGen's two machines and models: the published policy, and the best of all."""
    machine, output = flexgen.flexgen_machine(), flexgen.FLEXGEN["output_tokens"]
    rows = []
    for case in flexgen.CASES:
        call = lambda case=case: flexgen.place(flexgen.job_of(case), machine, attention=[True])  # noqa: E731
        answer, tokens = call(), case["gpu_batch"] * case["gpu_batches"] * output
        rows.append(
            f"| {case['model']} | {case['gpu_batch']} x {case['gpu_batches']} | {tokens / case['evaluated_s']:.3f} "
            f"| {tokens / case['optimum_s']:.3f} | {answer.policy.gpu_batch} x {answer.policy.gpu_batches} "
            f"| {1.0 / answer.token_s:.3f} | {answer.gap:.2%} | {answer.programs} | {median_s(call):.2f} s |"
        )
    return rows


def main() -> None:
    """Runs everything and writes the page."""
    first = subprocess.run(
        [sys.executable, "-c", "import time; t = time.perf_counter(); import highspy; print(time.perf_counter() - t)"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    search = PUBLISHED["flexgen"]["search_opt_30b"]
    text = f"""# Programs

Python {platform.python_version()}, highspy {version("highspy")}, NumPy {version("numpy")}, one of
{os.cpu_count()} cores ({platform.machine()}). Median of {TRIES}, wall clock, bound and prices included. Written by
`bench_programs.py`. Importing highspy takes {float(first.stdout):.2f} s, once, when the first program is solved.

## What to rent

Four kinds of machine, 32 requests/s. *Integers*: whole variables; Melange names every slice, here equal slices
are counted. Its paper reports 0.13 to 0.53 s for 964 to 1,924 integers, on another machine and other loads.

| buckets | program | integers | wall | USD/h | bound | rent |
|---|---|---|---|---|---|---|
{chr(10).join(rent_rows())}

## Experts on ranks

*Imbalance*: fullest rank over mean. *Gap*: against a proven bound, so the true one is no larger; the bound of traffic
is loose (here traffic is random, the hardest kind), as the exact program of the small case shows.

| problem | wall | imbalance | gap |
|---|---|---|---|
{chr(10).join(expert_rows())}

## Offloading

FlexGen's cost model and constants (T4, 200 GiB DRAM, 1.5 TiB disk), tokens/s by that model: its published policy; its
program at the same batch; the best over all batch sizes and numbers of batches, proven. FlexGen's own search for
OPT-30B (CBC) ended at {search["tokens_per_s"]} tokens/s after {search["wall_s"]} s, run once on such a machine.

| model | published | its tokens/s | its program | best | tokens/s | gap | programs | wall |
|---|---|---|---|---|---|---|---|---|
{chr(10).join(offload_rows())}
"""
    (HERE / "programs.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
