"""Loops over rows or tasks, run as they are for a little work and compiled by Numba for much.

A first answer needs one product or one small timeline, and loading Numba takes as long as thousands of products in
plain Python. A loop marked with `@kernel` therefore stays the Python function that it is; it is compiled, with the
marked functions that it calls, once the process has asked for work that takes as long in plain Python as loading the
compiler, and as compiling where no earlier process has done it, so that waiting is never more than twice the best. Both
ways do the same IEEE operations in the same order and give the same bits: use indexing, arithmetic and comparisons
alone, and write powers as products or with float exponents.

Where Numba cannot be imported, everything runs in plain Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from threading import RLock
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np

_IMPORT_S, _LOAD_S = 0.4, 0.005  # measured: importing Numba with a kernel from its cache on disk, and one kernel more
_COMPILE_S = 1.0  # measured: compiling one kernel of the operator families and writing it to disk, 0.5 to 1.5
_ROW_S = 50e-6  # measured: one matrix product, as a row of sizes, in plain Python

_Function = TypeVar("_Function", bound=Callable[..., Any])
_inlined: dict[Any, bool] = {}  # marked functions; whether callers take in their text
_asked_s: dict[Any, float] = {}  # what the work asked of a kernel so far takes in plain Python
_compiled: dict[Any, Callable[..., Any]] = {}
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
    if not _pays(function, rows * _ROW_S):
        try:
            with np.errstate(all="ignore"):
                function(*arguments)
            return
        except (ArithmeticError, ValueError):  # plain floats stop where IEEE goes on to infinity or NaN
            pass
    compiled(function)(*arguments)


def run_on_lists(
    function: Callable[..., int],
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray[Any, Any]],
    *,
    plain_s: float,
    force: bool | None = None,
) -> int:
    """Calls a marked function that walks in steps and fills `outputs`; what it returns.

    In plain Python it gets lists, which are indexed several times faster than arrays. `plain_s` [s] is what all the
    steps asked for take so; `force` chooses one of the two ways, compiled (True) or plain (None: whichever is done
    sooner).
    """
    if force is None:
        force = function in _compiled or _pays(function, plain_s)
    if force:
        return int(compiled(function)(*inputs, *outputs))
    lists = [array.tolist() for array in outputs]
    result = int(function(*(each.tolist() if isinstance(each, np.ndarray) else each for each in inputs), *lists))
    for array, values in zip(outputs, lists, strict=True):
        array[:] = values
    return result


def _pays(function: Callable[..., Any], plain_s: float) -> bool:
    """Whether the work asked for so far takes longer in plain Python than to load what compiles it."""
    _asked_s[function] = _asked_s.get(function, 0.0) + plain_s
    if "numba" not in sys.modules and sum(_asked_s.values()) <= _IMPORT_S:
        return False
    asked_s = _asked_s[function]
    return asked_s > _COMPILE_S or (asked_s > _LOAD_S and _on_disk(cast(FunctionType, function)))


@cache
def _on_disk(function: FunctionType) -> bool:
    """Whether an earlier process has compiled a marked function here."""
    stats = getattr(_twin(function), "stats", None)  # none where Numba is missing
    return bool(stats and stats.cache_path and any(Path(stats.cache_path).glob(f"*.{function.__qualname__}-*.nbi")))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A marked function compiled with those that it calls, kept on disk where its cache folder can be written."""
    with _lock:
        if function not in _compiled:
            _compiled[function] = _twin(cast(FunctionType, function))
        return _compiled[function]


@cache
def _twin(function: FunctionType) -> Callable[..., Any]:
    """What Numba compiles when it is first called."""
    try:
        from numba import njit
    except ImportError:
        return function
    named = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    called = {name: _twin(value) for name, value in named.items() if callable(value) and value in _inlined}
    twin = FunctionType(function.__code__, {**function.__globals__, **called}, function.__name__)
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "inline": "always" if _inlined[function] else "never",
    }
    try:
        return cast(Callable[..., Any], njit(cache=True, **options)(twin))
    except RuntimeError:  # no folder to keep the compiled code in: for this process alone
        return cast(Callable[..., Any], njit(**options)(twin))
