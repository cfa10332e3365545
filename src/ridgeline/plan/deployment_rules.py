"""Which words of a deployment go together: contexts, experts and prompts that lie on several devices or instances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.errors import PlanError

if TYPE_CHECKING:
    from ridgeline.plan.deployment import Deployment


def check_together(one: Deployment) -> None:
    """Raises `PlanError` for what cannot be, or is not modelled together."""
    _check_contexts(one)
    _check_staying(one)
    _check_borrowing(one)
    _check_merging(one)
    _check_beams(one)


def _pool(one: Deployment) -> bool:
    return one.role.value != "whole"


def _swaps(one: Deployment) -> bool:
    return one.preemption is not None and one.preemption.value == "swap"


def _check_contexts(one: Deployment) -> None:
    """Raises for contexts over several devices that cannot be, or are not modelled."""
    if one.tp % one.kv_ranks:
        raise PlanError(
            f"deployment: kv_ranks = {one.kv_ranks} does not divide tp {one.tp}; contexts are divided over ranks"
            " of one tensor-parallel group: take a divisor"
        )
    without = {
        "nano_tokens": one.nano_tokens, "kv_kept": one.kv_kept, "kv_fetched": one.kv_fetched,
        "split": one.split,
    }  # fmt: skip
    beside = [name for name, said in without.items() if said]
    if one.kv_ranks > 1 and beside:
        raise PlanError(f"deployment: kv_ranks is not modelled with {', '.join(beside)}; leave one of them out")


def _check_staying(one: Deployment) -> None:
    """Raises for tokens that stay with their experts where that cannot be, or is not modelled."""
    ranks_only = one.tp == 1 and one.pp == 1 and 1 < one.dp == one.ep
    if one.tokens_stay and not ranks_only:
        raise PlanError(
            f"deployment: tokens_stay with tp {one.tp}, pp {one.pp}, dp {one.dp}, ep {one.ep}; tokens stay with"
            " whole experts on attention's ranks: take dp and ep alone, both the same"
        )
    without = {
        "nano_tokens": one.nano_tokens, "expert_devices": one.expert_devices, "adapters": one.adapters,
        "kv_kept": one.kv_kept, "kv_fetched": one.kv_fetched, "draft_tokens": one.draft_tokens,
        "a pool": _pool(one), "preemption swap": _swaps(one),
    }  # fmt: skip
    beside = [name for name, said in without.items() if said]
    if one.tokens_stay and beside:
        raise PlanError(f"deployment: tokens_stay is not modelled with {', '.join(beside)}; leave one of them out")
    if not one.tokens_stay and (one.expert_inside is not None or one.expert_between is not None):
        raise PlanError("deployment: rows that tokens send from expert to expert; say tokens_stay as well")


def _check_borrowing(one: Deployment) -> None:
    """Raises for room borrowed of other instances where that cannot be, or is not modelled."""
    lent = one.lend_share
    if (lent is not None and not 0 < lent <= 1) or (one.owe_share is not None and one.owe_share <= 0):
        raise PlanError(
            f"deployment: lend_share = {lent}, owe_share = {one.owe_share}; needs a share of what is"
            " free, above 0 to 1, and a positive share of an instance's blocks"
        )
    if not one.borrows and (one.owe_share is not None or lent is not None):
        raise PlanError("deployment: lend_share and owe_share are about room that is borrowed; say borrows as well")
    without = {
        "dp": one.dp > 1, "pp": one.pp > 1, "draft_tokens": one.draft_tokens, "nano_tokens": one.nano_tokens,
        "adapters": one.adapters, "kv_kept": one.kv_kept, "kv_fetched": one.kv_fetched, "split": one.split,
        "expert_devices": one.expert_devices, "kv_ranks": one.kv_ranks > 1, "displaces": one.displaces,
        "receive_interval": one.receive_interval > 1, "prefix_cache": one.prefix_cache,
        "a pool": _pool(one), "preemption swap": _swaps(one),
    }  # fmt: skip
    beside = [name for name, said in without.items() if said]
    if one.borrows and beside:
        raise PlanError(f"deployment: borrows is not modelled with {', '.join(beside)}; leave one of them out")


def _check_merging(one: Deployment) -> None:
    """Raises for instances that merge where that is not modelled."""
    without = {
        "dp": one.dp > 1, "pp": one.pp > 1, "draft_tokens": one.draft_tokens, "nano_tokens": one.nano_tokens,
        "kv_kept": one.kv_kept, "kv_fetched": one.kv_fetched, "split": one.split, "borrows": one.borrows,
        "expert_devices": one.expert_devices, "kv_ranks": one.kv_ranks > 1, "prefix_cache": one.prefix_cache,
        "receive_interval": one.receive_interval > 1, "a pool": _pool(one),
    }  # fmt: skip
    beside = [name for name, said in without.items() if said]
    if one.elastic_tokens and beside:
        raise PlanError(f"deployment: elastic_tokens is not modelled with {', '.join(beside)}; leave one of them out")


def _check_beams(one: Deployment) -> None:
    """Raises for a beam search where that is not modelled."""
    without = {
        "draft_tokens": one.draft_tokens, "nano_tokens": one.nano_tokens, "split": one.split, "borrows": one.borrows,
        "expert_devices": one.expert_devices, "kv_kept": one.kv_kept, "kv_fetched": one.kv_fetched,
        "elastic_tokens": one.elastic_tokens, "a pool": _pool(one),
    }  # fmt: skip
    beside = [name for name, said in without.items() if said]
    if one.beam_width > 1 and beside:
        raise PlanError(f"deployment: beam_width is not modelled with {', '.join(beside)}; leave one of them out")
