"""How routed experts and their exchanges are read from the public operator tables: shapes, routing, what a row sends.

Of experts, which rows tell what they ran; of exchanges, by the kernels alone and as engines call them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.machine import machine as resolve
from ridgeline.cost.mechanism import Array
from ridgeline.cost.network import group_sizes
from ridgeline.cost.questions import BF16_ROW, FP8_ROW
from ridgeline.facts.clusters import cluster
from ridgeline.facts.engine_kernels import release_key
from ridgeline.facts.opdata import Columns, OpTable, read
from ridgeline.lower.work import Number

Part = tuple[str, Mapping[str, Number], Array]
# Hidden and feed-forward sizes of models whose experts have no gate, which the tables do not say.
# Source: model cards of the Nemotron 3 family and of Nemotron-H.
UNGATED = frozenset({(2688, 1856), (2048, 5120), (1024, 2688), (8192, 5120)})


_LEVELLED = "_eplb"  # of distributions whose fullest experts have copies on other ranks: taken as balanced


def experts(columns: Columns, table: OpTable) -> Mapping[str, Number]:
    """Feed-forward widths are divided over tensor ranks; a distribution 'power_law_1.2' has the skew 1.2."""
    hidden, inner = columns["hidden_size"].astype(float), columns["inter_size"].astype(float)
    ungated = np.array([pair in UNGATED for pair in zip(hidden.astype(int), inner.astype(int), strict=True)])
    ungated |= np.array(["nongated" in str(word) for word in columns["kernel_source"]])
    words = [str(word) for word in columns["distribution"]]
    skewed = [word.startswith("power_law") and not word.endswith(_LEVELLED) for word in words]
    skew = np.array([float(word.rpartition("_")[2]) if one else 0.0 for word, one in zip(words, skewed, strict=True)])
    return {
        "tokens": columns["num_tokens"].astype(float),
        "hidden": hidden,
        "inner": inner / columns["moe_tp_size"].astype(float),
        "top_k": columns["topk"].astype(float),
        "experts": columns["num_experts"].astype(float),
        "ranks": columns["moe_ep_size"].astype(float),
        "skew": skew,
        "gated": np.where(ungated, 0.0, 1.0),
    }


# Rows of several ranks whose first rank got other tokens than the distribution says.
# SGLang before 0.5.14: every token's experts are on the first rank, as long as it has as many. Of 128 experts, 2 to 8
# ranks take 0.8 to 1.1 times what one does, in 0.5.14 0.53, 0.29 and 0.18.
# From vLLM 0.24.0 and SGLang 0.5.14 on, collectors hand scores to the model's own router. DeepSeek-V3's keeps 4 of 8
# groups of experts: picks outside are lost, and the lowest experts win the tie, so that the first rank gets
# (1/2 + 1/ranks) of all rows. Times of 8 ranks over one: 0.63 to 0.68, and 0.12 to 0.25 in earlier releases.
# Source: aiconfigurator, moe tables; collector/vllm/collect_moe.py; collector/helper.py: balanced_logits.
_LOCAL_BEFORE = {"sglang": "0.5.14"}
_GROUPED_FROM = {"vllm": "0.24.0", "sglang": "0.5.14"}
_GROUPED_SHAPE = (7168, 256, 8)  # hidden, experts, top_k


# Triton's kernel for blocks of fp8 reads 16 elements at once where the width allows it. Of 2688 over 16 and 32 ranks it
# reads them one by one: 168 wide takes 13 times as long as 336, and so 20 times what any other width would.
# Source: aiconfigurator, h100_sxm and h200_sxm, moe/sglang/0.5.10.
_READ_AT_ONCE, _READS = 16, ("sglang_fused_moe_triton", "fp8_block")


def told(columns: Columns, table: OpTable) -> NDArray[np.bool_]:
    """Rows whose tokens went where the distribution says, by kernels as they run in widths that models are cut to."""
    inner = columns["inter_size"].astype(int) // columns["moe_tp_size"].astype(int)
    kernel, dtype = _READS
    slow = (columns["kernel_source"] == kernel) & (columns["moe_dtype"] == dtype) & (inner % _READ_AT_ONCE > 0)
    found: NDArray[np.bool_] = _routed_as_told(columns, table) & ~slow
    return found


def _routed_as_told(columns: Columns, table: OpTable) -> NDArray[np.bool_]:
    """Rows whose tokens went where the distribution says."""
    names, release = ("hidden_size", "num_experts", "topk"), release_key(table.version)
    shape = np.logical_and.reduce([columns[name] == size for name, size in zip(names, _GROUPED_SHAPE, strict=True)])
    local, grouped = _LOCAL_BEFORE.get(table.engine), _GROUPED_FROM.get(table.engine)
    elsewhere = np.full(len(shape), local is not None and release < release_key(local))
    if grouped is not None and release >= release_key(grouped):
        elsewhere |= shape
    found: NDArray[np.bool_] = ~(elsewhere & (columns["moe_ep_size"].astype(float) > 1))
    return found


_NVFP4_ROW = 0.5 + 1 / 16  # with its share of an 8-bit scale for 16 values. Source: PTX ISA, mxf4nvf4 block scaling
_MICROSECOND, _MILLISECOND = 1e-6, 1e-3
_USUAL_SMS = 20.0  # of DeepEP's normal kernels. Source: deepseek-ai/DeepEP deep_ep/buffer.py, num_sms

_CALLED, _RACK = "moe_a2a_perf", "trtllm_alltoall_perf"

# What a dispatch sends of one value. Of vLLM the tables name no format, which is how the collector files what DeepEP's
# own tables hold as well: fp8 with scales (taken for that; in bf16 held-out errors are the same within 2 points).
# Source: ai-dynamo/aiconfigurator collector/wideep/sglang/collect_moe_a2a.py, COMM_DTYPE.
_SENT = {"bfloat16": BF16_ROW, "default": FP8_ROW, "fp8": 1.0, "nvfp4": _NVFP4_ROW}

# Kernel, and whether it is one for few tokens, by the backend that a table names. DeepEP's second version is left out:
# of H100 alone, on 64 SMs, slower than the first on 20, where its authors publish four times the first's rate.
_BACKENDS = {
    "deepep_ht": ("deepep normal", 0.0),
    "deepep_ll": ("deepep low latency", 1.0),
    "trtllm_deepep_ht": ("deepep normal", 0.0),
    "trtllm_deepep_ll": ("deepep low latency", 1.0),
}


def exchanges(table: OpTable) -> Iterator[Part]:
    """Kernel, sizes and seconds of the dispatches and combines of a table, which share the link."""
    if table.name == _CALLED:
        yield from _called(table)
    elif table.name == _RACK:
        yield from _over_a_rack(table)
    else:
        yield _timed_alone(table)


def _timed_alone(table: OpTable) -> Part:
    """Dispatches in fp8 and combines in bf16; times are in microseconds."""
    quick = table.name.endswith("_ll_perf")
    shapes = ("node_num", "hidden_size", "num_token", "num_topk", "num_experts")
    times = ("{0}_avg_t_us",) if quick else ("{0}_transmit_us", "{0}_notify_us")
    parts = []
    for combine, word in enumerate(("dispatch", "combine")):
        columns = (*shapes, *(time.format(word) for time in times), f"{word}_sms")
        found = {name: np.nan_to_num(column.astype(float)) for name, column in read(table, columns).items()}
        ranks = found["node_num"] * resolve(cluster(f"1x{table.accelerator}")).cluster.node_devices
        seconds = sum(found[time.format(word)] for time in times) * _MICROSECOND
        row_bytes = found["hidden_size"] * (BF16_ROW if combine else FP8_ROW)
        sizes = _sizes(
            table, ranks, quick=float(quick), combine=float(combine), tokens=found["num_token"], row_bytes=row_bytes,
            top_k=found["num_topk"], experts=found["num_experts"],
            sms=np.ones(len(ranks)) if quick else found[f"{word}_sms"],
        )  # fmt: skip
        parts.append((sizes, np.asarray(seconds)))
    whole = {name: np.concatenate([sizes[name] for sizes, _ in parts]) for name in parts[0][0]}
    kernel = f"deepep {'low latency' if quick else 'normal'}"
    return kernel, whole, np.concatenate([seconds for _, seconds in parts])


_CALLED_COLUMNS = (
    "comm_backend", "phase", "comm_dtype", "ep_size", "hidden_size", "topk", "num_experts", "num_tokens", "sms",
    "latency",
)  # fmt: skip


def _called(table: OpTable) -> Iterator[Part]:
    """Calls as an engine makes them, in microseconds; combines are in bf16 but those said to be of 4 bits."""
    found = read(table, _CALLED_COLUMNS)
    backend, sent = (found[name].astype(str) for name in ("comm_backend", "comm_dtype"))
    combine = found["phase"].astype(str) == "combine"
    wanted = ~(combine & (sent == "fp4"))
    for word, (kernel, quick) in _BACKENDS.items():
        rows = wanted & (backend == word)
        if not rows.any():
            continue
        sms = found["sms"][rows].astype(float)
        sizes = _sizes(
            table, found["ep_size"][rows].astype(float), quick=quick, combine=combine[rows].astype(float),
            tokens=found["num_tokens"][rows].astype(float),
            row_bytes=_row_bytes(found["hidden_size"][rows], combine[rows], sent[rows]),
            top_k=found["topk"][rows].astype(float), experts=found["num_experts"][rows].astype(float),
            sms=1.0 if quick else np.where(sms > 0, sms, _USUAL_SMS),
        )  # fmt: skip
        yield kernel, sizes, found["latency"][rows].astype(float) * _MICROSECOND


def _over_a_rack(table: OpTable) -> Iterator[Part]:
    """TensorRT-LLM's kernels over the links of a rack, in milliseconds; a dispatch begins with its preparation."""
    columns = ("kernel_source", "op_name", "moe_dtype", "moe_ep_size", "hidden_size", "topk", "num_experts")
    found = read(table, (*columns, "num_tokens", "latency"))
    source, phase, sent = (found[name].astype(str) for name in ("kernel_source", "op_name", "moe_dtype"))
    keys = list(zip(source, sent, *(found[name] for name in (*columns[3:], "num_tokens")), strict=True))
    prepared = {key: time for key, word, time in zip(keys, phase, found["latency"], strict=True) if "prepare" in word}
    before = np.array([prepared.get(key, 0.0) for key in keys])
    combine = phase == "alltoall_combine"
    for kernel in np.unique(source):
        rows = (source == kernel) & (combine | (phase == "alltoall_dispatch"))
        sizes = _sizes(
            table, found["moe_ep_size"][rows].astype(float), quick=0.0, combine=combine[rows].astype(float),
            tokens=found["num_tokens"][rows].astype(float),
            row_bytes=_row_bytes(found["hidden_size"][rows], combine[rows], sent[rows]),
            top_k=found["topk"][rows].astype(float), experts=found["num_experts"][rows].astype(float),
            sms=_USUAL_SMS,
        )  # fmt: skip
        seconds = found["latency"][rows] + np.where(combine[rows], 0.0, before[rows])
        yield kernel, sizes, seconds * _MILLISECOND


def _row_bytes(hidden: NDArray[Any], combine: NDArray[np.bool_], sent: NDArray[Any]) -> Array:
    each = np.array([_SENT[word] for word in sent])
    return hidden.astype(float) * np.where(combine, BF16_ROW, each)


def _sizes(table: OpTable, ranks: Array, **stated: Number) -> dict[str, Array]:
    """Sizes of exchanges between `ranks` devices of a table, with those that their links decide."""
    where = group_sizes(resolve(cluster(f"{int(ranks.max())}x{table.accelerator}")), ranks, 1)
    links = {name: where[name] for name in ("nodes", "link_bytes_per_s", "nic_bytes_per_s")}
    return {
        name: np.broadcast_to(np.asarray(column, dtype=float), ranks.shape)
        for name, column in {**stated, "ranks": ranks, **links}.items()
    }
