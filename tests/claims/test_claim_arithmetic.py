"""The arithmetic of claims: hand-worked values, and what is refused."""

from __future__ import annotations

import pytest

from ridgeline.claims.arithmetic import computed, names_in


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("a + b * 2", 13.0),
        ("(a + b) * 2", 16.0),
        ("100 * (1 - a / b)", 40.0),
        ("-a + +b", 2.0),
        ("max(a, b, 4) - min(a, b) / abs(-2)", 3.5),
    ],
)
def test_formulas_follow_arithmetic(formula: str, value: float) -> None:
    assert computed(formula, {"a": 3.0, "b": 5.0}) == pytest.approx(value)


@pytest.mark.parametrize(
    "formula",
    ["a ** b", "a if b else 1", "__import__('os')", "a.real", "a[0]", "True", "'x'", "min()", "max(a, key=b)", "a < b",
     "print(a)", "lambda: 1", "", "a +", "1" * 501, "a // b", "[a]"],
)  # fmt: skip
def test_what_is_no_arithmetic_is_refused(formula: str) -> None:
    with pytest.raises(ValueError, match=r"formula|allowed"):
        names_in(formula)


def test_a_formula_without_a_value_says_so() -> None:
    with pytest.raises(ValueError, match=r"has no value with a = 1, b = 0"):
        computed("a / b", {"a": 1.0, "b": 0.0})
