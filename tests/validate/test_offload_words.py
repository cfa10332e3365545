"""Words of offloading rows that any source may use: where weights are, flags of llama.cpp, gigabytes by device."""

from __future__ import annotations

import pytest

from ridgeline.serving.hybrid_placement import OffloadMethod
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


def test_experts_of_some_layers() -> None:
    found = read(model="qwen3-30b-a3b", technique="experts of some layers on CPU", placement="n-cpu-moe 12")
    assert found.device_share == pytest.approx(1 - 12 / 48)
    assert found.share_of == "experts"
