"""Damaged inputs of every kind: each is answered or refused by place, within bounds of time and memory.

A quarter of a minute for each group of kinds here; `tests/run_weekly` goes on for an hour from another seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="cases run in forked children")

DRIVER = Path(__file__).with_name("run.py")
KINDS = (
    ("scenario", "config", "cluster", "profile", "flags"),
    ("truth-training", "truth-memory", "truth-serving", "truth-kernels"),
    ("truth-collectives", "truth-offload", "truth-diffusion", "diffusion"),
    ("serving", "trace", "engine", "framework", "loads"),
    ("advise",),
)


def driver(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(DRIVER), *words], capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: kinds[0])
def test_damaged_input_is_answered_or_refused_by_place(kinds: tuple[str, ...]) -> None:
    chosen = [word for kind in kinds for word in ("--kind", kind)]
    done = driver(*chosen, "--cases", "60", "--seconds", "15")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "0 findings" in done.stdout


def test_every_kind_is_tried() -> None:
    listed = driver("--help").stdout
    assert all(kind in listed for kinds in KINDS for kind in kinds)
    assert listed.partition("{")[2].partition("}")[0].count(",") + 1 == sum(map(len, KINDS))


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("raise ZeroDivisionError('nought')", "exit code 70; traceback"),
        ("held = bytearray(2_300_000_000)", "took 2."),
        ("print('[]')", "no JSON object"),
        ("return 3", "exit code 3"),
    ],
)
def test_a_fault_is_found_and_can_be_rerun_alone(fault: str, told: str, tmp_path: Path) -> None:
    """The driver finds what it is for: a command that is made to fail is told with the line that runs it alone."""
    (tmp_path / "faulty.py").write_text(
        f"import sys\nsys.path.insert(0, {str(DRIVER.parent)!r})\nimport run\nfrom ridgeline.cli import main\n"
        f"def broken(words):\n    {fault}\n    return 0\n"
        "run._load = lambda kinds: setattr(main, 'run', broken)\n"
        "run.words_of = lambda kind, seed, folder: ['catalog', 'models', '--json']\n"
        "sys.argv = ['run.py', '--kind', 'flags', '--first', '7', '--cases', '1']\nsys.exit(run.main())\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, tmp_path / "faulty.py"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert told in done.stdout
    assert "python tests/fuzz/run.py --kind flags --first 7 --cases 1 --keep" in done.stdout
