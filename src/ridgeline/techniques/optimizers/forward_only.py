"""No optimizer: a step is one forward of a batch, as a trained network runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ridgeline.facts.records import Fact
from ridgeline.seams.states import OptimizerStates, Tensor
from ridgeline.seams.technique import EXACT

if TYPE_CHECKING:
    from ridgeline.seams.setting import Setting


@dataclass(frozen=True, kw_only=True)
class ForwardOnly(OptimizerStates):
    """Batches pass a trained network forward: no gradient, no state, no update.

    Fills the seam of optimizer states with nothing, so that `predict` tells latency (one sample a batch) and throughput
    (many) of networks of images or sentences that no engine of decoders serves. Say a precision without master copies
    (`bf16-pure`, `tf32`, `fp32`), and `--execution graph` where a program is compiled ahead.

    Checked: time and memory against forward's of the same training step. Left out: kernels that such programs fuse
    beyond those of training; the loss is still counted.
    """

    key: ClassVar[str] = "forward-only"
    source: ClassVar[tuple[str, ...]] = ("vit-2021",)
    quality: ClassVar[Fact | None] = EXACT
    owns: ClassVar[frozenset[str]] = frozenset({"optimizer tier", "activation tier", "vocabulary"})

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: it trains nothing."""
        return ()

    def forwards(self) -> int:
        """One [1]."""
        return 1

    def state_bytes(self, tensor: Tensor) -> float:
        """None [byte]."""
        return 0.0
