"""Whether this commit is slower than an earlier one: the two by turns, each in processes of its own.

    PYTHONPATH=src python benchmarks/pair_commits.py COMMIT [--pairs 5] [--only search ...]

Checks the earlier commit out beside this tree, runs each case of both once (kernels compiled, files read), then pairs
of runs, first one and then the other first. Prints the median of the ratios of a pair, this commit's time over the
other's, with the least and the greatest. Exits with 1 where a median is above `SLOWEST`. A case that either commit
cannot run is told and not judged. Other work on the machine disturbs both: run it where nothing else does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
SLOWEST = 1.1  # of the earlier commit's time

SEARCH = """
import time
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.graph.workload import Workload
from ridgeline.predict import Predictor
from ridgeline.search.search import Searcher
from ridgeline.search.space import EXHAUSTIVE, Space

def bound(space):
    job = Workload(seq_len=4096, global_batch=1024)
    one = Searcher(Predictor(load("llama-3.1-70b"), cluster("64xH100-SXM"), job), space)
    begin = time.perf_counter()
    one.bound()
    return time.perf_counter() - begin

bound(Space())
print(bound(EXHAUSTIVE))
"""
CLOCK = """
from serving_jobs import azure, timed
print(1.0 / timed(azure()).iterations_per_s)
"""
COMMAND = ("-m", "ridgeline.cli.main")
SERVE = ("--on", "2x8xH100-SXM", "--trace", "azure-conv", "--engine", "vllm", "--tp", "8")
CASES: dict[str, tuple[str, ...]] = {  # what Python runs; code prints its own seconds, a command is timed whole
    "op": (*COMMAND, "op", "gemm", "4096x4096x4096", "--on", "H100-SXM"),
    "plan": (*COMMAND, "plan", "llama-3.1-70b", "--on", "64xH100-SXM", "--train"),
    "simulate": (*COMMAND, "simulate", "llama-3.1-70b", *SERVE),
    "clock": ("-c", CLOCK),  # seconds of an iteration of the request clock
    "search": ("-c", SEARCH),  # bounds of the exhaustive space, 9.3 million plans
}


def taken_s(tree: Path, words: tuple[str, ...]) -> float | None:
    """Seconds of one case in a new process on one tree; None where the tree cannot run it."""
    paths = os.pathsep.join(str(tree / folder) for folder in ("src", "benchmarks"))
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=tree, env={**os.environ, "PYTHONPATH": paths}
    )
    whole = time.perf_counter() - begin
    if done.returncode:
        return None
    return float(done.stdout.split()[-1]) if words[0] == "-c" else whole


def ratios(other: Path, words: tuple[str, ...], pairs: int) -> list[tuple[float, float]]:
    """Seconds of pairs of runs, of this tree and of the other; empty where either cannot run the case."""
    trees = (HERE, other)
    if any(taken_s(tree, words) is None for tree in trees):
        return []
    found = []
    for number in range(pairs):
        order = trees[:: 1 if number % 2 == 0 else -1]
        seconds = {tree: taken_s(tree, words) or float("nan") for tree in order}
        found.append((seconds[HERE], seconds[other]))
    return found


def main() -> int:
    """Prints each case's ratio; 1 where one is too slow."""
    parser = argparse.ArgumentParser(description="Pairs this commit with an earlier one.")
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs of each case")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="cases (default: all)")
    asked = parser.parse_args()
    slow = []
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder, "earlier")
        git = ("git", "-C", str(HERE), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(other), asked.commit], check=True)
        try:
            print(f"{'case':10} {'this':>10} {asked.commit[:10]:>10} {'ratio':>6}  least to greatest")
            for name in asked.only:
                found = ratios(other, CASES[name], asked.pairs)
                if not found:
                    print(f"{name:10} one of the two cannot run it")
                    continue
                mine, earlier = (statistics.median(column) for column in zip(*found, strict=True))
                each = sorted(a / b for a, b in found)
                middle = statistics.median(each)
                print(
                    f"{name:10} {mine:8.3g} s {earlier:8.3g} s {middle:6.2f}  {each[0]:.2f} to {each[-1]:.2f}",
                    flush=True,
                )
                slow += [name] if middle > SLOWEST else []
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=True)
    if slow:
        print(f"more than {SLOWEST - 1:.0%} slower: {', '.join(slow)}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
