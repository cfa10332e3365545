"""House rules that no linter knows: the banned word, the size of files, docstrings of what is public."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "ridgeline"
FILES = sorted(SOURCE.rglob("*.py"))
LONGEST_FILE = 400  # lines; files are meant to stay near 300
LONGEST_FUNCTION = 80  # lines; functions are meant to stay near 40


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SOURCE)) for path in FILES])
def test_a_file_keeps_the_house_rules(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "the module says nothing of itself"
    assert len(text.splitlines()) <= LONGEST_FILE
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    assert not [name for name in names if re.search(r"(^|_)flops($|_)", name.lower())], "count or rate?"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if not node.name.startswith("_") and not _inner(tree, node):
                assert ast.get_docstring(node), f"{node.name} is public and says nothing of itself"
            if isinstance(node, ast.FunctionDef):
                told = len((ast.get_docstring(node) or "").splitlines())
                lines = (node.end_lineno or node.lineno) - node.lineno + 1 - told
                assert lines <= LONGEST_FUNCTION, f"{node.name} has {lines} lines"


SAYS_WHAT_IT_RAISES = ("search", "plan", "report", "timeline", "predict")  # rooms


@pytest.mark.parametrize("room", SAYS_WHAT_IT_RAISES)
def test_public_functions_say_what_they_raise(room: str) -> None:
    silent = []
    for path in (path for path in FILES if path.parent == SOURCE / room):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                raised = [one for one in ast.walk(node) if isinstance(one, ast.Raise) and isinstance(one.exc, ast.Call)]
                told = ast.get_docstring(node)
                if raised and told and "raise" not in told.casefold():
                    silent.append(f"{path.name}: {node.name}")
    assert not silent


def _inner(tree: ast.Module, node: ast.AST) -> bool:
    """Whether a definition is inside a function or a private class, hence not public."""
    return any(
        outer is not node and node in ast.walk(outer)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef) or (isinstance(outer, ast.ClassDef) and outer.name.startswith("_"))
    )


def test_no_word_left_for_later() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert not [str(path) for path in FILES if marks.search(path.read_text(encoding="utf-8"))]


def test_only_the_store_opens_shipped_data() -> None:
    reader = re.compile(r"importlib\.resources|/ \"data\"")
    assert [path for path in FILES if reader.search(path.read_text(encoding="utf-8"))] == [
        SOURCE / "facts" / "store.py"
    ]
