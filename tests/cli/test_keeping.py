"""A check that was killed goes on where it stopped, and answers as if it had not been."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from ridgeline.api import checking as keeping
from ridgeline.cli.main import run
from ridgeline.validate.check import Checker

HEAD = (
    "id\tmodel\tparams_b\tseq_len\thardware\tn_devices\tdp\tmicro_batch\tglobal_batch\tprecision\tmetric\tvalue\tunit"
)
ROWS = [
    f"a{batch}\tGPT-2\t0.124\t1024\tA100-SXM-80GB\t8\t8\t{batch}\t{8 * batch}\tbf16\ttokens_per_s\t1000000\ttokens/s"
    for batch in range(1, 9)
]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(keeping.sys, "platform", "linux")
    monkeypatch.setattr(keeping, "_FROM_S", 0.0)
    path = tmp_path / "rows.tsv"
    path.write_text("\n".join((HEAD + "\tconfidence", *(f"{row}\thigh" for row in ROWS))) + "\n", encoding="utf-8")
    return path


def killed_after(rows: int, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a check whose process ends in the middle of a row."""
    answer, asked = Checker.answer, iter(range(rows))

    def mortal(self: Checker, *words: object) -> object:
        if next(asked, None) is None:
            raise KeyboardInterrupt
        return answer(self, *words)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Checker, "answer", mortal)
        assert run(["check", str(table), "--json"]) != 0


def left(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "ridgeline").glob("check-*.jsonl"))


def test_a_killed_check_goes_on_where_it_stopped(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", str(table), "--json"]) == 0
    whole = capsys.readouterr()
    assert not left(tmp_path)
    killed_after(5, table, monkeypatch)
    (file,) = left(tmp_path)
    assert len(file.read_text(encoding="utf-8").splitlines()) == 5
    file.write_text(file.read_text(encoding="utf-8")[:-20], encoding="utf-8")  # the fifth answer is cut short
    capsys.readouterr()
    asked: list[str] = []
    answer = Checker.answer
    with monkeypatch.context() as patch:
        patch.setattr(Checker, "answer", lambda self, row, of: asked.append(row.id) or answer(self, row, of))
        assert run(["check", str(table), "--json"]) == 0
    again = capsys.readouterr()
    assert asked == ["a5", "a6", "a7", "a8"]
    assert "going on after 4 answers" in again.err
    assert again.out == whole.out
    assert not left(tmp_path)


def test_another_table_or_another_package_begins_anew(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed_after(5, table, monkeypatch)
    table.write_text(table.read_text(encoding="utf-8").replace("1000000", "900000"), encoding="utf-8")
    capsys.readouterr()
    assert run(["check", str(table), "--json"]) == 0
    assert "going on" not in capsys.readouterr().err
    killed_after(5, table, monkeypatch)
    monkeypatch.setattr(keeping, "version", lambda _: "another")
    capsys.readouterr()
    assert run(["check", str(table), "--json"]) == 0
    assert "going on" not in capsys.readouterr().err


def through_a_pipe(content: str, path: Path) -> Path:
    """A pipe that gives this content once, written by another thread."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    threading.Thread(target=path.write_text, args=(content,), daemon=True).start()
    return path


def test_what_comes_through_a_pipe_is_read_once_and_never_resumed(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A killed check of one pipe once gave its rows to the next one: both were kept under the hash of an empty read."""
    one = table.read_text(encoding="utf-8")
    other = one.replace("\na", "\nb")
    killed_after(5, through_a_pipe(one, tmp_path / "pipe"), monkeypatch)
    assert not left(tmp_path)
    capsys.readouterr()
    assert run(["check", str(through_a_pipe(other, tmp_path / "pipe")), "--json"]) == 0
    printed = capsys.readouterr()
    assert [row["id"] for row in json.loads(printed.out)["rows"]] == [f"b{batch}" for batch in range(1, 9)]
    assert "going on" not in printed.err


def test_a_short_check_leaves_nothing_on_disk(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keeping, "_FROM_S", 1e9)
    killed_after(5, table, monkeypatch)
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    assert run(["check", str(table), "--json"]) == 0


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/ridgeline"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/ridgeline"),
        ("linux", {}, "/home/me/.cache/ridgeline"),
        ("darwin", {}, "/home/me/Library/Caches/ridgeline"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/ridgeline/cache"),
        ("win32", {}, "/home/me/AppData/Local/ridgeline/cache"),
    ],
)
def test_where_answers_are_kept(
    platform: str, variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(keeping.sys, "platform", platform)
    assert str(keeping.cache_folder()) == folder
