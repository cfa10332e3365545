"""Kernels taken alone, as a captured graph runs them, where a table timed them at the pace of their host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.cost.answer import Question, Rung
from ridgeline.cost.fitted import find_fits
from ridgeline.facts.fits import ENGINES, Fit, issued_eagerly
from ridgeline.facts.records import Accelerator

_OURS = ("gemm",)  # one kernel a call, which libraries do alike; a module's many are an engine's own


def bare_fits(question: Question, part: Accelerator, rung: Rung) -> tuple[Fit, ...]:
    """The fits of a rung for kernels that no host holds up; another library's where an engine's tables hide them.

    A table that replayed no graph shows how long the host takes, and nothing of what is shorter: vLLM 0.24's products
    of block-scaled fp8 take 60 to 300 us to issue, and the start of its kernels may be anything below. Other libraries
    have such products measured in graphs on the same devices, some by the same kernels (DeepGEMM).

    >>> from ridgeline.facts.accelerators import accelerator
    >>> asked = Question(family="gemm", sizes={}, form="fp8_block", engine="vllm", version="0.24.0")
    >>> {fit.engine for fit in bare_fits(asked, accelerator("GB200"), Rung.FITTED)}
    {'sglang'}
    """
    found = find_fits(question, part, rung)
    if question.family not in _OURS or not _hidden(found):
        return found
    others = (find_fits(replace(question, engine=engine, version=""), part, rung) for engine in ENGINES)
    return next((other for other in others if other and not _hidden(other)), found)


def _hidden(found: Sequence[Fit]) -> bool:
    """Whether a host issued all of these one by one."""
    return bool(found) and all(issued_eagerly(fit) for fit in found)
