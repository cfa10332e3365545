"""What each word of a deployment may be on its own, or with the word that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING

from ridgeline.errors import PlanError

if TYPE_CHECKING:
    from ridgeline.plan.deployment import Deployment

_AT_LEAST_ONE = (
    "tp", "pp", "dp", "ep", "kv_ranks", "instances", "token_budget", "max_seqs", "cache_tokens", "graph_max",
    "swap_blocks", "expert_devices", "micro_batches",
)  # fmt: skip


def check_ranges(one: Deployment) -> None:
    """Raises `PlanError` for a value that cannot be."""
    for name in _AT_LEAST_ONE:
        value = getattr(one, name)
        if value is not None and value < 1:
            raise PlanError(f"deployment: {name} = {value}, needs >= 1")
    if one.memory_fraction is not None and not 0 < one.memory_fraction <= 1:
        raise PlanError(f"deployment: memory_fraction = {one.memory_fraction}, needs 0 < memory_fraction <= 1")
    if one.draft_tokens < 0 or not 0 <= one.acceptance <= 1:
        raise PlanError(
            f"deployment: draft_tokens = {one.draft_tokens}, acceptance = {one.acceptance};"
            " needs draft_tokens >= 0 and a probability"
        )
    _check_tree(one)
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


def tree_tokens(widths: Sequence[int]) -> int:
    """Candidates of a tree with so many after each of the place before [token]."""
    return sum(accumulate(widths, mul))


def _check_tree(one: Deployment) -> None:
    """Raises for a tree of drafts that cannot be."""
    tree, ranked = one.draft_tree, (one.acceptance, *one.next_acceptance)
    if one.next_acceptance and not tree:
        raise PlanError("deployment: next_acceptance is about candidates of a tree; say draft_tree as well")
    if tree and (min(tree) < 1 or tree_tokens(tree) != one.draft_tokens):
        raise PlanError(f"deployment: draft_tree = {tree} holds {tree_tokens(tree)} tokens, not {one.draft_tokens}")
    if any(not 0 <= share <= 1 for share in ranked) or sum(ranked) > 1 + 1e-9:
        raise PlanError(f"deployment: acceptance of candidates = {ranked}; needs probabilities whose sum is 1 at most")
    if tree and max(tree) > len(ranked):
        raise PlanError(
            f"deployment: {max(tree)} candidates at one place of the tree, but the acceptance of {len(ranked)}; say"
            " that of each, most likely first, e.g. acceptance 0.6,0.15,0.08"
        )


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
