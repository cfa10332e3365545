"""The words of several pools as one deployment's: those of a manifest, or of a file for each pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline.export.target import Imported, Words

WHOLE = "whole"
ROLES = (WHOLE, "prefill", "decode")
_DEGREES = ("tp", "pp", "dp", "ep")


def together(read: Mapping[str, Imported], counts: Mapping[str, Any]) -> tuple[Words, list[str]]:
    """The words of one pool, or of two as a deployment has them, and what of prefill's is not taken."""
    if WHOLE in read:
        return {**read[WHOLE].words, "plan.instances": counts[WHOLE]}, []
    words: Words = {}
    notes = []
    for role in ("prefill", "decode"):
        if role not in read:
            continue
        said = dict(read[role].words)
        said.pop("pool.role", None)
        degrees = ",".join(f"{name}{said.pop(f'plan.{name}', 1)}" for name in _DEGREES)
        notes += [f"{role}'s {word} is {value}, prefill's {words[word]} is not taken" for word, value in said.items()
                  if words.get(word, value) != value]  # fmt: skip
        words = {**words, **said, f"plan.{role}": f"{counts[role]}x{degrees}"}
    return words, notes
