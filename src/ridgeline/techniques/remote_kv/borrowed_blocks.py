"""Blocks of a cache in the memory of other instances: borrowed at admission, or moved where a plan gains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from ridgeline.seams.serving import Instance, RemoteKV
from ridgeline.seams.technique import param

if TYPE_CHECKING:
    from ridgeline.serving.state import Clock, Record


@dataclass(frozen=True, kw_only=True)
class BorrowedBlocks(RemoteKV):
    """A request that does not fit its instance keeps a part of its cache in the memory of others.

    Each step sends queries there and takes back what their parts add up to. Borrowed blocks are not reclaimed before
    the request ends.
    """

    key: ClassVar[str] = "remote-kv"
    word: ClassVar[str] = "borrows"
    told_by: ClassVar[str] = (
        "a request that does not fit its instance keeps a part of its cache in the memory of others"
    )
    source: ClassVar[tuple[str, ...]] = ("lin2024infinitellm",)

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """What room costs at an instance `stride` devices away."""
        from ridgeline.serving.remote_kv import loan_numbers
        from ridgeline.serving.rule import moving

        blocks = instance.capacity.cache_tokens // instance.policy.block_tokens
        return loan_numbers(
            instance.steps, instance.policy, self, blocks=blocks, stride=stride,
            move_token_s=moving(instance, stride)["move_token_s"],
        )  # fmt: skip

    def told(self) -> str:
        """What is lent and owed at most."""
        owed = f", {self.owe_share:g} of their own at most" if self.owe_share is not None else ""
        lent = "" if self.lend_share is None else f", {self.lend_share:.0%} of what is free"
        return f"borrow room{lent}{owed}"


@cache
def _planner(every: int, debtor_batch: int, creditor_used: float) -> Callable[..., int]:
    """Hook `lends` with its thresholds."""
    from ridgeline.serving.compiling import clocked
    from ridgeline.serving.queues import blocks_of, growth
    from ridgeline.serving.remote_kv import freed, movable, tokens_per_s
    from ridgeline.serving.state import NOBODY

    @clocked
    def gaining(clock: Clock, rule: Record, rank: int, request: int, lender: int) -> int:
        spare = clock.ranks[lender].waiting == 0 and clock.ranks[lender].used <= creditor_used * rule.capacity
        if clock.ranks[rank].decoding >= debtor_batch or not spare:
            return 0
        free = rule.capacity - clock.ranks[rank].used - growth(clock, rule, rank, every) - rule.kept_free
        most = movable(clock, rule, rank, request, lender)
        best = tokens_per_s(clock, rule, rank, (0.0, 0.0, 0.0, 0.0))
        best += tokens_per_s(clock, rule, lender, (0.0, 0.0, 0.0, 0.0))
        chosen, joined, tokens, taken = 0, 0.0, 0.0, 0
        waits = clock.ranks[rank].wait_first
        while waits != NOBODY and clock.ranks[rank].running + joined < rule.max_seqs:
            joined, tokens = joined + 1.0, tokens + clock.requests[waits].needed
            taken += blocks_of(clock.requests[waits].needed + every, rule.block_tokens)
            moved = 0 if taken <= free else taken - free + max(0, -freed(clock, rule, rank, request, 0))
            if moved > most:
                break
            away = float(moved * rule.block_tokens)
            gained = tokens_per_s(clock, rule, rank, (joined, tokens - away, away, 0.0))
            gained += tokens_per_s(clock, rule, lender, (0.0, 0.0, 0.0, away))
            if gained > best:
                best, chosen = gained, moved
            waits = clock.requests[waits].after
        return chosen

    return gaining


@dataclass(frozen=True, kw_only=True)
class PlannedMoves(BorrowedBlocks):
    """KV blocks of long requests move to instances with room where both then make more tokens a second.

    Infinite-LLM's global manager. An instance that decodes few requests while others wait for its blocks is a debtor,
    one whose cache is less used a creditor. Every few iterations a debtor takes its longest request and the creditor
    with the most room. Of every number of waiting requests that would fit it asks how many blocks must move and what
    both instances then make,

        batch' / step(batch', context - moved) + batch / step(batch, context, guests + moved)  [token/s]

    at the clock's own prices, and moves the number that makes the most, until none makes more. A request longer than
    its instance borrows when it is admitted, as with `remote-kv`; any other waits for a move. Fills the hook `lends` of
    the clock.

    Checked: three hundred random fleets end as a simulator in plain Python says that plans the same on lists; against
    instances that lend nothing and against one wide instance in `benchmarks/loans.md`. Left out: moves beside
    computation (the debtor's next iteration waits for its own), state that a manager knows late, and moves back.
    """

    key: ClassVar[str] = "planned-remote-kv"
    word: ClassVar[str] = ""
    in_words: ClassVar[bool] = False
    claims: ClassVar[tuple[str, ...]] = ("1.03-2.4x the throughput of vLLM, 2-19x its context",)
    every: int = param(16, "iterations", "iterations of an instance between two plans (assumed)", low=1, high=100_000)
    debtor_batch: int = param(
        256, "requests", "an instance that decodes fewer while others wait is a debtor (assumed)", low=1, high=100_000
    )
    creditor_used: float = param(
        0.8, "1", "share of its blocks that a creditor uses, at most (assumed)", low=0.0, high=1.0
    )

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """As of borrowed blocks, and how often moves are planned."""
        return {**super().numbers(instance, stride), "rearranges": self.every}

    def hooks(self) -> Mapping[str, Callable[..., Any]]:
        """Hook `lends`: the blocks that gain the most."""
        return {"lends": _planner(self.every, self.debtor_batch, self.creditor_used)}

    def told(self) -> str:
        """As of borrowed blocks, and the plan."""
        return f"{super().told()}, moves planned every {self.every:,} iterations"
