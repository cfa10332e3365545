"""How families around products and attention are read: casts, encoders, latent and compressed layers, recurrences.

`readers` puts all families together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.layer_questions import layer_sizes
from ridgeline.cost.mechanism import Array
from ridgeline.facts.mechanisms import latent_widths
from ridgeline.facts.opdata import Columns, OpTable, native, read, same_library
from ridgeline.lower.work import Number

Part = tuple[str, Mapping[str, Number], Array]
"""Kernel, sizes and seconds of rows."""

_MILLISECOND = 1e-3
_FOUND = "computescale_perf"  # what it takes to find the scale, beyond scaling by one that is known


def casts(table: OpTable) -> Iterator[Part]:
    """Casts with a known scale, and with one that is found first: both steps of the same shape added up."""
    known = _timed_casts(table)
    yield "static", _cast_sizes(known, dynamic=0.0), known[:, 2] * _MILLISECOND
    other = same_library(_FOUND, table.accelerator, table.engine, table.version)
    if other is None:
        return
    found = {(m, k): time for m, k, time in _timed_casts(other)}
    both = np.array([(m, k, time + found[m, k]) for m, k, time in known if (m, k) in found])
    if len(both):
        yield "dynamic", _cast_sizes(both, dynamic=1.0), both[:, 2] * _MILLISECOND


def _timed_casts(table: OpTable) -> Array:
    found = read(table, ("m", "k", "latency"))
    return np.column_stack([found[name].astype(float) for name in ("m", "k", "latency")])


def _cast_sizes(rows: Array, *, dynamic: float) -> Mapping[str, Number]:
    return {"rows": rows[:, 0], "width": rows[:, 1], "dynamic": np.full(len(rows), dynamic)}


def encoder(columns: Columns, table: OpTable) -> Mapping[str, Number]:
    """Sizes of an encoder's attention."""
    names = {"batch": "batch_size", "tokens": "isl", "heads": "num_heads", "head_dim": "head_dim"}
    return {size: columns[name].astype(float) for size, name in names.items()}


_LATENT_BMM = {"mla_gen_pre": (512.0, 128.0), "mla_gen_post": (128.0, 512.0)}  # n, k of DeepSeek-V3's heads


def latent_products(columns: Columns, table: OpTable) -> Mapping[str, Number]:
    """Sizes of the products of every head that latent attention absorbs."""
    n, k = np.array([_LATENT_BMM[str(word)] for word in columns["op_name"]]).T
    return {"m": columns["num_tokens"].astype(float), "n": n, "k": k, "count": columns["num_heads"].astype(float)}


def latent_product_forms(columns: Columns) -> NDArray[Any]:
    """The format that the product runs in: weights widened at load make fp8 a product of 16 bits."""
    widened = np.char.find(columns["kernel_source"].astype(str), "dequant_bf16") >= 0
    return np.where(widened, "bf16", columns["bmm_dtype"].astype(str)).astype(object)


_ABSENT = ("0.0", "0")  # of a column that the oldest tables lack


def latent(columns: Columns, table: OpTable) -> Mapping[str, Number]:
    """A latent layer of DeepSeek's or GLM's widths; kernels whose source says so skip the indexer, or see all keys."""
    source = columns["kernel_source"].astype(str)
    models = np.where(np.isin(columns["model"].astype(str), _ABSENT), "DeepSeek-V3", columns["model"].astype(str))
    widths = [latent_widths(str(word), sparse=table.name.startswith("dsa")) for word in models]
    stated = {name: np.array([width[name] for width in widths]) for name in widths[0]}
    skips = (np.char.find(source, "skip_indexer") >= 0) | (np.char.find(source, "dense_mha") >= 0)
    dense = np.char.find(source, "dense_mha") >= 0
    decode = "generation" in table.name
    tokens, step = columns["isl"].astype(float), columns["step"].astype(float)
    if decode:
        tokens, step = np.ones(len(tokens)), tokens + step - 1.0
    return {
        **stated,
        "batch": columns["batch_size"].astype(float),
        "tokens": tokens,
        "cached": step,
        "heads": columns["num_heads"].astype(float),
        "index_heads": np.where(skips, 0.0, stated["index_heads"]),
        "top": np.where(dense, 0.0, stated["top"]),
        "absorbed": np.where(dense, 0.0, float(decode or table.name.startswith("dsa"))),
        "cache_bytes": np.where(np.char.startswith(columns["kv_cache_dtype"].astype(str), "fp8"), 1.0, 2.0),
    }


# Cached tokens between which SGLang's sparse prompts were timed in another way: a call of 4 tokens takes 0.53 ms up to
# 65,536 and 1.00 ms from 131,072 to a million, whatever its kernel. Source: aiconfigurator, dsa_context_module tables;
# collector/sglang/collect_mla_module.py: use_module_eager_dsa_context where prefix_len > 65536.
_LONG_CACHE = 131_072


