"""Blocks of a cache in the memory of other instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ridgeline.seams.serving import Instance, RemoteKV


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
        from ridgeline.serving.loans import loan_numbers
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
