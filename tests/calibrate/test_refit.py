"""A refit writes whole tables, goes on where a killed run stopped, and needs the public tables."""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.calibrate import refit as module
from ridgeline.calibrate.refit import PROGRESS, refit, rows_of
from ridgeline.cost.families.registry import mechanism
from ridgeline.errors import DomainError
from ridgeline.facts import fits as facts
from ridgeline.facts import store
from ridgeline.facts.fits import Fit, fits
from ridgeline.facts.opdata import OpTable

KNOWN = fits("collective")
TABLES = tuple(
    OpTable(
        accelerator=one.device, family="comm", engine=one.engine, version=one.version, name="t", path=Path(one.source)
    )
    for one in KNOWN
)


class Killed(BaseException):
    """The machine went away."""


class Here:
    """A pool that works in this process, in order, and dies before one of its jobs."""

    asked: list[str] = []  # noqa: RUF012
    dies_at: int | None = None

    def __init__(self, processes: int, **others: Any) -> None:
        pass

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(self, work: Any, family: str, table: OpTable) -> Future[Any]:
        done: Future[Any] = Future()
        Here.asked.append(table.place)
        done.set_result(work(family, table))
        return done


def fit_of(family: str, table: OpTable) -> list[dict[str, Any]]:
    assert family == "collective"
    return [asdict(replace(fit, values=dict(fit.values))) for fit in KNOWN if Path(fit.source) == table.path]


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tables that the shipped collectives were fitted to, each with the fit that it gave."""
    monkeypatch.setattr(module, "root", lambda: tmp_path)
    monkeypatch.setattr(module, "family_tables", lambda family: TABLES)
    monkeypatch.setattr(module, "fit_table", fit_of)
    monkeypatch.setattr(module, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(module, "as_completed", list)
    Here.asked = []
    for name in module._ONE_THREAD:
        monkeypatch.setenv(name, "1")


def stop_after(count: int) -> Any:
    def done(place: str, at: int, total: int) -> None:
        assert total == len(TABLES)
        if at == count:
            raise Killed

    return done


def read(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Fit, ...]:
    """The fits of a written table, read as the shipped ones are."""
    monkeypatch.setattr(store, "_DATA", path.parent)
    store.read_tsv.cache_clear()
    try:
        return facts.read_fits("collective", path.name)
    finally:
        monkeypatch.undo()
        store.read_tsv.cache_clear()


def test_what_is_written_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, int, int]] = []
    counts = refit(tmp_path, families=("collective",), done=lambda *told: heard.append(told))
    assert counts == {"collective": len(KNOWN)}
    assert [(at, total) for _, at, total in heard] == [(at + 1, len(TABLES)) for at in range(len(TABLES))]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["collective.tsv"]
    assert read(tmp_path / "collective.tsv", monkeypatch) == KNOWN


def test_a_table_has_a_header_that_explains_itself() -> None:
    comment, header, *rows = rows_of(KNOWN, mechanism("collective"))
    assert comment.startswith("# Fitted by `ridgeline fit`")
    assert "hop_s_ [s] one step of a ring" in comment
    assert all(len(row.split("\t")) == len(header.split("\t")) for row in rows)


def test_a_killed_run_leaves_no_table_and_the_next_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed):
        refit(tmp_path, families=("collective",), done=stop_after(5))
    assert [path.name for path in tmp_path.iterdir()] == [PROGRESS]
    assert len((tmp_path / PROGRESS).read_text().splitlines()) == 5
    Here.asked = []
    assert refit(tmp_path, families=("collective",)) == {"collective": len(KNOWN)}
    assert len(Here.asked) == len(TABLES) - 5
    assert [path.name for path in tmp_path.iterdir()] == ["collective.tsv"]
    assert read(tmp_path / "collective.tsv", monkeypatch) == KNOWN


def test_a_line_cut_by_the_kill_is_fitted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed):
        refit(tmp_path, families=("collective",), done=stop_after(3))
    progress = tmp_path / PROGRESS
    progress.write_text(progress.read_text()[:-40])
    Here.asked = []
    refit(tmp_path, families=("collective",))
    assert len(Here.asked) == len(TABLES) - 2
    assert read(tmp_path / "collective.tsv", monkeypatch) == KNOWN


def test_progress_is_json_a_line(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        refit(tmp_path, families=("collective",), done=stop_after(2))
    entries = [json.loads(line) for line in (tmp_path / PROGRESS).read_text().splitlines()]
    assert [entry["key"] for entry in entries] == [f"collective {table.place}" for table in TABLES[:2]]
    assert all(entry["fits"][0]["family"] == "collective" for entry in entries)


def test_an_older_table_stays_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = tmp_path / "collective.tsv"
    older.write_text("older\n")
    with pytest.raises(Killed):
        refit(tmp_path, families=("collective",), done=stop_after(1))
    assert older.read_text() == "older\n"

    def full(self: Path, target: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        refit(tmp_path, families=("collective",))
    assert older.read_text() == "older\n"
    assert (tmp_path / PROGRESS).exists()


def test_without_the_public_tables_nothing_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "root", lambda: None)
    with pytest.raises(DomainError, match=r"not installed: pip install 'ridgeline\[measured\]'"):
        refit(tmp_path / "new")
    assert not (tmp_path / "new").exists()
