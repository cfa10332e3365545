"""Readings of words: every row can be reached, one source's say where they are known from, and nothing shadows."""

from __future__ import annotations

import pytest

from ridgeline.errors import InputError
from ridgeline.facts import readings, store
from ridgeline.facts.readings import reading, rows, settings, words
from ridgeline.facts.store import source


def test_a_row_fits_where_all_its_patterns_are_found_and_the_first_holds() -> None:
    assert reading("seq_len", runs="somewhere", model="Llama 3 8B").value == 8192  # type: ignore[union-attr]
    assert reading("seq_len", runs="AI-Hypercomputer/maxtext", model="custom").value == 2048  # type: ignore[union-attr]
    assert reading("seq_len", runs="somewhere", model="custom") is None
    assert reading("network", model="tf_efficientnetv2_m").text == "efficientnet-v2-m"  # type: ignore[union-attr]


def test_of_settings_the_later_holds_and_each_reason_is_told_once() -> None:
    said: list[str] = []
    found = settings("runtime", said, program="PaddlePaddle", words="BERT SQuAD")
    assert found == {"gradient_bytes": 2, "logit_copies": 0, "logit_fp32_copies": 0}
    assert len(said) == 2


def test_the_table_is_whole() -> None:
    table = store.read_tsv(readings.TABLE)
    assert len(table) > 500
    patterns = [tuple(row[name] for name in ("key", "value", *readings.CELLS)) for row in table]
    assert len(set(patterns)) == len(table)


def test_words_stand_for_themselves() -> None:
    assert words("hardware.form")["sxm5"] == "sxm"
    assert {"gpu", "hbm3e"} <= words("hardware.noise").keys()


@pytest.mark.parametrize("row", store.read_tsv(readings.TABLE), ids=lambda row: f"{row['key']} {row['value']}"[:40])
def test_what_is_said_of_one_source_has_its_place_and_evidence(row: dict[str, str]) -> None:
    assert bool(row["source"]) == bool(row["evidence"])
    assert row["source"] or not (row["runs"] or row["program"])
    assert not row["source"] or source(row["source"]).title
    assert any(one.told == row["told"] for one in rows(row["key"]))


def test_a_row_of_one_source_without_its_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    row = dict(store.read_tsv(readings.TABLE)[0]) | {"runs": "somewhere", "source": ""}
    monkeypatch.setattr(store, "read_tsv", lambda _: (row,))
    with pytest.raises(InputError, match="known from"):
        readings._table.__wrapped__()
