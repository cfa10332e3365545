"""Kernels of operator families as plain Python and compiled: the same bits; one answer loads no compiler."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from ridgeline import compiled
from ridgeline.cost.families.gemm import CASTS
from ridgeline.cost.families.layers import CHOSEN_CORE
from ridgeline.cost.families.registry import FAMILIES, mechanism
from ridgeline.cost.measured import Grid
from ridgeline.cost.mechanism import Array, Mechanism, device_vector
from ridgeline.facts.accelerators import accelerator

ROWS, DRAWS = 150, 3
FLAGS = (
    "cast", "quick", "combine", "gated", "padded", "absorbed", "switched", "in_network", "in_place", "every_row",
    "dynamic",
)  # fmt: skip
CHOICES = {
    "experts": (8.0, 60.0, 256.0), "ranks": (1.0, 2.0, 8.0), "nodes": (1.0, 2.0), "top_k": (1.0, 2.0, 8.0),
    "skew": (0.0, 0.6, 1.0, 1.2), "operation": (0.0, 1.0, 2.0, 3.0, 4.0), "window": (0.0, 1024.0),
    "cached": (0.0, 3000.0), "top": (0.0, 2048.0), "issue_s": (0.0, 1e-5), "net_hop_s": (0.0, 3e-6),
    "least_rows": (8.0, 64.0), "most_rows": (128.0, 256.0),
}  # fmt: skip
MECHANISMS = {**{family: mechanism(family) for family in FAMILIES}, "casts": CASTS, "chosen_core": CHOSEN_CORE}


def _drawn(model: Mechanism, draw: np.random.Generator) -> Array:
    columns = []
    for name in model.sizes:
        if name in FLAGS:
            columns.append(draw.integers(0, 2, ROWS).astype(float))
        elif name in CHOICES:
            columns.append(draw.choice(CHOICES[name], ROWS))
        elif name.endswith("per_s"):
            columns.append(draw.uniform(1e10, 9e11, ROWS))
        else:
            columns.append(np.floor(np.exp(draw.uniform(0.0, 10.0, ROWS))))
    return np.stack(columns, axis=1)


def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_compiled", {})
    monkeypatch.setattr(compiled, "_LOAD_S", 1e9)
    monkeypatch.setattr(compiled, "_IMPORT_S", 1e9)
    monkeypatch.setattr(compiled, "_COMPILE_S", 1e9)


@pytest.mark.parametrize("name", MECHANISMS)
def test_plain_and_compiled_kernels_agree_to_the_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, draw = MECHANISMS[name], np.random.default_rng(len(name))
    device = device_vector(accelerator("H100-SXM"), "bf16")
    for _ in range(DRAWS):
        table = _drawn(model, draw)
        values = model.start * draw.uniform(0.9, 1.1, len(model.start))
        with monkeypatch.context() as patch:
            _plain(patch)
            plain = model.price(table, device, values)
            assert not compiled._compiled, "a kernel left plain Python for sizes that people ask"
        derived = table
        if model.derive is not None:
            with monkeypatch.context() as patch:
                patch.setattr(compiled, "_LOAD_S", -1.0)
                patch.setattr(compiled, "_IMPORT_S", -1.0)
                patch.setattr(compiled, "_COMPILE_S", -1.0)
                derived = model.derive(table)
        quick = np.empty((ROWS, 3))
        compiled.compiled(model.kernel)(derived, device, values, quick)
        np.testing.assert_array_equal(plain, quick)
        assert np.isfinite(plain).mean() > 0.6


def test_plain_and_compiled_interpolation_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(5)
    axes = tuple(np.log(np.unique(np.floor(np.exp(draw.uniform(0, 8, 6))))) for _ in range(3))
    grid = Grid(names=("a", "b", "c"), axes=axes, values=draw.uniform(-1, 1, [len(axis) for axis in axes]))
    grid.values[0, 1, 1] = np.nan
    points = [np.exp(draw.uniform(axis[0] - 0.2, axis[-1] + 0.2, 200)) for axis in axes]
    found = []
    for limit_s in (1e9, -1.0):
        with monkeypatch.context() as patch:
            _plain(patch)
            patch.setattr(compiled, "_LOAD_S", limit_s)
            patch.setattr(compiled, "_IMPORT_S", limit_s)
            patch.setattr(compiled, "_COMPILE_S", limit_s)
            found.append(grid.at(np.stack(points)))
            assert bool(compiled._compiled) == (limit_s < 0)
    np.testing.assert_array_equal(*found)
    assert 0.1 < np.isnan(found[0]).mean() < 0.9


ONE_ANSWER = """
import sys
from ridgeline.cost.ladder import price
from ridgeline.cost.questions import gemm
from ridgeline.facts.accelerators import accelerator
price(gemm(4096, 4096, 14336).question, accelerator("H100-SXM"))
print(*[name for name in ("numba", "scipy", "pandas", "pyarrow.compute", "pydantic", "rich") if name in sys.modules])
"""


def test_one_answer_loads_neither_compiler_nor_what_it_does_not_need() -> None:
    done = subprocess.run([sys.executable, "-c", ONE_ANSWER], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
