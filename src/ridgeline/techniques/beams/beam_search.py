"""Beam search: several continuations of every prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.serving import Beams
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class BeamSearch(Beams):
    """Beam search keeps the likeliest continuations of a prompt; each is a token of every step, one is gained.

    Room is counted for one of them.
    """

    key: ClassVar[str] = "beam-search"
    word: ClassVar[str] = "beam_width"
    off: ClassVar[object] = 1
    source: ClassVar[tuple[str, ...]] = ("tensorrt-llm",)
    width: int = param(
        4, "beams", "continuations of each prompt that a beam search keeps", low=1, high=64, word="beam_width"
    )

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: it makes other outputs for more work: a choice of what is asked, not of how."""
        return ()

    def told(self) -> str:
        """How many."""
        return f"{self.width} beams"
