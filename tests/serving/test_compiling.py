"""The clock's functions compiled: the same answers as in plain Python, kept on disk, refused where they cannot be."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline.errors import PlanError
from ridgeline.serving import compiling, translate
from ridgeline.serving.compiling import Entered, clocked
from ridgeline.serving.kinds import REAL

ROW = np.dtype([("count", "i8"), ("time_s", "f8")])
FEW, MANY = 2, 7


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))


@clocked
def _split(value: float, parts: int) -> tuple[float, int]:
    return value / parts, parts // FEW


@clocked
def _fibonacci(n: int) -> int:
    return n if n < 2 else _fibonacci(n - 1) + _fibonacci(n - 2)


@clocked
def _walk(rows: Any, values: Any, n: int, x: float) -> float:
    """Every statement and expression that is compiled."""
    total = 0  # whole at first, real later
    for i in range(n):
        row = rows[i]
        row.count += i
        rows[i].time_s = row.count * 0.5
        if (i % 2 == 0 and row.count > 2) or not i:
            continue
        total += row.time_s
        if total > 1e6:
            break
    for down in range(n, 0, -2):
        total -= down
    first, second = _split(x, -7)
    lines = (1.0, 2.5, 3.0)
    total += lines[n % 3] if second in (-4, MANY) else math.inf
    rows[0].count, rows[1].count = rows[1].count, rows[0].count
    place = 0
    while place < values.shape[1] and not (place == 2 or n < 0 < place):
        values[1][place] = values[0, place] ** 2 + math.log(1.0 + place)
        place += 1
    total += math.floor(-2.5) + math.ceil(x) + (-7 % 4) + -7 // 2 + (-7.5 // 2.0) + (7.5 % -2.0) + _fibonacci(10)
    total += (n ^ 5) + (n << 2) + (n >> 1) + abs(-3) + abs(-x) + int(x) + float(n) + bool(n) + (n > 2) + (1 <= n < 3)
    return max(first, total, 2) - min(1, second, values.size)


def _given() -> tuple[Any, np.ndarray, int, float]:
    rows = np.zeros(5, ROW)
    rows["count"], rows["time_s"] = [5, 3, 0, 1, 2], 0.25
    return rows, np.arange(6.0).reshape(2, 3), 5, 1.7


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_compiled_as_in_python(n: int) -> None:
    rows, values, _, x = _given()
    plain_rows, plain_values, _, _ = _given()
    found = Entered(_walk)(rows, values, n, x)
    assert found == _walk(plain_rows.view(np.recarray), plain_values, n, x)
    assert rows.tolist() == plain_rows.tolist()
    assert values.tolist() == plain_values.tolist()


def test_whole_numbers_divide_as_in_python_and_by_zero_give_zero() -> None:
    @clocked
    def divided(one: int, other: int) -> int:
        return 1000 * (one // other) + one % other

    @clocked
    def shared(one: float, other: float) -> float:
        return one / other

    compiled = Entered(divided)
    cases = [(a, b) for a in range(-7, 8) for b in (-3, -1, 1, 2, 5)]
    assert [compiled(*case) for case in cases] == [divided(*case) for case in cases]
    assert compiled(5, 0) == 0
    assert Entered(shared)(1.0, 0.0) == math.inf


def test_real_numbers_divide_down_as_in_python() -> None:
    @clocked
    def divided(one: float, other: float) -> float:
        return 1000.0 * (one // other) + one % other

    compiled, draw = Entered(divided), np.random.default_rng(1)
    cases = [(float(a), float(b)) for a, b in draw.normal(0.0, 10.0, (500, 2)).round(1) if b]
    assert [compiled(*case) for case in cases] == [divided(*case) for case in cases]


def test_what_was_compiled_is_read_from_disk_and_compiled_again_when_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    real = compiling._optimised

    def optimised(text: str, machine: Any) -> bytes:
        texts.append(text)
        return real(text, machine)

    monkeypatch.setattr(compiling, "_optimised", optimised)
    for _ in range(2):
        assert Entered(_fibonacci)(12) == 144
    assert len(texts) == len(list(tmp_path.glob("*_fibonacci*.o"))) == 1
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda one: read(one) + b"#" * (one.suffix == ".py"))
    assert Entered(_fibonacci)(12) == 144
    assert len(texts) == 2
    assert len(list(tmp_path.glob("*_fibonacci*.o"))) == 1


def test_a_change_in_another_file_that_is_called_compiles_again(tmp_path: Path) -> None:
    def loaded(times: int) -> float:
        names: dict[str, Any] = {"clocked": clocked}
        for name, text in (
            ("helper", f"TIMES = {times}\n@clocked\ndef more(x: float) -> float:\n    return {times} * x\n"),
            ("caller", "@clocked\ndef asked(x: float) -> float:\n    return more(x) + TIMES\n"),
        ):
            file = tmp_path / f"{name}.py"
            file.write_text(text, encoding="utf-8")
            exec(compile(text, str(file), "exec"), names)
            linecache.checkcache(str(file))
        return float(Entered(names["asked"])(10.0))

    assert [loaded(2), loaded(3), loaded(2)] == [22.0, 33.0, 22.0]


def test_kinds_of_one_function_stay_beside_each_other(tmp_path: Path) -> None:
    @clocked
    def twice(x: Any) -> float:
        return x * 2.0

    for _ in range(2):
        assert [Entered(twice)(1), Entered(twice)(1.5), Entered(twice)(True)] == [2.0, 3.0, 2.0]
    assert len(list(tmp_path.glob("*twice*.o"))) == 3


def test_numbers_are_given_as_what_a_function_says_that_it_takes() -> None:
    @clocked
    def twice(x: float) -> float:
        return x + x

    assert [Entered(twice)(1), Entered(twice)(1.5), Entered(twice)(True)] == [2.0, 3.0, 2.0]


def test_compiles_for_the_process_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(blocked))
    assert Entered(_fibonacci)(10) == 55


def test_each_function_is_written_once_for_numbers_of_any_kind() -> None:
    @clocked
    def twice(x: float) -> float:
        return _split(x, 1)[0] + _split(2, FEW)[0] + _split(True, 3)[0]

    unit = translate.Unit(frozenset(compiling._marked))
    unit.entry(twice, (REAL,), REAL, "entered")
    assert len(unit.done) == 1


def _unmarked(value: float) -> float:
    return value


def _refused() -> list[tuple[Callable[..., Any], str]]:
    def makes(n: int) -> float:
        return np.zeros(n)[0]  # type: ignore[no-any-return]

    def calls(n: int) -> float:
        return _unmarked(n)

    def lists(n: int) -> int:
        found = [n]
        return found[0]

    def unknown(n: int) -> int:
        return n + no_such_name  # type: ignore[name-defined, no-any-return]  # noqa: F821

    def fields(rows: Any) -> int:
        return rows[0].nothing  # type: ignore[no-any-return]

    def other(n: int) -> float:
        return _split(n)[0]  # type: ignore[call-arg]

    return [
        (makes, "np.zeros"), (calls, "'_unmarked' is not marked"), (lists, r"\[n\]"), (unknown, "no_such_name"),
        (fields, "no field of a record"), (other, "value, parts"),
    ]  # fmt: skip


@pytest.mark.parametrize(("function", "told"), _refused())
def test_what_cannot_be_compiled_is_refused_with_its_line(function: Callable[..., Any], told: str) -> None:
    given: Any = np.zeros(1, ROW) if function.__name__ == "fields" else 3
    with pytest.raises(PlanError, match=rf"test_compiling.py:\d+: .*{told}"):
        Entered(clocked(function))(given)
