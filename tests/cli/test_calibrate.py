"""`ridgeline calibrate`: what it says, what it refuses, and that no other command pays for it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.api import calibrating
from ridgeline.calibrate.here import fitting
from ridgeline.calibrate.here.kernels import measured, products
from ridgeline.cli.main import run
from ridgeline.facts.profiles import Noise, Profile, this_machine, write_profile
from ridgeline.facts.records import Accelerator, Evidence, Fact, Host, Tier

ASK = "import sys; from ridgeline.cli.main import run; code = run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"


def fact(value: float, unit: str) -> Fact:
    return Fact(value=value, unit=unit, source="ridgeline calibrate", conditions="by hand", evidence=Evidence.HERE)


def made() -> Profile:
    """Four cores whose products take what 300 GFLOP/s and 20 GB/s make of them, plus 10 us."""
    part = Accelerator(
        name="Four cores", vendor="AMD", architecture="cpu", year=None, peak_flop_per_s={"fp32": 3e11, "bf16": 6e11},
        vector_flop_per_s=3e11, memory_bytes=16e9, memory_bytes_per_s=2e10, l2_bytes=3.2e7, sm_count=4, boost_hz=3e9,
        link_name=None, link_bytes_per_s=None, host_bytes_per_s=1e10, tdp_w=None,
        sustained={"matrix.fp32": fact(3e11, "FLOP/s"), "hbm": fact(2e10, "byte/s"), "stream.share": fact(1.0, "1")},
        facts={"peak_flop_per_s.fp32": fact(3e11, "FLOP/s"), "peak_flop_per_s.bf16": fact(6e11, "FLOP/s"),
               "memory_bytes_per_s": fact(2e10, "byte/s")},
    )  # fmt: skip
    samples = []
    for sizes in products():
        m, n, k = (sizes[name] for name in "mnk")
        seconds = 1e-5 + max(2 * m * n * k / 3e11, 4 * (m * k + n * k + m * n) / 2e10)
        samples.append(measured("gemm", "fp32", sizes, [seconds] * 3, flop=2 * m * n * k))
    host = Host(
        devices=1, dram_bytes=16e9, dram_bytes_per_s=2e10, device_bytes_per_s=1e10, nvme_bytes=1e11,
        nvme_bytes_per_s=1e9, idle_w=0.0, evidence=Evidence.HERE,
    )  # fmt: skip
    return Profile(
        kind="cpu", count=1, date="2025-01-01T00:00:00+00:00", budget_s=120.0, spent_s=110.0, machine=this_machine(),
        versions={"torch": "2.9"}, accelerator=part, host=host,
        tiers=(Tier(name="shared memory", size=4, bytes_per_s=1e10, latency_s=2e-5, topology="bus"),),
        noise=Noise(spread_median=0.02, spread_p90=0.1, drift=0.03, reference_s=(1e-3, 1e-3, 1.03e-3)),
        samples=tuple(samples), left_out=("gemm fp8: torch says no",), energy="package power is absent",
    )  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile with a fit of products where SciPy can make one."""
    found = tmp_path_factory.mktemp("profiles") / "four.json"
    profile = made()
    if fitting.has_scipy():
        rows = fitting.rows_of("gemm", "fp32", profile.samples, profile.accelerator)
        fit, _ = fitting.fit_rows(rows, version="2.9", source="ridgeline calibrate 2025", date="2025-01-01")
        assert fit is not None
        profile = replace(profile, fits=(fit,))
    write_profile(found, profile)
    return found


