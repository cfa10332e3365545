"""Silent edits of the tables fail here: row counts, column sums, units, sources and evidence."""

from __future__ import annotations

import pytest

from ridgeline.facts import store
from ridgeline.facts.store import source, sources

ROWS = {
    "accelerators.tsv": 207,
    "sustained.tsv": 171,
    "links.tsv": 51,
    "clusters.tsv": 181,
    "hosts.tsv": 60,
    "prices.tsv": 408,
    "grids.tsv": 45,
    "buildings.tsv": 6,
    "grid_days.tsv": 7,
    "embodied.tsv": 7,
    "convergence.tsv": 41,
    "published_plans.tsv": 43,
    "padding.tsv": 3,
    "token_frequencies.tsv": 4,
    "interference.tsv": 9,
    "published_batches.tsv": 96,
    "request_lengths.tsv": 12,
    "engine_releases.tsv": 41,
    "model_days.tsv": 106,
    "failures.tsv": 5,
    "recovery.tsv": 4,
}
SUMS = {
    ("accelerators.tsv", "fp32_tflops"): 7017.6219,
    ("accelerators.tsv", "fp16_tflops"): 56007.34053,
    ("accelerators.tsv", "bf16_tflops"): 58622.26053,
    ("accelerators.tsv", "fp8_tflops"): 103453.9011,
    ("accelerators.tsv", "fp4_tflops"): 124323.0021,
    ("accelerators.tsv", "mem_gb"): 11529.0,
    ("accelerators.tsv", "usable_gib"): 2906.37,
    ("accelerators.tsv", "mem_bw_gbs"): 20294374.12,
    ("accelerators.tsv", "link_gbs"): 23209.75,
    ("accelerators.tsv", "tdp_w"): 71971.5,
    ("sustained.tsv", "value"): 85208.21675,
    ("links.tsv", "bandwidth_gbs"): 27513639.005,
    ("links.tsv", "latency_us"): 409.13,
    ("clusters.tsv", "fabric_gbs"): 2564.05525,
    ("hosts.tsv", "dram_gb"): 65959.0,
    ("prices.tsv", "usd_per_gpu_hour"): 630.6053,
    ("grids.tsv", "g_per_kwh"): 16394.23,
    ("buildings.tsv", "pue"): 7.07,
    ("convergence.tsv", "sequences"): 133862667.0,
    ("convergence.tsv", "high"): 141457898.0,
    ("published_plans.tsv", "tp"): 100.0,
    ("published_plans.tsv", "cp"): 55.0,
    ("padding.tsv", "tokens"): 672.0,
    ("padding.tsv", "predicted"): 0.45,
    ("token_frequencies.tsv", "share"): 1.0,
    ("interference.tsv", "share"): 4.4,
    ("interference.tsv", "speed"): 5.8,
    ("published_batches.tsv", "batch"): 31128.0,
    ("request_lengths.tsv", "mean"): 17832.298,
    ("failures.tsv", "devices"): 33760.0,
    ("failures.tsv", "failures"): 534.34,
    ("recovery.tsv", "value"): 122087900.0,
    ("request_lengths.tsv", "q50"): 16411.0,
}
RUNGS = {"measured", "datasheet", "derived", "assumed"}


@pytest.mark.parametrize("name", ROWS)
def test_row_count_is_pinned(name: str) -> None:
    assert len(store.read_tsv(name)) == ROWS[name]


@pytest.mark.parametrize(("name", "column"), SUMS)
def test_column_sum_is_pinned(name: str, column: str) -> None:
    total = sum(float(row[column]) for row in store.read_tsv(name) if row[column])
    assert total == pytest.approx(SUMS[name, column], abs=5e-4)


@pytest.mark.parametrize("name", ROWS)
def test_header_comment_names_the_units(name: str) -> None:
    first = store.read_text(name).split("\n", 1)[0]
    assert first.startswith("# ")
    assert "[" in store.read_text(name).split("\n" + "\t".join(store.read_tsv(name)[0]), 1)[0]


@pytest.mark.parametrize("name", [name for name in ROWS if name not in ("prices.tsv",)])
def test_every_row_has_a_known_source_and_a_rung(name: str) -> None:
    for row in store.read_tsv(name):
        assert source(row["source"]).title
        if "evidence" in row:
            assert row["evidence"] in RUNGS
        if row.get("evidence") == "assumed":
            assert row["conditions"], row


def test_every_price_has_a_known_source() -> None:
    assert all(source(row["source"]).key for row in store.read_tsv("prices.tsv"))


def test_every_exception_of_an_accelerator_has_source_and_rung() -> None:
    for row in store.read_tsv("accelerators.tsv"):
        for part in filter(None, row["exceptions"].split(" ;; ")):
            fields, place, rung, conditions = part.split("|")
            assert fields
            assert source(place).key
            assert rung in RUNGS
            assert conditions


def test_no_source_is_listed_in_vain() -> None:
    used = set()
    for name in ROWS:
        for row in store.read_tsv(name):
            used |= {row[column].split(",")[0] for column in ("source", "latency_source") if column in row}
            used |= {part.split("|")[1].split(",")[0] for part in row.get("exceptions", "").split(" ;; ") if part}
    assert used <= set(sources())
    # Sources of other tables may be in the same file; none of these tables' own may be missing a title.
    assert all(sources()[key].author and sources()[key].title for key in used)


def test_a_citation_is_one_line_with_author_and_commit() -> None:
    line = source("ml-engineering, compute/accelerator/README.md L354").citation
    assert line.startswith("Stas Bekman (2025): Machine Learning Engineering")
    assert "744d01e" in line
    assert "\n" not in line
