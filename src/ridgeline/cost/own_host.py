"""Seconds of kernels on a processor that was calibrated: each as the calls that were timed there, shape by shape.

A rate is the best that some shape reached; a step's shapes are others. Formulas broadcast over NumPy arrays. Shape
letters: m, n, k of a product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.cost.answer import Cost, interval
from ridgeline.cost.machine import Device
from ridgeline.facts.fits import CallFit, calls_of
from ridgeline.facts.records import DIVIDED, DRIFT, OWN_HOST, Evidence
from ridgeline.lower.work import Attention, Gemm, Layout, Number, Phase, Stream

_BLENDED = 1.01  # tolerance: mean keys of a query over half of all, up to which a mask is causal
_WAYS = {
    Phase.FORWARD: "forward", Phase.RECOMPUTE: "forward",
    Phase.BACKWARD_INPUT: "input", Phase.BACKWARD_WEIGHT: "weight",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OwnHost:
    """Fits of calls on a processor, by name and format; empty where it was not calibrated."""

    device: Device
    calls: Mapping[tuple[str, str], CallFit]

    def interval(self, seconds: float, rung: Evidence, *, dtype: str) -> tuple[float, float]:
        """The 80 % interval of a time [s], of what calibration saw, else by its evidence.

        The residuals of this processor's products, and how far one product drifted meanwhile: a later run meets a
        machine that has drifted as much. The two are independent, so their logarithms add as squares.
        """
        fit = self.calls.get(("gemm.forward", dtype))
        if fit is None:
            return interval(seconds, rung)
        known = self.device.accelerator.sustained.get(DRIFT)
        drift = 0.0 if known is None else np.log(known.value)
        low, high = (float(np.exp(np.hypot(np.log(end), drift))) for end in (fit.low, fit.high))
        return seconds / low, seconds * high

    def cost(self, work: Gemm | Attention | Stream, *, dtype: str, element_bytes: float) -> Cost | None:
        """Price of a piece of work as the calls that programs make for it [s]; None where these were not timed."""
        if isinstance(work, Gemm):
            return self._gemm(work, dtype=dtype, element_bytes=element_bytes)
        return self._attention(work, dtype=dtype) if isinstance(work, Attention) else self._stream(work, dtype=dtype)

    def _seconds(self, call: str, dtype: str, sizes: Mapping[str, Number]) -> Number | None:
        fit = self.calls.get((call, dtype))
        return None if fit is None else call_seconds(fit, sizes)

    def _gemm(self, work: Gemm, *, dtype: str, element_bytes: float) -> Cost | None:
        """Products as the processor's library computes them, with what a linear layer's module and gradient add.

        t = calls f(m, n, k): products that a layer has side by side, or one for each expert, are calls of their own.
        Those that share an input are parts of n; of their inputs' gradients, of k. A gradient of a weight is a product
        over its rows.
        """
        plain = not work.quantized and work.taps == 1.0 and work.steps == 1.0
        if not plain or np.any(np.asarray(work.weight_rows) > 0):
            return None
        way, by = _WAYS[work.phase], work.kernels
        m, n, k = (np.asarray(one, dtype=float) for one in (work.m, work.n, work.k))
        if way == "input":
            n, k = k / by, n
        elif way == "weight":
            m, n, k = k, n / by, m
        else:
            n = n / by
        m = np.maximum(m, 1.0)
        calls = np.asarray(work.count) * by
        one = self._seconds(f"gemm.{way}", dtype, {"m": m, "n": n, "k": k})
        if one is None:
            return None
        beside = self._seconds(f"linear.{'forward' if way == 'forward' else 'backward'}", dtype, {}) or 0.0
        seconds = np.asarray(one + (0.0 if way == "weight" else beside)) * calls
        moved = (m * k + k * n + m * n) * element_bytes
        return Cost(
            seconds=seconds,
            flop=2.0 * m * n * k * calls,
            bytes=moved * calls,
            compute_s=seconds,
            memory_s=moved * calls / self.device.memory_bytes_per_s,
            kernels=by * float(np.max(work.count)),
            timed=True,
        )

    def _attention(self, work: Attention, *, dtype: str) -> Cost | None:
        """Fused causal attention; None for other masks and for head sizes of queries and values that differ."""
        whole = np.asarray(work.kv_tokens, dtype=float)
        causal = np.all(np.asarray(work.mean_context) <= _BLENDED * (whole + 1.0) / 2.0)
        if not (work.fused and causal and work.qk_dim == work.v_dim):
            return None
        forward = work.phase in (Phase.FORWARD, Phase.RECOMPUTE)
        sizes: dict[str, Number] = {
            "batch": work.sequences, "tokens": work.q_tokens, "kv_heads": work.kv_heads,
            "group": np.asarray(work.heads) / work.kv_heads, "head_dim": work.qk_dim,
            "threads": float(self.device.accelerator.sm_count or 1),
        }  # fmt: skip
        seconds = self._seconds(f"attention.{'forward' if forward else 'backward'}", dtype, sizes)
        if seconds is None:
            return None
        scores = np.asarray(work.sequences) * work.heads * work.q_tokens * work.mean_context
        flop = scores * work.qk_dim * (4.0 if forward else 10.0)
        none = 0.0 * np.asarray(seconds)
        return Cost(seconds=seconds, flop=flop, bytes=none, compute_s=seconds, memory_s=none, kernels=1.0, timed=True)

    def _stream(self, work: Stream, *, dtype: str) -> Cost | None:
        """An element-wise operator by its function, as PyTorch computes it."""
        way = "forward" if work.phase in (Phase.FORWARD, Phase.RECOMPUTE) else "backward"
        cache = self.device.accelerator.l2_bytes or 0.0
        sizes: dict[str, Number] = {"elements": work.elements, "table": work.table, "cache_bytes": cache}
        seconds = self._seconds(f"{work.function}.{way}", dtype, sizes)
        if seconds is None:
            return None
        none = 0.0 * np.asarray(seconds)
        return Cost(
            seconds=seconds, flop=work.flop, bytes=work.bytes, compute_s=none, memory_s=seconds, kernels=work.kernels,
            timed=True,
        )  # fmt: skip

    def update_s(self, trained: Number, tensors: Number, *, dtype: str) -> Number | None:
        """Time of a fused update of so many numbers in so many tensors [s]; None where it was not timed."""
        return self._seconds("optimizer.adamw", dtype, {"elements": trained, "tensors": tensors})

    def layer_s(self, way: str, *, dtype: str) -> Number:
        """What Python, views and autograd take in one layer, forward or backward, beside its calls [s]."""
        return self._seconds(f"layer.{way}", dtype, {}) or 0.0

    def divided_s(self, work: Gemm, layout: Layout) -> Number:
        """What PyTorch's distributed tensors take the host beside each product that is divided over ranks [s].

        Backwards of a layer's two products are one pass, so the input's gradient has it.
        """
        names = {Phase.FORWARD: DIVIDED, Phase.BACKWARD_INPUT: f"{DIVIDED}.backward"}
        known = self.device.accelerator.sustained.get(names.get(work.phase, ""))
        if known is None or not self.calls:
            return 0.0
        calls = np.asarray(work.count) * work.kernels
        return np.where(np.asarray(layout.tp) > 1, known.value * calls, 0.0)


def own_host(device: Device) -> OwnHost:
    """The calls that were timed on a processor or on a part of it; none for other devices and for datasheets alone."""
    part = device.accelerator
    timed = part.architecture == OWN_HOST and device.evidence.get("hbm") is not Evidence.DATASHEET
    return OwnHost(device=device, calls=calls_of(part.name) if timed else {})


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
