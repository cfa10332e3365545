"""The seam of context parallelism: how ranks that divide the tokens of a sequence attend to all of them.

Shape letters: T tokens of a micro-batch on one rank, H heads, K kv heads of one tensor-parallel rank, q and v numbers
of a head's query and value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from ridgeline.seams.registry import technique
from ridgeline.seams.technique import EXACT, Technique

if TYPE_CHECKING:
    from ridgeline.facts.records import Fact
    from ridgeline.seams.setting import Setting

Number = float | NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class NodeExit:
    """The way from a node to the next for the `members` of a group that it holds [byte/s]; numbers, or arrays.

    `device_bytes_per_s` is a device's share of the network when all send, `card_bytes_per_s` one network card alone,
    `link_bytes_per_s` a device's link to others of its node.
    """

    members: Number
    device_bytes_per_s: Number
    card_bytes_per_s: Number
    link_bytes_per_s: Number


Leaving = Callable[[NodeExit], Number]


def own_card(node: NodeExit) -> Number:
    """What one device sends to the next node over its own card, while others of its group send nothing [byte/s]."""
    return np.minimum(node.card_bytes_per_s, np.asarray(node.device_bytes_per_s) * node.members)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A collective of context-parallel ranks around one attention.

    `kind` is 'all_gather', 'reduce_scatter' or 'all_to_all', `size_bytes` the whole buffer of one rank [byte] and
    `repeats` how often it is done. With `hidden` it runs beside the attention, in as many pieces as there are ranks.
    `leaving` says at which rate what a node's ranks hand on reaches the next node [byte/s]; None over all their cards
    at once, as a collective's library does. A ring of messages has `own_card`.
    """

    name: str
    kind: str
    size_bytes: Number
    repeats: float = 1.0
    hidden: bool = False
    leaving: Leaving | None = None


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """Tensors that are laid out anew around one attention: `moved_bytes` through memory [byte] by so many kernels."""

    name: str
    moved_bytes: Number
    kernels: float


@dataclass(frozen=True, kw_only=True)
class Attended:
    """One attention of a rank; numbers, or arrays over plans.

    `heads` and `kv_heads` are those of the model, which `tensor` ranks divide. `element_bytes` is the width of
    activations [byte], `ranks` are those of the context.
    """

    tokens: Number
    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    element_bytes: float
    tensor: Number
    ranks: Number


@dataclass(frozen=True, kw_only=True)
class ContextStyle(Technique):
    """How context-parallel ranks exchange what attention needs of each other.

    With `by_heads` each rank attends with its share of the heads to all tokens, else with its tokens and all heads.
    With `halves` each has an early and a late piece of a sequence, so that causal attention is as much on each.
    `by_turns` says that a rank calls attention once for the shard of each rank, and merges results.
    """

    family: ClassVar[str] = "contexts"
    quality: ClassVar[Fact | None] = EXACT
    by_heads: ClassVar[bool] = False
    halves: ClassVar[bool] = False
    by_turns: ClassVar[bool] = False

    def applies(self, setting: Setting) -> str:
        """Why it does not apply, in a phrase; '' where it does: to plans whose ranks divide a sequence."""
        plan, attention = setting.train_plan, setting.attention
        said = super().applies(setting) or ("" if attention else "the model has no attention")
        if said or plan is None or attention is None:
            return said
        if plan.cp == 1:
            return "no context-parallel ranks (cp 1)"
        ranks = plan.tp * plan.cp
        if self.by_heads and attention.heads % ranks:
            return f"{attention.heads} heads are not divided by tp * cp = {ranks} ranks"
        return ""

    def exchanges(self, attended: Attended, *, backward: bool) -> Iterable[Exchange | Layouts]:
        """What ranks exchange, and lay out anew, around the forward or the backward of one attention."""
        raise NotImplementedError


def context_style(name: str) -> ContextStyle:
    """The style that a plan names; raises `UnknownNameError` for a name of none."""
    return cast(ContextStyle, technique("contexts", name))
