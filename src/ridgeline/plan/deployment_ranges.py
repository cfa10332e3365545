"""What each word of a deployment may be on its own, or with the word that it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.errors import PlanError

if TYPE_CHECKING:
    from ridgeline.plan.deployment import Deployment

_AT_LEAST_ONE = (
    "tp", "pp", "dp", "ep", "kv_ranks", "instances",
)  # fmt: skip


def check_ranges(one: Deployment) -> None:
    """Raises `PlanError` for a value that cannot be."""
    for name in _AT_LEAST_ONE:
        value = getattr(one, name)
        if value is not None and value < 1:
            raise PlanError(f"deployment: {name} = {value}, needs >= 1")
    if one.expert_skew is not None and not 0 <= one.expert_skew <= 4:
        raise PlanError(f"deployment: expert_skew = {one.expert_skew}, needs 0 (even) to 4")
    if (one.tp * one.dp) % one.ep:
        raise PlanError(f"deployment: ep = {one.ep} does not divide tp {one.tp} * dp {one.dp} = {one.tp * one.dp}")
    if one.tp % one.kv_ranks:
        raise PlanError(
            f"deployment: kv_ranks = {one.kv_ranks} does not divide tp {one.tp}; contexts are divided over ranks"
            " of one tensor-parallel group: take a divisor"
        )