def test_operators_are_answered_as_measured_here(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1024^3 in fp32 is 2.147 GFLOP: 7.2 ms at 300 GFLOP/s. 256 MiB stream in 13.4 ms at 20 GB/s."""
    pytest.importorskip("scipy", reason="fitting needs SciPy")
    assert run(["op", "gemm", "1024x1024x1024", "fp32", "--on", f"profile:{path}", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["evidence"], row["rung"], row["library"]) == ("measured here", "fitted", "torch 2.9")
    assert row["seconds"] == pytest.approx(7.17e-3, rel=0.1)
    assert run(["op", "stream", "256MiB", "--on", f"profile:{path}", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["evidence"] == "measured here"
    assert row["seconds"] == pytest.approx(13.42e-3, rel=0.01)


def test_other_commands_take_the_machine(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    on = f"profile:{path}"
    words = ["predict", "gpt2", "--on", on, "--seq-len", "512", "--json"]
    assert run(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["cluster"]["name"] == on if isinstance(said["cluster"], dict) else said["cluster"] == on
    assert run(["simulate", "gpt2", "--on", on, "--concurrency", "2", "--requests", "8"]) == 0


def test_a_profile_is_kept_and_a_bad_budget_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = path.read_bytes()
    assert run(["calibrate", "--out", str(path)]) == 2
    assert "exists; give --force to measure again and replace it, or --out another" in capsys.readouterr().err
    assert path.read_bytes() == before
    for budget in ("1h 3", "-5s", "nan", "5GB", "2d"):
        assert run(["calibrate", "--budget", budget, "--out", str(path.parent / "none.json")]) == 2
        assert "--budget" in capsys.readouterr().err
    assert not (path.parent / "none.json").exists()


def test_without_torch_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["calibrate", "--out", str(tmp_path / "one.json")]) == 2
    assert "measuring needs PyTorch: pip install 'ridgeline[measure]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_profile_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text('{"format": 1, "checksum": "0", "profile": {}}')
    assert run(["op", "stream", "1GB", "--on", f"profile:{tmp_path / 'bad.json'}"]) == 2
    assert "bad.json: field 'checksum'" in capsys.readouterr().err


def test_what_was_found_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrating, "measure", lambda **given: (path, made()))
    assert run(["calibrate"]) == 0
    said = capsys.readouterr().out
    for words in ("300 GFLOP/s", "20 GB/s", "Noise: repeats lie 2.0%", "moved by 3.0%", "package power is absent"):
        assert words in said
    assert f"--on profile:{path}" in " ".join(said.split())
    assert run(["calibrate", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["kind"], answer["rows"], answer["left_out"]) == ("cpu", len(products()), ["gemm fp8: torch says no"])


@pytest.mark.parametrize(
    "words",
    [
        ["op", "gemm", "512x512x512", "--on", "H100-SXM"],
        ["catalog", "accelerators"],
        ["calibrate", "--help"],
        ["predict", "gpt2", "--on", "8xH100-SXM"],
    ],
)
def test_no_other_command_imports_torch(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", ASK, *words], capture_output=True, text=True, check=True)
    assert "torch" not in done.stderr.split()
    assert "ridgeline.calibrate.here.run" not in done.stderr.split()


ROW = {
    "id": "one", "model": "own", "layers": "2", "hidden": "64", "heads": "4", "vocab": "128", "seq_len": "16",
    "n_devices": "2", "interconnect": "shared memory", "tp": "2", "pp": "1", "dp": "1", "cp": "1", "ep": "1",
    "zero_stage": "0", "micro_batch": "4", "global_batch": "4", "recompute": "none", "precision": "fp32",
    "engine": "ridgeline measure, torch 2.9", "metric": "step_time", "value": "0.01", "unit": "s",
    "source": "measured here",
}  # fmt: skip


def test_rows_measured_on_a_machine_of_ones_own_are_checked_by_its_profile(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ridgeline.run.append import append_rows

    table = tmp_path / "own.tsv"
    append_rows(str(table), [{**ROW, "hardware": f"profile:{path} (Four cores)"}])
    append_rows(str(table), [{**ROW, "id": "two", "hardware": f"profile:{path} (Eight cores)"}])
    assert run(["check", str(table), "--json"]) == 0
    one, two = json.loads(capsys.readouterr().out)["rows"]
    assert one["status"] == "scored"
    assert one["predicted"] > 0
    assert one["engine"] == "ridgeline measure"
    assert two["status"] == "refused"
    assert "measured on 'Eight cores', the profile" in two["reason"]
