"""Loops over rows of sizes, run as they are for a few rows and compiled by Numba for many.

Loading Numba takes about as long as ten thousand products in plain Python, and a first answer needs one. A loop marked
with `@kernel` therefore stays the Python function that it is; `run` compiles it, and the marked functions that it
calls, once the process has asked for so many rows, or for a few where Numba is loaded anyway. Both ways do the same
IEEE operations in the same order and give the same bits: write powers as products or with float exponents.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import RLock
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np

_BREAK_EVEN_ROWS = 8_192  # of all kernels together; 60 us each of a product, against 0.6 s to load Numba
_LOADED_ROWS = 64  # of one kernel where Numba is there: its compiled code loads from disk in 5 ms
_Function = TypeVar("_Function", bound=Callable[..., Any])
_inlined: dict[Any, bool] = {}  # marked functions; whether callers take in their text
_asked: dict[Any, int] = {}  # rows asked of a kernel so far
_compiled: dict[Any, Callable[..., None]] = {}
_lock = RLock()


def kernel(function: _Function) -> _Function:
    """Marks a function that may be compiled: indexing, arithmetic and calls of other marked functions."""
    _inlined[function] = False
    return function


def helper(function: _Function) -> _Function:
    """Marks a small function whose text is compiled into its callers."""
    _inlined[function] = True
    return function


def run(function: Callable[..., None], rows: int, *arguments: Any) -> None:
    """Calls a marked function that fills its last argument for so many rows, compiled where that is done sooner.

    `rows` are of the whole question, also where it is priced in blocks.
    """
    known = _compiled.get(function)
    if known is not None:
        known(*arguments)
        return
    if not _pays(function, rows):
        try:
            with np.errstate(all="ignore"):
                function(*arguments)
            return
        except (ArithmeticError, ValueError):  # plain floats stop where IEEE goes on to infinity or NaN
            pass
    compiled(function)(*arguments)


def _pays(function: Callable[..., None], rows: int) -> bool:
    """Whether the rows asked for so far take longer in plain Python than to load what compiles them."""
    _asked[function] = _asked.get(function, 0) + rows
    if "numba" in sys.modules:
        return _asked[function] > _LOADED_ROWS
    return sum(_asked.values()) > _BREAK_EVEN_ROWS


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """A marked function compiled with those that it calls, kept on disk where its cache folder can be written."""
    with _lock:
        if function not in _compiled:
            _compiled[function] = _compile(cast(FunctionType, function))
        return _compiled[function]


def _compile(function: FunctionType) -> Callable[..., None]:
    from numba import njit

    named = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    called = {name: compiled(value) for name, value in named.items() if callable(value) and value in _inlined}
    twin = FunctionType(function.__code__, {**function.__globals__, **called}, function.__name__)
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "inline": "always" if _inlined[function] else "never",
    }
    try:
        return cast(Callable[..., None], njit(cache=True, **options)(twin))
    except RuntimeError:  # no folder to keep the compiled code in: for this process alone
        return cast(Callable[..., None], njit(**options)(twin))
