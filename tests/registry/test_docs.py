"""Documentation that is made from tables in the code says what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.plan.fields import PLAN_FIELDS, WORKLOAD_FIELDS, Field

ROOT = Path(__file__).parents[2]


def field_table(fields: tuple[Field, ...]) -> str:
    """The fields as a Markdown table, as docs/scenario.md shows them."""
    lines = ["| field | value | meaning |", "|---|---|---|"]
    for field in fields:
        choices = ", ".join(f"`{choice}`" for choice in field.choices)
        lines.append(f"| `{field.name}` | {choices or ('true, false' if field.switch else 'number')} | {field.help} |")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("section", "fields"), [("workload", WORKLOAD_FIELDS), ("plan", PLAN_FIELDS)], ids=["workload", "plan"]
)
def test_scenario_page_lists_every_field(section: str, fields: tuple[Field, ...]) -> None:
    page = (ROOT / "docs" / "scenario.md").read_text(encoding="utf-8")
    part = page.split(f"## `[{section}]`", 1)[1].split("\n## ", 1)[0]
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


def test_decisions_are_numbered_without_gaps() -> None:
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    for name in names:
        text = (ROOT / "docs" / "decisions" / name).read_text(encoding="utf-8")
        assert text.startswith(f"# {int(name[:4])}. ")
        assert "**Decided.**" in text
