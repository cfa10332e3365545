"""The seam of attention and experts on devices of their own: what goes between them, and how even experts are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ridgeline.seams.serving_technique import ServingTechnique
from ridgeline.seams.technique import EXACT, param

if TYPE_CHECKING:
    from ridgeline.facts.records import Fact
    from ridgeline.seams.setting import Setting


@dataclass(frozen=True, kw_only=True)
class SentActivations:
    """What one layer sends one way: `rows` (T,) of an attention rank of `tp` devices, of `dp` such ranks.

    A row has `row_bytes` [byte] and goes to `reached` different devices of experts on average [1]; `node` devices make
    one. `over` prices the busier end of the link between both kinds, `gathered` an all-gather in a node of experts [s].
    """

    rows: Any
    row_bytes: float
    reached: float
    tp: int
    dp: int
    node: int
    over: Callable[[Any], Any]
    gathered: Callable[[Any, int], Any]


@dataclass(frozen=True, kw_only=True)
class Disaggregation(ServingTechnique):
    """Attention and experts on devices of their own; neutral: every device computes both.

    An iteration goes back and forth between them in `micro_batches`.
    """

    family: ClassVar[str] = "disaggregation"
    quality: ClassVar[Fact | None] = EXACT
    owns: ClassVar[frozenset[str]] = frozenset({"iterations", "cache", "stages", "adapters", "expert ranks"})
    devices: int = param(
        0, "devices", "devices of an instance that hold its experts alone; the others hold the rest", high=1_000_000,
        word="expert_devices",
    )  # fmt: skip
    micro_batches: int = param(
        3, "1", "parts of an iteration that go back and forth between both; 3 when absent", low=1, high=64,
        word="micro_batches",
    )  # fmt: skip

    def applies(self, setting: Setting) -> str:
        """Models without experts."""
        return super().applies(setting) or ("" if setting.experts else "is about experts, of which the model has none")

    @property
    def replicas(self) -> int:
        """Replicas of experts in each layer that the experts' devices hold beside those of a placement [1]."""
        return 0

    def one_way(self, sent: SentActivations) -> Any:
        """One layer's activations one way, `Seconds` (T,): each row once to each device of its experts [s]."""
        import numpy as np

        copies = sent.rows * sent.reached * sent.row_bytes
        return sent.over(np.maximum(copies / sent.tp, copies * sent.dp / self.devices))

    def uneven(self, piece: Any, tokens: Any, skew: float) -> Any:
        """Time of the fullest device's experts over that of the mean one, (T,) [1]."""
        return 1.0
