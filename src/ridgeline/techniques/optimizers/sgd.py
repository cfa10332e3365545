"""Gradient descent, plain and with momentum, and Lion: one fp32 number at most of every trained one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ridgeline.seams.states import FP32_BYTES, Elementwise

if TYPE_CHECKING:
    from ridgeline.seams.setting import Setting


@dataclass(frozen=True, kw_only=True)
class _Descent(Elementwise):
    """Gradient descent, which steps as no adaptive optimizer does: nobody takes it in place of one for its speed."""

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """None: it is another training run, not the same one cheaper."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Sgd(_Descent):
    """Stochastic gradient descent: no state."""

    key: ClassVar[str] = "sgd"
    source: ClassVar[tuple[str, ...]] = ("sgd-1951",)
    export: ClassVar[dict[str, str]] = {"Transformers": "optim = 'sgd'"}


@dataclass(frozen=True, kw_only=True)
class SgdMomentum(_Descent):
    """Stochastic gradient descent with momentum: one fp32 number of every trained one."""

    key: ClassVar[str] = "sgd-momentum"
    source: ClassVar[tuple[str, ...]] = ("momentum-2013",)
    bytes_each: ClassVar[float] = FP32_BYTES


@dataclass(frozen=True, kw_only=True)
class Lion(Elementwise):
    """Lion, the sign of a momentum: one fp32 number of every trained one."""

    key: ClassVar[str] = "lion"
    source: ClassVar[tuple[str, ...]] = ("lion-2023",)
    export: ClassVar[dict[str, str]] = {"Transformers": "optim = 'lion_32bit'"}
    bytes_each: ClassVar[float] = FP32_BYTES
