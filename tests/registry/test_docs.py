"""Documentation that is made from tables in the code says what the code says.

`python tests/registry/test_docs.py` writes the tables anew.
"""

from __future__ import annotations

import inspect
import re
import shlex
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.errors import UnitError
from ridgeline.report import as_json, serving_json
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS, Field
from ridgeline.scenario.post_training_fields import POST_TRAINING_FIELDS, ROLE_FIELDS
from ridgeline.scenario.serving_fields import DEPLOYMENT_FIELDS, OFFLOAD_FIELDS, TRAFFIC_FIELDS

SECTIONS = {
    "## `[workload]`": WORKLOAD_FIELDS,
    "## `[plan]`": PLAN_FIELDS,
    "### `[workload]` of traffic": TRAFFIC_FIELDS,
    "### `[plan]` of a deployment": DEPLOYMENT_FIELDS,
    "### `[workload]` of post-training": POST_TRAINING_FIELDS,
    "### `[plan]` of post-training": ROLE_FIELDS,
    "### `[plan]` of a batch whose weights devices do not hold": OFFLOAD_FIELDS,
}
PAGE = Path(__file__).parents[2] / "docs" / "scenario.md"
ROOT = Path(__file__).parents[2]


def field_table(fields: tuple[Field, ...]) -> str:
    """The fields as a Markdown table, as docs/scenario.md shows them."""
    lines = ["| field | value | meaning |", "|---|---|---|"]
    for field in fields:
        choices = ", ".join(f"`{choice}`" for choice in field.choices)
        lines.append(
            f"| `{field.name}` | {choices or ('true, false' if field.switch else _sort(field))} | {field.help} |"
        )
    return "\n".join(lines)


def _sort(field: Field) -> str:
    """Whether a field is read from a number or from other text."""
    for written in ("1", "0.5"):
        with suppress(ValueError, UnitError):
            return "text" if isinstance(field.read(written), str) else "number"
    return "text"


@pytest.mark.parametrize(("section", "fields"), SECTIONS.items(), ids=list(SECTIONS))
def test_scenario_page_lists_every_field(section: str, fields: tuple[Field, ...]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    part = page.split(f"\n{section}\n", 1)[1].split("\n#", 1)[0]
    assert field_table(fields) in part


def test_pages_link_to_pages_that_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for piece in page.read_text(encoding="utf-8").split("](")[1:]
        if not (target := piece.split(")", 1)[0]).startswith("http")
        and not (page.parent / target.split("#")[0]).exists()
    ]
    assert not broken


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    folders = ("", "serving/")
    pages = [f"{name}{path.name}" for name in folders for path in (ROOT / "docs" / name).glob("*.md")]
    pages.remove("index.md")
    assert not [name for name in pages if f"]({name})" not in index]


def test_the_command_page_names_every_key_of_the_answer() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    answers = (
        as_json.report_as_dict,
        as_json.search_as_dict,
        serving_json.serving_as_dict,
        serving_json.ranked_as_dict,
    )
    returned = [key for answer in answers for key in re.findall(r'"(\w+)"', inspect.getsource(answer))]
    assert len(returned) > 70
    assert not [key for key in returned if f"`{key}`" not in page]


def test_what_the_command_page_does_from_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of the page's last section run as they stand, and print what the commands would."""
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.split("```python\n", 1)[1].split("```", 1)[0], names)
    assert names["best"].step_time.value <= names["report"].step_time.value
    assert capsys.readouterr().out.endswith(f"{names['served']}\n")


def shown_operators() -> list[tuple[str, list[str], list[str]]]:
    """Page, words and shown lines of every `ridgeline op` of the pages that fits answer, with or without a wheel."""
    found = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for piece in page.read_text(encoding="utf-8").split("\n    ridgeline ")[1:]:
            command, *rest = piece.split("\n")
            lines = [line.split() for line in takewhile(lambda line: line.startswith("    ") or not line, rest)]
            if command.startswith("op ") and "--evidence fitted" in command and any(lines):
                found.append((page.name, command, [line for line in lines if line]))
    return [(name, shlex.split(command), [" ".join(line) for line in lines]) for name, command, lines in found]


def test_pages_show_what_op_prints(capsys: pytest.CaptureFixture[str]) -> None:
    asked = shown_operators()
    assert len(asked) >= 7
    for page, words, lines in asked:
        assert run(words) == 0
        printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        assert not [line for line in lines if line not in printed], page


def test_decisions_are_numbered_without_gaps() -> None:
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    for name in names:
        text = (ROOT / "docs" / "decisions" / name).read_text(encoding="utf-8")
        assert text.startswith(f"# {int(name[:4])}. ")
        assert "**Decided.**" in text


def renew() -> None:
    """Writes the field tables of the scenario page."""
    text = PAGE.read_text(encoding="utf-8")
    for section, fields in SECTIONS.items():
        head, mark, rest = text.partition(f"\n{section}\n\n")
        kept = rest[rest.index("\n\n") + 1 :] if rest.startswith("|") else "\n" + rest
        text = head + mark + field_table(fields) + "\n" + kept
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    renew()
