"""Words of offloading rows that any source may use: where weights are, flags of llama.cpp, gigabytes by device."""

from __future__ import annotations

import pytest

from ridgeline.cost.host import Kernel
from ridgeline.errors import NoPlanError
from ridgeline.serving.hybrid import decode, prefill
from ridgeline.serving.hybrid_placement import DeviceOrder, OffloadMethod
from ridgeline.serving.hybrid_sides import link_bytes_per_s
from ridgeline.serving.streamed_fill import as_placed
from ridgeline.serving.streamed_machine import job_of, machine_of
from ridgeline.serving.streamed_schedule import scheduled
from ridgeline.validate.offload import Offloaded, OffloadRows, ready
from ridgeline.validate.offload_rows import OffloadedJob, read_offloaded
from ridgeline.validate.rows import Row

CELLS = {
    "model": "llama-2-7b", "gpu": "RTX-4090-24GB", "n_gpu": "1", "engine": "llama.cpp", "precision_weights": "fp16",
    "batch": "1", "isl": "512", "osl": "32", "metric": "decode_tok_s", "unit": "tok/s", "value": "10",
}  # fmt: skip


def read(**changes: str) -> OffloadedJob:
    return read_offloaded(Row(line=2, id="u", cells=CELLS | changes))


@pytest.mark.parametrize(
    ("technique", "placement", "method", "share"),
    [
        ("weights on CPU streamed to GPU", "weights CPU; KV cache GPU", OffloadMethod.STREAMED, 0.0),
        ("all on GPU", "", OffloadMethod.LAYERS, 1.0),
        ("layers over two GPUs", "GPU0 9 GB, GPU1 9 GB, CPU 0 GB", OffloadMethod.LAYERS, 1.0),
        ("layers on CPU", "ngl 8 of 32 layers", OffloadMethod.LAYERS, 0.25),
        ("layers on CPU", "-ngl 99", OffloadMethod.LAYERS, 1.0),
        ("layer split CPU/GPU", "8 layers on GPU", OffloadMethod.LAYERS, 0.25),
        ("layers on CPU", "24 of the layers on GPU", OffloadMethod.LAYERS, 0.75),
        ("weights on CPU streamed to GPU", "16 layers in VRAM, 16 in pinned RAM", OffloadMethod.STREAMED, 0.5),
    ],
)
def test_where_layers_are(technique: str, placement: str, method: OffloadMethod, share: float) -> None:
    found = read(technique=technique, placement=placement)
    assert found.technique is method
    assert found.device_share == pytest.approx(share)


@pytest.mark.parametrize(
    ("placement", "away"),
    [
        ("n-cpu-moe 12", 12),
        ("ffn tensors of layers 34-47 on CPU, all else on GPU (-ot)", 14),
        ("ffn of layers 0-4 on GPU, 5-47 on CPU; attention on GPU", 43),
        ("about 14 ffn layers on GPU, the rest on CPU", 34),
    ],
)
def test_experts_of_some_layers(placement: str, away: int) -> None:
    found = read(model="qwen3-30b-a3b", technique="experts of some layers on CPU", placement=placement)
    assert found.device_share == pytest.approx(1 - away / 48)
    assert found.share_of == "experts"


DENSE = {"model": "llama-2-7b", "precision_weights": "fp16", "technique": "layers on CPU", "cpu": "EPYC 7302"}
MIXTURE = {
    "model": "qwen3-30b-a3b", "technique": "experts of some layers on CPU", "cpu": "Ryzen 9 7950X", "n_gpu": "1",
    "placement": "ffn tensors of layers 34-47 on CPU", "precision_weights": "IQ4_XS",
}  # fmt: skip


def ready_row(**changes: str) -> Offloaded:
    row = Row(line=2, id="u", cells=CELLS | MIXTURE | changes)
    return ready(read_offloaded(row), row)


def test_layers_of_experts_on_the_host_are_whole_layers() -> None:
    found = ready_row()
    assert found.hybrid.placement.order is DeviceOrder.FRONT
    assert not any("not stated: as many" in words for words in found.assumptions)


def test_kernels_of_llama_cpp_and_its_relative_by_format_and_flags() -> None:
    assert ready_row().hybrid.habits.kernel is Kernel.LLAMA_CPP  # 16 values, not the tables of IQ1 to IQ3
    assert ready_row(precision_weights="IQ3_S").hybrid.habits.kernel is Kernel.CODEBOOK
    own = ready_row(engine="ik_llama.cpp").hybrid.habits
    assert (own.kernel, own.lends, own.counts_uses) == (Kernel.REPACKED, True, True)
    assert not ready_row(engine="ik_llama.cpp", engine_version="cdcb324f (3742)").hybrid.habits.counts_uses
    assert not ready_row(engine="ik_llama.cpp", note="-fa -rtr -fmoe").hybrid.habits.lends
    assert ready_row(note="--no-mmap").hybrid.habits.pinned


def test_an_expert_crosses_the_link_for_32_tokens_of_its_own() -> None:
    """128 experts, 8 taken: 32 of each are 512 tokens of a prompt."""
    job = ready_row(engine="ik_llama.cpp", engine_version="(3743)").hybrid
    short, long = (prefill(job, 1.0, tokens) for tokens in (511.0, 512.0))
    assert float(short.link.sum()) == 0.0 < float(short.host.sum())
    assert float(long.host.sum()) == 0.0 < float(long.link.sum())


