"""Seconds of kernels on a processor that was calibrated: each as the calls that were timed there, shape by shape.

A rate is the best that some shape reached; a step's shapes are others. Formulas broadcast over NumPy arrays. Shape
letters: m, n, k of a product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.cost.answer import Rung
from ridgeline.cost.compute import KernelCost
from ridgeline.cost.fitted import FittedModel, model_of
from ridgeline.cost.interval import interval
from ridgeline.cost.machine import Device
from ridgeline.facts.fits import own_fits
from ridgeline.facts.records import BACKWARD, DIVIDED, OWN_HOST, Evidence
from ridgeline.lower.work import Attention, Gemm, Layout, Number, Phase

_BLENDED = 1.01  # mean keys of a query over half of all, up to which a mask is causal


@dataclass(frozen=True, kw_only=True)
class OwnHost:
    """Fits of calls on a processor, by family and format; empty where it was not calibrated."""

    device: Device
    fits: Mapping[tuple[str, str], FittedModel]

    def interval(self, seconds: float, rung: Evidence, *, dtype: str) -> tuple[float, float]:
        """The 80 % interval of a time [s]: by the residuals of this processor's own products, else by its evidence."""
        fit = self.fits.get(("gemm", dtype))
        if fit is None:
            return interval(seconds, rung)
        low, high = fit.kernels[-1].fit.low[-1], fit.kernels[-1].fit.high[-1]
        return seconds * low, seconds * high

    def gemm(self, work: Gemm, *, dtype: str, element_bytes: float) -> KernelCost | None:
        """Time of products as the processor's library computes them [s]; None where these were not timed.

        t = calls f(m, n, k): products that a layer has side by side, or one for each expert, are calls of their own.
        Those that share an input are parts of n; of their inputs' gradients, of k.
        """
        fit = self.fits.get(("gemm", dtype))
        plain = not work.quantized and work.taps == 1.0 and work.steps == 1.0
        if fit is None or not plain or np.any(np.asarray(work.weight_rows) > 0):
            return None
        inputs = work.phase is Phase.BACKWARD_INPUT
        n = np.asarray(work.n) / (1.0 if inputs else work.kernels)
        k = np.asarray(work.k) / (work.kernels if inputs else 1.0)
        m = np.maximum(np.asarray(work.m, dtype=float), 1.0)
        calls = np.asarray(work.count) * work.kernels
        seconds = np.asarray(fit.seconds({"m": m, "n": n, "k": k})) * calls
        moved = (m * k + k * n) * element_bytes + m * n * work.output_bytes
        return KernelCost(
            seconds=seconds,
            flop=2.0 * m * n * k * calls,
            bytes=moved * calls,
            compute_s=seconds,
            memory_s=moved * calls / self.device.memory_bytes_per_s,
            kernels=work.kernels * float(np.max(work.count)),
        )

    def attention(self, work: Attention, *, dtype: str) -> KernelCost | None:
        """Time of fused causal attention [s]; a backward takes its measured multiple of the forward.

        None for other masks, for head sizes of queries and values that differ, and where these were not timed.
        """
        fit = self.fits.get(("prefill", dtype))
        whole = np.asarray(work.kv_tokens, dtype=float)
        causal = np.all(np.asarray(work.mean_context) <= _BLENDED * (whole + 1.0) / 2.0)
        forward = work.phase in (Phase.FORWARD, Phase.RECOMPUTE)
        again = self.device.accelerator.sustained.get(f"{BACKWARD}.{dtype}")
        if fit is None or not (work.fused and causal and work.qk_dim == work.v_dim) or (again is None and not forward):
            return None
        sizes: dict[str, Number] = {
            "batch": work.sequences, "tokens": work.q_tokens, "cached": whole - work.q_tokens,
            "kv_heads": work.kv_heads, "group": np.asarray(work.heads) / work.kv_heads, "head_dim": work.qk_dim,
        }  # fmt: skip
        times = 1.0 if forward or again is None else again.value
        seconds = times * np.asarray(fit.seconds(sizes))
        scores = np.asarray(work.sequences) * work.heads * work.q_tokens * work.mean_context
        flop = scores * work.qk_dim * (4.0 if forward else 10.0)
        return KernelCost(
            seconds=seconds, flop=flop, bytes=0.0 * seconds, compute_s=seconds, memory_s=0.0 * seconds, kernels=1.0
        )

    def divided_s(self, work: Gemm, layout: Layout) -> Number:
        """What PyTorch's distributed tensors take the host beside each product that is divided over ranks [s].

        Backwards of a layer's two products are one pass, so the input's gradient has it.
        """
        names = {Phase.FORWARD: DIVIDED, Phase.BACKWARD_INPUT: f"{DIVIDED}.backward"}
        known = self.device.accelerator.sustained.get(names.get(work.phase, ""))
        if known is None or not self.fits:
            return 0.0
        calls = np.asarray(work.count) * work.kernels
        return np.where(np.asarray(layout.tp) > 1, known.value * calls, 0.0)


def own_host(device: Device) -> OwnHost:
    """The calls that were timed on a processor or on a part of it; none for other devices and for datasheets alone."""
    part = device.accelerator
    found: dict[tuple[str, str], FittedModel] = {}
    if part.architecture == OWN_HOST and device.evidence.get("hbm") is not Evidence.DATASHEET:
        for family in ("gemm", "prefill"):
            for form in ("fp32", "bf16"):
                known = own_fits(family, part.name, form=form)
                if known:
                    found[family, form] = model_of(family, form, part, known, Rung.FITTED, hosted=False)
    return OwnHost(device=device, fits=found)
