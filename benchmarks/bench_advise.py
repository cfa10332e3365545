"""How long advice takes, beside as many separate predictions as it tries.

    PYTHONPATH=src python benchmarks/bench_advise.py

Each example of advice runs in a process of its own; the time of one prediction of its baseline in a process that has
loaded all else, times what advice bounded and simulated, is what asking one by one would take. Writes `advise.md`.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("advise.md")
EXAMPLES = sorted((ROOT / "examples").glob("advise-*.toml"))
_COMMAND = "import sys; from ridgeline.cli.main import run; sys.exit(run(sys.argv[1:]))"
_ONE = """
import contextlib, io, sys, time
from ridgeline.cli.main import run
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    run({words!r})
    begun = time.process_time()
    run({words!r})
print(time.process_time() - begun)
"""
HEAD = """# Time of advice

Written by `bench_advise.py`: processor seconds of one process of `ridgeline advise` from start to end, the first time
(with no compiled loop on disk yet) and later; changes that it bounded and simulated, and the seconds of as many
separate predictions of the baseline in one process that is warm.

| example | first | advise | bounded | simulated | one prediction | so many apart | ratio |
|---|---|---|---|---|---|---|---|
"""


def command_of(example: Path) -> list[str]:
    """The prediction of an example's baseline."""
    text = example.read_text(encoding="utf-8")
    if "rate = " in text:
        return ["simulate", str(example), "--requests", "300"]
    if "[workload]\nprompt" in text:
        words = ["predict", "mixtral-8x7b", "--serve", "--on", "1xRTX-4090", "--batch", "1"]
        return [*words, "--offload", "computed", "--cpu", "Xeon-Gold-6454S", "--dram", "512GB"]
    return ["predict", str(example)]


def spent_s() -> float:
    """Processor time of all processes that have ended [s]."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def advised(example: Path, compiled: str) -> tuple[float, dict[str, Any]]:
    """Processor seconds of a process that advises on an example, with compiled loops in a folder, and its answer."""
    begun = spent_s()
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND, "advise", str(example), "--json"], capture_output=True, text=True,
        env={**os.environ, "NUMBA_CACHE_DIR": compiled},
    )  # fmt: skip
    return spent_s() - begun, json.loads(done.stdout)


def main() -> None:
    """Times every example and writes the page."""
    lines = []
    for example in EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            first, _ = advised(example, folder)
            taken, found = advised(example, folder)
        words = command_of(example)
        one = subprocess.run(
            [sys.executable, "-c", _ONE.format(words=words)], capture_output=True, text=True, check=True
        )
        each = float(one.stdout)
        apart = each * found["tried"]
        lines.append(
            f"| {example.stem} | {first:.1f} s | {taken:.1f} s | {found['tried']:,} | {found['simulated']:,} |"
            f" {each:.2f} s | {apart:.0f} s | {apart / taken:.1f} |"
        )
        print(lines[-1], flush=True)
    PAGE.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
