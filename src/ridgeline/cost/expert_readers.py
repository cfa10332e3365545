"""How routed experts are read from the public operator tables: shapes, routing, and which rows tell what they ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.reader import Columns, Reader
from ridgeline.facts.opdata import OpTable
from ridgeline.facts.versions import release_key
from ridgeline.lower.work import Number

# Hidden and feed-forward sizes of models whose experts have no gate, which the tables do not say.
# Source: model cards of the Nemotron 3 family and of Nemotron-H.
UNGATED = frozenset({(2688, 1856), (2048, 5120), (1024, 2688), (8192, 5120)})


_LEVELLED = "_eplb"  # of distributions whose fullest experts have copies on other ranks: taken as balanced


def _experts(columns: Columns, table: OpTable) -> Mapping[str, Number]:
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


def _told(columns: Columns, table: OpTable) -> NDArray[np.bool_]:
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


_EXPERTS = Reader(
    tables=("moe_perf",),
    columns=(
        "num_tokens",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_tp_size",
        "moe_ep_size",
        "distribution",
        "kernel_source",
    ),
    form_column="moe_dtype",
    told=_told,
    sizes=_experts,
    blocks=("hidden", "inner", "top_k", "experts", "ranks"),
    smooth=("tokens",),
    exact=("hidden", "inner", "top_k", "experts", "ranks", "skew", "gated"),
    models=("hidden", "experts", "top_k"),
)

_WIDE_EXPERTS = replace(
    _EXPERTS,
    told=None,
    models=(),
    blocks=("tokens", "hidden", "ranks"),
    smooth=("tokens", "ranks"),
    exact=("hidden", "inner", "top_k", "experts", "skew", "gated"),
)

EXPERT_READERS: dict[str, Reader] = {
    "experts": _EXPERTS,
    "wide_experts": replace(_WIDE_EXPERTS, tables=("wideep_moe_perf", "wideep_context_moe_perf")),
    "wide_experts_decode": replace(_WIDE_EXPERTS, tables=("wideep_moe_perf", "wideep_generation_moe_perf")),
}
