"""Which fits of measured kernels answer for an operator: of the device and engine, of devices like it, of all.

Kernels are taken as they run: a table timed some at the pace of a host, or with products absorbed, and those of an
earlier generation run on devices whose tables hold what came after them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain, product
from typing import Any

import numpy as np

from ridgeline.cost.answer import Question, Rung
from ridgeline.cost.formats import WIDE, form, judged_form, like_forms, narrow_forms, nearest_forms
from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.fits import ENGINES, Fit, Reach, fits, issued_eagerly, measured_devices, named_kernels, own_fits
from ridgeline.facts.mechanisms import OTHER, attention_kernel, kernel_traits
from ridgeline.facts.records import Accelerator
from ridgeline.facts.transfer import EXCHANGES, MODULES, blended, common_fits, transferred_fits

CORES = ("prefill", "decode")  # attention, whose wide formats run the same kernels at other rates


def find_fits(question: Question, part: Accelerator, rung: Rung, *, apart: bool = False) -> tuple[Fit, ...]:
    """The fits of a rung: of the engine asked for, else of any; 16-bit formats stand for each other, fp8's for fp8's.

    Attention in wider formats borrows the device's own kernels in bf16, at its own rate and bytes.

    `apart` leaves out the device's whole architecture of what all devices have in common.
    """
    if rung is Rung.COMMON:
        return _common(question, part, part.architecture if apart else "")
    reach = _reach(question)
    for engine, aside in product(dict.fromkeys((question.engine, "")), (False, True)):
        version = question.version if engine == question.engine else ""  # others count releases in their own way
        for name in like_forms(form(question.form)):
            how: dict[str, Any] = {"engine": engine, "version": version, "form": name}
            how |= {"kernels": question.kernel, "reach": reach, "aside": aside}
            if rung is Rung.FITTED:
                found = own_fits(question.family, part.name, **how)
            elif name in WIDE and question.family in CORES:
                own = own_fits(question.family, part.name, engine=engine, version=version, form="bf16")
                found = own or transferred_fits(question.family, part, engine=engine, form="bf16")
            else:
                found = transferred_fits(question.family, part, **how)
            if found:
                return named_kernels(for_model(found, hybrid=question.hybrid), question.kernel)
    return ()


def _common(question: Question, part: Accelerator, without: str) -> tuple[Fit, ...]:
    """What all devices but an architecture have in common, in the format whose kernels are nearest to those asked for.

    A module is an engine's program: what it runs in another narrow format is nearer than what another engine does.
    """
    asked = form(question.form)
    lend = partial(common_fits, question.family, part, engine=question.engine, apart_from=without)
    module = question.family in MODULES and question.engine
    tried = chain(
        ((name, True) for name in (*like_forms(asked), *narrow_forms(asked)) if module),
        ((name, False) for name in nearest_forms(asked)),
    )
    lent = (lend(form=name, alone=alone, asked=judged_form(question.form, name)) for name, alone in tried)
    return next((found for found in lent if found), ())


def _reach(question: Question) -> Reach:
    """How far an exchange goes: releases measured on fewer nodes or ranks know nothing of what lies beyond."""
    if question.family not in EXCHANGES:
        return ()
    named = ((name, question.sizes.get(name)) for name in ("nodes", "ranks"))
    return tuple((name, float(np.max(size))) for name, size in named if size is not None)


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


def device_only_fits(question: Question, part: Accelerator, rung: Rung) -> tuple[Fit, ...]:
    """The fits of a rung for kernels as they run; another library's where an engine's tables timed them otherwise.

    A table that replayed no graph shows how long the host takes, and nothing of what is shorter: vLLM 0.24's products
    of block-scaled fp8 take 60 to 300 us to issue, and the start of its kernels may be anything below. Other libraries
    have such products measured in graphs on the same devices, some by the same kernels (DeepGEMM). SGLang's tables of
    prompts of latent attention on Hopper, Ada and RTX attend to the latent itself, whose 576 + 512 numbers are 3.4
    times the products of keys and values of 192 + 128, which SGLang (MHA_CHUNKED_KV, MHA) and vLLM widen prompts to. On
    Hopper SGLang widens its whole pool of 8-bit latents to 16 bits before each step; no other engine does.

    >>> from ridgeline.facts.accelerators import accelerator
    >>> asked = Question(family="gemm", sizes={}, form="fp8_block", engine="vllm", version="0.24.0")
    >>> {fit.engine for fit in device_only_fits(asked, accelerator("GB200"), Rung.FITTED)}
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


_GENERATION = "flash2"


def earlier_fits(family: str, part: Accelerator, *, engine: str, kernel: str, form: str) -> tuple[Fit, ...]:
    """What devices of the same vendor and kind of memory lend of their fits of a `kernel`, () where none has it.

    Tensor cores of newer architectures wait for instructions that the kernel does not use: its matrix rate is less
    there by what FlashAttention-2 loses from its lenders' architectures to this one's. Source: flash-attention
    (Dao-AILab), assets of benchmarks: shares of `data/attention_kernels.tsv`. Evidence: derived.

    >>> from ridgeline.facts.accelerators import accelerator
    >>> (lent,) = earlier_fits(
    ...     "decode", accelerator("H100-SXM"), engine="vllm", kernel="vllm_flash_attn", form="bf16"
    ... )
    >>> lent.source.split()[-1]
    'A100-SXM-80GB'
    """
    return _earlier(family, part.name, part.vendor, part.architecture, part.graphics, engine, kernel, form)


@cache
def _earlier(
    family: str, name: str, vendor: str, architecture: str, graphics: bool, engine: str, kernel: str, form: str
) -> tuple[Fit, ...]:
    lenders = [accelerator(device) for device in measured_devices(family) if device != name]
    alike = [one for one in lenders if one.vendor == vendor and one.graphics == graphics]
    lent = [
        fit
        for one in alike
        for fit in own_fits(family, one.name, engine=engine, form=form)
        if (fit.engine, fit.kernel) == (engine, kernel)
    ]
    if not lent or any(fit.device == name and fit.kernel == kernel for fit in fits(family)):
        return ()
    found = blended(lent, name)
    here, there = (attention_kernel(_GENERATION, at).forward_share_ for at in (architecture, OTHER))
    slower = {"matrix_share_": found.values["matrix_share_"] * here / there}
    return (replace(found, values={**found.values, **slower}),)
