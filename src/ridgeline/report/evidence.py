"""How well an answer is known, part by part: each part's rung, and the share of the answer that hangs on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.facts.records import Evidence

_TOLD = 0.005  # of the answer; what is less would print as 0 %


@dataclass(frozen=True, kw_only=True)
class Known:
    """A part of an answer: its rung, and how much of the answer hangs on it [1]."""

    part: str
    evidence: Evidence
    share: float


def lowest(parts: Sequence[Known]) -> Evidence:
    """The lowest rung of parts that an answer hangs on by half a percent or more."""
    return min((one.evidence for one in parts if one.share >= _TOLD), default=Evidence.DERIVED)


def known_text(parts: Sequence[Known], what: str) -> str:
    """The parts by rung, the lowest first: 'assumed: host 7 %; derived: kernels 93 % of TPOT'."""
    told = [one for one in parts if one.share >= _TOLD]
    groups = []
    for rung in sorted({one.evidence for one in told}):
        these = sorted((one for one in told if one.evidence is rung), key=lambda one: -one.share)
        groups.append(f"{rung.label}: " + ", ".join(f"{one.part} {one.share:.0%}" for one in these))
    return "; ".join(groups) + f" of {what}" if groups else "nothing to know"


def known_as_list(parts: Sequence[Known]) -> list[dict[str, Any]]:
    """The same under stable keys."""
    return [{"part": one.part, "evidence": one.evidence.label, "share": one.share} for one in parts]
