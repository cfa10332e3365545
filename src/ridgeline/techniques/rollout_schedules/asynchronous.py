"""Generation that runs ahead of training by a bounded number of versions."""

from dataclasses import dataclass
from typing import ClassVar

from ridgeline.facts.records import Fact
from ridgeline.seams.rollout import RolloutSchedule
from ridgeline.seams.technique import accuracy, param


@dataclass(frozen=True, kw_only=True)
class OffPolicy(RolloutSchedule):
    """Generates the next iterations while the last one trains, with weights at most `staleness` versions behind.

    `staleness` 1 is one step off-policy; 0 is the synchronous order. The longer side sets the pace; more staleness
    than 1 helps only where iterations take unlike times, which a steady state of equal iterations does not show.
    Left out: weights that change within a response.
    """

    key: ClassVar[str] = "off-policy"
    source: ClassVar[tuple[str, ...]] = ("async-rlhf-2024",)
    quality: ClassVar[Fact | None] = accuracy(
        "Llama 3.1 8B, an instruction-following task: final performance of the synchronous run matched",
        "async-rlhf-2024",
    )
    staleness: int = param(1, "version", "versions that the generating weights may be behind", low=0, high=64)

    def versions_behind(self) -> int:
        """As said [1]."""
        return self.staleness

    def pieces(self) -> int:
        """One: an iteration is trained on when it is whole [1]."""
        return 1


@dataclass(frozen=True, kw_only=True)
class Streaming(RolloutSchedule):
    """Streams responses to scoring and training in pieces as they finish, within a bound of staleness (AsyncFlow).

    A queue between the roles hands a piece on when its responses are there, so that training runs under the tail of
    its own iteration as well; weights are updated when the iteration is whole. `staleness` versions may separate
    generation and training. Left out: the queue's own time.
    """

    key: ClassVar[str] = "streaming"
    source: ClassVar[tuple[str, ...]] = ("asyncflow-2025",)
    quality: ClassVar[Fact | None] = accuracy(
        "negligible differences of reward scores from synchronous runs", "asyncflow-2025"
    )
    staleness: int = param(1, "version", "versions that the generating weights may be behind", low=0, high=64)
    parts: int = param(8, "piece", "pieces that an iteration is handed on in", low=1, high=1024)

    def versions_behind(self) -> int:
        """As said [1]."""
        return self.staleness

    def pieces(self) -> int:
        """As said [1]."""
        return self.parts

    def weights_beside(self) -> bool:
        """Yes: they wait in the engine's host memory until an iteration ends."""
        return True
