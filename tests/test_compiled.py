"""Loops as plain Python and compiled: which of them answers, and a compiler that is missing or cannot keep its work."""

from __future__ import annotations

import math
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline import compiled
from ridgeline.compiled import helper, kernel, run, run_on_lists

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_compiled", {})
    monkeypatch.setattr(compiled, "_asked_s", {})
    compiled._twin.cache_clear()


@helper
def _halved(x: float) -> float:
    return x / 2.0


@kernel
def _rooted(x: Array, out: Array) -> None:
    for i in range(x.shape[0]):
        out[i] = _halved(1.0 / math.sqrt(x[i]))  # a root is a plain float: Python refuses to divide by its zero


@kernel
def _divided(x: Array, out: Array) -> None:
    for i in range(x.shape[0]):
        out[i] = 1.0 / x[i]


@pytest.mark.parametrize("function", [_rooted, _divided])
def test_division_by_zero_is_infinite_and_nobody_is_warned(
    function: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_LOAD_S", 1e9)
    out = np.empty(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(function, 2, np.array([4.0, 0.0]), out)
    assert out.tolist() == [0.25, math.inf]


@kernel
def _summed(x: Array, out: Array) -> int:
    for i in range(len(x)):
        out[i] = x[i] + (out[i - 1] if i else 0.0)
    return len(x)


def _pretend(monkeypatch: pytest.MonkeyPatch, *, loaded: bool, on_disk: bool = True) -> None:
    """A compiler that gives the function back, loaded already or not, with what it compiled before or without."""
    monkeypatch.setattr(compiled, "_on_disk", lambda function: on_disk)
    monkeypatch.setattr(compiled, "compiled", lambda function: compiled._compiled.setdefault(function, function))
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    if loaded:
        monkeypatch.setitem(sys.modules, "numba", object())


def test_work_of_all_loops_together_pays_for_loading_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, loaded=False)
    x, out = np.ones(1), np.empty(1)
    run(_divided, 4_000, x, out)  # 0.2 s of 0.4 s
    assert not compiled._compiled
    run_on_lists(_summed, (x,), (out,), plain_s=0.19)
    assert not compiled._compiled
    run(_rooted, 201, x, out)
    assert list(compiled._compiled) == [_rooted]


def test_a_loaded_compiler_is_used_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, loaded=True)
    x, out = np.ones(1), np.empty(1)
    run(_divided, 100, x, out)  # 5 ms
    assert not compiled._compiled
    run(_divided, 1, x, out)
    assert list(compiled._compiled) == [_divided]
    run_on_lists(_summed, (x,), (out,), plain_s=0.0049)
    assert _summed not in compiled._compiled
    run_on_lists(_summed, (x,), (out,), plain_s=0.0002)
    assert _summed in compiled._compiled


def test_what_no_process_has_compiled_waits_until_compiling_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, loaded=True, on_disk=False)
    x, out = np.ones(1), np.empty(1)
    run(_divided, 19_990, x, out)  # just under 1 s
    assert not compiled._compiled
    run(_divided, 11, x, out)
    assert list(compiled._compiled) == [_divided]


def test_a_compiled_loop_is_found_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    compiled._on_disk.cache_clear()
    assert not compiled._on_disk(_divided)
    compiled.compiled(_divided)(np.ones(1), np.empty(1))
    compiled._on_disk.cache_clear()
    assert compiled._on_disk(_divided)
    assert not compiled._on_disk(_rooted)


@pytest.mark.parametrize("force", [False, True])
def test_a_loop_over_lists_fills_the_arrays_it_was_given(force: bool) -> None:
    out = np.zeros(3)
    assert run_on_lists(_summed, (np.array([1.0, 2.0, 3.5]),), (out,), plain_s=0.0, force=force) == 3
    assert out.tolist() == [1.0, 3.0, 6.5]
    assert (_summed in compiled._compiled) is force


def test_works_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    out = np.zeros(2)
    assert run_on_lists(_summed, (np.array([1.0, 2.0]),), (out,), plain_s=0.0, force=True) == 2
    assert out.tolist() == [1.0, 3.0]


def test_works_where_no_cache_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def njit(*, cache: bool = False, **options: object) -> object:
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setitem(sys.modules, "numba", types.SimpleNamespace(njit=njit))
    out = np.zeros(1)
    assert run_on_lists(_summed, (np.array([2.0]),), (out,), plain_s=0.0, force=True) == 1
    assert asked == [True, False]
