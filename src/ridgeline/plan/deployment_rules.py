"""Which ranks divide experts."""

from __future__ import annotations

from ridgeline.errors import PlanError


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
