"""Kinds of values that compiled functions of the request clock have, and LLVM's types of them.

A number is one value of LLVM, a row of records a pointer, an array a pointer with its sizes, so that calls are cheap
and nothing is counted or made.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any, get_args, get_origin

import numpy as np

BOOL, INT, REAL = "i1", "i64", "double"
NUMBERS = {bool: BOOL, int: INT, float: REAL}


@dataclass(frozen=True)
class RecordKind:
    """Kind of one record of a NumPy dtype with fields of 8 bytes."""

    dtype: Any


@dataclass(frozen=True)
class ArrayKind:
    """Kind of a contiguous array: of a number's kind or of a dtype of records, with so many dimensions."""

    item: Any
    dimensions: int


@dataclass(frozen=True)
class State:
    """Kind of a tuple of arrays that Python keeps: where each begins and its sizes, 8 bytes each, one after another."""

    fields: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Pointer:
    """What code calls at an address that it is given first: kinds of what follows, None as it is, and of the answer."""

    given: tuple[Any, ...]
    answer: str


Kind = Any  # BOOL, INT, REAL, a tuple of kinds, Row, Table or State


@dataclass(frozen=True)
class Value:
    """What an expression is: its kind, and LLVM's operands of it."""

    kind: Kind
    parts: tuple[str, ...]

    def typed(self) -> list[str]:
        """Operands with their types."""
        return [f"{part} {one}" for part, one in zip(parts_of(self.kind), self.parts, strict=True)]

    def items(self) -> Iterator[Value]:
        """Items of a tuple."""
        place = 0
        for kind in self.kind:
            size = len(parts_of(kind))
            yield Value(kind, self.parts[place : place + size])
            place += size


@cache
def parts_of(kind: Kind) -> tuple[str, ...]:
    """Types of LLVM of the operands of a kind."""
    if isinstance(kind, str):
        return (kind,)
    if isinstance(kind, tuple):
        return tuple(part for one in kind for part in parts_of(one))
    return ("ptr",) + (INT,) * (kind.dimensions if isinstance(kind, ArrayKind) else 0)


def returned(kind: Kind) -> str:
    """LLVM's type of what a function answers."""
    parts = parts_of(kind)
    return parts[0] if len(parts) == 1 else "{" + ", ".join(parts) + "}" if parts else "void"


def kind_of_array(array: np.ndarray[Any, Any]) -> Kind:
    """The kind of a NumPy array; one without dimensions is a row."""
    item = {"f": REAL, "i": INT}.get(array.dtype.kind, array.dtype)
    return RecordKind(array.dtype) if array.ndim == 0 else ArrayKind(item, array.ndim)


def kind_of_state(arrays: Any) -> State:
    """The kind of a named tuple of arrays."""
    return State(tuple((name, kind_of_array(one)) for name, one in zip(arrays._fields, arrays, strict=True)))


def annotated(function: FunctionType, name: str) -> Kind:
    """The kind that an annotation says; None where it says none of numbers."""
    text = function.__annotations__.get(name, "")
    try:
        return _kind(eval(text, function.__globals__) if isinstance(text, str) else text)
    except (NameError, SyntaxError):  # named for type checkers alone, or nothing
        return None


def _kind(annotation: Any) -> Kind:
    if annotation in (None, type(None)):
        return ()
    if get_origin(annotation) is tuple:
        kinds = tuple(map(_kind, get_args(annotation)))
        return None if None in kinds else kinds
    return NUMBERS.get(annotation)


def unified(one: Kind, other: Kind) -> Kind:
    """The kind that holds values of both; None where none does."""
    if isinstance(one, str) and isinstance(other, str):
        return max(one, other, key=[BOOL, INT, REAL].index)
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return tuple(map(unified, one, other))
    return one if one == other else None


@cache
def tree_of(function: FunctionType) -> ast.FunctionDef:
    """The syntax tree of a function."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def real_of(value: Any) -> Value:
    """A real number as LLVM writes it without loss."""
    return Value(REAL, (f"0x{np.float64(value).view(np.uint64):016X}",))
