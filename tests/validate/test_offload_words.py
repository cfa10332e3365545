"""Words of offloading rows that any source may use: where weights are, flags of llama.cpp, gigabytes by device."""

from __future__ import annotations

import pytest

from ridgeline.cost.host import Kernel
from ridgeline.serving.hybrid import prefill
from ridgeline.serving.hybrid_placement import DeviceOrder, OffloadMethod
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
