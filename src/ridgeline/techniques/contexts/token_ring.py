"""TokenRing: queries go one way and results of blocks the other, so that a link carries both at once.

Shape letters: T tokens of a micro-batch on one rank, H heads and K kv heads of one tensor-parallel rank, q and v
numbers of a head's query and value, N ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ridgeline.seams.context import Attended, ContextStyle, Exchange, Layouts, own_card
from ridgeline.seams.setting import Setting

_FP32_BYTES = 4.0


@dataclass(frozen=True, kw_only=True)
class TokenRing(ContextStyle):
    """TokenRing: keys and values stay; queries go to every rank while results of blocks come back the other way.

    Fills the seam of context parallelism. Where ring attention sends keys and values in one direction of a link that
    has two, queries take one and results with their log-sum-exp the other, beside the attention: a rank sends H q
    numbers of a token where the ring sends K (q + v). That is half as much with as many kv heads as heads, and more
    than the ring's where fewer than half as many are shared. Backward, queries and gradients of results go one way and
    gradients of queries come back.

    Checked: the times that its authors measured for each turn on 4 A10. Left out: the last results, which no attention
    is beside; links whose directions share their rate.
    """

    key: ClassVar[str] = "token-ring"
    source: ClassVar[tuple[str, ...]] = ("token-ring-2024", "token-ring-code-2024")
    halves: ClassVar[bool] = True
    by_turns: ClassVar[bool] = True

    def applies(self, setting: Setting) -> str:
        """Why it does not apply, in a phrase; '' where it does: it sends less than a ring of keys and values."""
        said, one = super().applies(setting), setting.attention
        if said or one is None:
            return said
        queries, keys = one.heads * max(one.qk_dim, one.v_dim), one.kv_heads * (one.qk_dim + one.v_dim)
        return f"queries of {queries:,} numbers, a ring sends {keys:,} of keys and values" if queries > keys else ""

    def exchanges(self, attended: Attended, *, backward: bool) -> Iterable[Exchange | Layouts]:
        """The fuller of both directions [byte], beside the attention.

        Forward N T H max(q e, v e + 4), e the width of activations and 4 bytes a log-sum-exp; backward
        N T H ((q + v) e + 8), with the log-sum-exp and the sum of each row of results times gradients.
        """
        one, width = attended, attended.element_bytes
        each = np.maximum(one.qk_dim * width, one.v_dim * width + _FP32_BYTES)
        if backward:
            each = np.asarray((one.qk_dim + one.v_dim) * width + 2.0 * _FP32_BYTES)
        size = one.tokens * one.heads / np.asarray(one.tensor) * each * one.ranks
        yield Exchange(name="token_ring", kind="all_gather", size_bytes=size, hidden=True, leaving=own_card)
