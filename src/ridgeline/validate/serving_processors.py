"""Serving rows of computers without an accelerator: llama.cpp keeps all weights in host memory, as offload rows say."""

from __future__ import annotations

import re
from dataclasses import replace

from ridgeline.facts.readings import reading
from ridgeline.validate.rows import Row
from ridgeline.validate.serving_device import without_accelerator

_ENGINES = re.compile(r"llama\.?cpp|ollama", re.IGNORECASE)
_ALONE = ("single-stream", "fixed-batch")


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
    memory = reading("host_memory", words=cell)
    said = {
        "gpu": "none", "cpu": cell, "host_mem": "" if memory is None else memory.text,
        "technique": "CPU only", "engine": "llama.cpp", "batch": row.text("batch_or_concurrency"),
    }  # fmt: skip
    return replace(row, cells={**row.cells, **said})
