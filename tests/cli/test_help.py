"""The cold start: `--help` loads nothing heavy and little of the package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from ridgeline.api.verb import VERBS
from ridgeline.cli.commands import DOORS
from ridgeline.cli.main import run

HEAVY = ("numpy", "numba", "scipy", "rich.console", "torch", "ridgeline.search", "ridgeline.cost")
MOST_MODULES, MOST_OWN_MODULES = 300, 93
ASK = "import sys; from ridgeline.cli.main import run; code = run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"], ["predict", "--help"], ["catalog", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", ASK, *words], capture_output=True, text=True, check=True)
    assert "Usage: ridgeline" in done.stdout
    loaded = set(done.stderr.split())
    assert not loaded.intersection(HEAVY)


@pytest.mark.parametrize("words", [["op", "gemm", "64x64x64"], ["catalog", "models", "--json"], ["--version"]])
def test_an_answer_starts_without_readers_of_python_objects(words: list[str]) -> None:
    """Typer's own readers of words import pydantic, a tenth of a second; Numba and Rich's console take more."""
    done = subprocess.run([sys.executable, "-c", ASK, *words], capture_output=True, text=True, check=True)
    assert done.stdout
    loaded = set(done.stderr.split())
    assert not loaded.intersection(("pydantic", "numba", "rich.console", "numpy.ma"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["op", "gemm", "8x8x8", "--window", "x"], "'--window': 'x' is not a whole number"),
        (["op", "gemm", "8x8x8", "--window", "1.5"], "'--window': '1.5' is not a whole number"),
        (["op", "gemm", "8x8x8", "--window", "-1"], "'--window': -1 is out of range; it must be at least 0"),
        (["op", "gemm", "8x8x8", "--skew", "nan"], "nan is out of range; it must be at least 0 and at most 4"),
        (["op", "gemm", "8x8x8", "--evidence", "dataset"], "'dataset'; nearest: datasheet; one of: measured,"),
        (["catalog", "devices"], "unknown word 'devices'; nearest: recipes; one of: models, accelerators, clusters"),
        (["plam"], "No such command 'plam'. Did you mean 'plan'"),
        (["op"], "Missing argument 'kind'"),
    ],
)  # fmt: skip
def test_words_that_cannot_be_read_are_told_with_what_could(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert told in capsys.readouterr().err


def test_help_loads_few_modules() -> None:
    """What its seconds are made of; `benchmarks/bench_search.py` times them (0.3 s of one core are allowed)."""
    done = subprocess.run([sys.executable, "-c", ASK, "--help"], capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    assert len(loaded) <= MOST_MODULES
    assert sum(name.startswith("ridgeline") for name in loaded) <= MOST_OWN_MODULES


@pytest.mark.parametrize("command", ["plan", "predict", "simulate", "measure"])
def test_help_lists_every_flag_once_and_says_what_it_is_about(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help-all"]) == 0
    sections = re.split(r"\n(?=\S[^\n]*:\n  )", capsys.readouterr().out)
    about = {part.split(":\n", 1)[0]: re.findall(r"^  (--[a-z-]+)", part, re.MULTILINE) for part in sections}
    flags = [flag for listed in about.values() for flag in listed]
    assert len(flags) == len(set(flags)) > 60
    assert "--json" in about["Options"]
    (serving,) = (about[heading] for heading in about if re.match(r"(Serving: the d|D)eployment", heading))
    assert "--kv-ranks" in serving
    shared = set() if command == "simulate" else {"--tp", "--pp", "--dp", "--ep", "--technique"}
    assert set(about.get("Training and serving", ())) == shared


@pytest.mark.parametrize("command", ["plan", "predict", "simulate", "advise"])
def test_help_is_a_page_that_names_the_rest(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    page = capsys.readouterr().out
    assert page.count("\n") <= 110
    assert "Most used words:" in page
    assert "--on" in page
    assert "--help-all" in page
    assert run([command, "--help-all"]) == 0
    whole = capsys.readouterr().out
    told = re.search(r"(\d+) more words of the scenario", page)
    assert told is not None
    flags = [len(re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)) for text in (page, whole)]
    assert flags[1] - flags[0] == int(told[1])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ridgeline pre", "predict"),
        ("ridgeline predict llama-3.1-8", "llama-3.1-8b"),
        ("ridgeline predict gpt2 --on 8xH200", "8xH200-SXM"),
        ("ridgeline predict gpt2 --precision bf16-a", "bf16-amp"),
    ],
)
def test_the_shell_completes_commands_models_machines_and_words(line: str, found: str) -> None:
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_RIDGELINE_COMPLETE": "complete_bash"}
    ask = "from ridgeline.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, env={**os.environ, **asked})
    assert found in done.stdout.split(), done.stderr


def test_completion_is_shown_for_a_shell() -> None:
    ask = "from ridgeline.cli.main import run; run(['--show-completion', 'bash'])"
    shell = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, env=shell)
    assert "complete -o default -F _ridgeline_completion ridgeline" in done.stdout, done.stderr


def test_examples_of_the_help_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("plan", "predict", "simulate"):
        assert run([command, "--help"]) == 0
        text = re.sub(r"\n {6,}--", " --", capsys.readouterr().out.split("Example", 1)[1])
        asked = re.findall(r"^ +ridgeline (.*)$", text, re.MULTILINE)
        assert asked
        for words in asked:
            assert run([*words.split(), "--json"]) == 0, words
            assert json.loads(capsys.readouterr().out)


def test_the_list_of_commands_builds_none(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, one: object) -> None:
        raise AssertionError(f"{name} was built for the list of commands")

    monkeypatch.setattr("ridgeline.cli.commands.build", refuse)
    assert run(["--help"]) == 0
    page = capsys.readouterr().out
    assert all(f"  {name} " in page for name in (*VERBS, *DOORS))
