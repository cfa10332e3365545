"""The cold start: `--help` loads nothing heavy and answers within 0.3 s."""

from __future__ import annotations

import resource
import subprocess
import sys

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
    for _ in range(5):  # the best of five, in processor time: other processes of the machine are not ours to measure
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "ridgeline.cli.main", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < LIMIT_S
