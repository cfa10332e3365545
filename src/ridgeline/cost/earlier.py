"""Attention by kernels of an earlier generation, on devices whose tables hold those that came after them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from ridgeline.facts.accelerators import accelerator
from ridgeline.facts.fits import Fit, fits, measured_devices, own_fits
from ridgeline.facts.mechanisms import OTHER, attention_kernel
from ridgeline.facts.records import Accelerator
from ridgeline.facts.transfer import blended

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
