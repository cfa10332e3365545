"""Answers in a notebook: the same words as printed, as markup that any reader takes."""

from __future__ import annotations

from xml.etree import ElementTree

from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.predict.operator import operator_cost
from ridgeline.report.blocks import Line, Table, blank, html, plain
from ridgeline.report.report import Report, SearchReport
from ridgeline.report.search_text import search_blocks
from ridgeline.report.text import report_blocks
from ridgeline.search.renting import offers_of, rent_fleet
from ridgeline.search.serving import search_serving
from ridgeline.search.serving_space import ServingSpace
from ridgeline.serving.objective import Objective
from ridgeline.serving.traffic.asked import asked_traffic


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


def test_an_operator_and_searches_show_themselves() -> None:
    """What a command prints is what the value says of itself, and a notebook lays it out."""
    cost = operator_cost("gemm", "512x512x512", "bf16", cluster("H100-SXM"), evidence="fitted")
    assert "512" not in str(cost).splitlines()[0]
    assert str(cost).splitlines()[2].startswith("  H100-SXM ")
    asked = asked_traffic({"rate": 4.0, "prompt": (64, 64), "output": (8, 8), "requests": 20})[0]
    goal = Objective(ttft_s=5.0)
    found = search_serving(load("gpt2"), cluster("2xL40S"), asked, goal, space=ServingSpace(pools=False))
    assert str(found).startswith("gpt2 on 2xL40S: poisson arrivals at 4/s, 20 requests\n")
    fleet = rent_fleet(load("gpt2"), offers_of("L40S=4", lambda _: 1.0), asked, goal)
    assert str(fleet).startswith("gpt2: poisson arrivals at 4/s, 20 requests, offers L40S=4\n")
    for one in (cost, found, fleet):
        assert one._repr_html_().count("<table") >= 1
