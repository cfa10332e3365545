"""Context parallelism by a ring, by an all-gather of keys and values, and by trading heads for tokens.

Shape letters: T tokens of a micro-batch on one rank, H heads, K kv heads, q and v numbers of a head's query and value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ridgeline.seams.context import Attended, ContextStyle, Exchange, Layouts, Number, own_card


def _keys_and_values_bytes(one: Attended) -> Number:
    """Keys and values of one rank's tokens [byte]; a rank has one kv head at least."""
    heads = np.maximum(1, one.kv_heads / np.asarray(one.tensor))
    return one.tokens * (one.qk_dim + one.v_dim) * heads * one.element_bytes


@dataclass(frozen=True, kw_only=True)
class Ring(ContextStyle):
    """Ring attention: keys and values go from rank to rank, each passing under attention to those before it.

    One rank of a node sends to the next node, over its own network card; the others' cards carry nothing of this ring.
    """

    key: ClassVar[str] = "ring"
    source: ClassVar[tuple[str, ...]] = ("ring-attention-2023",)
    export: ClassVar[dict[str, str]] = {
        "Megatron-LM": "--cp-comm-type p2p",
        "torchtitan": "context_parallel_rotate_method = 'alltoall'",
    }
    halves: ClassVar[bool] = True
    by_turns: ClassVar[bool] = True

    def exchanges(self, attended: Attended, *, backward: bool) -> Iterable[Exchange | Layouts]:
        """All other shards of keys and values, and backward their gradients too, beside the attention."""
        size = (2.0 if backward else 1.0) * _keys_and_values_bytes(attended) * attended.ranks
        yield Exchange(name="ring", kind="all_gather", size_bytes=size, hidden=True, leaving=own_card)


@dataclass(frozen=True, kw_only=True)
class Gathered(ContextStyle):
    """All-gather of keys and values before attention, again in backward, where their gradients are reduced to shards.

    As Transformer Engine's AttnFuncWithCPAndKVAllGather (Megatron-LM's --cp-comm-type all_gather) and as Llama 3 was
    trained; nothing hides the exchange. What is gathered is not counted in memory.
    """

    key: ClassVar[str] = "allgather"
    source: ClassVar[tuple[str, ...]] = ("transformer-engine", "llama-3-2024")
    export: ClassVar[dict[str, str]] = {
        "Megatron-LM": "--cp-comm-type all_gather",
        "torchtitan": "context_parallel_rotate_method = 'allgather'",
    }
    halves: ClassVar[bool] = True

    def exchanges(self, attended: Attended, *, backward: bool) -> Iterable[Exchange | Layouts]:
        """Keys and values of all ranks; backward also the reduction of their gradients."""
        size = _keys_and_values_bytes(attended) * attended.ranks
        yield Exchange(name="gather", kind="all_gather", size_bytes=size)
        if backward:
            yield Exchange(name="scatter", kind="reduce_scatter", size_bytes=size)


@dataclass(frozen=True, kw_only=True)
class Ulysses(ContextStyle):
    """DeepSpeed-Ulysses: queries, keys, values and results trade heads for tokens, an all-to-all each."""

    key: ClassVar[str] = "ulysses"
    source: ClassVar[tuple[str, ...]] = ("ulysses-2023",)
    export: ClassVar[dict[str, str]] = {"Megatron-LM": "--cp-comm-type a2a"}
    by_heads: ClassVar[bool] = True

    def exchanges(self, attended: Attended, *, backward: bool) -> Iterable[Exchange | Layouts]:
        """An all-to-all of each tensor or its gradient, laid out anew before and after it.

        That reads and writes it: 4 (H + K) (q + v) numbers of a token. Source:
        NVIDIA/TransformerEngine@d0067d0 transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py,
        flash_attn_a2a_communicate; so does deepspeedai/DeepSpeed, deepspeed/sequence/layer.py, single_all_to_all.
        """
        token_bytes = attended.tokens * attended.element_bytes / attended.tensor
        width = attended.qk_dim + attended.v_dim  # of a query beside a result, of a key beside a value
        for heads in (attended.heads, attended.kv_heads):
            size = token_bytes * heads * width / 2.0
            yield Exchange(name="all_to_all", kind="all_to_all", size_bytes=size, repeats=2.0)
        moved = 4.0 * token_bytes * (attended.heads + attended.kv_heads) * width
        yield Layouts(name="trade", moved_bytes=moved, kernels=8.0)
