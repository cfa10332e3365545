"""Kernels as engines run them, where a table timed them otherwise: at the pace of a host, or with products absorbed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ridgeline.cost.answer import Question, Rung
from ridgeline.cost.fitted import find_fits
from ridgeline.facts.fits import ENGINES, Fit, issued_eagerly
from ridgeline.facts.mechanisms import kernel_traits
from ridgeline.facts.records import Accelerator


def bare_fits(question: Question, part: Accelerator, rung: Rung) -> tuple[Fit, ...]:
    """The fits of a rung for kernels as they run; another library's where an engine's tables timed them otherwise.

    A table that replayed no graph shows how long the host takes, and nothing of what is shorter: vLLM 0.24's products
    of block-scaled fp8 take 60 to 300 us to issue, and the start of its kernels may be anything below. Other libraries
    have such products measured in graphs on the same devices, some by the same kernels (DeepGEMM). SGLang's tables of
    prompts of latent attention on Hopper, Ada and RTX attend to the latent itself, whose 576 + 512 numbers are 3.4
    times the products of keys and values of 192 + 128, which SGLang (MHA_CHUNKED_KV, MHA) and vLLM widen prompts to. On
    Hopper SGLang widens its whole pool of 8-bit latents to 16 bits before each step; no other engine does.

    >>> from ridgeline.facts.accelerators import accelerator
    >>> asked = Question(family="gemm", sizes={}, form="fp8_block", engine="vllm", version="0.24.0")
    >>> {fit.engine for fit in bare_fits(asked, accelerator("GB200"), Rung.FITTED)}
    {'sglang'}
    """
    found = find_fits(question, part, rung)
    otherwise = _OTHERWISE.get(question.family)
    if otherwise is None or not otherwise(question, found):
        return found
    others = (find_fits(replace(question, engine=engine, version=""), part, rung) for engine in ENGINES)
    return next((other for other in others if other and not otherwise(question, other)), found)


def _hidden(_: Question, found: Sequence[Fit]) -> bool:
    """Whether a host issued all of these one by one."""
    return bool(found) and all(issued_eagerly(fit) for fit in found)


def _absorbed(_: Question, found: Sequence[Fit]) -> bool:
    """Whether all of these attend to the latent itself."""
    return _all_have("absorbed", found)


def _casting_pool(question: Question, found: Sequence[Fit]) -> bool:
    """Whether all of these widen the whole pool of caches before each step, for another engine than their own."""
    return all(fit.engine != question.engine for fit in found) and _all_have("casts_pool", found)


def _all_have(trait: str, found: Sequence[Fit]) -> bool:
    traits = (kernel_traits(fit.family, fit.kernel_device, fit.engine, fit.kernel, fit.form) for fit in found)
    return bool(found) and all(one.get(trait, 0.0) > 0.0 for one in traits)


# Of products, one kernel a call, which libraries do alike; a module's many are an engine's own.
_OTHERWISE: Mapping[str, Callable[[Question, Sequence[Fit]], bool]] = {
    "gemm": _hidden,
    "mla_prefill": _absorbed,
    "mla_decode": _casting_pool,
}
