"""What a question returns: the typed result, its table, its JSON and whether it was possible at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.pages.drawing import Figure
    from ridgeline.report.blocks import Block


@dataclass(frozen=True)
class Answer:
    """The answer to one question, in each form that people and programs read.

    `value` is the typed result of the room that answered (a `Report`, a `SearchResult`, a list of rows). Where
    `impossible` is a text, the question was understood and nothing fits: it says why, and the exit code is 1.
    """

    _as_dict: Callable[[], Any]
    _blocks: Callable[[], Iterable[Block]]
    width: int = 100  # columns of the printed form
    value: Any = None
    impossible: str | None = None
    aside: str = ""  # said on standard error, beside the answer

    def as_dict(self) -> Any:
        """The answer as JSON holds it: stable keys, SI units in their names, as `--json` prints it."""
        return self._as_dict()

    def blocks(self) -> Sequence[Block]:
        """The answer in lines and tables, as the command prints it."""
        return list(self._blocks())

    def to_json(self, *, indent: int | None = 1) -> str:
        """The answer as one JSON text; raises `ValueError` for numbers that JSON has none of."""
        return json.dumps(self.as_dict(), indent=indent, allow_nan=False)

    def body(self) -> str:
        """The answer as the inner HTML of a page: its first lines, tables, charts, notes; text in it is escaped."""
        from ridgeline.pages.charts import figures
        from ridgeline.pages.page import body

        return body(self.blocks(), figures(self.value), self.as_dict(), impossible=self.impossible)

    def html(self, title: str = "") -> str:
        """The answer as one self-contained HTML page, as `--html` writes it."""
        from ridgeline.pages.page import page

        return page(title or "Ridgeline", self.body())

    def figure(self, name: str = "") -> Figure:
        """One chart of the answer ('memory', 'timeline'), by default the first; `.svg`, `.png()`, `.save(path)`.

        Raises `UnknownNameError` for a name that it has no chart of, `InputError` where it has none at all.
        """
        from ridgeline.pages.charts import figure

        return figure(self.value, name)

    def table(self) -> str:
        """The answer as plain text, at most `width` columns wide, as the command prints it into a file."""
        from ridgeline.report.blocks import plain

        return plain(self.blocks(), self.width)

    def __getitem__(self, key: str) -> Any:
        """One entry of the JSON form: `answer["step_time_s"]["value"]`."""
        return self.as_dict()[key]

    def to_frame(self, rows: str = "") -> Any:
        """A list of the answer as a pandas or polars data frame, whichever is installed.

        `rows` names the list, with dots: 'best', 'memory'; by default the first list of records is taken. Raises
        `InputError` where the answer has no such list, `ImportError` where neither library is installed.
        """
        return _frame(_records(self.as_dict(), rows))

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        from ridgeline.pages.charts import figures
        from ridgeline.report.blocks import html

        return html(self.blocks()) + "".join(one.svg for one in figures(self.value))


def _records(answer: Any, name: str) -> list[Mapping[str, Any]]:
    from ridgeline.errors import InputError

    found: dict[str, Any] = {"": answer} if isinstance(answer, list) else {}
    for key, value in answer.items() if isinstance(answer, Mapping) else ():
        if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            found[key] = value
    if name:
        at: Any = answer
        for part in name.split("."):
            at = at.get(part) if isinstance(at, Mapping) else None
        if isinstance(at, list):
            return at
        raise InputError(f"'{name}' is no list of the answer; lists: {', '.join(found) or 'none'}", field="rows")
    if not found:
        raise InputError("the answer holds no list of records; take as_dict()", field="rows")
    rows: list[Mapping[str, Any]] = next(iter(found.values()))
    return rows


def _frame(rows: list[Mapping[str, Any]]) -> Any:
    for library, made in _FRAMES.items():
        if find_spec(library) is not None:
            return made(import_module(library), [dict(row) for row in rows])
    raise ImportError("to_frame needs pandas or polars; `pip install pandas`")


_FRAMES: dict[str, Callable[[Any, list[dict[str, Any]]], Any]] = {
    "pandas": lambda library, rows: library.json_normalize(rows),
    "polars": lambda library, rows: library.DataFrame(rows),
}
