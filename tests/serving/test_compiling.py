"""What the clock's functions are compiled with: nothing counted, nothing made, nothing left changed."""

import importlib
import pkgutil
import sys

import numba
import numpy as np
import pytest

import ridgeline.serving
from ridgeline.serving import compiling
from ridgeline.serving.compiling import clocked, entered, formula, started
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


@clocked
def _doubled(value, sign):
    return 2.0 * value * sign


@clocked
def _twice(value):
    return _doubled(value, 1) + _doubled(value, -1) + _doubled(value, int(value))


def _enters(value):
    return _twice(value) + _doubled(value, 1)


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


def test_all_that_is_entered_is_one_library_and_each_function_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    finished, real = [], compiling._Library.finalize

    def finalize(library):
        finished.append([one.name for one in library._final_module.functions if not one.is_declaration])
        real(library)

    monkeypatch.setattr(compiling._Library, "finalize", finalize)
    assert compiling._entry(_enters)(3.0) == 24.0
    (names,) = finished
    assert [sum(name in one for one in names) for name in ("_twice", "_doubled")] == [1, 1]
    assert [len(one.overloads) for one in (_twice, _doubled)] == [1, 1]


def test_a_part_that_python_calls_is_compiled_alone_and_stays_usable_in_others() -> None:
    assert _doubled(3.0, 2) == 12.0
    assert entered(_enters)(3.0) == 24.0
    assert _twice(3.0) == 18.0


def test_what_is_kept_on_disk_goes_by_all_files_of_the_clock() -> None:
    files = {file for file, _, _ in compiling._stamp()}
    for module in ("queues", "looks", "clock", "fairness"):
        assert importlib.import_module(f"ridgeline.serving.{module}").__file__ in files
    assert set(replay._cache._cache_file._source_stamp) <= set(compiling._stamp())


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
    def enable_caching(_):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(numba.core.registry.CPUDispatcher, "enable_caching", enable_caching)
    assert entered(_part)(np.array([3.0]), 0, 2.0) == 1.5
