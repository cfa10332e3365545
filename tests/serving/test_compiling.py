"""What the clock's functions are compiled with: nothing counted, nothing made, nothing left changed."""

import importlib
import pkgutil
import sys

import numba
import numpy as np
import pytest

import ridgeline.serving
from ridgeline.serving.compiling import clocked, formula, started
from ridgeline.serving.loop import replay


def _part(values, index, divisor):
    return values[index] / divisor


def _share(values, index, divisor):  # what is kept on disk goes by the function, not by how it was compiled
    return values[index] / divisor


def _makes_an_array(size):
    return np.zeros(size)


def _counts(values):
    for index in range(values.size):
        values[index] += 1.0


def test_no_function_of_the_clock_counts_references() -> None:
    found = 0
    for module in pkgutil.iter_modules(ridgeline.serving.__path__, "ridgeline.serving."):
        for name, function in vars(importlib.import_module(module.name)).items():
            options = getattr(function, "targetoptions", None)
            if options is not None:
                assert options.get("_nrt") is False, f"{module.name}.{name}"
                found += 1
    assert replay.targetoptions["nogil"]
    assert found > 150


def test_the_callers_array_has_as_many_owners_after_a_call() -> None:
    values = np.zeros(3)
    owners = sys.getrefcount(values)
    for _ in range(10):
        clocked(_counts)(values)
    assert sys.getrefcount(values) == owners
    assert values.tolist() == [10.0] * 3


def test_a_division_by_zero() -> None:
    values = np.array([0.0, 3.0])
    assert formula(_part)(values, 1, 0.0) == np.inf
    with pytest.raises(ZeroDivisionError):
        clocked(_share)(values, 1, 0.0)


def test_a_function_that_makes_an_array_is_refused() -> None:
    with pytest.raises(numba.core.errors.NumbaError):
        clocked(_makes_an_array)(3)


def test_vector_instructions_are_looked_for_again_after_the_first_call() -> None:
    kept = numba.config.LOOP_VECTORIZE
    seen = []

    class Function:
        signatures: tuple[str, ...] = ()

        def __call__(self, value):
            seen.append(numba.config.LOOP_VECTORIZE)
            self.signatures = ("float64",)
            if value < 0:
                raise ValueError
            return value

    function = Function()
    with pytest.raises(ValueError):
        started(function, -1.0)
    assert kept == numba.config.LOOP_VECTORIZE
    assert started(function, 2.0) == 2.0
    assert seen == [0, kept]


def test_compiles_for_the_process_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba.njit

    def njit(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(numba, "njit", njit)
    assert formula(_part)(np.array([3.0]), 0, 2.0) == 1.5
