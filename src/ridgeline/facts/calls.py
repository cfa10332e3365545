"""Fitted times of calls on a processor that was calibrated, as its profile holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CallFit:
    """What one kind of call takes where `ranks` ranks compute at once: seconds for a unit of each feature.

    `call` names family and direction ('gemm.weight', 'attention.backward', 'rms_norm.forward'), `values` are of the
    features of `cost/calls.py`. Errors are of rows that no fit had seen; `low` and `high` the 10 % and 90 % quantiles
    of measured / predicted [1].
    """

    call: str
    form: str
    ranks: int
    values: Mapping[str, float]
    rows: int
    held_median: float
    held_p90: float
    held_bias: float
    low: float
    high: float


_KNOWN: dict[str, Mapping[tuple[str, str], CallFit]] = {}


def register_calls(device: str, found: tuple[CallFit, ...], ranks: int) -> None:
    """Lets the calls of a machine's own profile answer for it, or for one of so many equal parts of it."""
    _KNOWN[device] = {(one.call, one.form): one for one in found if one.ranks == ranks}


def calls_of(device: str) -> Mapping[tuple[str, str], CallFit]:
    """The calls that were timed on a device, by name and format; none for other devices."""
    return _KNOWN.get(device, {})
