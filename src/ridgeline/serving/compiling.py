"""How the functions of the request clock are compiled: by Numba, kept on disk, without counting references.

All arrays come from the caller, who holds them while the clock runs, and none is made on the way. Counted all the same,
some 25 arrays at each call of a function, nine tenths of the time went into atomic additions
(`docs/decisions/0006-borrowed-arrays.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])
_compiles = RLock()
_BORROWED: dict[str, Any] = {"_nrt": False}  # arguments stay their owner's; a function that makes an array is refused


def clocked(function: _Function) -> _Function:
    """A function that walks over records, without Python's lock; a division by zero is an error."""
    return _compile(function, nogil=True)


def formula(function: _Function) -> _Function:
    """A function of numbers and tables alone, in which a division by zero is infinity or NaN."""
    return _compile(function, error_model="numpy")


def started(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a clocked function returns; where it is compiled first, without vector instructions.

    Nothing in the clock is long enough for them, and to look for them takes half the time of compiling it.
    """
    if getattr(function, "signatures", True):
        return function(*arguments)
    settings: Any = numba.config
    with _compiles:
        kept, settings.LOOP_VECTORIZE = settings.LOOP_VECTORIZE, 0
        try:
            return function(*arguments)
        finally:
            settings.LOOP_VECTORIZE = kept


def _compile(function: _Function, **options: Any) -> _Function:
    try:
        return cast(_Function, numba.njit(cache=True, **_BORROWED, **options)(function))
    except RuntimeError:  # no folder to keep the compiled code in: for this process alone
        return cast(_Function, numba.njit(**_BORROWED, **options)(function))
