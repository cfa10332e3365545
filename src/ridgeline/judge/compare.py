"""How far an output may be from the float64 reference, and where it is too far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_OWN_ERROR = 4.0  # times the reference's own rounding error in the same number format
_ROUGH = 0.1  # relative error that a narrower format explains
_FEW, _LEANING = 32, 0.3  # elements to tell rounding by; share of the mean error that may point one way
_SPREAD = 0.25  # share of elements that a narrower format spoils at least


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A difference beyond rounding: the finding's name and where it showed."""

    name: str
    detail: str


def compare(
    output: Any, exact: Any, own: Any, *, length: float, tolerance: tuple[float, float] | None
) -> Mismatch | None:
    """The mismatch of one output, or None.

    allowed = 4 * max|own - exact| + eps |exact| + 2 eps32 sqrt(length) (|exact| + rms(exact))

    `exact` is the reference in float64, `own` the reference in the output's format, `length` the terms that one
    output sums [1], `eps32` the rounding of the format that is summed in (at least float32). A task's own
    (relative, absolute) tolerance replaces the rule.
    """
    if not output.is_floating_point():
        wrong = output != own
        return None if not bool(wrong.any()) else Mismatch(name="wrong", detail=_place(wrong, "not equal"))
    seen, exact = output.to(torch.float64), exact.to(torch.float64)
    allowed = _allowed(exact, own, output.dtype, length) if tolerance is None else None
    if tolerance is not None:
        allowed = tolerance[0] * exact.abs() + tolerance[1]
    difference = (seen - exact).abs()
    bad = ~(difference <= allowed) & ~((seen == exact) | (seen.isnan() & exact.isnan()))
    if not bool(bad.any()):
        return None
    if bool((seen.isnan() & ~exact.isnan()).any()):
        return Mismatch(name="nan", detail=_place(seen.isnan() & ~exact.isnan(), "NaN"))
    scale = exact.abs() + _rms(exact)
    worst = float((difference / scale.clamp_min(1e-300))[bad].max())
    share = float(bad.sum()) / bad.numel()
    detail = f"{_place(bad, 'too far')}, worst relative error {worst:.1e}"
    rounded = bad.numel() >= _FEW and worst < _ROUGH and share > _SPREAD and _unbiased(seen - exact, exact)
    return Mismatch(name="precision" if rounded else "wrong", detail=detail)


def _unbiased(difference: Any, exact: Any) -> bool:
    """Whether errors point either way, as rounding does, and not all to larger or to smaller numbers."""
    towards = difference * exact.sign()
    return bool(towards.mean().abs() < _LEANING * towards.abs().mean())


def _allowed(exact: Any, own: Any, dtype: Any, length: float) -> Any:
    eps = torch.finfo(dtype).eps
    summed = min(eps, torch.finfo(torch.float32).eps)
    error = (own.to(torch.float64) - exact).abs()
    finite = error[error.isfinite()]
    noise = _OWN_ERROR * float(finite.max()) if finite.numel() else 0.0
    relative = eps * exact.abs() + 2 * summed * length**0.5 * (exact.abs() + _rms(exact))
    return relative + noise + torch.finfo(dtype).smallest_normal * eps


def _rms(exact: Any) -> float:
    finite = exact[exact.isfinite()]
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


def _place(wrong: Any, word: str) -> str:
    """Which elements, as people say it: the share, and the first and last index."""
    where = wrong.reshape(-1).nonzero().reshape(-1)
    return f"{where.numel()} of {wrong.numel()} elements {word} (index {int(where[0])} to {int(where[-1])})"
