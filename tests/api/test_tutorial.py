"""The tutorial notebook runs, and shows what its cells say today.

`python tests/api/test_tutorial.py` runs it and stores its outputs anew.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"


def outputs(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """What a notebook stores of a cell: its printed text, then its last expression in each form that it has."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, found = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            found = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    stored: list[dict[str, Any]] = []
    if printed.getvalue():
        stored.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    if found is not None:
        data = {"text/plain": lines(repr(found))}
        for kind, method in (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")):
            if hasattr(found, method):
                data[kind] = lines(getattr(found, method)())
        if "image/svg+xml" in data:
            data["text/plain"] = [f"<{type(found).__name__} {found.name}>"]
        stored.append({"data": data, "metadata": {}, "output_type": "display_data"})
    return stored


def lines(text: str) -> list[str]:
    """A text as notebooks store it."""
    return text.splitlines(keepends=True)


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of its cells, run in order in the current folder."""
    names: dict[str, Any] = {}
    cells = []
    for number, cell in enumerate(notebook["cells"]):
        cell = {**cell, "id": f"cell-{number}"}
        if cell["cell_type"] == "code":
            cell |= {"outputs": outputs("".join(cell["source"]), names), "execution_count": None}
        cells.append(cell)
    return {**notebook, "cells": cells}


def said(notebook: dict[str, Any]) -> list[list[str]]:
    """The text of every output, cell by cell."""
    return [
        ["".join(one.get("text", one.get("data", {}).get("text/plain", []))) for one in cell.get("outputs", [])]
        for cell in notebook["cells"]
    ]


def test_the_tutorial_shows_what_its_cells_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    stored = json.loads(PAGE.read_text(encoding="utf-8"))
    assert said(run(stored)) == said(stored)


def test_the_tutorial_stores_every_output_and_no_trace_of_a_machine() -> None:
    stored = json.loads(PAGE.read_text(encoding="utf-8"))
    assert stored["nbformat"] == 4
    for cell in stored["cells"]:
        assert cell["cell_type"] == "markdown" or cell["outputs"]
    assert PAGE.stat().st_size < 400_000
    assert str(Path.home()) + os.sep not in PAGE.read_text(encoding="utf-8")


if __name__ == "__main__":
    kept = json.loads(PAGE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        made = run(kept)
    PAGE.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.exit(0)
