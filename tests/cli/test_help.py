"""The cold start: `--help` loads nothing heavy and answers within 0.3 s."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

HEAVY = ("numpy", "numba", "scipy", "rich.console", "torch", "ridgeline.search", "ridgeline.cost")
LIMIT_S = 0.3
ASK = "import sys; from ridgeline.cli.main import run; code = run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"], ["predict", "--help"], ["catalog", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", ASK, *words], capture_output=True, text=True, check=True)
    assert "Usage: ridgeline" in done.stdout
    loaded = set(done.stderr.split())
    assert not loaded.intersection(HEAVY)


def test_help_is_quick() -> None:
    times = []
    for _ in range(5):  # the best of five: other processes of the machine are not ours to measure
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "ridgeline.cli.main", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    assert min(times) < LIMIT_S
