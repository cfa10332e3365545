"""The measured rung on a table of 3 x 3 x 3 products that take m n k picoseconds, more or less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost import measured, questions
from ridgeline.cost.answer import Question, Rung
from ridgeline.cost.formats import Form
from ridgeline.cost.ladder import price
from ridgeline.cost.samples import Sample, folds
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.opdata import OpTable

H100 = accelerator("H100-SXM")
PLACE = Path("h100_sxm/gemm/vllm/9.9/gemm_perf.parquet")
TABLE = OpTable(accelerator=H100.name, family="gemm", engine="vllm", version="9.9", name="gemm_perf", path=PLACE)
POINTS = (64.0, 512.0, 4096.0)
ROWS = np.array(list(product(POINTS, POINTS, POINTS)))
TIMES = ROWS.prod(axis=1) * 1e-12 * (1 + np.arange(27) / 100)


def sample(rows: np.ndarray = ROWS, seconds: np.ndarray = TIMES, **labels: str) -> Sample:
    sizes = dict(zip("mnk", rows.T, strict=True))
    named = {"engine": "vllm", "version": "9.9", "form": "bf16", "kernel": "cutlass", "source": str(PLACE)} | labels
    base: dict[str, Any] = {"family": "gemm", "accelerator": H100.name, "folds": folds("gemm", sizes)}
    return Sample(sizes=sizes, seconds=seconds, **base, **named)


def forget() -> None:
    measured._rows.cache_clear()
    measured._made.cache_clear()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sample]]:
    """What the only table holds; tests change it before they ask."""
    found = [sample()]

    def samples(family: str, table: OpTable, *, wanted: Form) -> Iterator[Sample]:
        return iter([one for one in found if one.form == wanted.name])

    monkeypatch.setattr(measured, "find_tables", lambda question, part: (TABLE,))
    monkeypatch.setattr(measured, "samples", samples)
    forget()
    yield found
    forget()


@pytest.fixture
def bare(held: list[Sample], monkeypatch: pytest.MonkeyPatch) -> list[Sample]:
    """No fit beside the table: times themselves are interpolated."""
    monkeypatch.setattr(measured, "_base", lambda question, part: None)
    return held


def asked(m: Any, n: Any, k: Any, **changes: Any) -> Question:
    return replace(questions.gemm(m, n, k).question, **changes)


def test_a_grid_point_is_answered_by_its_own_measurement(held: list[Sample]) -> None:
    answer = price(asked(*ROWS.T), H100)
    assert np.asarray(answer.seconds) == pytest.approx(TIMES, rel=1e-9)
    assert (answer.rung, answer.library, answer.source) == (Rung.TABLE, "vllm 9.9", str(PLACE))
    assert (np.asarray(answer.low_s) < TIMES).all()
    assert (np.asarray(answer.high_s) > TIMES).all()


def test_between_two_points_lies_their_geometric_mean(bare: list[Sample]) -> None:
    middle = float((64 * 512) ** 0.5)
    found = measured.interpolated(asked(middle, 512, 4096), H100, TABLE)
    low, high = (TIMES[((m, 512, 4096) == ROWS).all(axis=1)][0] for m in (64, 512))
    assert float(found) == pytest.approx((low * high) ** 0.5)


@given(st.floats(64, 4096), st.floats(64, 4096), st.floats(64, 4096))
def test_inside_the_grid_no_answer_leaves_its_corners(m: float, n: float, k: float) -> None:
    grid = measured.Grid(
        names=("m", "n", "k"), axes=(np.log(POINTS),) * 3, values=np.log(TIMES).reshape(3, 3, 3)
    )  # fmt: skip
    found = float(grid.at(np.array([[m], [n], [k]]))[0])
    below, above = np.floor(np.log(np.array([m, n, k]) / 64) / np.log(8)), 2
    corners = [grid.values[tuple(np.minimum(below + up, above).astype(int))] for up in product((0, 1), repeat=3)]
    assert min(corners) - 1e-6 <= found <= max(corners) + 1e-6


def test_the_mechanism_s_steps_stay_between_points(held: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a sparse grid the ratio to the fit is interpolated: a table 7 % above the fit answers so everywhere."""
    monkeypatch.setitem(measured.READERS, "gemm", replace(measured.READERS["gemm"], dense=False))
    fitted = price(asked(*ROWS.T, engine="vllm"), H100, rungs=(Rung.FITTED,))
    held[:] = [sample(seconds=1.07 * np.asarray(fitted.seconds))]
    odd = asked(np.array([129.0, 777.0]), 1000, 3000, engine="vllm")
    wanted = 1.07 * np.asarray(price(odd, H100, rungs=(Rung.FITTED,)).seconds)
    assert np.asarray(price(odd, H100).seconds) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("m", [63.0, 4097.0])
