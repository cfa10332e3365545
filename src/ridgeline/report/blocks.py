"""What an answer is made of, and its three forms with the same words: plain lines, a coloured terminal, HTML.

The plain form is what files, tests and pipes see: fixed width, no colour, the same bytes for the
same answer. HTML is for notebooks, and loads nothing from elsewhere.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING, ClassVar, TextIO, TypeVar

from ridgeline.errors import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

NARROWEST, WIDEST = 80, 120  # columns
_GAP = "  "
_NARROWEST_CELL = 14  # columns
Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One paragraph; `indent` columns from the left, wrapped to the page with a hanging indent."""

    text: str
    indent: int = 0
    hang: int = 0
    strong: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells; columns named in `right` align right and stay whole, the others wrap."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str] = frozenset()
    indent: int = 2


Block = Line | Table


def record_table(records: Iterable[Record], cells: Mapping[str, Callable[[Record], str]], *left: str) -> Table:
    """A row for each record, of what `cells` tell by column; columns align right but those named in `left`."""
    rows = tuple(tuple(told(one) for told in cells.values()) for one in records)
    return Table(columns=tuple(cells), rows=rows, right=frozenset(cells) - set(left))


def blank() -> Line:
    """An empty line."""
    return Line(text="")


def labelled(rows: Sequence[tuple[str, str]], width: int = 0) -> list[Block]:
    """A line for each name and text, texts under each other; a name that repeats the one above is left out."""
    width = width or max(len(name) for name, _ in rows) + 2
    above = ["", *(name for name, _ in rows)]
    shown = [("" if name == before else name, text) for (name, text), before in zip(rows, above, strict=False)]
    return [Line(text=f"{name:<{width}}{text}", indent=2, hang=width) for name, text in shown]


def listed(lines: Iterable[str], title: str = "") -> list[Block]:
    """A dash and a line for each text; with a title above and an empty line below, or nothing where there is none."""
    found: list[Block] = [Line(text=f"- {line}", indent=2, hang=2) for line in lines]
    return [Line(text=title, strong=True), *found, blank()] if title and found else found


def sources_blocks(assumed: Iterable[str], sources: Iterable[str]) -> list[Block]:
    """What was assumed, a line each, and the sources."""
    lines = [*(f"Assumed: {text}" for text in assumed), f"Sources: {', '.join(sources)}"]
    return [blank(), *(Line(text=text, indent=2) for text in lines)]


class Printed:
    """An answer that prints as its command does, in lines of at most `width` columns, and is laid out in a notebook."""

    width: ClassVar[int] = 100

    def blocks(self) -> Sequence[Block]:
        """The answer in words and tables."""
        raise NotImplementedError

    def __str__(self) -> str:
        return plain(self.blocks(), self.width)

    def _repr_html_(self) -> str:
        return html(self.blocks())


def plain(blocks: Iterable[Block], width: int = 100) -> str:
    """The blocks as plain text of at most `width` columns, ending in a newline."""
    lines: list[str] = []
    for block in blocks:
        lines += _plain_line(block, width) if isinstance(block, Line) else _plain_table(block, width)
    return printable("\n".join(line.rstrip() for line in lines)) + "\n"


def _plain_line(line: Line, width: int) -> list[str]:
    if not line.text:
        return [""]
    first, later = " " * line.indent, " " * (line.indent + line.hang)
    return textwrap.wrap(
        line.text,
        width,
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def _plain_table(table: Table, width: int) -> list[str]:
    sizes = _sizes(table, width)
    rule = tuple("-" * size for size in sizes)
    lines = []
    for row in (table.columns, rule, *table.rows):
        cells = [textwrap.wrap(cell, size) or [""] for cell, size in zip(row, sizes, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            lines.append(" " * table.indent + _GAP.join(_aligned(table, parts, sizes)))
    return lines


def _sizes(table: Table, width: int) -> list[int]:
    """Columns as wide as their widest cell; to fit the page left-aligned ones give way, the widest, the first last."""
    rows = [table.columns, *table.rows]
    sizes = [max(len(row[column]) for row in rows) for column in range(len(table.columns))]
    excess = table.indent + sum(sizes) + len(_GAP) * (len(sizes) - 1) - width
    left = [column for column, name in enumerate(table.columns) if name not in table.right and column > 0]
    while excess > 0 and left:
        widest = max(left, key=lambda column: sizes[column])
        if sizes[widest] <= _NARROWEST_CELL:
            break
        sizes[widest] -= 1
        excess -= 1
    if excess > 0:
        sizes[0] = max(sizes[0] - excess, min(sizes[0], _NARROWEST_CELL))
    return sizes


def _aligned(table: Table, cells: Sequence[str], sizes: list[int]) -> Iterable[str]:
    for name, cell, size in zip(table.columns, cells, sizes, strict=True):
        yield cell.rjust(size) if name in table.right else cell.ljust(size)


def show(blocks: Iterable[Block], out: TextIO, *, width: int = 100) -> None:
    """Prints the blocks: coloured and as wide as the window on a terminal, plain and `width` columns elsewhere."""
    if not out.isatty():
        out.write(plain(blocks, width))
        return
    from rich.console import Console

    console = Console(file=out, highlight=False, soft_wrap=False)
    console.width = min(max(console.width, NARROWEST), WIDEST)
    for block in blocks:
        console.print(_rich(block))


def _rich(block: Block) -> RenderableType:
    from rich import box
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    if isinstance(block, Line):
        return Padding(Text(printable(block.text), style="bold" if block.strong else ""), (0, 0, 0, block.indent))
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in block.columns:
        table.add_column(column, justify="right" if column in block.right else "left", no_wrap=column in block.right)
    for row in block.rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return Padding(table, (0, 0, 0, block.indent))


def html(blocks: Iterable[Block]) -> str:
    """The blocks as one HTML element; text is escaped, columns that align right do so."""
    parts = (_html_line(one) if isinstance(one, Line) else _html_table(one) for one in blocks)
    return f'<div class="ridgeline">{"".join(parts)}</div>'


def _html_line(line: Line) -> str:
    if not line.text:
        return "<br>"
    weight = "font-weight:bold;" if line.strong else ""
    style = f"margin:0 0 0 {line.indent}ch;{weight}white-space:pre-wrap;font-family:monospace"
    return f'<p style="{style}">{escape(line.text)}</p>'


def _html_table(table: Table) -> str:
    def row(cells: tuple[str, ...], tag: str) -> str:
        sides = ("right" if name in table.right else "left" for name in table.columns)
        return "".join(
            f'<{tag} style="text-align:{side};white-space:pre-wrap;font-family:monospace">{escape(cell)}</{tag}>'
            for cell, side in zip(cells, sides, strict=True)
        )

    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in table.rows)
    return (
        f'<table style="margin-left:{table.indent}ch"><thead><tr>{row(table.columns, "th")}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def reason_of(text: str) -> str:
    """What errors that differ in their numbers alone have in common: the text with its numbers left out."""
    return re.sub(r"\d[\d.,]*( [KMGT]i?B)?", "#", text)
