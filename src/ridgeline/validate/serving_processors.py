"""Serving rows of computers without an accelerator: llama.cpp keeps all weights in host memory, as offload rows say."""

from __future__ import annotations

import re
from dataclasses import replace

from ridgeline.validate.rows import Row
from ridgeline.validate.serving_device import without_accelerator

_ENGINES = re.compile(r"llama\.?cpp|ollama", re.IGNORECASE)
_ALONE = ("single-stream", "fixed-batch")
MEMORIES: tuple[tuple[str, str], ...] = ((r"g3 plus", "DDR4-3200"),)
"""Memory of computers that is not the fastest their processor takes. Source: GMKtec, G3 Plus, specifications."""


def on_processors(row: Row) -> Row | None:
    """One batch of llama.cpp or ollama on processors, as a row of an offload table; None for every other row.

    Clusters of small computers and other engines are left to be refused: nobody measured their network or products.
    """
    cell = row.text("hardware")
    alone = row.text("scenario").casefold() in _ALONE and row.text("n_devices") in ("", "1")
    if not alone or not _ENGINES.search(row.text("engine")) or re.search(r"\bcluster\b", cell, re.IGNORECASE):
        return None
    if not without_accelerator(cell):
        return None
    memory = next((words for pattern, words in MEMORIES if re.search(pattern, cell, re.IGNORECASE)), "")
    said = {
        "gpu": "none", "cpu": cell, "host_mem": memory, "technique": "CPU only", "engine": "llama.cpp",
        "batch": row.text("batch_or_concurrency"),
    }  # fmt: skip
    return replace(row, cells={**row.cells, **said})
