"""How layers with compressed or block-chosen keys, and hyper-connections, are read from the public operator tables.

Shape letters: H heads on this device, D hidden, Q rank of queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.families.layers import INDEX
from ridgeline.cost.mechanism import Array
from ridgeline.cost.reader import Columns, Reader
from ridgeline.facts.compressed_widths import compressed_widths
from ridgeline.facts.opdata import OpTable, read
from ridgeline.lower.work import Number

RATIOS: Mapping[str, float] = {"csa": 4.0, "hca": 128.0, "msa": 1.0}
"""Keys of one entry by kind of layer: DeepSeek-V4's two and MiniMax-M3's. Source: deepseek-ai/DeepSeek-V4-Pro,
config.json: compress_ratios."""
_ROTARY = 64.0
_SCALES = 8.0  # bytes of the scales of an entry kept in fp8. Source: vllm, cache dtype fp8_ds_mla: 584 bytes


def layer_sizes(kind: str, model: str | Mapping[str, float], heads: Number, cache_bytes: Number) -> dict[str, Number]:
    """The sizes that a model's widths and the heads on this device decide: weights, entries, indexer.

    Widths are known by the model's name, or given as `compressed_widths` names them.

    DeepSeek-V4 projects queries over a rank, one key for all heads, a compressor (two where entries overlap) with its
    gates, and the output by groups of heads; MiniMax-M3 as grouped attention does, an index head for each key head.
    """
    width = compressed_widths(model) if isinstance(model, str) else model
    hidden, rank, dim, group = (width[name] for name in ("hidden", "rank", "head_dim", "group"))
    count, narrow = np.asarray(heads, dtype=float), np.asarray(cache_bytes, dtype=float)
    keys = np.maximum(count / group, 1.0) if kind == "msa" else np.ones(count.shape)
    if kind == "msa":
        elements = hidden * dim * (2.0 * count + 2.0 * keys) + hidden * INDEX * (keys + 1.0)
        entry, index = 2.0 * dim * narrow, keys * width["index_heads"]
    else:
        overlapping = 2.0 if kind == "csa" else 1.0
        out = count * dim * width["out_rank"] + np.maximum(count / group, 1.0) * width["out_rank"] * hidden
        elements = hidden * rank + rank * count * dim + hidden * dim * (1.0 + 2.0 * overlapping) + out
        index = np.full(count.shape, width["index_heads"] if kind == "csa" else 0.0)
        indexer = rank * width["index_heads"] * INDEX + hidden * (width["index_heads"] + 4.0 * INDEX)
        elements = elements + (indexer if kind == "csa" else 0.0)
        entry = np.where(narrow < 2.0, dim + _ROTARY + _SCALES, 2.0 * dim)
    return {
        "heads": count, "key_heads": keys, "head_dim": dim, "hidden": hidden, "elements": elements,
        "index_heads": index, "ratio": RATIOS[kind], "window": width["window"], "entry_bytes": entry,
        "top": 0.0 if kind == "hca" else width["top"],
    }  # fmt: skip


_LAYER = (
    "model", "batch_size", "isl", "step", "num_heads", "kv_cache_dtype", "gemm_type", "kernel_source",
)  # fmt: skip


def _read_sizes(columns: Columns, table: OpTable) -> Mapping[str, Number]:
    kind = "msa" if table.name.startswith("msa") else table.name.split("_")[1]
    decode = "generation" in table.name
    narrow = np.where(np.char.startswith(columns["kv_cache_dtype"].astype(str), "fp8"), 1.0, 2.0)
    heads, models = columns["num_heads"].astype(float), columns["model"].astype(str)
    found: dict[str, Array] = {}
    for model in np.unique(models):
        mask = models == model
        for name, size in layer_sizes(kind, model, heads[mask], narrow[mask]).items():
            found.setdefault(name, np.empty(len(heads)))[mask] = size
    tokens, step = columns["isl"].astype(float), columns["step"].astype(float)
    return {
        **found,
        "batch": columns["batch_size"].astype(float),
        "tokens": np.ones(len(tokens)) if decode else tokens,
        "cached": tokens + step - 1.0 if decode else step,
    }


def _layer_forms(columns: Columns) -> NDArray[Any]:
    return np.asarray(columns["gemm_type"], dtype=object)


def _layer_kernels(columns: Columns, table: OpTable) -> NDArray[Any]:
    """Sources, apart for narrow caches, which other kernels read."""
    narrow = np.char.startswith(columns["kv_cache_dtype"].astype(str), "fp8")
    pairs = zip(columns["kernel_source"].astype(str), narrow, strict=True)
    return np.array([f"{source} {'kv8' if one else 'kv16'}" for source, one in pairs], dtype=object)


def _layer_reader(kind: str, phase: str) -> Reader:
    decode = phase == "decode"
    module = f"{'generation' if decode else 'context'}_module_perf"
    exact = ("hidden", "top", "ratio", "entry_bytes")
    return Reader(
        tables=(f"{'' if kind == 'msa' else 'dsv4_'}{kind}_{module}",),
        columns=_LAYER,
        forms=_layer_forms,
        kernels=_layer_kernels,
        sizes=_read_sizes,
        blocks=("batch", "cached" if decode else "tokens"),
        smooth=("batch", "cached" if decode else "tokens", "heads"),
        exact=exact if decode else (*exact, "cached"),
        engines=("vllm", "sglang") if kind == "msa" else (),
    )


_MILLISECOND = 1e-3


def _connections(table: OpTable) -> Iterator[tuple[str, Mapping[str, Number], Array]]:
    """Rows of a table that times several sites together; each has a kernel before the layer and one after it."""
    names = ("op_name", "kernel_source", "num_tokens", "num_sites", "hc_mult", "hidden_size", "latency")
    found = read(table, names)
    source, when = found["kernel_source"].astype(str), found["op_name"].astype(str)
    for kernel in np.unique(source):
        rows = source == kernel
        yield kernel, {
            "rows": found["num_tokens"][rows].astype(float), "width": found["hidden_size"][rows].astype(float),
            "streams": found["hc_mult"][rows].astype(float), "before": (when[rows] == "pre").astype(float),
        }, found["latency"][rows].astype(float) / found["num_sites"][rows].astype(float) * _MILLISECOND  # fmt: skip


COMPRESSED_READERS: dict[str, Reader] = {
    **{f"{kind}_layer_{phase}": _layer_reader(kind, phase) for kind in RATIOS for phase in ("prefill", "decode")},
    "hyper_connection": Reader(
        tables=("mhc_module_perf",),
        columns=(),
        sizes=lambda columns, table: {},
        parts=_connections,
        part_form="bf16",
        blocks=("rows",),
        smooth=("rows", "width"),
        exact=("streams", "before"),
        fewest=10,
    ),
}
