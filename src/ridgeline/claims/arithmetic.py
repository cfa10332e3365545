"""The arithmetic that a claim may do with its answers: + - * / parentheses, min, max, abs; nothing else is run."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

_LONGEST = 500  # characters of a formula
_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_UNARY: Mapping[type[ast.unaryop], Callable[[float], float]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_CALLS: Mapping[str, Callable[..., float]] = {"min": min, "max": max, "abs": abs}


def names_in(formula: str) -> frozenset[str]:
    """The names that a formula asks for; a `ValueError` says what it may not hold.

    >>> sorted(names_in("100 * (1 - a / max(b, 1))"))
    ['a', 'b']
    """
    return frozenset(_names(_parsed(formula)))


def computed(formula: str, values: Mapping[str, float]) -> float:
    """The value of a formula with these values of its names; a `ValueError` where it has none.

    >>> computed("max(a, 2) / b", {"a": 1.0, "b": 4.0})
    0.5
    """
    try:
        return float(_value(_parsed(formula), values))
    except (ZeroDivisionError, OverflowError):
        told = ", ".join(f"{name} = {value:g}" for name, value in values.items())
        raise ValueError(f"'{formula}' has no value with {told}") from None


def _parsed(formula: str) -> ast.expr:
    if len(formula) > _LONGEST:
        raise ValueError(f"a formula has at most {_LONGEST} characters")
    try:
        tree = ast.parse(formula.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"'{formula}' is no formula") from None
    _names(tree)
    return tree


def _names(tree: ast.expr) -> set[str]:
    match tree:
        case ast.Constant(value=int() | float()) if not isinstance(tree.value, bool):
            return set()
        case ast.Name():
            return {tree.id}
        case ast.BinOp() if type(tree.op) in _BINARY:
            return _names(tree.left) | _names(tree.right)
        case ast.UnaryOp() if type(tree.op) in _UNARY:
            return _names(tree.operand)
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _CALLS and tree.args:
            return {each for one in tree.args for each in _names(one)}
    raise ValueError(f"'{ast.unparse(tree)}' is not allowed; a formula has numbers, names, + - * /, min, max and abs")


def _value(tree: ast.expr, values: Mapping[str, float]) -> Any:
    match tree:
        case ast.Constant():
            return tree.value
        case ast.Name():
            return values[tree.id]
        case ast.BinOp():
            return _BINARY[type(tree.op)](_value(tree.left, values), _value(tree.right, values))
        case ast.UnaryOp():
            return _UNARY[type(tree.op)](_value(tree.operand, values))
        case ast.Call(func=ast.Name(id=name)):
            return _CALLS[name](*(_value(one, values) for one in tree.args))
    raise ValueError(ast.unparse(tree))
