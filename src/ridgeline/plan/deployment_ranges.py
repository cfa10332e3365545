"""What each word of a deployment may be on its own, or with the word that it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.errors import PlanError

if TYPE_CHECKING:
    from ridgeline.plan.deployment import Deployment

_AT_LEAST_ONE = (
    "tp", "pp", "dp", "ep", "kv_ranks", "instances", "token_budget", "max_seqs", "cache_tokens", "graph_max",
    "expert_devices", "micro_batches",
)  # fmt: skip


def check_ranges(one: Deployment) -> None:
    """Raises `PlanError` for a value that cannot be."""
    for name in _AT_LEAST_ONE:
        value = getattr(one, name)
        if value is not None and value < 1:
            raise PlanError(f"deployment: {name} = {value}, needs >= 1")
    if one.memory_fraction is not None and not 0 < one.memory_fraction <= 1:
        raise PlanError(f"deployment: memory_fraction = {one.memory_fraction}, needs 0 < memory_fraction <= 1")
    if one.expert_skew is not None and not 0 <= one.expert_skew <= 4:
        raise PlanError(f"deployment: expert_skew = {one.expert_skew}, needs 0 (even) to 4")
    if (one.tp * one.dp) % one.ep:
        raise PlanError(f"deployment: ep = {one.ep} does not divide tp {one.tp} * dp {one.dp} = {one.tp * one.dp}")
    if one.tp % one.kv_ranks:
        raise PlanError(
            f"deployment: kv_ranks = {one.kv_ranks} does not divide tp {one.tp}; contexts are divided over ranks"
            " of one tensor-parallel group: take a divisor"
        )
    _check_apart(one)


def _check_apart(one: Deployment) -> None:
    """Raises for placements of experts that cannot be."""
    uneven, ranks = one.expert_imbalance, one.expert_devices or one.ep
    if uneven is not None and not 1 <= uneven <= ranks:
        raise PlanError(f"deployment: expert_imbalance = {uneven:g} of {ranks} ranks; needs 1 to the ranks")
    if one.expert_redundant < 0 or (one.expert_redundant and one.tokens_stay and uneven is None):
        raise PlanError(
            f"deployment: expert_redundant = {one.expert_redundant}; needs 0 or more, and where tokens stay their"
            " placement: say expert_imbalance as well, 1 where experts' loads are even"
        )
    if one.expert_kind and not one.expert_devices:
        raise PlanError(
            f"deployment: experts on devices of another kind, {one.expert_kind}, but not on how many;"
            " say expert_devices as well, or leave beside out"
        )
