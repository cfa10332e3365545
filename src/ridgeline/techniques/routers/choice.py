"""Which instance of a fleet takes a request: in turn, by load, or by the prefixes that it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ridgeline.seams.serving import Router
from ridgeline.seams.technique import param


@dataclass(frozen=True, kw_only=True)
class RoundRobin(Router):
    """Each instance in turn, whatever it has to do; of several front ends each takes turns of its own."""

    key: ClassVar[str] = "round-robin"
    source: ClassVar[tuple[str, ...]] = ("sglang",)


@dataclass(frozen=True, kw_only=True)
class LeastLoaded(Router):
    """The instance with the fewest requests that have not ended, the first of those that have equally few."""

    key: ClassVar[str] = "least-loaded"
    reads_cache: ClassVar[bool] = False
    source: ClassVar[tuple[str, ...]] = ("vllm",)

    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Hook `route`: the fewest requests."""
        from ridgeline.serving.routing import least_loaded

        return {"route": least_loaded}


@dataclass(frozen=True, kw_only=True)
class KVUsage(Router):
    """The instance with the smallest share of its KV blocks in use or promised to who waits, then the least loaded.

    Instances of unlike sizes fill up alike, where `least-loaded` gives each as many requests as the others.
    """

    key: ClassVar[str] = "kv-usage"
    source: ClassVar[tuple[str, ...]] = ("gateway-inference-extension",)

    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Hook `route`: the smallest share of blocks."""
        from ridgeline.serving.routing import least_filled

        return {"route": least_filled}


@dataclass(frozen=True, kw_only=True)
class PromptLength(Router):
    """Prompts shorter than `tokens` to the instances of the first deployment, others to those of the last.

    Within a deployment the least loaded takes it; where none of its instances is up, that of all. Melange places
    requests by length on the type of device on which they cost least.
    """

    key: ClassVar[str] = "prompt-length"
    reads_cache: ClassVar[bool] = False
    source: ClassVar[tuple[str, ...]] = ("melange",)
    tokens: int = param(2048, "token", "the shortest prompt that the last deployment takes", low=1, high=1e7)

    @property
    def long_tokens(self) -> int:
        """Prompts that are long [token]."""
        return self.tokens

    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Hook `route`: by length."""
        from ridgeline.serving.routing import by_length

        return {"route": by_length}


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
