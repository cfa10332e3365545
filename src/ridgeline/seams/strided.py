"""The seam of strided transfers: how data that lie in blocks on a device are packed, and sent to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ridgeline.facts.records import Evidence, Fact
from ridgeline.seams.technique import EXACT, Technique

if TYPE_CHECKING:
    from ridgeline.seams.setting import Setting

STRIDED = "strided_transfers"


@dataclass(frozen=True, kw_only=True)
class StridedRates:
    """What a machine takes: to issue a kernel or copy from the host, for a kernel beside its bytes, for a message [s].

    `memory_bytes_per_s` of the device, `link_bytes_per_s` between host and device; `near` says that a message stays
    within a node.
    """

    issue_s: float
    kernel_s: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    message_s: Callable[[float], float]
    near: bool = False


@dataclass(frozen=True, kw_only=True)
class StridedTransfer(Technique):
    """How strided data are packed and sent. `block` and `blocks` are of the data's canonical form [byte], [1]."""

    family: ClassVar[str] = STRIDED
    kinds: ClassVar[frozenset[str]] = frozenset({"operator"})
    quality: ClassVar[Fact | None] = EXACT

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: it is of single operators."""
        return ()

    @property
    def evidence(self) -> Evidence:
        """How its times are known: by launches whose time is assumed."""
        return Evidence.ASSUMED

    def pack_s(self, block: int, blocks: int, rates: StridedRates) -> float:
        """Time to put blocks one after the other in device memory [s]."""
        raise NotImplementedError

    def send_s(self, block: int, blocks: int, rates: StridedRates) -> float:
        """Time to pack, send and unpack [s]."""
        raise NotImplementedError

    def message_s(self, size_bytes: float, rates: StridedRates) -> float:
        """Time of a message of packed bytes between devices [s]."""
        return rates.message_s(size_bytes)
