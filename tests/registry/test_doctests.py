"""Examples in docstrings: each is answered as it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
TOLD = sorted(path for path in (SOURCE / "ridgeline").rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", TOLD, ids=[path.stem for path in TOLD])
def test_examples_of_docstrings_hold(path: Path) -> None:
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    found = doctest.testmod(importlib.import_module(name), report=False)
    assert found.attempted > 0
    assert found.failed == 0
