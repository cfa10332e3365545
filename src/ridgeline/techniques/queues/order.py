"""Queues of engines: by arrival, fair among clients, the shortest prompt first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from ridgeline.seams.serving import Instance, Queue
from ridgeline.seams.technique import param

if TYPE_CHECKING:
    from ridgeline.serving.state import Record, Records


@dataclass(frozen=True, kw_only=True)
class Arrival(Queue):
    """First come, first served; of different priorities the more urgent first."""

    key: ClassVar[str] = "arrival"
    source: ClassVar[tuple[str, ...]] = ("vllm",)


@dataclass(frozen=True, kw_only=True)
class Fair(Queue):
    """The first request of the client that was served least: the virtual token counter.

    A client's counter on a rank grows by a prompt's tokens when it is admitted, and by two for each token generated.
    Counters are those of one rank: a client that uses several instances has one on each.
    """

    key: ClassVar[str] = "fair"
    source: ClassVar[tuple[str, ...]] = ("sheng2024vtc",)
    by_client: ClassVar[bool] = True

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """That the queue is fair among clients."""
        return {"fair": 1}


@dataclass(frozen=True, kw_only=True)
class Shortest(Queue):
    """The shortest prompt first, with what it has waited taken off.

    Of two who wait the one with the least n + p a is next: n its tokens, a its arrival, p the patience; as both grow as
    old, their order never changes.
    """

    key: ClassVar[str] = "shortest"
    source: ClassVar[tuple[str, ...]] = ("shi2025nexus",)
    patience: float = param(
        0.0, "token/s", "tokens that a second of waiting counts for in the queue of the shortest; 0 when absent",
        high=1e6, word="queue_patience",
    )  # fmt: skip

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """The patience that the hook reads."""
        return {"patience": self.patience}

    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Hook `order`: who has the longer prompt stays behind."""
        from ridgeline.serving.queues import shortest_first

        return {"order": shortest_first}


@cache
def _by_session() -> Callable[..., bool]:
    """Hook `order`: whether the other's session began later."""
    from ridgeline.serving.compiling import clocked

    @clocked
    def began_later(requests: Records, rule: Record, request: int, other: int) -> bool:
        mine, theirs = request, other
        while requests[mine].follows >= 0:
            mine = requests[mine].follows
        while requests[theirs].follows >= 0:
            theirs = requests[theirs].follows
        return bool(requests[theirs].came_s > requests[mine].came_s)

    return began_later


@dataclass(frozen=True, kw_only=True)
class BySession(Queue):
    """The request whose session began first: a turn does not wait again behind sessions that came later.

    Requests of no session count by their own arrival.
    """

    key: ClassVar[str] = "session"
    source: ClassVar[tuple[str, ...]] = ("li2025continuum",)

    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Hook `order`: who belongs to a later session stays behind."""
        return {"order": _by_session()}
