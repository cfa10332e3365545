"""An answer as HTML, for notebooks: the words and tables of the printed one, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ridgeline.report.blocks import Block, Line, Table


def html(blocks: Iterable[Block]) -> str:
    """The blocks as one HTML element; text is escaped, columns that align right do so."""
    parts = (_line(one) if isinstance(one, Line) else _table(one) for one in blocks)
    return f'<div class="ridgeline">{"".join(parts)}</div>'


def _line(line: Line) -> str:
    if not line.text:
        return "<br>"
    weight = "font-weight:bold;" if line.strong else ""
    style = f"margin:0 0 0 {line.indent}ch;{weight}white-space:pre-wrap;font-family:monospace"
    return f'<p style="{style}">{escape(line.text)}</p>'


def _table(table: Table) -> str:
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
