"""A journal gives back what a killed run finished, of the same machine and version only."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.calibrate.here import host
from ridgeline.calibrate.here.kernels import measured
from ridgeline.calibrate.here.run import Journal
from ridgeline.errors import InputError

ROW = measured("gemm", "fp32", {"m": 1}, [1e-3, 2e-3, 3e-3], flop=2e6)


def test_a_row_is_the_median_of_repeats_with_their_spread() -> None:
    """10 and 90 % quantiles of 1, 2, 3 ms are 1.2 and 2.8 ms: half their distance is 0.4 of the median."""
    assert (ROW.seconds, ROW.best_s, ROW.repeats) == (2e-3, 1e-3, 3)
    assert ROW.spread == pytest.approx(0.4)


def opened(folder: Path, fingerprint: str = "abc") -> Journal:
    return Journal(folder / "here.json", fingerprint)


def test_finished_benchmarks_are_given_back(tmp_path: Path) -> None:
    with opened(tmp_path) as first:
        assert (first.told, first.finished) == ("", {})
        first.add("gemm", [ROW, ROW], ["one shape"], 1.5)
        with pytest.raises(InputError, match="another calibration is writing it"):
            opened(tmp_path)
    with opened(tmp_path) as second:
        assert second.finished == {"gemm": ((ROW, ROW), ("one shape",), 1.5)}
        assert "1 benchmarks are done" in second.told
        second.add("disk", [], [], 0.5)
    with opened(tmp_path) as third:
        assert list(third.finished) == ["gemm", "disk"]
        third.remove()
    assert list(tmp_path.iterdir()) == []


def test_another_machine_or_version_starts_clean_and_says_so(tmp_path: Path) -> None:
    with opened(tmp_path) as first:
        first.add("gemm", [ROW], [], 1.0)
    with opened(tmp_path, "abd") as other:
        assert other.finished == {}
        assert other.told == "an older journal is of another machine or version: starting clean"
    with opened(tmp_path) as again:
        assert again.finished == {}


@pytest.mark.parametrize("cut", [2, 5, 30, 60])
def test_a_line_cut_by_the_kill_is_measured_again(tmp_path: Path, cut: int) -> None:
    with opened(tmp_path) as first:
        first.add("gemm", [ROW], [], 1.0)
        first.add("disk", [ROW], [], 1.0)
    first.path.write_text(first.path.read_text()[:-cut])
    with opened(tmp_path) as second:
        assert list(second.finished) == ["gemm"]
        second.add("disk", [ROW], [], 1.0)
    with opened(tmp_path) as third:
        assert list(third.finished) == ["gemm", "disk"]


@pytest.mark.parametrize("text", ["", "nonsense\n", "[]\n", '{"format": 1}\n{"name": "gemm"}\n', "\x00\xff\n"])
def test_a_journal_of_something_else_is_begun_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "here.json.journal").write_bytes(text.encode("latin-1"))
    with opened(tmp_path) as journal:
        assert journal.finished == {}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"here\.json\.journal: cannot be written"):
        opened(tmp_path / "file")


def test_the_disk_test_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "DISK_BYTES", 8 * 2**20)
    rows, _ = host.disk(tmp_path, 1.0)
    assert [(row.form, row.bytes) for row in rows] == [("write", 8 * 2.0**20), ("read", 8 * 2.0**20)]
    assert all(row.seconds > 0 for row in rows)
    assert list(tmp_path.iterdir()) == []
    rows, left_out = host.disk(tmp_path / "none", 1.0)
    assert rows == []
    assert "No such file" in left_out[0]


def test_package_power_is_the_counters_growth_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages that count 5 J and 3 J in 2 s; the cores below one are not counted again."""
    assert host.package_power_w(root=str(tmp_path)) is None
    ticks = iter((10.0, 10.1, 12.0, 12.0))
    monkeypatch.setattr(host.time, "perf_counter", lambda: next(ticks))
    counters = {"intel-rapl:0": 5e6, "intel-rapl:1": 3e6, "intel-rapl:0:0": 9e6}
    for name in counters:
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text("100\n")

    def work() -> None:
        for name, grown in counters.items():
            (tmp_path / name / "energy_uj").write_text(f"{100 + grown:.0f}\n")

    assert host.package_power_w(work, root=str(tmp_path)) == pytest.approx(8.0 / 2.0)
