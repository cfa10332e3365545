"""The command `score`: a metric over tables of results, of people's files or of published ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.errors import InputError
from ridgeline.metrics.metric import Metric, Score, metric, metrics
from ridgeline.metrics.results import Results, read_results, shipped
from ridgeline.report.blocks import Block, Line, Table, blank, labelled
from ridgeline.seams.technique import shown

_WIDTH = 140  # columns when piped


def score(given: SimpleNamespace) -> Answer:
    """Prints what a metric says of each table; without tables what it is, without a metric which there are."""
    if given.metric is None:
        if given.tables:
            raise InputError(f"say which: one of {', '.join(metrics())}", field="--metric")
        known = [metric(key) for key in metrics()]
        answer = {"metrics": [{"key": one.key, "summary": one.summary()} for one in known], "tables": list(shipped())}
        rows = tuple((one.key, one.summary()) for one in known)
        tables = Line(text=f"Tables of published results: {', '.join(shipped())}")
        return Answer(lambda: answer, lambda: [Table(columns=("metric", "what it says"), rows=rows), blank(), tables])
    one = metric(given.metric)
    if not given.tables:
        return Answer(lambda: _page_as_dict(one), lambda: _page(one), width=_WIDTH)
    columns = dict(_pair(text) for text in given.columns or ())
    found = [(each, one.score(each)) for each in _tables(given.tables, columns, given.by)]
    across = one.across([score for _, score in found]) if len(found) > 1 else {}
    answer = {"metric": one.text, "source": list(one.source), "scores": [_as_dict(*each) for each in found], **across}
    return Answer(lambda: answer, lambda: _blocks(found, across), width=_WIDTH, value=found)


def _pair(text: str) -> tuple[str, str]:
    wanted, mark, name = text.partition("=")
    if not mark or not wanted or not name:
        raise InputError(f"'{text}' is no NAME=COLUMN, e.g. speedup=score_default", field="--column")
    return wanted, name


def _tables(paths: Sequence[str], columns: Mapping[str, str], by: str | None) -> Iterator[Results]:
    """Each table, whole, and a part for each value of the column `by`."""
    for path in paths:
        table = read_results(path)
        table = table.renamed(columns) if columns else table
        if not table.rows and table.cells is None:
            raise InputError("holds no result", file=path)
        yield table
        if by is not None:
            table.need(by)
            for value in dict.fromkeys(str(row.get(by)) for row in table.rows):
                rows = tuple(row for row in table.rows if str(row.get(by)) == value)
                yield replace(table, name=f"{path}, {by} {value}", rows=rows)


def _as_dict(table: Results, found: Score) -> dict[str, Any]:
    return {"table": table.name, **found.values, "rows": [dict(row) for row in found.rows], "notes": list(found.notes)}


def _blocks(found: Sequence[tuple[Results, Score]], across: Mapping[str, Any]) -> Iterator[Block]:
    names = list(dict.fromkeys(name for _, score in found for name in score.values))
    rows = tuple((name, *(_text(score.values.get(name)) for _, score in found)) for name in names)
    heads = tuple(table.name for table, _ in found)
    yield Table(columns=("", *heads), rows=rows, right=frozenset(heads))
    for table, score in found:
        if score.rows:
            yield from (blank(), Line(text=table.name, strong=True))
            keys = tuple(score.rows[0])
            right = frozenset(key for key in keys if not isinstance(score.rows[0][key], str))
            cells = tuple(tuple(_text(row[key]) for key in keys) for row in score.rows[:20])
            yield Table(columns=keys, rows=cells, right=right)
        yield from (Line(text=note, indent=2, hang=2) for note in score.notes)
    if across:
        yield blank()
        yield from labelled([(name, _text(value)) for name, value in across.items()])


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


def _page_as_dict(one: Metric) -> dict[str, Any]:
    return {
        "key": one.key, "page": type(one).__doc__ or "", "columns": dict(one.columns), "source": list(one.source),
        "parameters": {name: getattr(one, name) for name in one.parameters()},
    }  # fmt: skip


def _page(one: Metric) -> Iterator[Block]:
    for part in (type(one).__doc__ or "").split("\n\n"):
        yield from (Line(text=" ".join(part.split())), blank())
    yield Table(columns=("column", "what it holds"), rows=tuple(one.columns.items()))
    if one.parameters():
        yield blank()
        rows = tuple((name, shown(each.default), each.metadata["help"]) for name, each in one.parameters().items())
        yield Table(columns=("parameter", "default", "what it is"), rows=rows)
