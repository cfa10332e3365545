"""A machine profile is written whole, read back the same, refused when damaged, and answers as a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import ClusterError, InputError
from ridgeline.facts import profiles
from ridgeline.facts.clusters import cluster
from ridgeline.facts.fits import fits, own_evidence, own_fits
from ridgeline.facts.profiles import BenchmarkRow, Noise, Profile, read_profile, this_machine, write_profile
from ridgeline.facts.records import Accelerator, Evidence, Fact, Host, Tier

CORES = 8


def fact(value: float, unit: str) -> Fact:
    return Fact(value=value, unit=unit, source="test", conditions="by hand", evidence=Evidence.HERE)


def made() -> Profile:
    """Eight cores at 800 GFLOP/s and 80 GB/s, with the shipped collective values of one device."""
    part = Accelerator(
        name="Eight cores",
        vendor="AMD",
        architecture="cpu",
        year=None,
        peak_flop_per_s={"fp32": 8e11},
        vector_flop_per_s=8e11,
        memory_bytes=64e9,
        memory_bytes_per_s=8e10,
        l2_bytes=32e6,
        sm_count=CORES,
        boost_hz=3e9,
        link_name=None,
        link_bytes_per_s=None,
        host_bytes_per_s=4e10,
        tdp_w=None,
        sustained={"matrix.fp32": fact(7e11, "FLOP/s"), "hbm": fact(6e10, "byte/s"), "stream.share": fact(0.9, "1")},
        facts={"peak_flop_per_s.fp32": fact(8e11, "FLOP/s"), "memory_bytes_per_s": fact(8e10, "byte/s")},
    )
    host = Host(
        devices=1,
        dram_bytes=64e9,
        dram_bytes_per_s=8e10,
        device_bytes_per_s=4e10,
        nvme_bytes=1e12,
        nvme_bytes_per_s=1e9,
        idle_w=0.0,
        evidence=Evidence.HERE,
    )
    values = dict(next(fit for fit in fits("collective") if fit.form == "any").values)
    known = replace(fits("collective")[0], device="", engine="torch", version="2.9", values=values, source="here")
    return Profile(
        kind="cpu",
        count=1,
        date="2025-01-01T00:00:00+00:00",
        budget_s=120.0,
        spent_s=110.0,
        machine=this_machine(),
        versions={"torch": "2.9"},
        accelerator=part,
        host=host,
        tiers=(Tier(name="shared memory", size=CORES, bytes_per_s=1e10, latency_s=2e-5, topology="bus"),),
        noise=Noise(spread_median=0.02, spread_p90=0.1, drift=0.03, reference_s=(1e-3, 1.02e-3, 1.03e-3)),
        fits=(known,),
        samples=(
            BenchmarkRow(kind="gemm", form="fp32", sizes={"m": 1.0}, seconds=1e-3, best_s=9e-4, spread=0.1, repeats=3),
        ),
        left_out=("fp8: torch says no",),
        energy="absent",
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_profile(tmp_path / "machine.json", made())
    return tmp_path / "machine.json"


def test_what_is_written_is_read_back_and_nothing_else_is_left(path: Path) -> None:
    assert read_profile(path) == made()
    assert [one.name for one in path.parent.iterdir()] == ["machine.json"]


def test_an_older_profile_stays_when_the_new_one_cannot_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profiles.os, "replace", full)
    with pytest.raises(InputError, match=r"machine\.json: cannot be written: No space left"):
        write_profile(path, made())
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == ["machine.json"]


def test_every_cut_of_the_file_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(0, len(whole) - 1, len(whole) // 40):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"machine\.json"):
            read_profile(path)


def test_an_edited_number_does_not_match_its_checksum(path: Path) -> None:
    path.write_text(path.read_text().replace("800000000000.0", "900000000000.0"))
    with pytest.raises(
        InputError, match=r"field 'checksum': is .* damaged or edited; run `ridgeline calibrate --force`"
    ):
        read_profile(path)


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the content and signs it anew, as another version of the program might have written it."""
    whole = json.loads(path.read_text())
    change(whole["profile"])
    whole["checksum"] = profiles._checksum(whole["profile"])
    path.write_text(json.dumps(whole))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda body: body.pop("noise"), "profile.noise"),
        (lambda body: body["accelerator"].update(memory_bytes_per_s="fast"), "profile.accelerator.memory_bytes_per_s"),
        (lambda body: body["accelerator"].update(memory_bytes_per_s=0), "profile.accelerator.memory_bytes_per_s"),
        (lambda body: body["accelerator"]["peak_flop_per_s"].update(fp32=-1), "accelerator.peak_flop_per_s.fp32"),
        (lambda body: body["accelerator"]["sustained"]["hbm"].update(evidence=9), "accelerator.sustained.hbm.evidence"),
        (lambda body: body.update(tiers=[]), "profile.tiers"),
        (lambda body: body["fits"][0]["values"].pop("hop_s_"), "profile.fits.0.values"),
        (lambda body: body["fits"][0]["low"].append(1.0), "profile.fits.0.low"),
        (lambda body: body["fits"][0]["shared"].pop(), "profile.fits.0.shared"),
        (lambda body: body["fits"][0].update(family="magic"), "profile.fits.0.values"),
        (lambda body: body.update(samples=7), "profile.samples"),
    ],
)
def test_a_damaged_field_is_named(path: Path, change: Callable[[dict[str, Any]], object], place: str) -> None:
    changed(path, change)
    with pytest.raises(InputError) as caught:
        read_profile(path)
    assert place in str(caught.value)
    assert "machine.json" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "nonsense", '{"format": 1}', '{"format": 9, "profile": {}}', "[" * 5000, "NaN"]
)
def test_other_files_are_no_profiles(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(InputError, match=r"other\.json"):
        read_profile(tmp_path / "other.json")
    with pytest.raises(InputError, match=r"no such file"):
        read_profile(tmp_path / "none.json")


def test_a_profile_is_a_cluster_whose_fits_answer_for_it(path: Path) -> None:
    found = cluster(f"profile:{path}")
    assert (found.count, found.accelerator.memory_bytes_per_s, found.host.devices) == (1, 8e10, 1)
    assert found.accelerator.name.startswith("Eight cores (")
    (fit,) = own_fits("collective", found.accelerator.name, form="any")
    assert (fit.engine, fit.version) == ("torch", "2.9")
    assert own_evidence("collective", found.accelerator.name) is Evidence.HERE
    assert own_evidence("gemm", found.accelerator.name) is None
    assert own_evidence("gemm", "H100-SXM") is None


def test_local_ranks_share_the_cores(path: Path) -> None:
    """Four ranks: two of eight cores, 200 of 800 GFLOP/s, 20 of 80 GB/s each; a share of a rate stays one."""
    part = cluster(f"4xprofile:{path}").accelerator
    assert (part.sm_count, part.peak_flop_per_s["fp32"], part.memory_bytes_per_s) == (2, 2e11, 2e10)
    assert (part.sustained["hbm"].value, part.sustained["stream.share"].value) == (1.5e10, 0.9)
    assert part.sustained["hbm"].evidence is Evidence.DERIVED
    assert own_evidence("collective", part.name) is Evidence.HERE
    with pytest.raises(ClusterError, match=r"asks for 9 of 8 cores for local ranks; write 8xprofile"):
        cluster(f"9xprofile:{path}")


def test_here_is_the_profile_in_the_folder_of_the_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles.platform, "system", lambda: "Linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(path.parent))
    assert profiles.default_path() == path.parent / "ridgeline" / "profiles" / "here.json"
    with pytest.raises(
        ClusterError, match=r"no profile of this machine at .*here\.json; run `ridgeline calibrate` first"
    ):
        cluster("here")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_DATA_HOME", str(path.parent))
    write_profile(profiles.default_path(), made())
    assert cluster("here").name == "here"
    assert cluster("4 x here").count == 4


def test_the_profile_of_another_machine_is_not_here(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "default_path", lambda: path)
    changed(path, lambda body: body["machine"].update(processor="Another 9000"))
    with pytest.raises(ClusterError, match=r"is of another machine \(processor 'Another 9000', here '.*--on profile:"):
        cluster("here")
    assert cluster(f"profile:{path}").count == 1
