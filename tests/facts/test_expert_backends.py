"""Backends of experts: every row means kernels that were fitted, and a word that is none is said to be."""

from __future__ import annotations

import pytest

from ridgeline.facts import store
from ridgeline.facts.engine_kernels import ANY, expert_backend, expert_backends
from ridgeline.facts.fits import fits
from ridgeline.facts.store import sources

ROWS = store.read_tsv("expert_backends.tsv")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['engine']} {row['backend']} {row['form']}")
@pytest.mark.parametrize("pool", ["prompts", "steps"])
def test_every_backend_s_kernels_were_measured(row: dict[str, str], pool: str) -> None:
    assert row["source"].partition(",")[0] in sources()
    if row["form"] == ANY:  # kernels as they were measured
        assert (row["kernel"], row["exchange"]) == ("", "gather")
        return
    asked = (row["library"], row["form"], row["kernel"])
    assert any((fit.engine, fit.form, fit.kernel.split(" ")[0]) == asked for fit in fits(row[pool]))


def test_a_backend_is_one_row() -> None:
    keys = [(row["engine"], row["backend"], row["form"]) for row in ROWS]
    assert len(keys) == len(set(keys)) == 18


def test_what_is_not_known_is_none() -> None:
    found = expert_backend("sglang", "deepep", "fp8_block")
    assert found is not None
    assert (found.prompts, found.exchange) == ("wide_experts", "deepep")
    assert expert_backend("sglang", "deepep", "nvfp4") is None
    assert expert_backend("trtllm", "deepep", "fp8_block") is None
    assert "CUTLASS" in expert_backends()
