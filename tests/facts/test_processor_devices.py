"""Processors as devices: their memory, rates by format, sockets, and what they refuse."""

from __future__ import annotations

import pytest

from ridgeline.cost.machine import machine
from ridgeline.errors import ClusterError, RidgelineError, UnknownNameError
from ridgeline.facts.clusters import cluster
from ridgeline.facts.cpus import cpu, cpus
from ridgeline.facts.records import Evidence


def test_a_socket_has_its_own_memory_and_rates() -> None:
    device = cluster("epyc-9654").accelerator
    assert device.name == "EPYC-9654"
    assert device.memory_bytes == pytest.approx(12 * 64e9 * 0.97)
    assert device.facts["memory_bytes"].evidence is Evidence.ASSUMED
    assert device.memory_bytes_per_s == pytest.approx(460.8e9)
    assert device.sustained["hbm"].value == pytest.approx(460.8e9 * 0.78 * 0.85)
    assert machine(cluster("epyc-9654")).device.matrix_rate("bf16") == pytest.approx(14.75e12 * 0.31)


def test_a_size_in_the_name_is_its_memory() -> None:
    assert cluster("EPYC-9654-384gb").accelerator.memory_bytes == pytest.approx(384e9 * 0.97)
    assert cluster("2xXeon-Platinum-8480-1024gb").count == 2
    with pytest.raises(ClusterError, match="say which"):
        cluster("raspberry-pi-5")
    with pytest.raises(UnknownNameError):
        cluster("epyc-0000")


def test_tiles_and_vectors_have_their_own_shares() -> None:
    amx, avx2 = cluster("xeon-platinum-8480").accelerator, cluster("epyc-7742").accelerator
    assert amx.sustained["matrix.bf16"].value == pytest.approx(cpu("8480+").peak["bf16"].value * 0.145)
    assert amx.sustained["matrix.int8"].value == pytest.approx(cpu("8480+").peak["int8"].value * 0.12)
    assert avx2.sustained["matrix.bf16"].value == pytest.approx(cpu("EPYC-7742").peak["fp32"].value * 0.71)


def test_two_sockets_are_joined_by_an_assumed_link() -> None:
    found = cluster("2xepyc-9654")
    assert found.count == 2
    assert found.tiers[0].bytes_per_s == pytest.approx(60e9)
    assert found.price_usd_per_device_h is None


@pytest.mark.parametrize("name", sorted(cpus()))
def test_every_processor_of_the_table_is_a_device(name: str) -> None:
    device = cluster(f"{name}-64gb").accelerator
    assert device.memory_bytes == pytest.approx(64e9 * 0.97)
    assert 0 < device.sustained["hbm"].value < device.memory_bytes_per_s
    for form in ("fp32", "fp16", "bf16"):
        assert 0 < device.sustained[f"matrix.{form}"].value < device.peak_flop_per_s[form]


def _tpot_s(on: str, **words: object) -> float:
    import ridgeline as rl

    asked = {"serve": True, "batch": 1, "prompt": 128, "output": 16, **words}
    return float(rl.predict("llama-3.2-1b", on=on, **asked)["tpot"]["mean_s"])  # type: ignore[arg-type]


def test_a_decode_step_reads_the_weights_at_the_memory_rate() -> None:
    rate = cluster("epyc-9654").accelerator.sustained["hbm"].value
    least_s = 1.236e9 * 2 / rate
    assert least_s < _tpot_s("epyc-9654") < 1.3 * least_s
    assert _tpot_s("epyc-9654", engine="llama.cpp", weights="q4_k") < _tpot_s("epyc-9654")


def test_what_does_not_fit_is_refused_in_words() -> None:
    import ridgeline as rl

    with pytest.raises(RidgelineError, match="will not start"):
        rl.predict("llama-3.1-70b", on="ryzen-7-7700x-64gb", serve=True, batch=1)
    assert rl.predict("gpt2", on="epyc-9654", micro_batch=1, global_batch=2, quick=True)["fits"]
