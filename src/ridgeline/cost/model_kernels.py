"""Kernels that engines take for models of one kind only, told from those that they take for all others."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.facts.fits import Fit
from ridgeline.facts.mechanisms import kernel_traits


def for_model(found: Sequence[Fit], *, hybrid: bool) -> tuple[Fit, ...]:
    """The fits of kernels that answer for a model; of no other kind's, unless there are no others.

    Tables tell shapes and not models, and a shape may be of both: SGLang on B200 attends by TensorRT-LLM's kernels, but
    in `hybrid` models, some of whose layers keep a state in place of a cache, by FlashInfer's or Triton's (trait
    `hybrid` of `data/kernel_traits.tsv`).

    >>> from ridgeline.facts.fits import own_fits
    >>> known = own_fits("decode", "B200-SXM", engine="sglang", form="bf16")
    >>> sorted({fit.kernel.split()[0] for fit in for_model(known, hybrid=False) if "d192" not in fit.kernel})
    ['trtllm_mha']
    """
    return tuple(found if hybrid else (fit for fit in found if not _hybrid(fit))) or tuple(found)


def hybrid_alone(family: str, device: str, engine: str, kernel: str, form: str) -> bool:
    """Whether an engine takes a kernel on a device for hybrid models alone: the trait `hybrid`.

    >>> hybrid_alone("decode", "B200-SXM", "sglang", "triton d256", "bf16")
    True
    """
    return kernel_traits(family, device, engine, kernel, form).get("hybrid", 0.0) > 0.0


def _hybrid(fit: Fit) -> bool:
    return hybrid_alone(fit.family, fit.kernel_device, fit.engine, fit.kernel, fit.form)