def test_outside_the_grid_the_next_rung_answers(held: list[Sample], m: float) -> None:
    assert np.isnan(measured.interpolated(asked(m, 512, 512), H100, TABLE))
    assert measured.measured(asked(m, 512, 512), H100) is None
    assert price(asked(np.array([512.0, m]), 512, 512), H100).rung is Rung.FITTED  # one of several is enough


def test_another_format_is_another_table(held: list[Sample]) -> None:
    assert measured.measured(asked(512, 512, 512, form="fp8"), H100) is None


def test_a_gap_is_bridged_between_its_neighbours_but_not_at_a_corner(bare: list[Sample]) -> None:
    middle, corner = (ROWS == (512, 512, 512)).all(axis=1), (ROWS == (64, 64, 64)).all(axis=1)
    bare[:] = [sample(ROWS[~(middle | corner)], TIMES[~(middle | corner)])]
    found = measured.interpolated(
        asked(np.array([512.0, 64.0]), np.array([512.0, 64.0]), np.array([512.0, 64.0])), H100, TABLE
    )
    beside = [TIMES[(np.roll((m, 512, 512), axis) == ROWS).all(axis=1)][0] for axis in range(3) for m in (64, 4096)]
    assert found[0] == pytest.approx(np.exp(np.mean(np.log(beside))))
    assert np.isnan(found[1])


def test_rows_of_a_hidden_fold_do_not_enter(bare: list[Sample]) -> None:
    fold = int(bare[0].folds[13])
    hidden = bare[0].folds == fold
    before = measured.interpolated(asked(*ROWS.T), H100, TABLE, hidden_fold=fold)
    bare[:] = [sample(seconds=np.where(hidden, 1e3, TIMES))]
    forget()
    after = measured.interpolated(asked(*ROWS.T), H100, TABLE, hidden_fold=fold)
    assert np.array_equal(before, after, equal_nan=True)
    assert before[~hidden] == pytest.approx(TIMES[~hidden])


def test_text_that_names_a_kernel_chooses_its_rows(bare: list[Sample]) -> None:
    bare.append(sample(seconds=3 * TIMES, kernel="deepgemm"))
    for name, factor in (("vLLM cutlass", 1), ("vLLM deepgemm", 3)):
        found = measured.interpolated(asked(512, 512, 512, kernel=name), H100, TABLE)
        assert float(found) == pytest.approx(factor * TIMES[13])


def test_exact_sizes_must_be_met(bare: list[Sample]) -> None:
    one = np.ones(4)
    sizes = {"batch": np.array([1.0, 8, 1, 8]), "context": np.array([256.0, 256, 4096, 4096]), "kv_heads": 8 * one}
    sizes |= {"group": 4 * one, "head_dim": 128 * one, "window": 0 * one}
    bare[:] = [replace(sample(), family="decode", sizes=sizes, seconds=one * 1e-5, folds=one.astype(int))]
    for head_dim, wanted in ((128, 1e-5), (64, np.nan)):
        found = measured.interpolated(questions.decode(2, 1000, 32, 8, head_dim).question, H100, TABLE)
        assert float(found) == pytest.approx(wanted, nan_ok=True)
    assert np.isnan(
        measured.interpolated(questions.decode(2, 1000, 16, 4, 128).question, H100, TABLE)
    )  # one axis point


def _of(device: str, tables: list[OpTable]) -> tuple[OpTable, ...]:
    return tuple(table for table in tables if table.accelerator == device)


def test_the_nearest_version_of_the_engine_s_table_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [replace(TABLE, version=version) for version in ("0.5.9", "0.5.14", "1.3.0rc20", "1.3.0")]
    others = [replace(TABLE, engine="trtllm"), replace(TABLE, accelerator="H200-SXM", version="7")]
    monkeypatch.setattr(measured, "family_tables", lambda family, device: _of(device, tables + others))
    for wanted, version in (
        ("", "1.3.0"),
        ("0.5.14", "0.5.14"),
        ("1.2", "0.5.14"),
        ("1.3.0rc21", "1.3.0rc20"),
        ("0.1", "0.5.9"),
    ):
        (found,) = measured.find_tables(asked(1, 1, 1, engine="vllm", version=wanted), H100)
        assert (found.accelerator, found.engine, found.version) == (H100.name, "vllm", version)
    assert measured.find_tables(asked(1, 1, 1, engine="sglang"), H100) == ()
    assert measured.find_tables(asked(1, 1, 1), accelerator("L40S")) == ()


@pytest.mark.usefixtures("wheel")
def test_the_installed_tables_answer_their_own_rows() -> None:
    question = questions.mla_decode(1, 1, 1).by("trtllm").question  # every row once; others repeat some
    (table,) = measured.find_tables(question, H100)
    (first, *_) = (one for one in measured.samples("mla_decode", table) if one.form == "bf16")
    sizes = {name: column[:50] for name, column in first.sizes.items()}
    answer = price(replace(question, sizes=sizes), H100)
    assert (answer.rung, answer.source) == (Rung.TABLE, table.place)
    assert np.asarray(answer.seconds) == pytest.approx(first.seconds[:50], rel=1e-6)
