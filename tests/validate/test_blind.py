"""A blind check: predictions see nothing of where a row comes from, and without it recipes are told row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.errors import InputError
from ridgeline.validate.check import Checker
from ridgeline.validate.rows import PROVENANCE, Row, TruthTable

TRAINED = {
    "metric": "step_time", "value": "1.0", "unit": "s", "model": "Llama 2 70B LoRA", "hardware": "H100 SXM 80GB",
    "n_devices": "64", "global_batch": "8", "engine": "NeMo", "seq_len": "8192",
    "source": "mlcommons/training_results_v4.0", "source_where": "NVIDIA/results/x",
}  # fmt: skip
TESTED = {
    "metric": "step_time", "value": "1.0", "unit": "s", "model": "gpt3", "hardware": "H100 SXM", "tp": "2", "pp": "2",
    "n_devices": "8", "layers": "12", "hidden": "512", "heads": "8", "seq_len": "1024", "global_batch": "32",
    "micro_batch": "4", "engine": "Megatron-LM",
    "source": "bigscience-workshop/Megatron-DeepSpeed", "source_where": "README",
}  # fmt: skip
SERVED = {
    "metric": "output_tok_s", "value": "1000", "unit": "tok/s", "model": "llama-2-7b", "hardware": "A100",
    "n_devices": "1", "engine": "vLLM", "scenario": "fixed-batch", "batch_or_concurrency": "2", "isl": "64",
    "osl": "8", "source": "LIB",
}  # fmt: skip
ROWS = [("training", TRAINED), ("training", TESTED), ("serving", SERVED)]


def _answer(kind: str, cells: dict[str, str], *, blind: bool) -> dict[str, Any]:
    """One row's answer; what training is asked for stands in the reason in place of a prediction."""

    def asked(*scenario: object) -> Any:
        raise InputError(repr(scenario[1:]))

    row = Row(line=2, id=cells.get("id", "1"), cells=cells)
    table = TruthTable(path="rows.tsv", kind=kind, columns=tuple(cells), rows=(row,))
    return Checker(predictor=asked, completer=asked, blind=blind, strict=True).answer(row, table)


@pytest.mark.parametrize(("kind", "cells"), ROWS, ids=["mlperf", "before flash", "serving"])
def test_a_blind_answer_is_that_of_a_row_of_an_unknown_source(kind: str, cells: dict[str, str]) -> None:
    nameless = {**cells, **dict.fromkeys(PROVENANCE, "")}
    blind, unknown = _answer(kind, cells, blind=True), _answer(kind, nameless, blind=True)
    seen = _answer(kind, cells, blind=False)
    assert {**blind, "source": ""} == {**unknown, "source": ""}
    assert blind["recipes"] == []
    assert seen["recipes"], "what a source is known to have done is told"
    assert (seen["reason"], seen["predicted"], seen["low"]) != (blind["reason"], blind["predicted"], blind["low"])
    assert {**_answer(kind, nameless, blind=False), "source": ""} == {**unknown, "source": ""}


def test_a_judge_still_sees_where_a_blind_row_comes_from() -> None:
    row = Row(line=2, id="t-mlp-1", cells=TRAINED)
    assert row.blind().source == "not stated"
    assert row.blind().judged().cells == row.cells
    assert replace(row, id="").source == TRAINED["source"]


def test_a_benchmark_that_notes_name_is_said_by_the_row() -> None:
    """MLPerf's rules hold for a row that says it is of MLPerf, whatever hides where it was found."""
    said = TRAINED | {"notes": "MLPerf Training v4.0 closed; submitter NVIDIA; 10 runs"}
    assert Row(line=2, id="1", cells=said).blind().text("source") == "mlcommons/training_results_v4.0"
    assert Row(line=2, id="1", cells=said).blind().text("source_where") == ""
    assert Row(line=2, id="1", cells=TRAINED).blind().text("source") == ""
