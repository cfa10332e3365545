"""docs/export.md lists every target; `python tests/registry/test_export_page.py` writes its table anew."""

from __future__ import annotations

import inspect
from pathlib import Path

from ridgeline.export.fields import field_table
from ridgeline.export.target import target, targets
from ridgeline.export.wrapper import wrapper, wrappers

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
MARK = "<!-- What follows is written by tests/registry/test_export_page.py. -->\n"


def listed() -> str:
    """All targets as Markdown: a row each, then a paragraph each."""
    rows, told = [], []
    for key in targets():
        one = target(key)
        fields = field_table(key)
        ours = sum(bool(row.ours) for row in fields)
        about = f"| `{key}` | {one.title} | {one.task} | `{one.file}` | {one.release or 'newest'} |"
        rows.append(f"{about} {len(fields)} | {ours} |")
        told.append(f"**{one.title}.** {' '.join(inspect.getdoc(type(one)).split())}")  # type: ignore[union-attr]
    for key in wrappers():
        around = wrapper(key)
        told.append(f"**`--around {key}`.** {' '.join(inspect.getdoc(type(around)).split())}")  # type: ignore[union-attr]
    head = "| target | program | for | file | release | fields | words of ours |\n|---|---|---|---|---|---|---|\n"
    return "\n" + head + "\n".join(rows) + "\n\n" + "\n\n".join(told) + "\n"


def test_the_page_lists_every_target() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(MARK)[2] == listed()


if __name__ == "__main__":
    before = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(before + MARK + listed(), encoding="utf-8")
