"""A decode step and a prompt of a served model, the mean ones: how well each is known, what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.report.blocks import Block, Line, blank
from ridgeline.report.evidence import Known, known_as_list, known_text
from ridgeline.report.what_if import Sensitivity, sensitivities_as_list, what_if_lines

_STEPS = {"decode_step": "a decode step", "prompt": "a prompt"}


def steps_known(known: Sequence[Sequence[Known]]) -> list[str]:
    """The rungs of both and the share of each that hangs on them, a line each."""
    return [known_text(parts, what) for parts, what in zip(known, _STEPS.values(), strict=bool(known))]


def steps_what_if(found: Sequence[Sequence[Sensitivity]]) -> list[Block]:
    """What would change either; nothing where nothing was asked."""
    if not found:
        return []
    lines = [line for each in _sentences(found).values() for line in each]
    title = "What would change a decode step and a prompt alone (waiting, and prompts between steps, not replayed)"
    return [blank(), Line(text=title, strong=True), *(Line(text=f"- {line}", indent=2, hang=2) for line in lines)]


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