def latent_kernels(columns: Columns, table: OpTable) -> NDArray[Any]:
    """Sources, apart for norms of PyTorch, builds of wide expert parallelism, 8-bit scores and long caches: other
    programs."""
    kind = table.name.partition("_")[0]
    norms = "/native" if native(table.place) else ""
    fp8 = np.where(columns["mla_dtype"].astype(str) == "fp8", " fp8", "")
    apart = (table.engine, table.name) == ("sglang", "dsa_context_module_perf")
    far = np.where(columns["step"].astype(float) >= (_LONG_CACHE if apart else np.inf), " long", "")
    rows = zip(columns["kernel_source"].astype(str), fp8, far, strict=True)
    return np.array([f"{source}{norms} {kind}{score}{reach}" for source, score, reach in rows], dtype=object)


def latent_forms(columns: Columns) -> NDArray[Any]:
    """Of the projections; the oldest tables name only that of the layer."""
    stated = np.asarray(columns["gemm_type"], dtype=object).astype(str)
    return np.where(np.isin(stated, _ABSENT), columns["mla_dtype"].astype(str), stated).astype(object)


def recurrences(phase: str) -> Callable[[OpTable], Iterator[Part]]:
    """The scan over prompts ('context'), or its step for one token of each sequence ('generation')."""

    def parts(table: OpTable) -> Iterator[Part]:
        found = read(table, ("phase", "kernel_source", "latency", *_RECURRENT))
        source = found["kernel_source"].astype(str)
        wanted = found["phase"].astype(str) == phase
        wanted &= np.char.find(source, "conv") < 0
        for kernel in np.unique(source[wanted]):
            rows = wanted & (source == kernel)
            column = {name: found[name][rows].astype(float) for name in _RECURRENT}
            yield f"{kernel} {table.name.partition('_')[0]}", {
                "batch": column["batch_size"], "tokens": column["seq_len"], "heads": column["num_v_heads"],
                "key_heads": column["num_k_heads"], "key_dim": column["head_k_dim"],
                "value_dim": column["head_v_dim"],
            }, found["latency"][rows].astype(float) * _MILLISECOND  # fmt: skip

    return parts


_RECURRENT = ("batch_size", "seq_len", "num_v_heads", "num_k_heads", "head_k_dim", "head_v_dim")
_BLIND = 0.25  # of traffic that grows as the width does; every other table shows 0.46 or more, these 0.05 or less
_LONG = 3.0  # times the shortest kernels, which are all start
_STATE_SPACE = ("batch_size", "seq_len", "nheads", "head_dim", "n_groups", "d_state", "d_conv")


def convolutions(table: OpTable) -> Iterator[Part]:
    """Short convolutions before a recurrence: over queries, keys and values, or over inputs and both state maps.

    Nothing of a table whose prompts take as long at twice the width: it was timed at one that it does not say.
    """
    names = _STATE_SPACE if table.name.startswith("mamba2") else (*_RECURRENT, "d_conv")
    found = read(table, ("kernel_source", "latency", *names))
    source = found["kernel_source"].astype(str)
    column = {name: found[name].astype(float) for name in names}
    if table.name.startswith("mamba2"):
        channels = column["nheads"] * column["head_dim"] + 2.0 * column["n_groups"] * column["d_state"]
    else:
        channels = 2.0 * column["num_k_heads"] * column["head_k_dim"] + column["num_v_heads"] * column["head_v_dim"]
    prompts = np.char.find(source, "conv1d_fn") >= 0
    work = column["batch_size"] * 2.0**32 + column["seq_len"]
    if elasticity(work[prompts], channels[prompts], found["latency"][prompts].astype(float)) < _BLIND:
        return
    for kernel in (name for name in np.unique(source) if "conv" in name):
        rows = source == kernel
        yield f"{kernel} {table.name.partition('_')[0]}", {
            "batch": column["batch_size"][rows], "tokens": column["seq_len"][rows], "channels": channels[rows],
            "window": column["d_conv"][rows], "stepwise": np.full(rows.sum(), float("update" in kernel)),
        }, found["latency"][rows].astype(float) * _MILLISECOND  # fmt: skip


def elasticity(work: Array, width: Array, times: Array) -> float:
    """How times of the same work grow with its width [1]: d ln(time) / d ln(width) of kernels long beside their start.

    NaN where no work was timed at two widths.
    """
    long = times > _LONG * np.quantile(times, 0.05) if len(times) else np.zeros(0, dtype=bool)
    _, group = np.unique(work[long], return_inverse=True)
    counts = np.bincount(group)
    x, y = np.log(width[long]), np.log(times[long])
    x, y = (column - (np.bincount(group, column) / counts)[group] for column in (x, y))
    spread = float((x * x).sum())
    return float((x * y).sum()) / spread if spread > 0 else math.nan


def compressed(columns: Columns, table: OpTable) -> Mapping[str, Number]:
    """Sizes of layers with compressed or block-chosen keys, by their models' widths."""
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


def compressed_forms(columns: Columns) -> NDArray[Any]:
    """Of the projections."""
    return np.asarray(columns["gemm_type"], dtype=object)


def compressed_kernels(columns: Columns, table: OpTable) -> NDArray[Any]:
    """Sources, apart for narrow caches, which other kernels read."""
    narrow = np.char.startswith(columns["kv_cache_dtype"].astype(str), "fp8")
    pairs = zip(columns["kernel_source"].astype(str), narrow, strict=True)
    return np.array([f"{source} {'kv8' if one else 'kv16'}" for source, one in pairs], dtype=object)


def connections(table: OpTable) -> Iterator[Part]:
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
