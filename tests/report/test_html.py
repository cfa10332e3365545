"""Answers in a notebook: the same words as printed, as markup that any reader takes."""

from __future__ import annotations

from xml.etree import ElementTree

from ridgeline.report.blocks import Line, Table, blank, plain
from ridgeline.report.html import html
from ridgeline.report.report import Report, SearchReport
from ridgeline.report.text import report_blocks, search_blocks


def words_of(markup: str) -> list[str]:
    """The words of the markup's leaves in order; a parser that wants well-formed text reads them."""
    root = ElementTree.fromstring(markup.replace("<br>", "<br/>"))
    return [word for element in root.iter() for word in (element.text or "").split()]


def test_lines_and_tables_by_hand() -> None:
    table = Table(columns=("name", "s"), rows=(("a < b & c", "1"), ("d", "22")), right=frozenset({"s"}), indent=4)
    found = ElementTree.fromstring(html([Line(text="title", strong=True), blank(), table]).replace("<br>", "<br/>"))
    assert [element.tag for element in found] == ["p", "br", "table"]
    assert "bold" in found[0].attrib["style"]
    cells = [[(cell.text, "right" in cell.attrib["style"]) for cell in row] for row in found.iter("tr")]
    assert cells == [
        [("name", False), ("s", True)],
        [("a < b & c", False), ("1", True)],
        [("d", False), ("22", True)],
    ]


def test_a_notebook_sees_the_words_that_are_printed(report: Report, found: SearchReport) -> None:
    for one, blocks in ((report, report_blocks(report)), (found, search_blocks(found))):
        lines = [line for line in plain(blocks, 10_000).splitlines() if set(line) - set(" -")]  # but rules of tables
        printed = [word for line in lines for word in line.split()]
        assert words_of(one._repr_html_()) == printed
        assert str(one) == plain(blocks)
