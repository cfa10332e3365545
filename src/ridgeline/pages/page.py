"""A whole page of an answer: the answer first, its tables, its charts, then notes and sources; it loads nothing.

Text of any origin is escaped, and the page's own policy lets only its own script run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from ridgeline.errors import printable
from ridgeline.facts.store import read_text
from ridgeline.pages.drawing import Figure
from ridgeline.report.blocks import Block, Line, Table

_BAR = re.compile(r"#+|\[#* *\]")  # cells that plain text draws as a bar
_LABEL = re.compile(r"(\S.*?|) {2,}(\S.*)", re.DOTALL)  # a name, then its text in the next column
_LETTERS = re.compile(r".*\[[A-Z]+\.*\]")  # a line that plain text draws as a bar of letters
_STRONG, _NUMBER = ' class="strong"', ' class="number"'
_FIRST = "Answer"  # heading of what stands above all headings
_LONG = 20  # rows, from which on a table is folded
_NOTED = ("evidence", "sources")  # keys of JSON that are shown when one points at a number


def style() -> str:
    """The style sheet of a page: light and dark, narrow and wide, screen and paper."""
    return read_text("pages/page.css")


def script() -> str:
    """The script of a page: notes on what one points at, zoom and pan of timelines."""
    return read_text("pages/page.js")


def page(title: str, body: str) -> str:
    """One HTML page around the body of an answer; no file or address beside it is needed."""
    code = script()
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_safe(title)}</title>\n<style>\n{style()}</style>\n</head>\n"
        f"<body>\n{body}\n<script>{code}</script>\n</body>\n</html>\n"
    )


def body(blocks: Sequence[Block], figures: Iterable[Figure], told: Any, *, impossible: str | None = None) -> str:
    """The inner HTML of an answer; `told` is its JSON form, from which evidence and sources of numbers are read."""
    sections = list(_sections(blocks))
    tables = [one for one in sections[1:] if any(isinstance(block, Table) for block in one[1])]
    notes = [one for one in sections[1:] if one not in tables]
    charts = "".join(map(_figure, figures))
    parts = [
        f'<p class="impossible" role="alert">{_safe(impossible)}</p>' if impossible else "",
        *(f'<section class="answer">{_head(blocks_)}</section>' for _, blocks_ in sections[:1]),
        _evidence(told),
        *(_section(title, blocks_) for title, blocks_ in tables),
        f'<div class="charts">{charts}</div>' if charts else "",
        *(_section(title, blocks_) for title, blocks_ in notes),
    ]
    return f'<main class="ridgeline">{"".join(parts)}</main>'


def _safe(text: str) -> str:
    return escape(printable(text))


def _sections(blocks: Sequence[Block]) -> Iterator[tuple[str, list[Block]]]:
    """Blocks under each heading; the first section is what stands above all headings, or under the first of them."""
    title, found = "", list[Block]()
    for block in blocks:
        if isinstance(block, Line) and block.strong and not block.indent and found:
            yield title, found
            title, found = block.text, []
        elif not (isinstance(block, Line) and not block.text and not found):
            found.append(block)
    yield title, found


def _head(blocks: Sequence[Block]) -> str:
    first = blocks[0] if blocks else None
    if not isinstance(first, Line) or _LABEL.fullmatch(first.text):
        return f"<h1>{_FIRST}</h1>{_laid(blocks)}"
    return f"<h1>{_safe(first.text)}</h1>{_laid(blocks[1:])}"


def _section(title: str, blocks: Sequence[Block]) -> str:
    if max((len(one.rows) for one in blocks if isinstance(one, Table)), default=0) <= _LONG:
        return f"<section><h2>{_safe(title)}</h2>{_laid(blocks)}</section>"
    return f"<details><summary><h2>{_safe(title)}</h2></summary>{_laid(blocks)}</details>"


def _kind(block: Block) -> str:
    if isinstance(block, Table):
        return "table"
    if block.text.startswith("- "):
        return "ul"
    return "dl" if block.hang > 2 and _LABEL.fullmatch(block.text) else "p"


def _laid(blocks: Iterable[Block]) -> str:
    """Blocks as HTML, with names and texts, and lists, as such."""
    shown = (
        block for block in blocks if isinstance(block, Table) or (block.text and not _LETTERS.fullmatch(block.text))
    )
    return "".join(_group(kind, list(group)) for kind, group in groupby(shown, _kind))


def _group(kind: str, blocks: list[Any]) -> str:
    if kind == "table":
        return "".join(map(_table, blocks))
    if kind == "ul":
        return f"<ul>{''.join(f'<li>{_safe(one.text[2:])}</li>' for one in blocks)}</ul>"
    if kind == "dl":
        pairs = [match.groups() for one in blocks if (match := _LABEL.fullmatch(one.text))]
        return f"<dl>{''.join(f'<dt>{_safe(name)}</dt><dd>{_safe(text)}</dd>' for name, text in pairs)}</dl>"
    return "".join(f"<p{_STRONG if one.strong else ''}>{_safe(one.text)}</p>" for one in blocks)


def _table(table: Table) -> str:
    def row(cells: tuple[str, ...], tag: str) -> str:
        return "".join(
            f"<{tag}{_NUMBER if name in table.right else ''}>{_cell(cell)}</{tag}>"
            for cell, name in zip(cells, table.columns, strict=True)
        )

    rows = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in table.rows)
    head = f"<thead><tr>{row(table.columns, 'th')}</tr></thead>"
    return f'<div class="scroll" tabindex="0"><table>{head}<tbody>{rows}</tbody></table></div>'


def _cell(text: str) -> str:
    if _BAR.fullmatch(text):
        return f'<span class="bar" style="width:{text.count("#") / 4:g}em"></span>'
    return _safe(text)


def _figure(one: Figure) -> str:
    kind = ' class="wide"' if one.wide else ""
    tools = (
        '<span class="tools"><button type="button" data-zoom="2">zoom in</button>'
        '<button type="button" data-zoom="0.5">zoom out</button><button type="button" data-zoom="0">all</button></span>'
    )
    note = f'<p class="note">{_safe(one.note)}</p>' if one.note else ""
    return (
        f'<figure{kind} id="chart-{_safe(one.name)}"><figcaption><strong>{_safe(one.title)}</strong>'
        f'{tools if one.zooms else ""}</figcaption><div class="scroll">{one.svg}</div>{note}</figure>'
    )


def _evidence(told: Any) -> str:
    """What the numbers rest on, folded: numbers with interval and evidence, rungs by mechanism, sources."""
    if not isinstance(told, Mapping):
        return ""
    rows = [
        f"<dt>{_safe(str(key))}</dt><dd>{_safe(_estimate(value))}</dd>"
        for key, value in told.items()
        if isinstance(value, Mapping) and {"value", "low", "high", "evidence"} <= value.keys()
    ]
    for key in _NOTED:
        found = told.get(key)
        texts = [f"{name}: {rung}" for name, rung in found.items()] if isinstance(found, Mapping) else found
        if isinstance(texts, list) and texts:
            rows += [f"<dt>{key}</dt><dd>{_safe('; '.join(map(str, texts)))}</dd>"]
    return f"<details><summary>Evidence and sources</summary><dl>{''.join(rows)}</dl></details>" if rows else ""


def _estimate(value: Mapping[str, Any]) -> str:
    ends = f"80 % interval {value['low']:.4g} to {value['high']:.4g}"
    return f"{value['value']:.4g} {value.get('unit', '')} ({ends}; {value['evidence']})"
