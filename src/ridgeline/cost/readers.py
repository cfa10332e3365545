"""How each family is read from the public operator tables: columns to the sizes of its formula.

`data/table_families.tsv` says which tables hold a family, which of its sizes lie on a grid that may be interpolated and
which must be met exactly, and what makes a block of shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost import expert_tables, layer_tables
from ridgeline.cost.all_reduce import kernel_sizes, most_bytes
from ridgeline.cost.machine import machine as resolve
from ridgeline.cost.mechanism import Array
from ridgeline.cost.network import OPERATIONS, group_sizes
from ridgeline.cost.questions import latent_decode, latent_prefill
from ridgeline.facts.clusters import cluster
from ridgeline.facts.opdata import Columns, OpTable, read
from ridgeline.facts.readings import reading
from ridgeline.facts.store import read_tsv
from ridgeline.lower.work import Number


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How a family is read from tables: `sizes(columns, table)` are the formula's, `blocks` name the shape blocks.

    `smooth` sizes span the grid, `exact` ones must be met as they are; `models` tell models apart, where engines choose
    kernels by the model. A `dense` grid is one whose times themselves are interpolated, not their ratio to the formula.
    """

    tables: tuple[str, ...]
    columns: tuple[str, ...]
    blocks: tuple[str, ...]
    smooth: tuple[str, ...]
    exact: tuple[str, ...]
    engines: tuple[str, ...]  # none: any
    models: tuple[str, ...]
    fewest: int  # rows of a fit; fewer say little about ten parameters
    dense: bool
    form_column: str  # none: any format
    part_form: str  # format of what `parts` yields
    sizes: Callable[[Columns, OpTable], Mapping[str, Number]] = lambda columns, table: {}
    forms: Callable[[Columns], NDArray[Any]] | None = None  # where several columns decide the format
    kernels: Callable[[Columns, OpTable], NDArray[Any]] | None = None  # where sizes decide a source's kernel
    told: Callable[[Columns, OpTable], NDArray[np.bool_]] | None = None  # rows that are what their columns say
    parts: Callable[[OpTable], Iterator[tuple[str, Mapping[str, Number], Array]]] | None = None
    """Kernel, sizes and seconds of a table that holds several kernels in a row."""


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
    if reading("counts_one_share", program=table.engine) is not None:
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
    told = reading("decode_kernels", program=table.engine)
    if told is None:
        return source
    if told.text == "wide":
        kind = np.where(group == 1, "mmha", np.where(group > WIDE_GROUP, "mmha-wide", "xqa"))
    else:
        narrow = (group < VECTOR_GROUP) & (columns["kv_cache_dtype"].astype(str) != "fp8")
        kind = np.where(columns["kernel_source"].astype(str) != "flashinfer", "", np.where(narrow, "vector", "matrix"))
    return np.array([f"{a} {b}".strip() for a, b in zip(source, kind, strict=True)], dtype=object)


def _latent_forms(columns: Columns) -> NDArray[Any]:
    return _attention_forms({**columns, "attn_dtype": columns["mla_dtype"]})


def _mla_prefill(columns: Columns, table: OpTable) -> Mapping[str, Number]:
    found = (columns[name].astype(float) for name in ("batch_size", "isl", "num_heads", "step"))
    return latent_prefill(*found)


def _mla_decode(columns: Columns, table: OpTable) -> Mapping[str, Number]:
    batch, isl, step, heads = (columns[name].astype(float) for name in ("batch_size", "isl", "step", "num_heads"))
    narrow = columns["kv_cache_dtype"].astype(str)[0] == "fp8"
    return latent_decode(batch, isl + step, heads, 1.0 if narrow else 2.0)


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


_ATTENTION = {"forms": _attention_forms}
_LAYER = {"sizes": layer_tables.latent, "forms": layer_tables.latent_forms, "kernels": layer_tables.latent_kernels}
_COMPRESSED = {
    "sizes": layer_tables.compressed,
    "forms": layer_tables.compressed_forms,
    "kernels": layer_tables.compressed_kernels,
}
_CODE: Mapping[str, Mapping[str, Any]] = {
    "gemm": {"sizes": _gemm},
    "prefill": {"sizes": _prefill, "kernels": _by_width, **_ATTENTION},
    "decode": {"sizes": _decode, "kernels": _decode_kernels, **_ATTENTION},
    "mla_prefill": {"sizes": _mla_prefill, "forms": _latent_forms},
    "mla_decode": {"sizes": _mla_decode, "forms": _latent_forms},
    "experts": {"sizes": expert_tables.experts, "told": expert_tables.told},
    "wide_experts": {"sizes": expert_tables.experts},
    "wide_experts_decode": {"sizes": expert_tables.experts},
    "exchange": {"parts": expert_tables.exchanges},
    "engine_exchange": {"parts": expert_tables.exchanges},
    "custom_all_reduce": {"parts": _custom_all_reduce},
    "collective": {"sizes": _collective},
    "quantize": {"parts": layer_tables.casts},
    "encoder": {"sizes": layer_tables.encoder},
    "mla_bmm": {"sizes": layer_tables.latent_products, "forms": layer_tables.latent_product_forms},
    **{f"{kind}_layer_{phase}": _LAYER for kind in ("mla", "dsa") for phase in ("prefill", "decode")},
    "delta_prefill": {"parts": layer_tables.recurrences("context")},
    "delta_decode": {"parts": layer_tables.recurrences("generation")},
    "convolution": {"parts": layer_tables.convolutions},
    **{f"{kind}_layer_{phase}": _COMPRESSED for kind in ("csa", "hca", "msa") for phase in ("prefill", "decode")},
    "hyper_connection": {"parts": layer_tables.connections},
}
"""What reads the columns of a family: sizes of its formula, formats, kernels, rows to be trusted; or its parts."""


def _reader(row: Mapping[str, str]) -> Reader:
    lists: dict[str, Any] = {name: tuple(row[name].split()) for name in _LISTS}
    return Reader(
        **lists, fewest=int(row["fewest"] or 60), dense=bool(row["dense"]), form_column=row["form_column"],
        part_form=row["part_form"] or "any", **_CODE[row["family"]],
    )  # fmt: skip


_LISTS = ("tables", "columns", "blocks", "smooth", "exact", "engines", "models")
READERS: Mapping[str, Reader] = {row["family"]: _reader(row) for row in read_tsv("table_families.tsv")}
