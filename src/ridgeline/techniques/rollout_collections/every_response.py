"""Waiting for every response of an iteration."""

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.facts.records import Fact
from ridgeline.seams.rollout import Generated, Requests, RolloutCollection, Serve
from ridgeline.seams.technique import EXACT


@dataclass(frozen=True, kw_only=True)
class EveryResponse(RolloutCollection):
    """Waits until the longest response of an iteration has ended; devices that finish early idle."""

    key: ClassVar[str] = "every-response"
    source: ClassVar[tuple[str, ...]] = ("hybridflow-2024",)
    quality: ClassVar[Fact | None] = EXACT

    def collect(self, asked: Requests, serve: Serve) -> Generated:
        """One replay of all requests."""
        return serve(asked)
