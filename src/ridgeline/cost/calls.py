"""Seconds of one call of PyTorch on a processor: a sum over what it does, each at a pace that was measured there.

A library packs the operands of a product, multiplies, and writes; one after the other, so their times add. With few
rows packing the weight takes longer than multiplying. Shape letters: m rows, n outputs, k inputs of a linear layer;
B sequences, S tokens, H heads, K kv heads, D head size; V rows of a table.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ridgeline.facts.fits import CallFit
from ridgeline.lower.work import Number

_KEYS_AT_ONCE = 512.0
"""Keys that PyTorch's attention on a processor takes at a time. Source: pytorch,
aten/src/ATen/native/cpu/FlashAttentionKernel.cpp, kv_split_size of cpu_flash_attention."""
ARRAYS = 8.0  # of a layer's element-wise operators that its cache holds at a time (assumed)

POINTWISE = (
    "rms_norm", "layer_norm", "gated", "activation", "rotary", "residual", "cross_entropy", "embedding", "bias",
)  # fmt: skip


def features(call: str, sizes: Mapping[str, Number]) -> dict[str, Number]:
    """What a call does, by name: numbers that its time is a sum over [1].

    Products: m n k, and the elements of weight, input and result. Attention: queries times keys that are visited, the
    same times D, and where backward gives each kv head to one thread, the same by the busiest thread's share. Others:
    elements, those beyond the cache's share of an operator, and rows of an embedding's gradient, which is dense.
    """
    family = call.split(".")[0]
    if family == "gemm":
        m, n, k = (np.asarray(sizes[name], dtype=float) for name in "mnk")
        return {"start_s_": 1.0, "multiply_s_": m * n * k, "weight_s_": n * k, "input_s_": m * k, "output_s_": m * n}
    if family == "attention":
        return _attention(call, sizes)
    if family == "optimizer":
        return {"start_s_": 1.0, "tensor_s_": sizes["tensors"], "element_s_": sizes["elements"]}
    if family in ("linear", "layer"):
        return {"start_s_": 1.0}
    elements = np.asarray(sizes["elements"], dtype=float)
    room = np.asarray(sizes["cache_bytes"], dtype=float) / (4.0 * ARRAYS)
    found: dict[str, Number] = {"start_s_": 1.0, "element_s_": elements, "beyond_s_": np.maximum(0.0, elements - room)}
    return found if call != "embedding.backward" else {**found, "table_s_": sizes["table"]}


def _attention(call: str, sizes: Mapping[str, Number]) -> dict[str, Number]:
    batch, tokens, kv_heads, group, head_dim, threads = (
        np.asarray(sizes[name], dtype=float) for name in ("batch", "tokens", "kv_heads", "group", "head_dim", "threads")
    )
    heads = batch * kv_heads * group
    visited = np.where(tokens <= _KEYS_AT_ONCE, tokens, (tokens + _KEYS_AT_ONCE) / 2.0)
    pairs = heads * tokens * visited
    found = {
        "start_s_": 1.0, "pair_s_": pairs, "multiply_s_": pairs * head_dim, "row_s_": heads * tokens * head_dim,
    }  # fmt: skip
    if call == "attention.backward":
        units = batch * kv_heads
        found["busiest_s_"] = pairs * head_dim * np.ceil(units / threads) * threads / units
    return found


def call_seconds(fit: CallFit, sizes: Mapping[str, Number]) -> Number:
    """Time of calls of these sizes [s]: the sum of each feature times its fitted seconds."""
    found: Number = sum(fit.values.get(name, 0.0) * np.asarray(one) for name, one in features(fit.call, sizes).items())
    return found
