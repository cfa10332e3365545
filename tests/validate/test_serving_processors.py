"""Serving rows of computers without an accelerator: which of them are answered as offload rows, and how."""

from __future__ import annotations

import pytest

from ridgeline.serving.hybrid_placement import OffloadMethod
from ridgeline.validate.offload_rows import on_processors, read_offloaded
from ridgeline.validate.rows import Row

CELLS = {
    "id": "x1", "model": "Llama-3.2-3B", "hardware": "Pi 5 - 8GB", "n_devices": "1", "engine": "ollama/llama.cpp",
    "precision_weights": "Q4_K_M", "scenario": "single-stream", "batch_or_concurrency": "1", "metric": "decode_tok_s",
    "value": "4.6", "unit": "tok/s", "source": "X", "note": "",
}  # fmt: skip


def _row(**cells: str) -> Row:
    return Row(id="x1", line=2, cells={**CELLS, **cells}, problem=None)


@pytest.mark.parametrize(
    ("cell", "processor", "bytes_per_s"),
    [
        ("Pi 5 - 8GB", "Raspberry-Pi-5", 17.1e9),
        ("Pi 400 - 4GB", "BCM2711", 12.8e9),
        ("Pi 500+ - 16GB", "Raspberry-Pi-5", 17.1e9),
        ("GMKtec G3 Plus (Intel N150) - 16GB", "Intel-N150", 25.6e9),  # one channel of DDR4-3200, not of DDR5
        ("AmpereOne A192-32X (512GB)", "AmpereOne-A192-32X", 332.8e9),
        ("Radxa Orion O6 - 16GB", "CIX-P1", 88e9),
    ],
)
def test_one_batch_of_llama_cpp_is_the_processors_alone(cell: str, processor: str, bytes_per_s: float) -> None:
    found = on_processors(_row(hardware=cell))
    assert found is not None
    job = read_offloaded(found)
    assert job.technique is OffloadMethod.HOST
    assert (job.part, job.batch) == (None, 1)
    assert job.host is not None
    assert job.host.cpu.name == processor
    assert job.host.memory_bytes_per_s == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    "cells",
    [
        {"hardware": "H100-SXM-80GB"},
        {"hardware": "Pi 5 (AMD RX 7600)"},
        {"hardware": "Raspberry Pi CM5 Cluster (10x 16GB)"},
        {"engine": "PyTorch"},
        {"scenario": "poisson-rate"},
        {"n_devices": "2"},
    ],
)
def test_every_other_row_is_left_to_others(cells: dict[str, str]) -> None:
    assert on_processors(_row(**cells)) is None
