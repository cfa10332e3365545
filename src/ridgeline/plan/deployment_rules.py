"""What the words of a deployment need of each other, until each is a technique."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.errors import PlanError

if TYPE_CHECKING:
    from ridgeline.plan.deployment import Deployment


def check_together(one: Deployment) -> None:
    """Raises `PlanError` for words that mean nothing without another."""
    _check_staying(one)


def check_divides(ranks: int, experts: int, redundant: int, word: str = "ep") -> None:
    """Raises `PlanError` where `ranks` divide neither the experts nor them with their replicas."""
    if experts % ranks and (experts + redundant) % ranks:
        more = -(experts + redundant) % ranks + redundant
        less = max(one for one in range(1, ranks) if experts % one == 0)
        replicas = f" with {redundant} replicas" if redundant else ""
        raise PlanError(
            f"deployment: {word} = {ranks} does not divide {experts} experts{replicas}; take expert_redundant ="
            f" {more} ({experts + more} experts, {(experts + more) // ranks} on each rank), or {word} = {less}"
        )


def _check_staying(one: Deployment) -> None:
    """Raises for tokens that stay with their experts where that cannot be, or is not modelled."""
    ranks_only = one.tp == 1 and one.pp == 1 and 1 < one.dp == one.ep
    if one.tokens_stay and not ranks_only:
        raise PlanError(
            f"deployment: tokens_stay with tp {one.tp}, pp {one.pp}, dp {one.dp}, ep {one.ep}; tokens stay with"
            " whole experts on attention's ranks: take dp and ep alone, both the same"
        )
    if not one.tokens_stay and (one.expert_inside is not None or one.expert_between is not None):
        raise PlanError("deployment: rows that tokens send from expert to expert; say tokens_stay as well")
