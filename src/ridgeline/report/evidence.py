"""How well an answer is known, part by part, and what would change it; also of both steps of a served model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.facts.records import Evidence
from ridgeline.report.blocks import Block, Line, blank, listed

EVERYTHING = "everything"
_TOLD = 0.005  # of the answer; what is less would print as 0 %
_CHANGED = 0.001  # of the time; what changes less is left to the numbers
_WHOLE = 1.0 - 1.0 / 1.1  # of a time that hangs on rates of the machine alone
_STEPS = {"decode_step": "a decode step", "prompt": "a prompt"}  # the mean ones of a served model


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


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """How much shorter a time is with a tenth more of one resource of the machine [1]."""

    resource: str
    gain: float


def what_if_lines(found: Sequence[Sensitivity], what: str) -> list[str]:
    """Sentences on `what` ('step time'), the greatest effect first; then what everything together gives."""
    *each, whole = found or (None,)
    if whole is None:
        return []
    lines = [f"10 % more {one.resource}: {one.gain:.1%} less {what}" for one in each if one and one.gain > _CHANGED]
    fixed = max(0.0, 1.0 - whole.gain / _WHOLE)
    rest = f"; {fixed:.0%} of it hangs on no rate (starts of kernels and collectives)" if fixed >= 0.005 else ""
    return [*lines, f"10 % more of everything: {whole.gain:.1%} less {what}{rest}"]


def sensitivities_as_list(found: Sequence[Sensitivity]) -> list[dict[str, float | str]]:
    """The same under stable keys."""
    return [{"resource": one.resource, "more": 0.1, "gain": one.gain} for one in found]


def steps_known(known: Sequence[Sequence[Known]]) -> list[str]:
    """The rungs of both and the share of each that hangs on them, a line each."""
    return [known_text(parts, what) for parts, what in zip(known, _STEPS.values(), strict=bool(known))]


def steps_what_if(found: Sequence[Sequence[Sensitivity]]) -> list[Block]:
    """What would change either; nothing where nothing was asked."""
    if not found:
        return []
    lines = [line for each in _sentences(found).values() for line in each]
    title = "What would change a decode step and a prompt alone (waiting, and prompts between steps, not replayed)"
    return [blank(), Line(text=title, strong=True), *listed(lines)]


def steps_as_dict(known: Sequence[Sequence[Known]], found: Sequence[Sequence[Sensitivity]]) -> dict[str, Any]:
    """Both under the keys that a training step's have: `known`, `what_if` and `sensitivities`, each by step."""
    return {
        "known": {name: known_as_list(parts) for name, parts in zip(_STEPS, known, strict=bool(known))},
        "what_if": _sentences(found),
        "sensitivities": {name: sensitivities_as_list(one) for name, one in zip(_STEPS, found, strict=bool(found))},
    }


def _sentences(found: Sequence[Sequence[Sensitivity]]) -> dict[str, list[str]]:
    pairs = zip(_STEPS.items(), found, strict=bool(found))
    return {name: what_if_lines(one, f"time of {what}") for (name, what), one in pairs}
