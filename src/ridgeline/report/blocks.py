"""What a printed answer is made of, and its two forms: plain lines and a coloured terminal.

The plain form is what files, tests and pipes see: fixed width, no colour, the same bytes for the
same answer. The terminal form holds the same words.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

from ridgeline.errors import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

NARROWEST, WIDEST = 80, 120  # columns
_GAP = "  "
_NARROWEST_CELL = 14  # columns


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


def blank() -> Line:
    """An empty line."""
    return Line(text="")


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
        drop_whitespace=True,
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
