"""The seams of post-training: which responses are waited for, when training may overlap, how batches are filled.

Shape letters: N responses of an iteration, R requests that an engine serves for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import PlanError
from ridgeline.facts.records import Fact
from ridgeline.seams.registry import technique
from ridgeline.seams.technique import EXACT, Technique

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
POST_TRAINING = "post-training"


@dataclass(frozen=True, kw_only=True, eq=False)
class Requests:
    """What an engine is asked for at once: prompts and outputs (R,) [token]."""

    prompt: Ints
    output: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Generated:
    """What became of an iteration's requests.

    `first_s` and `end_s` (R,) [s] from the start of the rollouts; `rollout_s` [s] until the iteration has its
    responses, `ready_s` (N,) ascending [s] when each of them was there; `tokens` [token] that the engine generated,
    `again_tokens` [token] of unfinished responses that it read again; `old_share` [1] of trained tokens that an
    earlier version of the policy generated.
    """

    requests: Requests
    first_s: Floats
    end_s: Floats
    rollout_s: float
    ready_s: Floats
    tokens: int
    again_tokens: int = 0
    old_share: float = 0.0


Serve = Callable[[Requests], Generated]


@dataclass(frozen=True, kw_only=True)
class RolloutCollection(Technique):
    """Which responses an iteration waits for, and what becomes of the others."""

    family: ClassVar[str] = "rollout_collections"
    kinds: ClassVar[frozenset[str]] = frozenset({POST_TRAINING})

    def collect(self, asked: Requests, serve: Serve) -> Generated:
        """The steady state of iterations that each need the responses of `asked`; `serve` replays requests."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class RolloutSchedule(Technique):
    """When generation of the next iteration may begin, and in how many pieces training takes an iteration."""

    family: ClassVar[str] = "rollout_schedules"
    kinds: ClassVar[frozenset[str]] = frozenset({POST_TRAINING})
    quality: ClassVar[Fact | None] = EXACT

    def versions_behind(self) -> int:
        """Iterations by which the weights that generate may be behind those of strict order [1]; 0 none."""
        raise NotImplementedError

    def pieces(self) -> int:
        """Pieces of an iteration that are scored and trained on as soon as they are there [1]; 1 waits for all."""
        raise NotImplementedError

    def weights_beside(self) -> bool:
        """Whether new weights reach the engine while it generates and the trainer works on."""
        return False

    def check(self, *, colocated: bool) -> None:
        """Raises `PlanError` where roles that take turns on the same devices cannot overlap."""
        if colocated and (self.versions_behind() or self.pieces() > 1):
            told = f"plan: mode = {self.text} overlaps generation and training, which share their devices here"
            raise PlanError(f"{told}; say rollout_devices, or mode = synchronous")


@dataclass(frozen=True, kw_only=True)
class RankDivision:
    """How a batch is divided over `ranks` data-parallel ranks [1].

    Ranks in `lockstep` wait for each other in every micro-batch, as where weights are sharded over them; stages of a
    `pipeline` pass micro-batches on.
    """

    ranks: int = 1
    lockstep: bool = False
    pipeline: bool = False


EVEN = RankDivision()


@dataclass(frozen=True, kw_only=True)
class SequencePacking(Technique):
    """How sequences of unlike lengths fill the rows of a training batch."""

    family: ClassVar[str] = "sequence_packing"
    kinds: ClassVar[frozenset[str]] = frozenset({POST_TRAINING})
    quality: ClassVar[Fact | None] = EXACT

    def rows(self, lengths: Floats, multiple: int, over: RankDivision = EVEN) -> tuple[int, int, float]:
        """Rows of a batch, a multiple of `multiple` [1], their length [token] and the share of padding [1].

        Rows of ranks that hold less than the fullest are as long as its, as all wait for it.
        """
        raise NotImplementedError


def collection(text: str) -> RolloutCollection:
    """The collection that a plan names."""
    found = technique("rollout_collections", text)
    assert isinstance(found, RolloutCollection)
    return found


def rollout_schedule(text: str) -> RolloutSchedule:
    """The order of generation and training that a plan names."""
    found = technique("rollout_schedules", text)
    assert isinstance(found, RolloutSchedule)
    return found


def sequence_packing(text: str) -> SequencePacking:
    """The packing that a plan names."""
    found = technique("sequence_packing", text)
    assert isinstance(found, SequencePacking)
    return found


def period_s(mode: RolloutSchedule, ready_s: Floats, rollout_s: float, work_s: float, transfer_s: float) -> float:
    """Time of an iteration in the steady state of a mode [s].

    Generation of iteration k starts when that of k - 1 has ended and the weights of version k - 1 - b have come, with
    b the versions behind; work (scores and updates, `work_s` [s]) takes an iteration in pieces, each when its responses
    are ready (`ready_s` (N,) ascending [s]) and the piece before it is done. New weights take `transfer_s` [s] of both
    sides at once: the trainer waits for the iteration under way, sends, and the engine generates nothing meanwhile;
    not so where the mode says that they wait in host memory (`weights_beside`). With b = 0 and one piece this is
    rollout_s + work_s + transfer_s.
    """
    pieces, behind, rounds = mode.pieces(), mode.versions_behind(), 24 + 4 * mode.versions_behind()
    places = np.minimum(np.ceil((np.arange(pieces) + 1) * len(ready_s) / pieces).astype(int) - 1, len(ready_s) - 1)
    arrives = np.append(ready_s[places[:-1]], rollout_s)
    generated, worked = 0.0, 0.0
    came: list[float] = []  # when the weights of each version are at the engine
    both = behind > 0 and not mode.weights_beside()
    for round_ in range(rounds):
        needed = round_ - 1 - behind
        begin = max(generated, came[needed] if needed >= 0 else 0.0)
        for arrival in arrives.tolist():
            worked = max(worked, begin + arrival) + work_s / pieces
        generated = begin + rollout_s
        came.append(worked + transfer_s)
        if both:
            generated, worked = generated + transfer_s, worked + transfer_s
    half = rounds // 2
    return (came[-1] - came[half - 1]) / (rounds - half)
