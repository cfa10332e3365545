"""Shortest remaining time: who needs the fewest tokens more is next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.seams.serving import Queue
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class ShortestRemaining(Queue):
    """Shortest remaining time first, as if the length of every answer were known.

    An answer's token weighs as many of a prompt as `answer` says, since a prompt's are computed together.
    """

    key: ClassVar[str] = "srpt"
    source: ClassVar[tuple[str, ...]] = ("https://arxiv.org/abs/2410.01035, section 3",)
    answer: float = param(10.0, "1", "tokens of a prompt that take as long as one of an answer", low=1.0, high=1e4)

    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Hook `order`: who needs more stays behind."""
        weight = self.answer

        def order(requests: Any, rule: Any, request: int, other: int) -> bool:
            mine = requests[request].needed + weight * (requests[request].output - requests[request].made)
            return requests[other].needed + weight * (requests[other].output - requests[other].made) > mine

        return {"order": order}
