"""Lengths of training sequences: laws by hand, files from strangers."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from ridgeline.errors import InputError, WorkloadError
from ridgeline.facts.lengths import drawn


def test_a_law_is_taken_at_even_quantiles() -> None:
    found = drawn("lognormal(median=1000,sigma=1)", 3, 10**9)
    # quantiles 1/6, 1/2, 5/6 of a normal law: -0.9674, 0, 0.9674
    assert found.lengths.tolist() == [380.0, 1000.0, 2631.0]
    assert found.dropped == pytest.approx(0.0, abs=1e-6)
    assert drawn("lognormal(median=500,sigma=0)", 2, 1000).lengths.tolist() == [500.0, 500.0]


def test_what_is_longer_than_allowed_is_dropped() -> None:
    found = drawn("lognormal(median=1000,sigma=1)", 100, 1000)
    assert found.dropped == pytest.approx(0.5)
    assert found.lengths.max() <= 1000


def test_a_file_stands_for_itself(tmp_path: Path) -> None:
    plain, table, packed = tmp_path / "plain.txt", tmp_path / "table.tsv", tmp_path / "packed.csv.gz"
    plain.write_text("5\n1\n3\n9000\n", encoding="utf-8")
    table.write_text("document\ttokens\na\t5\nb\t1\n\nc\t3\nd\t9000\n", encoding="utf-8")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, table, packed):
        found = drawn(str(path), 3, 100)
        assert found.lengths.tolist() == [1.0, 3.0, 5.0]
        assert found.dropped == 0.25
    assert drawn(str(plain), 8, 10**6).lengths.tolist() == [1, 1, 3, 3, 5, 5, 9000, 9000]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no length"), ("tokens\n", "has no length"), ("a,b\n1,2\n", "no column 'tokens'"),
        ("tokens,x\n3,1\nmany,1\n", ":3: field .tokens.: .many,1. has no tokens"),
        ("3\n-1\n", ":2: field"), ("3\nnan\n", ":2: field"), ("3\n1e300\n", ":2: field"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_by_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=told):
        drawn(str(path), 4, 100)


@pytest.mark.parametrize(
    "law",
    ["lognormal(3)", "lognormal(median=0,sigma=1)", "lognormal(median=9,sigma=nan)", "lognormal(median=x,sigma=1)"],
)
def test_bad_laws_are_refused(law: str) -> None:
    with pytest.raises(WorkloadError, match="is no law; write lognormal"):
        drawn(law, 4, 100)


def test_bounds_of_a_step() -> None:
    with pytest.raises(WorkloadError, match="at most 20000"):
        drawn("lognormal(median=9,sigma=1)", 20_001, 100)
    with pytest.raises(WorkloadError, match="none of at most 4 tokens"):
        drawn("lognormal(median=1000,sigma=0)", 4, 4)
    assert np.all(np.diff(drawn("lognormal(median=900,sigma=2)", 50, 4096).lengths) >= 0)
