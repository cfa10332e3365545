"""How each family is read from the public operator tables: columns to the sizes of its mechanism.

Every family says which tables hold it, which of its sizes lie on a grid that may be interpolated and which must be
met exactly, and what makes a block of shapes: blocks are kept whole when rows are set aside to judge a fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.compressed_readers import COMPRESSED_READERS
from ridgeline.cost.engine_limits import kernel_sizes, most_bytes
from ridgeline.cost.exchange_readers import ALONE_TABLES, CALLED_TABLES, exchanges
from ridgeline.cost.expert_readers import EXPERT_READERS
from ridgeline.cost.layer_readers import LAYER_READERS
from ridgeline.cost.machine import machine as resolve
from ridgeline.cost.mechanism import Array
from ridgeline.cost.network import OPERATIONS, group_sizes
from ridgeline.cost.reader import Columns, Reader
from ridgeline.facts.clusters import cluster
from ridgeline.facts.opdata import OpTable, read
from ridgeline.lower.work import Number


def _gemm(columns: Columns, table: OpTable) -> Mapping[str, Number]:
    return {name: columns[name].astype(float) for name in "mnk"}


_OPERATIONS = {"alltoall": "all_to_all"}
_ELEMENT = {"half": 2.0, "int8": 1.0}


def _collective(columns: Columns, table: OpTable) -> Mapping[str, Number]:
    """Message sizes count elements of the whole buffer, but those of oneCCL's all-gather one rank's share of it."""
    words = [_OPERATIONS.get(str(word), str(word)) for word in columns["op_name"]]
    operation = np.array([OPERATIONS.index(word) for word in words], dtype=float)
    ranks = columns["num_gpus"].astype(float)
    element = np.array([_ELEMENT[str(word)] for word in columns["nccl_dtype"]])
    size = columns["message_size"].astype(float) * element
    if table.engine == "oneccl":
        size = np.where(operation == OPERATIONS.index("all_gather"), size * ranks, size)
    most = max(int(ranks.max()), 2)
    machine = resolve(cluster(f"{most}x{table.accelerator}"))
    where = group_sizes(machine, ranks, 1)
    return {"operation": operation, "bytes": size, "ranks": ranks, "element_bytes": element, **where}


def _attention_forms(columns: Columns) -> NDArray[Any]:
    """The format of products, and of the cache where it is narrower."""
    products, cache = columns["attn_dtype"].astype(str), columns["kv_cache_dtype"].astype(str)
    return np.where(products == "fp8", "fp8", np.where(cache == "fp8", "bf16_kv8", "bf16")).astype(object)


def _heads(columns: Columns) -> dict[str, Number]:
    kv_heads = columns["num_key_value_heads"].astype(float)
    return {
        "batch": columns["batch_size"].astype(float),
        "kv_heads": kv_heads,
        "group": columns["num_heads"].astype(float) / kv_heads,
        "head_dim": columns["head_dim"].astype(float),
        "window": columns["window_size"].astype(float),
    }


def _prefill(columns: Columns, table: OpTable) -> Mapping[str, Number]:
    return {**_heads(columns), "tokens": columns["isl"].astype(float), "cached": columns["step"].astype(float)}


def _decode(columns: Columns, table: OpTable) -> Mapping[str, Number]:
    return {**_heads(columns), "context": columns["isl"].astype(float) + columns["step"].astype(float)}


WIDE_GROUP = 32  # query heads of a kv head that TensorRT-LLM's grouped kernels take
VECTOR_GROUP = 4  # from which FlashInfer's decode runs on matrix units, for 16-bit caches


def _by_width(columns: Columns, table: OpTable) -> NDArray[Any]:
    """Kernels whose tiles change with the head size stand apart by it: those written in Triton."""
    pairs = zip(columns["kernel_source"].astype(str), columns["head_dim"].astype(int), strict=True)
    return np.array([f"{source} d{width}" if "triton" in source else source for source, width in pairs], dtype=object)


def _decode_kernels(columns: Columns, table: OpTable) -> NDArray[Any]:
    """Kernels that an engine chooses by the group of heads, which its tables do not tell apart."""
    group = columns["num_heads"].astype(float) / columns["num_key_value_heads"].astype(float)
    source = _by_width(columns, table)
    if table.engine == "trtllm":
        kind = np.where(group == 1, "mmha", np.where(group > WIDE_GROUP, "mmha-wide", "xqa"))
    elif table.engine == "sglang":
        narrow = (group < VECTOR_GROUP) & (columns["kv_cache_dtype"].astype(str) != "fp8")
        kind = np.where(columns["kernel_source"].astype(str) != "flashinfer", "", np.where(narrow, "vector", "matrix"))
    else:
        return source
    return np.array([f"{a} {b}".strip() for a, b in zip(source, kind, strict=True)], dtype=object)


LATENT, ROTARY, NOPE, VALUE = 512.0, 64.0, 128.0, 128.0
"""Widths of latent attention of a DeepSeek-V3 head. Source: arXiv:2412.19437, section 4.2."""


def latent_prefill(batch: Number, tokens: Number, heads: Number, cached: Number = 0.0) -> dict[str, Number]:
    """Latent attention, keys and values expanded, as sizes of ordinary prefill: 192 wide scores, 128 wide values."""
    head = (NOPE + ROTARY + VALUE) / 2
    return {"batch": batch, "tokens": tokens, "cached": cached, "kv_heads": heads, "group": 1.0, "head_dim": head}


def latent_decode(batch: Number, context: Number, heads: Number, cache_bytes: float) -> dict[str, Number]:
    """Latent attention with absorbed products, as sizes of ordinary decode: all heads share one latent of 512 + 64."""
    scores, values = LATENT + ROTARY, LATENT
    head = (scores + values) / 2
    read_once = scores / (scores + values)  # values are part of the keys
    return {
        "batch": batch, "context": context, "kv_heads": 1.0, "group": heads, "head_dim": head,
        "kv_bytes": cache_bytes * read_once,
    }  # fmt: skip


def _latent_forms(columns: Columns) -> NDArray[Any]:
    return _attention_forms({**columns, "attn_dtype": columns["mla_dtype"]})


def _mla_prefill(columns: Columns, table: OpTable) -> Mapping[str, Number]:
    found = (columns[name].astype(float) for name in ("batch_size", "isl", "num_heads", "step"))
    return latent_prefill(*found)


def _mla_decode(columns: Columns, table: OpTable) -> Mapping[str, Number]:
    batch, isl, step, heads = (columns[name].astype(float) for name in ("batch_size", "isl", "step", "num_heads"))
    narrow = columns["kv_cache_dtype"].astype(str)[0] == "fp8"
    return latent_decode(batch, isl + step, heads, 1.0 if narrow else 2.0)


_MLA = ("batch_size", "isl", "step", "num_heads", "mla_dtype", "kv_cache_dtype")

_MILLISECOND = 1e-3
_BFLOAT_BYTES = 2.0
# Two ranks take two to four times what other releases' tables show on the same device, as through host memory: taken
# for boxes whose devices cannot read each other, where the engine leaves it to the library.
_WITHOUT_PEERS = frozenset({("RTX-PRO-6000", "0.19.0"), ("RTX-PRO-6000", "0.5.10"), ("L40S", "0.5.12")})


def _custom_all_reduce(table: OpTable) -> Iterator[tuple[str, Mapping[str, Number], Array]]:
    """Rows that an engine's own kernels answer, captured or eager; messages count elements, as those of NCCL's tables.

    Tables of TensorRT-LLM's kernels in SGLang's folder repeat those of TensorRT-LLM; its kernels for racks are few.
    """
    found = read(table, ("kernel_source", "num_gpus", "message_size", "latency"))
    sources = np.array([str(word) for word in found["kernel_source"]])
    ranks = found["num_gpus"].astype(float)
    machine = resolve(cluster(f"{max(int(ranks.max()), 2)}x{table.accelerator}"))
    size = found["message_size"].astype(float) * _BFLOAT_BYTES
    own = np.char.startswith(np.char.lower(sources), table.engine) & (np.char.find(sources, "MNNVL") < 0)
    mask = own & (size <= most_bytes(machine, ranks, 1, table.engine, table.version))
    if not mask.any() or (table.accelerator, table.version) in _WITHOUT_PEERS:
        return
    eager = np.char.endswith(sources[mask], "eager").astype(float)
    sizes = kernel_sizes(machine, size[mask], ranks[mask], table.engine, table.version, eager=eager)
    full = {name: np.broadcast_to(np.asarray(column, dtype=float), mask.sum()) for name, column in sizes.items()}
    yield "custom", full, found["latency"][mask].astype(float) * _MILLISECOND


_ATTENTION = (
    "batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size", "attn_dtype",
    "kv_cache_dtype",
)  # fmt: skip

_EXCHANGE = Reader(
    tables=ALONE_TABLES,
    columns=(),
    sizes=lambda columns, table: {},
    parts=exchanges,
    blocks=("tokens", "row_bytes", "top_k", "experts"),
    smooth=("tokens", "row_bytes"),
    exact=("quick", "combine", "top_k", "experts", "nodes", "sms"),
)

READERS: dict[str, Reader] = {
    "gemm": Reader(
        tables=("gemm_perf",),
        form_column="gemm_dtype",
        columns=("m", "n", "k"),
        sizes=_gemm,
        blocks=("n", "k"),
        smooth=("m", "n", "k"),
        dense=True,
    ),
    "prefill": Reader(
        tables=("context_attention_perf",),
        columns=_ATTENTION,
        forms=_attention_forms,
        kernels=_by_width,
        sizes=_prefill,
        blocks=("kv_heads", "group", "head_dim", "window"),
        smooth=("batch", "tokens", "kv_heads"),
        exact=("group", "head_dim", "window", "cached"),
    ),
    "decode": Reader(
        tables=("generation_attention_perf",),
        columns=_ATTENTION,
        forms=_attention_forms,
        kernels=_decode_kernels,
        sizes=_decode,
        blocks=("kv_heads", "group", "head_dim", "window"),
        smooth=("batch", "context", "kv_heads"),
        exact=("group", "head_dim", "window"),
    ),
    "mla_prefill": Reader(
        tables=("context_mla_perf",),
        columns=_MLA,
        forms=_latent_forms,
        sizes=_mla_prefill,
        blocks=("batch", "tokens"),
        smooth=("batch", "tokens", "kv_heads"),
        exact=("cached",),
    ),
    "mla_decode": Reader(
        tables=("generation_mla_perf",),
        columns=_MLA,
        forms=_latent_forms,
        sizes=_mla_decode,
        blocks=("batch", "context"),
        smooth=("batch", "context", "group"),
    ),
    **EXPERT_READERS,
    "exchange": _EXCHANGE,
    "engine_exchange": replace(_EXCHANGE, tables=CALLED_TABLES, smooth=(*_EXCHANGE.smooth, "ranks")),
    "custom_all_reduce": Reader(
        tables=("custom_allreduce_perf",),
        columns=(),
        sizes=lambda columns, table: {},
        parts=_custom_all_reduce,
        blocks=("bytes", "ranks"),
        smooth=("bytes", "ranks"),
        exact=("issue_s",),
        engines=("vllm", "sglang", "trtllm"),
        fewest=10,
    ),
    "collective": Reader(
        tables=("nccl_perf", "oneccl_perf"),
        columns=("op_name", "nccl_dtype", "num_gpus", "message_size"),
        sizes=_collective,
        blocks=("bytes", "ranks"),
        smooth=("bytes", "ranks"),
        exact=("operation", "nodes", "element_bytes"),
        engines=("nccl", "oneccl"),
    ),
    **LAYER_READERS,
    **COMPRESSED_READERS,
}
