"""The seam of nano-batches: iterations cut in parts that share a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ridgeline.seams.serving_technique import WHOLE_STEP, Instance, ServingTechnique
from ridgeline.seams.technique import EXACT, param

if TYPE_CHECKING:
    from ridgeline.facts.records import Fact


@dataclass(frozen=True, kw_only=True)
class NanoBatches(ServingTechnique):
    """Iterations cut in parts whose kernels overlap; neutral: none is.

    With `links_only` the exchange of one part alone runs beside the other's kernels. An instance that is `replicas`
    processes on one device holds as many copies of the weights and captures graphs for its part of the sequences.
    """

    family: ClassVar[str] = "overlaps"
    quality: ClassVar[Fact | None] = EXACT
    owns: ClassVar[frozenset[str]] = WHOLE_STEP | {"adapters"}
    links_only: ClassVar[bool] = False

    def sharing(self, instance: Instance) -> Mapping[str, float]:
        """How the parts share a device: numbers of the clock's rule."""
        return {}

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """How the parts share a device."""
        return self.sharing(instance)

    def fractions(self, steps: Any) -> tuple[float, ...]:
        """Parts of an iteration, each as a share of its tokens [1]; `steps` prices them (`serving.step.StepModel`)."""
        count = max(2, self.replicas)
        return (1.0 / count,) * count

    @property
    def replicas(self) -> int:
        """Processes on one device that serve as one instance [1]."""
        return 1

    tokens: int = param(
        0, "tokens", "iterations of so many tokens a rank are cut in two nano-batches whose kernels overlap",
        high=10_000_000, word="nano_tokens",
    )  # fmt: skip
