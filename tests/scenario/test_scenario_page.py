"""docs/scenario.md names every word that a scenario may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.graph.families.explicit import FIELDS
from ridgeline.scenario.fields import PLAN_FIELDS, WORKLOAD_FIELDS

PAGE = (Path(__file__).parents[2] / "docs" / "scenario.md").read_text(encoding="utf-8")
WORDS = ("name", "source", *FIELDS, *(field.name for field in (*WORKLOAD_FIELDS, *PLAN_FIELDS)))


@pytest.mark.parametrize("word", WORDS)
def test_the_page_names_the_word(word: str) -> None:
    assert f"`{word}`" in PAGE
