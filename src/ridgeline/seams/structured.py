"""The seam of structured outputs: what constraining outputs to a grammar costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ridgeline.seams.serving_technique import ServingTechnique

if TYPE_CHECKING:
    from ridgeline.seams.setting import Setting


@dataclass(frozen=True, kw_only=True)
class StructuredOutput(ServingTechnique):
    """Outputs that are constrained to a grammar; neutral: none. It is a need, which no advice makes faster."""

    family: ClassVar[str] = "structured_outputs"
    in_words: ClassVar[bool] = False
    owns: ClassVar[frozenset[str]] = frozenset({"masks"})

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: whether outputs are constrained is not a matter of speed."""
        return ()
