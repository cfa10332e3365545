"""A technique of serving: what it may fill, whatever its family, and the instance that it sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ridgeline.errors import PlanError
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.registry import listed
from ridgeline.seams.technique import Technique

if TYPE_CHECKING:
    from ridgeline.facts.engines import EnginePolicy
    from ridgeline.graph.model import Model
    from ridgeline.seams.setting import Setting

WHOLE_STEP = frozenset({"iterations", "cache", "contexts", "stages"})
"""Slots of what changes an iteration as a whole."""


class Instance(Protocol):
    """One engine of a deployment, as techniques see it (`serving.engine.Engine`)."""

    @property
    def deployment(self) -> Deployment:
        """How it is served."""

    @property
    def policy(self) -> EnginePolicy:
        """Its policy file, with what the deployment says."""

    @property
    def model(self) -> Model:
        """What it serves."""

    @property
    def machine(self) -> Any:
        """What it runs on (`cost.machine.Machine`)."""

    @property
    def formats(self) -> Any:
        """Number formats (`cost.formats.Formats`)."""

    @property
    def steps(self) -> Any:
        """Its iterations (`serving.step.StepModel`)."""

    @property
    def capacity(self) -> Any:
        """How memory is divided (`serving.capacity.Capacity`)."""


@dataclass(frozen=True, kw_only=True)
class ServingTechnique(Technique):
    """What a technique of serving may fill, whatever its family.

    `word` is the field of a deployment that applies it (`--split`): that of a parameter, which leaves it out where it
    is `off`, or one of its own, which `told_by` explains; `said_as` is that which names it by its key (`--preemption
    swap`); one that is not `in_words` is listed alone (`--technique`). Where it `forgets_prefixes` none is found again;
    one that is `between` instances sends caches from one to another.
    """

    word: ClassVar[str] = ""
    told_by: ClassVar[str] = ""
    said_as: ClassVar[str] = ""
    in_words: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = frozenset({"serving"})
    off: ClassVar[object] = None
    forgets_prefixes: ClassVar[bool] = False
    between: ClassVar[bool] = False

    def applies(self, setting: Setting) -> str:
        """Why it does not apply, in a phrase; '' where it goes with the deployment's degrees, options and techniques.

        What hangs on the engine and its model `unfit` says, when there is one.
        """
        from ridgeline.seams.deployment_slots import check_techniques

        said, one = super().applies(setting), setting.deployment
        if said or one is None:
            return said
        others = tuple(text for text in one.technique if listed(text).family != self.family)
        try:
            check_techniques(replace(one, technique=(*others, self.text)))
        except PlanError as error:
            return str(error).removeprefix("deployment: ").removesuffix("; leave one out")
        return ""

    @property
    def applied(self) -> bool:
        """Whether it is more than the neutral one of its family."""
        return bool(self.key)

    def refusal(self, deployment: Deployment) -> str:
        """Why it does not go with a deployment, in a phrase; '' where it does."""
        return ""

    def unfit(self, instance: Instance) -> str:
        """Why it does not go with an engine and its model, in a phrase; '' where it does."""
        return ""

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """Numbers of the clock's rule (`serving.state.RULE`); instances are `stride` devices apart."""
        return {}

    def front_seconds(self, instance: Instance, traffic: Any) -> Any:
        """Time that each request (R,) waits besides until a scheduler may take it [s]."""
        return 0.0

    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Hooks of the clock by name, plain functions of fixed signature (`serving.hooks`)."""
        return {}

    def told(self) -> str:
        """The technique in the line that tells a deployment."""
        return self.text

    def told_of(self, deployment: Deployment) -> str:
        """The technique in the line that tells this deployment."""
        return self.told()
