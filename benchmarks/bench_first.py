"""What the first replay of an installation takes, and what later ones do: this commit beside an earlier one.

    python benchmarks/bench_first.py COMMIT [TRIES]

Each try is a new process with an empty cache, the two commits in turn. Processor time of pricing's kernels, of the
clock with its compiling, and the least of seven replays after it; *loops* divides by a loop of plain Python in the same
process, as neighbours slow all of it. Fails where the replays differ, or where this commit replays less than 0.9 times
as fast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
INSIDE = """
import json, time
from ridgeline.cost.machine import machine
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.plan.deployment import Deployment
from ridgeline.serving.engine import engine
from ridgeline.serving.replay import replay
from ridgeline.serving.traffic.named import named_traffic

def timed(work):
    begun = time.process_time()
    return work(), time.process_time() - begun

def loop():
    seen = {}
    for index in range(2_000_000):
        seen[index & 1023] = str(index)[:2]

asked = named_traffic("azure-conv")
one = engine(load("llama-3.1-70b"), machine(cluster("8xH100-SXM")), Deployment(tp=8))
longest = int((asked.prompt_tokens + asked.output_tokens).max())
before = timed(loop)[1]
tables = timed(lambda: one.tables(longest_prompt=int(asked.prompt_tokens.max()), longest=longest))[1]
found, first = timed(lambda: replay([one], asked))
warm = min(timed(lambda: replay([one], asked))[1] for _ in range(7))
loops = (before + timed(loop)[1]) / 2
print(json.dumps({"tables_s": tables, "first_s": first, "loops": first / loops, "warm_s": warm,
                  "iterations": found.iterations, "ends": float(found.end_s.sum()).hex()}))
"""


def tried(tree: Path) -> dict[str, Any]:
    """One process on the sources of a tree."""
    with tempfile.TemporaryDirectory() as cache:
        env = os.environ | {"PYTHONPATH": str(tree / "src"), "NUMBA_CACHE_DIR": cache}
        out = subprocess.run([sys.executable, "-c", INSIDE], env=env, check=True, capture_output=True, text=True)
    return dict(json.loads(out.stdout))


def main(commit: str, tries: int = 3) -> int:
    """Prints the table; 1 where the present commit answers otherwise or replays slower."""
    with tempfile.TemporaryDirectory() as other:
        subprocess.run(["git", "-C", str(HERE), "worktree", "add", "-q", "--detach", other, commit], check=True)
        try:
            pairs = [(tried(Path(other)), tried(HERE)) for _ in range(tries)]
        finally:
            subprocess.run(["git", "-C", str(HERE), "worktree", "remove", "--force", other], check=True)
    print("| | pricing, first | clock, first | in loops | iterations/s later |\n|---|---|---|---|---|")
    rates = []
    for name, rows in zip((commit, "here"), zip(*pairs, strict=True), strict=True):
        tables, first, loops, warm = (
            min(row[key] for row in rows) for key in ("tables_s", "first_s", "loops", "warm_s")
        )
        rates.append(rows[0]["iterations"] / warm)
        print(f"| {name} | {tables:.1f} s | {first:.1f} s | {loops:.0f} | {rates[-1]:,.0f} |")
    same = len({row["ends"] for pair in pairs for row in pair}) == 1
    print(f"The same to the bit: {'yes' if same else 'NO'}; iterations/s {rates[1] / rates[0]:.2f} times.")
    return int(not same or rates[1] < 0.9 * rates[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:3])))
