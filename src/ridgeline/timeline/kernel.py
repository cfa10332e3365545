"""One loop, two ways to run it: plain Python for a little work, compiled by Numba for much.

A kernel is a function over sequences: it reads its inputs, fills its outputs in place and
returns an integer. Its source, and that of the helpers it calls, uses only indexing, arithmetic
and comparisons, so that the same text runs on lists and, compiled, on arrays; both do the same
IEEE operations in the same order and give the same bits.

Loading Numba takes about as long as running a few hundred thousand steps in plain Python
(benchmarks/bench_schedules.py measures it). A kernel therefore starts plain and is compiled once
the process has asked it for that many steps, so that waiting is never more than twice the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

Argument = Any  # an array, or a scalar passed through as it is
Function = Callable[..., Any]


class Kernel:
    """A kernel function with its compiled twin, which is made when the work asked for pays for it."""

    def __init__(self, function: Function, *, break_even_steps: int, helpers: tuple[Function, ...] = ()) -> None:
        self.function, self.helpers = function, helpers
        self.break_even_steps = break_even_steps
        self._compiled: Function | None = None
        self._refused = False
        self._steps_asked = 0

    def run(
        self,
        inputs: Sequence[Argument],
        outputs: Sequence[np.ndarray[Any, Any]],
        *,
        steps: int,
        compiled: bool | None = None,
    ) -> int:
        """Run on `inputs`, fill `outputs`, return what the kernel returns.

        `steps` [1] is the size of the work. `compiled` forces one of the two ways (None: choose).
        """
        self._steps_asked += steps
        if compiled is None:
            compiled = self._compiled is not None or self._steps_asked > self.break_even_steps
        function = self._load() if compiled else None
        if function is not None:
            return int(function(*inputs, *outputs))
        lists = [array.tolist() for array in outputs]
        plain = [value.tolist() if isinstance(value, np.ndarray) else value for value in inputs]
        result = int(self.function(*plain, *lists))
        for array, values in zip(outputs, lists, strict=True):
            array[:] = values
        return result

    def _load(self) -> Function | None:
        """The compiled twin, or None where Numba is missing or broken."""
        if self._compiled is None and not self._refused:
            self._compiled = compile_function(self.function, self.helpers)
            self._refused = self._compiled is None
        return self._compiled


def compile_function(function: Function, helpers: tuple[Function, ...] = ()) -> Function | None:
    """The function compiled by Numba, kept on disk where its cache folder can be written.

    None where Numba cannot be imported. `helpers` are the functions of its module that it calls.
    """
    try:
        import numba
    except ImportError:
        return None
    if helpers:
        assert isinstance(function, FunctionType)
        names = {helper.__name__: _compiled(numba, helper) for helper in helpers}
        function = FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)
    return _compiled(numba, function)


def _compiled(numba: Any, function: Function) -> Function:
    compiled: Function
    try:
        compiled = numba.njit(cache=True)(function)
    except RuntimeError:  # no folder to keep the compiled code in: compile for this process alone
        compiled = numba.njit()(function)
    return compiled
