"""Caches held between the turns of a session: for a time, until the next turn, or where that wastes less memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from ridgeline.seams.prefixes import KVRetention
from ridgeline.seams.technique import param

if TYPE_CHECKING:
    from ridgeline.serving.state import Clock, Record


@cache
def _for(seconds: float) -> Callable[..., float]:
    """Hook `keeps`: the same time for all."""
    from ridgeline.serving.compiling import clocked

    @clocked
    def kept_for(clock: Clock, rule: Record, rank: int, request: int) -> float:
        return seconds

    return kept_for


@cache
def _least_waste() -> Callable[..., float]:
    """Hook `keeps`: until the next turn where holding the cache wastes less than computing it again."""
    from ridgeline.serving.clock import chunk_s, group_s, token_s
    from ridgeline.serving.compiling import clocked

    @clocked
    def kept_or_computed(clock: Clock, rule: Record, rank: int, request: int) -> float:
        child = clock.requests[request].first_child
        tool_s = clock.requests[child].think_s
        context = float(clock.requests[request].prompt + clock.requests[request].output)
        taken_s = token_s(clock.times, rule, context) + group_s(clock.times, rule, context, True)
        taken_s += chunk_s(clock.times, rule, context, 0.0)
        if tool_s * context <= taken_s * (context + clock.ranks[rank].context):
            return math.inf
        return 0.0

    return kept_or_computed


@dataclass(frozen=True, kw_only=True)
class TimeToLive(KVRetention):
    """The cache of a turn is held for its session's next turn for at most so many seconds after its end.

    A turn that comes in time finds its context; after that time the cache may be taken as any other that is unused.
    With a time longer than any tool's it is always kept.
    """

    key: ClassVar[str] = "kv-ttl"
    source: ClassVar[tuple[str, ...]] = ("li2025continuum",)
    seconds: float = param(10.0, "s", "time for which a turn's cache is held; 10 when absent", low=1e-3, high=1e8)

    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Hook `keeps`: the time."""
        return {"keeps": _for(self.seconds)}

    def told(self) -> str:
        """The time."""
        return f"turns' caches held for {self.seconds:g} s"


@dataclass(frozen=True, kw_only=True)
class LeastWaste(KVRetention):
    """The cache of a turn is held for the next one where that wastes less of the memory than computing it again.

    Held, C tokens lie idle for the tool's time T; computed again in F seconds, they and the D tokens of who decodes
    wait: held where T C <= F (C + D). The tool's time is known, where the paper estimates it; what is neither held nor
    found is computed again, or fetched where there is a tier.
    """

    key: ClassVar[str] = "kv-least-waste"
    source: ClassVar[tuple[str, ...]] = ("abhyankar2024infercept",)

    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Hook `keeps`: by waste."""
        return {"keeps": _least_waste()}
