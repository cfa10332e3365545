"""Each example has its answer beside it, and the README shows what its command prints.

`python tests/registry/test_examples.py` writes the answers anew.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.plan.post_training import TASKS
from ridgeline.scenario.serving_fields import TRAFFIC_FIELDS

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.toml") if path.stem != "machine")
README_ENDS = (
    "What limits each",
    "Latency\n",
    "Best stack",
)  # the README shows an answer up to the first such line
SERVING = {field.name for field in TRAFFIC_FIELDS}
COMMAND = "# $ ridgeline "  # at the head of an example, the command whose answer stands beside it
MARK = "<!-- output of: ridgeline "


def answer(words: list[str]) -> str:
    """What a command prints on standard output when run at the root of the repository."""
    out = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = run(words)
    return out.getvalue() + ("" if code == 0 else f"exit code {code}\n")


def words_for(example: Path) -> list[str]:
    """The command for an example: what its line `# $ ridgeline` says; `advise` by its name; else `predict` or `plan`,
    of traffic `simulate` or `plan`."""
    said = [line for line in example.read_text(encoding="utf-8").splitlines() if line.startswith(COMMAND)]
    if said:
        return shlex.split(said[0].removeprefix(COMMAND))
    if example.stem.startswith("advise-"):
        return ["advise", str(example.relative_to(ROOT))]
    scenario = tomllib.loads(example.read_text(encoding="utf-8"))
    planned, path = "plan" in scenario, str(example.relative_to(ROOT))
    if SERVING & set(scenario["workload"]) and scenario["workload"].get("task") not in TASKS:
        return ["simulate", path] if planned else ["plan", path, "--serve"]
    return ["predict" if planned else "plan", path]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_the_answer_beside_it(example: Path) -> None:
    assert answer(words_for(example)) == example.with_suffix(".out").read_text(encoding="utf-8")


def shown(readme: str) -> list[tuple[list[str], str]]:
    """The commands that the README marks, and the text blocks that follow them."""
    parts = []
    for piece in readme.split(MARK)[1:]:
        command, rest = piece.split(" -->", 1)
        parts.append((command.split(), rest.split("```text\n", 1)[1].split("```", 1)[0]))
    return parts


def test_the_readme_shows_what_is_printed() -> None:
    """A block of the README holds the answer's first lines, and says by '...' that more follow."""
    parts = shown((ROOT / "README.md").read_text(encoding="utf-8"))
    assert parts
    for words, text in parts:
        assert text.endswith("\n...\n")
        assert answer(words).startswith(text.removesuffix("...\n"))


def test_every_answer_has_its_example() -> None:
    outputs = {path.stem for path in (ROOT / "examples").glob("*.out")}
    assert outputs == {path.stem for path in EXAMPLES}


def renew() -> None:
    """Writes every answer, and those in the README."""
    for example in EXAMPLES:
        example.with_suffix(".out").write_text(answer(words_for(example)), encoding="utf-8")
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    for words, old in shown(text):
        mark = f"{MARK}{' '.join(words)} -->"
        head = answer(words)
        for end in README_ENDS:
            head = head.split(end, 1)[0]
        text = text.replace(f"{mark}\n```text\n{old}```", f"{mark}\n```text\n{head}...\n```")
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(renew())
