"""Pages: well-formed, self-contained, and nothing of a stranger's file becomes markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import ridgeline as rl
from ridgeline.api.answer import Answer
from ridgeline.cli.main import run
from ridgeline.errors import InputError, UnknownNameError
from ridgeline.report.blocks import Line, Table, blank, labelled, listed

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>\x1b[31m'
VOID = {"meta", "br", "img", "input"}


class Reader(HTMLParser):
    """Reads a page; every tag must be closed in order. Keeps tags with attributes, and the words."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words += data


def read(page: str) -> Reader:
    """What a browser makes of a page that is in order."""
    found = Reader()
    found.feed(page)
    assert not found.open
    assert [tag for tag, _ in found.tags].count("script") == 1
    for _, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href")]
    return found


def made(text: str) -> Answer:
    """An answer with a text in every place where a stranger's may stand."""
    table = Table(columns=(text, "b"), rows=((text, "[##  ]"),), right=frozenset({"b"}))
    blocks = [
        Line(text=text, hang=2),
        blank(),
        *labelled([("model", text)]),
        Line(text=text, strong=True),
        table,
        Line(text="Notes", strong=True),
        *listed([text]),
    ]
    told = {"step_time_s": {"value": 1.0, "low": 0.5, "high": 2.0, "unit": text, "evidence": text}, "sources": [text]}
    return Answer(lambda: told, lambda: blocks, impossible=text)


def test_text_of_a_stranger_stays_text() -> None:
    found = read(made(EVIL).html(EVIL))
    assert "img" not in [tag for tag, _ in found.tags]
    shown = EVIL.replace("\x1b", "")
    assert found.words.count('<script>alert("x")</script>') >= 9
    assert "\x1b" not in found.words
    assert shown.partition("[")[0] in found.words


def test_a_page_follows_the_reader_and_loads_nothing() -> None:
    page = made("a").html()
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert "default-src 'none'" in page
    assert not re.findall(r"https?://(?!www\.w3\.org/)", page)


def test_names_and_texts_lists_and_tables_are_such() -> None:
    tags = [tag for tag, _ in read(made("a").html()).tags]
    assert tags.count("dt") == 3  # of the answer, of its evidence and of its sources
    assert {"ul", "table", "h1", "h2"} <= set(tags)


def test_every_answer_is_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["techniques"], ["catalog", "clusters", "8xH100-SXM"], ["op", "gemm", "64x64x64"]):
        file = tmp_path / f"{words[0]}.html"
        assert run([*words, "--html", str(file), "--json"]) == 0
        json.loads(capsys.readouterr().out)
        assert read(file.read_text(encoding="utf-8")).words


def test_a_chart_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    answer = rl.catalog("clusters", "8xH100-SXM")
    with pytest.raises(InputError, match="no chart"):
        answer.figure()
    with pytest.raises(UnknownNameError, match="unknown chart 'memory'"):
        answer.figure("memory")
    assert run(["op", "gemm", "64x64x64", "--svg", str(tmp_path / "a.png")]) == 2
    assert run(["op", "gemm", "64x64x64", "--html", str(tmp_path / "none" / "a.html")]) == 2


def well_formed(svg: str) -> ElementTree.Element:
    """The picture as any XML reader takes it."""
    assert svg.isascii()
    return ElementTree.fromstring(svg)
