"""Rows of offloading tables as jobs: technique, host, shares and formats worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.serving.hybrid_placement import OffloadMethod
from ridgeline.validate.offload_rows import read_offloaded
from ridgeline.validate.rows import Row

BASE = {
    "model": "DeepSeek-V3", "gpu": "RTX-4090-24GB", "n_gpu": "1", "gpu_mem_gb": "24",
    "cpu": "2 x Xeon Gold 6454S (32 cores each)", "host_mem": "1 TB DDR5-4800, 8 channels per socket",
    "technique": "experts on CPU, attention+shared on GPU", "engine": "KTransformers", "precision_weights": "Q4_K_M",
    "placement": "8 experts used of 8", "batch": "1", "isl": "500", "metric": "decode_tok_s", "value": "12",
    "unit": "tok/s", "source": "KT",
}  # fmt: skip


def row(**cells: str) -> Row:
    return Row(line=2, id="off1", cells={**BASE, **cells})


def test_experts_computed_by_the_host() -> None:
    job = read_offloaded(row())
    assert job.host is not None
    assert (job.technique, job.device_share, job.share_of) == (OffloadMethod.COMPUTED, 0.0, "experts")
    assert (job.host.sockets, job.host.cores) == (2, 64)
    assert job.host.memory_bytes_per_s == pytest.approx(2 * 8 * 4800e6 * 8)
    assert job.host.memory_bytes == 1e12
    assert (job.weights, job.experts_used) == ("q4_k", None)
    assert (job.metric, job.unit_si) == ("decode_rate", 1.0)


def test_fewer_experts_than_the_model_takes() -> None:
    assert read_offloaded(row(placement="dual socket, 6 experts")).experts_used == 6


@pytest.mark.parametrize(
    ("technique", "engine", "placement", "expected", "share"),
    [
        ("CPU computes missing experts", "Fiddler", "", OffloadMethod.COMPUTED, None),
        ("expert offload to host", "MoE-Infinity", "", OffloadMethod.FETCHED, None),
        ("expert offload to host", "DeepSpeed", "", OffloadMethod.STREAMED, None),
        ("expert offload to host", "Ollama", "", OffloadMethod.LAYERS, None),
        ("8 of 61 layers on GPU (-ngl 8)", "llama.cpp", "", OffloadMethod.LAYERS, 8 / 61),
        ("weights on disk", "FlexGen", "", OffloadMethod.STREAMED, None),
        ("expert split CPU/GPU, TP4", "KT", "30% of experts on GPU, uniform", OffloadMethod.COMPUTED, 0.3),
        ("64 experts per layer on GPU, rest on CPU", "KT", "", OffloadMethod.COMPUTED, 0.25),
        ("hot neurons on GPU, cold on CPU", "PowerInfer", "", OffloadMethod.NEURONS, None),
        ("neuron-level offload", "PowerInfer", "", OffloadMethod.NEURONS, None),
        ("HybriMoE", "KTransformers", "", OffloadMethod.COMPUTED, None),
        ("Fiddler", "", "", OffloadMethod.COMPUTED, None),
        ("ZeRO-Inference", "", "", OffloadMethod.STREAMED, None),
        ("weights streamed", "KTransformers", "", OffloadMethod.STREAMED, None),
        ("device_map=auto", "HF Accelerate", "", OffloadMethod.STREAMED, None),
        ("CPU only", "llama.cpp", "", OffloadMethod.HOST, 0.0),
    ],
)
def test_techniques_and_shares(
    technique: str, engine: str, placement: str, expected: OffloadMethod, share: float | None
) -> None:
    job = read_offloaded(row(technique=technique, engine=engine, placement=placement))
    assert job.technique == expected
    assert job.device_share == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("technique", "expected"),
    [
        ("on-device CPU", OffloadMethod.HOST),
        ("experts on CPU", OffloadMethod.HOST),
        ("CPU with disk offload", OffloadMethod.DISK),
    ],
)
def test_techniques_without_an_accelerator(technique: str, expected: OffloadMethod) -> None:
    job = read_offloaded(row(gpu="none", technique=technique, engine="llama.cpp"))
    assert (job.technique, job.device_share) == (expected, 0.0)


def test_a_row_that_counts_no_accelerator_has_none() -> None:
    words = {"gpu": "", "technique": "CPU only", "cpu": "Ryzen 9 7950X", "engine": "llama.cpp"}
    assert read_offloaded(row(n_gpu="0", **words)).devices == 0
    assert read_offloaded(row(n_gpu="1", **words | {"technique": "weights on CPU streamed to GPU"})).devices == 1


def test_a_host_alone_whose_memory_is_limited() -> None:
    job = read_offloaded(
        row(
            gpu="none",
            n_gpu="",
            cpu="Raspberry Pi 5",
            host_mem="limit 1 GiB",
            technique="on-device CPU with disk offload",
        )
    )
    assert (job.part, job.devices) == (None, 0)
    assert job.host is not None
    assert (job.host.limit_bytes, job.host.memory_bytes, job.host.memory_bytes_per_s) == (
        2.0**30,
        None,
        pytest.approx(17.1e9),
    )


@pytest.mark.parametrize(
    ("cell", "sockets", "cores"),
    [
        ("48-core Intel Skylake", 2, 48),
        ("Xeon Ice Lake, 64 cores", 2, 64),
        ("2 x EPYC 9654 (192 cores)", 2, 192),
        ("EPYC 9654 (84 of 96 cores used)", 1, 84),
        ("EPYC 9654 (12 threads)", 1, 12),
        ("Xeon Gold 6454S", 2, 64),
        ("dual EPYC 9474F 48-Core", 2, 96),
        ("AMD EPYC 9474F 48-Core Processor", 1, 48),
        ("2 x Xeon Silver 4410Y (Sapphire Rapids), 12 cores", 2, 24),
        ("16 cores, 4 GHz, dual-channel DDR5-6000", 1, 16),
    ],
)
def test_sockets_and_cores(cell: str, sockets: int, cores: int) -> None:
    host = read_offloaded(row(cpu=cell)).host
    assert host is not None
    assert (host.sockets, host.cores) == (sockets, cores)
    assert host.peak_flop_per_s("fp32") == pytest.approx(host.cpu.peak["fp32"].value * cores / host.cpu.cores)


def test_sticks_give_speed_and_size() -> None:
    host = read_offloaded(row(cpu="2 x EPYC 7C13", host_mem="8 x 64 GB DDR4-2933")).host
    assert host is not None
    assert host.memory_bytes == 512e9
    assert host.memory_bytes_per_s == pytest.approx(2 * 8 * 2933e6 * 8)


def test_host_link_and_formats_of_both_sides() -> None:
    job = read_offloaded(row(note="PCIe 4.0", gpu="RTX-5090-32GB", precision_weights="int8 CPU / int4 GPU"))
    assert job.part is not None
    assert job.part.host_bytes_per_s == 31.5e9
    assert (job.weights, job.host_weights) == ("int4_wo", "int8_wo")


def test_drafts_and_their_acceptance() -> None:
    job = read_offloaded(row(technique="hybrid experts, EAGLE-style NextN depth 1, 90% accept"))
    assert (job.speculative, job.accepted) == (1.0, 0.9)
    assert read_offloaded(row(technique="hybrid experts, speculative off")).speculative is None


def test_seconds_a_token() -> None:
    job = read_offloaded(row(metric="latency_per_token_s", unit="s"))
    assert (job.metric, job.unit_si) == ("tpot", 1.0)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"cpu": "", "gpu": "none"}, "neither a processor nor an accelerator"),
        ({"cpu": "2000 cores"}, "2000 cores of one socket; needs 1 to 1024"),
        ({"technique": ""}, "technique is not stated"),
        ({"technique": "magic"}, "no known way of offloading"),
        ({"model": "Switch-large-128"}, "encoder-decoders with experts"),
        ({"model": "DeepSeek-V4-Flash"}, "compressed tokens"),
        ({"model": "(average over models)"}, "not one model"),
        ({"batch": "several"}, "is not a number"),
    ],
)
def test_rows_that_cannot_be_read_say_why(cells: dict[str, str], message: str) -> None:
    with pytest.raises(RidgelineError, match=message):
        read_offloaded(row(**cells))


@given(
    st.sampled_from(sorted([*BASE, "note", "osl", "context_depth", "engine_version", "precision_kv"])),
    st.text(max_size=30) | st.sampled_from(["0 x", "9 x EPYC 9654", "limit GiB", "999% of experts on GPU", "0-9"]),
)
def test_whatever_a_cell_holds_the_answer_is_a_job_or_a_reason(name: str, text: str) -> None:
    try:
        words = read_offloaded(row(**{name: text})).technique.value
    except RidgelineError as error:
        words = str(error)
    assert words