def test_a_prompt_after_a_context_attends_to_it() -> None:
    first, later = (prefill(ready_row().hybrid, 1.0, 512.0, cached) for cached in (0.0, 16384.0))
    assert float(later.device.sum()) > float(first.device.sum())
    assert float(later.link.sum()) == float(first.link.sum())


def test_threads_in_a_note_a_stated_cache_and_an_accelerator_that_is_only_counted() -> None:
    found = ready_row(note="-fa, 12 threads", precision_kv="q8_0", gpu="")
    assert found.hybrid.host is not None
    assert found.hybrid.host.cores == 12
    assert found.hybrid.formats.cache == "q8_0"
    assert any("accelerators not stated: RTX-4090 assumed" in words for words in found.job.assumptions)


def test_threads_of_a_placement_and_no_weights_on_a_disk_that_holds_none() -> None:
    assert read(placement="8 threads", cpu="EPYC 7302 (16 cores)", technique="layers on CPU").host.cores == 8  # type: ignore[union-attr]
    streamed = {"technique": "weights on CPU streamed to GPU", "host_mem": "48 GB"}
    found = [ready_row(**streamed, placement=f"16 in pinned RAM, {disk} on NVMe") for disk in ("0", "10")]
    assert [one.hybrid.placement.from_disk for one in found] == [False, True]


def test_lanes_of_a_host_link_and_a_drive_by_its_generation() -> None:
    """Eight lanes of the third generation are half of 15.75 GB/s; a drive of the fifth has twice 7 GB/s."""
    found = ready_row(
        technique="layers on CPU", host_mem="48 GB; PCIe Gen3 x8", disk="PCIe Gen 5 NVMe", cpu="EPYC 7302"
    )
    assert found.job.part is not None
    assert found.job.part.host_bytes_per_s == pytest.approx(15.75e9 / 2)
    assert found.hybrid.placement.read_bytes_per_s == pytest.approx(14e9)
    drive = read(technique="layers on CPU", note="PCIe 3.0 x4 SSD", cpu="EPYC 7302").part
    assert drive is not None
    assert drive.host_bytes_per_s != pytest.approx(15.75e9 / 4)


def test_a_prompt_of_a_model_without_layers_on_the_device_crosses_the_link() -> None:
    """512 tokens are 16 batches of 32: every layer's 2 bytes a weight cross once, a token's stay on the processors."""
    found = ready_row(**DENSE, placement="0 layers on GPU", host_mem="64 GB").hybrid
    prompt, token = prefill(found, 1.0, 512.0), decode(found, 1.0, 512.0)
    layers = sum(kind.count * found.layer_bytes(kind, experts=False) for kind in found.whole.kinds)
    assert float(prompt.link.sum()) == pytest.approx(layers / link_bytes_per_s(found))
    assert float(token.link.sum()) == 0.0


def test_pages_of_a_file_larger_than_host_memory_are_read_again() -> None:
    """13 GB in a mapped file over 8 GB: a circle through it finds no page; sixteen threads wait for a fault each.

    One thread reads 131,072 bytes in 50 us and their time at 7 GB/s, 1.9 GB/s: sixteen ask for more than the drive has.
    """
    cells = DENSE | {"placement": "0 layers on GPU"}
    small, large = (ready_row(**cells, host_mem=f"{size} GB") for size in (8, 64))
    read_s = float(decode(small.hybrid, 1.0, 512.0).disk.sum())
    assert read_s == pytest.approx(small.hybrid.total_bytes / 7e9)
    assert float(decode(large.hybrid, 1.0, 512.0).disk.sum()) == 0.0
    assert any("read again" in words for words in small.assumptions)
    with pytest.raises(NoPlanError, match="do not fit"):
        decode(ready_row(**cells, host_mem="8 GB", note="no mmap").hybrid, 1.0, 512.0)


def test_flexgen_is_placed_as_a_row_says_by_the_options_that_it_takes_unasked() -> None:
    """Weights and cache beside the device, one batch: the device attends, and the link brings all weights each step."""
    row = {
        "model": "opt-30b", "gpu": "RTX-A6000-48GB", "technique": "weights on CPU streamed to GPU", "engine": "FlexGen",
        "precision_weights": "fp16", "placement": "weights CPU; KV cache CPU", "batch": "200", "isl": "512",
        "osl": "32", "context_depth": "", "cpu": "", "metric": "generation_tok_s", "value": "13.24",
    }  # fmt: skip
    found = ready_row(**row)
    policy = as_placed(found.hybrid, 200, 200.0 * 544)
    assert policy.shares.tolist() == [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    assert (policy.gpu_batch, policy.gpu_batches, policy.cpu_attention) == (200, 1, False)
    job = job_of(found.hybrid.model, 512, 32)
    run = scheduled(job, machine_of(found.hybrid, job), policy)
    said = OffloadRows().answer(Row(line=2, id="u", cells=CELLS | MIXTURE | row))
    assert said["predicted"] == pytest.approx(200 * 32 / (run.prefill_s + run.decode_s * 32 / 31), rel=1e-6)
