"""Which words of a deployment are modelled together, and which are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ridgeline.errors import PlanError

if TYPE_CHECKING:
    from ridgeline.plan.deployment import Deployment


def check_together(one: Deployment) -> None:
    """Raises `PlanError` for what cannot be, or is not modelled together."""
    _check_nano(one)
    _check_adapters(one)
    _check_kept(one)
    _check_split(one)
    _check_priorities(one)
    _check_apart(one)
    _check_contexts(one)
    _check_staying(one)
    _check_borrowing(one)
    _check_merging(one)
    _check_beams(one)


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


def _refuse_beside(word: str, without: Mapping[str, object]) -> None:
    """Raises where any of the words is said that another is not modelled with."""
    beside = [name for name, said in without.items() if said]
    if beside:
        raise PlanError(f"deployment: {word} is not modelled with {', '.join(beside)}; leave one of them out")


def _pool(one: Deployment) -> bool:
    return one.role.value != "whole"


def _swaps(one: Deployment) -> bool:
    return one.preemption is not None and one.preemption.value == "swap"


def _check_nano(one: Deployment) -> None:
    """Raises for nano-batches where they are not modelled."""
    if one.nano_tokens is not None and (one.pp > 1 or one.draft_tokens):
        raise PlanError(
            f"deployment: nano_tokens with pp {one.pp}, draft_tokens {one.draft_tokens}; nano-batches are modelled on"
            " one stage, without drafts: take tp, dp and ep"
        )


def _check_adapters(one: Deployment) -> None:
    """Raises for adapters beside what they are not modelled with."""
    if one.adapters and one.nano_tokens:
        raise PlanError("deployment: adapters and nano_tokens are not modelled together; leave one of them out")


def _check_kept(one: Deployment) -> None:
    """Raises for cut caches beside what they are not modelled with."""
    if not one.cuts_cache:
        return
    if _pool(one) or _swaps(one) or one.nano_tokens or one.prefix_cache:
        raise PlanError(
            "deployment: kv_kept and kv_fetched are not modelled with pools, preemption swap, nano_tokens or"
            " prefix_cache; leave those out"
        )
    if one.kv_fetched and (one.pp > 1 or one.draft_tokens):
        raise PlanError(
            f"deployment: kv_fetched with pp {one.pp}, draft_tokens {one.draft_tokens}; fetching is modelled on"
            " one stage, without drafts"
        )


def _check_split(one: Deployment) -> None:
    """Raises for a divided device beside what it is not modelled with."""
    without = {
        "pp": one.pp > 1, "dp": one.dp > 1, "draft_tokens": one.draft_tokens, "nano_tokens": one.nano_tokens,
        "adapters": one.adapters, "kv_kept": one.kv_kept, "kv_fetched": one.kv_fetched,
        "displaces": one.displaces, "receive_interval": one.receive_interval > 1,
        "fresh_kernels": one.fresh_kernels, "a pool": _pool(one), "preemption swap": _swaps(one),
    }  # fmt: skip
    if one.split:
        _refuse_beside("split", without)


def _check_priorities(one: Deployment) -> None:
    """Raises for priorities that change where that is not modelled."""
    if one.priority_period and (not one.displaces or one.queue.value != "arrival"):
        raise PlanError(
            f"deployment: priority_period = {one.priority_period}, displaces {str(one.displaces).lower()}, queue"
            f" {one.queue.value}; priorities that change are modelled with displaces and the queue arrival"
        )


def _check_apart(one: Deployment) -> None:
    """Raises for experts on devices of their own where that is not modelled."""
    without = {
        "pp": one.pp > 1, "ep": one.ep > 1, "draft_tokens": one.draft_tokens, "nano_tokens": one.nano_tokens,
        "adapters": one.adapters, "kv_kept": one.kv_kept, "kv_fetched": one.kv_fetched, "split": one.split,
    }  # fmt: skip
    if one.expert_devices:
        _refuse_beside("expert_devices", without)


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
    if one.kv_ranks > 1:
        _refuse_beside("kv_ranks", without)


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
    if one.tokens_stay:
        _refuse_beside("tokens_stay", without)
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
    if one.borrows:
        _refuse_beside("borrows", without)


def _check_merging(one: Deployment) -> None:
    """Raises for instances that merge where that is not modelled."""
    without = {
        "dp": one.dp > 1, "pp": one.pp > 1, "draft_tokens": one.draft_tokens, "nano_tokens": one.nano_tokens,
        "kv_kept": one.kv_kept, "kv_fetched": one.kv_fetched, "split": one.split, "borrows": one.borrows,
        "expert_devices": one.expert_devices, "kv_ranks": one.kv_ranks > 1, "prefix_cache": one.prefix_cache,
        "receive_interval": one.receive_interval > 1, "a pool": _pool(one),
    }  # fmt: skip
    if one.elastic_tokens:
        _refuse_beside("elastic_tokens", without)


def _check_beams(one: Deployment) -> None:
    """Raises for a beam search where that is not modelled."""
    without = {
        "draft_tokens": one.draft_tokens, "nano_tokens": one.nano_tokens, "split": one.split, "borrows": one.borrows,
        "expert_devices": one.expert_devices, "kv_kept": one.kv_kept, "kv_fetched": one.kv_fetched,
        "elastic_tokens": one.elastic_tokens, "a pool": _pool(one),
    }  # fmt: skip
    if one.beam_width > 1:
        _refuse_beside("beam_width", without)
