"""Words of offloading rows that any source may use: where weights are, flags of llama.cpp, gigabytes by device."""

from __future__ import annotations

import pytest

from ridgeline.cost.host import Kernel
from ridgeline.serving.hybrid import prefill
from ridgeline.serving.hybrid_placement import DeviceOrder, OffloadMethod
from ridgeline.validate.offload import Offloaded, ready
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
    assert (own.kernel, own.lends, own.counts_uses) == (Kernel.REPACKED, True, False)
    assert ready_row(engine="ik_llama.cpp", engine_version="cdcb324f (3743)").hybrid.habits.counts_uses
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
