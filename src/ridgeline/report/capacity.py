"""What a capacity question found: the answer first, what ends it, how far the best can be; then the replay of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.report.blocks import Block, Line, Printed, blank, labelled
from ridgeline.report.serving import ServingReport


@dataclass(frozen=True, kw_only=True)
class CapacityReport(Printed):
    """An answer as rows of words and as keys, and the report of the replay at it."""

    rows: Sequence[tuple[str, str]]
    keys: Mapping[str, Any]
    at: ServingReport

    def blocks(self) -> list[Block]:
        """What `ridgeline simulate --find` prints."""
        return [
            *labelled(list(self.rows)),
            blank(),
            Line(text="At this point", strong=True),
            blank(),
            *self.at.blocks(),
        ]
