"""The seams of a fleet: which instance takes a request, and when one is started or stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ridgeline.seams.serving_technique import ServingTechnique
from ridgeline.seams.technique import EXACT, Technique

if TYPE_CHECKING:
    from ridgeline.facts.records import Fact
    from ridgeline.seams.setting import Setting


@dataclass(frozen=True, kw_only=True)
class Router(ServingTechnique):
    """Which instance takes a request; neutral: each in turn.

    Where it goes `by_prefix` the attention ranks of an instance are chosen by it too. One that looks at no cache says
    so (`reads_cache`): decode steps that have ended need not be booked before it is asked.
    """

    family: ClassVar[str] = "routers"
    said_as: ClassVar[str] = "router"
    by_prefix: ClassVar[bool] = False
    reads_cache: ClassVar[bool] = True
    quality: ClassVar[Fact | None] = EXACT

    @property
    def long_tokens(self) -> int:
        """Prompts that it takes for long ones; 0: none [token]."""
        return 0

    def applies(self, setting: Setting) -> str:
        """Fleets of one instance."""
        said, one = super().applies(setting), setting.deployment
        return said or ("chooses among instances, of which there is one" if one and one.instances == 1 else "")

    def told(self) -> str:
        """Nothing: it is of the fleet, not of an instance."""
        return ""


@dataclass(frozen=True, kw_only=True)
class Autoscaler(Technique):
    """When an instance of a pool is started or stopped (`--autoscale`)."""

    family: ClassVar[str] = "autoscalers"
    kinds: ClassVar[frozenset[str]] = frozenset({"fleets"})
    quality: ClassVar[Fact | None] = EXACT

    def scales(self, ttft_s: float | None) -> Callable[..., Any]:
        """Hook `scales` of the clock; `ttft_s` is the objective's TTFT [s], None without one."""
        raise NotImplementedError
