"""What an engine computes with on devices that do not multiply the formats it was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ridgeline.cost.formats import EXPERTS_ONLY, Formats, by_bits, form
from ridgeline.errors import PlanError
from ridgeline.facts.engines import EnginePolicy
from ridgeline.facts.records import SPARSE, Accelerator
from ridgeline.graph.workload import instead, without_rate

_NARROW_FLOATS = frozenset({"fp8", "fp4"})
_REFUSED = "refused"


def computed_formats(asked: Formats, policy: EnginePolicy, part: Accelerator) -> Formats:
    """The formats that a device computes in: narrow floats that it does not multiply are read so and widened.

    Weight-only kernels (Marlin) read weights of 8 or 4 bits and multiply in 16. Raises `PlanError` where the engine
    refuses that (`without_rate` of its policy), and for tf32 where there is none.
    """
    rates = part.peak_flop_per_s
    if not rates:
        return asked
    if "tf32" in (asked.wide, asked.feed, asked.attention, asked.out) and "tf32" not in rates:
        raise PlanError(f"deployment: tf32: {without_rate(part.name, 'tf32', rates)}")
    for word in (asked.feed, asked.attention):
        if (matrix := form(word).matrix).endswith(SPARSE) and matrix not in rates:
            raise PlanError(f"deployment: weights = {word}: {without_rate(part.name, matrix, rates)}")
    changed: dict[str, Any] = {
        name: _widened(word, rates)
        for name, word in (("feed", asked.feed), ("attention", asked.attention), ("out", asked.out))
        if word and not _multiplied(word, rates)
    }
    if changed and policy.without_rate == _REFUSED:
        word = asked.feed if "feed" in changed else asked.attention if "attention" in changed else asked.out
        raise PlanError(
            f"deployment: weights = {word}: {without_rate(part.name, form(word).matrix, rates)}, and {policy.name}"
            " serves them on no such device; take --weights int4, int8_wo or bf16, or another engine"
        )
    return replace(asked, **changed)


def _multiplied(word: str, rates: Mapping[str, float]) -> bool:
    matrix = form(word).matrix
    return matrix not in _NARROW_FLOATS or matrix in rates


def _widened(word: str, rates: Mapping[str, float]) -> str:
    """The format of the same weights that meets inputs of 16 bits."""
    what = form(word)
    return "w4a16_mxfp4" if what.name in EXPERTS_ONLY else form(by_bits(8.0 * what.weight_bytes)).name


def format_notes(asked: Formats, computed: Formats, policy: EnginePolicy, part: Accelerator) -> list[str]:
    """What a person should know where a device computes in other formats than those asked for."""
    rates, notes = part.peak_flop_per_s, []
    for word, found in dict.fromkeys(((asked.feed, computed.feed), (asked.attention, computed.attention))):
        if word == found or _multiplied(word, rates):
            continue
        how = "by weight-only kernels (Marlin)" if policy.without_rate else "weight-only, as vLLM does"
        notes.append(
            f"{part.name} has no {form(word).matrix} matrix rate: {policy.name} reads {word} weights at"
            f" {8.0 * form(found).weight_bytes:g} bits {how} and multiplies in 16 bits: less memory, no faster products"
        )
    wide = form(computed.feed).matrix == "bf16" and computed.feed != "fp16"
    if wide and rates and "bf16" not in rates:
        flag = " (vLLM starts with --dtype half)" if policy.name == "vLLM" and "fp16" in rates else ""
        notes.append(f"{part.name} multiplies no bf16: what is 16 bits is multiplied in {instead('bf16', rates)}{flag}")
    return notes
