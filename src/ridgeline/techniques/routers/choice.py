"""Which instance of a fleet takes a request: in turn, by load, or by the prefixes that it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.seams.serving import Router


@dataclass(frozen=True, kw_only=True)
class RoundRobin(Router):
    """Each instance in turn, whatever it has to do; of several front ends each takes turns of its own."""

    key: ClassVar[str] = "round-robin"
    source: ClassVar[tuple[str, ...]] = ("sglang",)


@dataclass(frozen=True, kw_only=True)
class LeastLoaded(Router):
    """The instance with the fewest requests that have not ended, the first of those that have equally few."""

    key: ClassVar[str] = "least-loaded"
    source: ClassVar[tuple[str, ...]] = ("vllm",)

    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Hook `route`: the fewest requests."""
        from ridgeline.serving.routing import least_loaded

        return {"route": least_loaded}


@dataclass(frozen=True, kw_only=True)
class LongestPrefix(Router):
    """The instance that holds most of a prompt's prefix, then the least loaded; so of its attention ranks.

    Where instances differ by more than 32 requests and by more than a tenth the least loaded takes it.
    """

    key: ClassVar[str] = "prefix"
    source: ClassVar[tuple[str, ...]] = ("sglang",)
    by_prefix: ClassVar[bool] = True

    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Hook `route`: the longest prefix."""
        from ridgeline.serving.routing import longest_prefix

        return {"route": longest_prefix}
