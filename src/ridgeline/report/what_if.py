"""What would change an answer, as numbers and as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EVERYTHING = "everything"
_TOLD = 0.001  # of the time; what changes less is left to the numbers
_WHOLE = 1.0 - 1.0 / 1.1  # of a time that hangs on rates of the machine alone


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
    lines = [f"10 % more {one.resource}: {one.gain:.1%} less {what}" for one in each if one and one.gain > _TOLD]
    fixed = max(0.0, 1.0 - whole.gain / _WHOLE)
    rest = f"; {fixed:.0%} of it hangs on no rate (starts of kernels and collectives)" if fixed >= 0.005 else ""
    return [*lines, f"10 % more of everything: {whole.gain:.1%} less {what}{rest}"]


def sensitivities_as_list(found: Sequence[Sensitivity]) -> list[dict[str, float | str]]:
    """The same under stable keys."""
    return [{"resource": one.resource, "more": 0.1, "gain": one.gain} for one in found]
