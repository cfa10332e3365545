"""The command `claims`: rows of all papers, one paper, a family, and what is refused."""

from __future__ import annotations

import json

import pytest

from ridgeline.cli.main import run

KEYS = (
    "paper", "system", "family", "kind", "status", "claim", "checked", "theirs", "ours", "low", "high", "verdict",
    "technique",
)  # fmt: skip


def test_json_has_a_row_or_more_of_a_paper_with_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["claims", "--paper", "gpipe", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {row["paper"] for row in answer["rows"]} == {73}
    assert all(set(KEYS) <= row.keys() for row in answer["rows"])
    assert answer["summary"]["papers"] == 1


def test_text_ends_on_the_summary_and_the_derivation_tells_what_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["claims", "--paper", "73"]) == 0
    table = capsys.readouterr().out
    assert table.startswith("paper  system")
    assert "of 1 papers work" in table
    assert run(["claims", "--paper", "73", "-v"]) == 0
    assert "status: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--paper", "GPip"], "unknown paper 'GPip'; nearest: GPipe"),
        (["--paper", "229"], "unknown paper '229'"),
        (["--family", "train-paralel"], "unknown family 'train-paralel'; nearest: train-parallel"),
    ],
)
def test_unknown_papers_and_families_are_told(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["claims", *words]) == 2
    assert told in capsys.readouterr().err
