"""Expressions of the request clock's functions as text of LLVM's language: names, arithmetic, records and calls.

Arithmetic is IEEE's and Python's (`//` and `%` round down); a whole number divided by zero gives 0, a real one infinity
or NaN, as in NumPy. Indices are not checked.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
from collections.abc import Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.errors import PlanError
from ridgeline.serving.kinds import (
    BOOL,
    INT,
    NUMBERS,
    REAL,
    ArrayKind,
    Kind,
    Pointer,
    RecordKind,
    State,
    Value,
    annotated,
    parts_of,
    real_of,
    returned,
    tree_of,
    unified,
)

if TYPE_CHECKING:
    from ridgeline.serving.translate import Unit

_CASTS = {(BOOL, INT): "zext", (BOOL, REAL): "uitofp", (INT, REAL): "sitofp", (REAL, INT): "fptosi"}
_MEMORY = {INT: ", !tbaa !2", REAL: ", !tbaa !3"}  # whole and real numbers never share a place
_FIXED = ", !invariant.load !4"  # where an array is does not change while the clock runs
_COMPARED = {
    ast.Lt: ("slt", "olt"), ast.LtE: ("sle", "ole"), ast.Gt: ("sgt", "ogt"), ast.GtE: ("sge", "oge"),
    ast.Eq: ("eq", "oeq"), ast.NotEq: ("ne", "une"),
}  # fmt: skip
_OPERATED = {
    ast.Add: ("add", "fadd"), ast.Sub: ("sub", "fsub"), ast.Mult: ("mul", "fmul"), ast.Div: ("", "fdiv"),
    ast.BitXor: ("xor", ""), ast.BitAnd: ("and", ""), ast.BitOr: ("or", ""), ast.LShift: ("shl", ""),
    ast.RShift: ("ashr", ""),
}  # fmt: skip
_DIVIDED = {ast.FloorDiv: "down", ast.Mod: "rest", ast.Pow: "power"}
_MATHEMATICS = {math.ceil: "llvm.ceil.f64", math.floor: "llvm.floor.f64", math.sqrt: "llvm.sqrt.f64",
                math.log: "log", math.log2: "log2", math.exp: "exp"}  # fmt: skip


class Expressions:
    """A function while it is written: its lines, and what its names are."""

    def __init__(self, unit: Unit, function: FunctionType) -> None:
        self.unit, self.function, self.tree = unit, function, tree_of(function)
        self.outer = inspect.getclosurevars(function).nonlocals
        self.kinds: dict[str, Kind] = {}
        self.arrays: dict[str, str] = {}
        self.lines: list[str] = []
        self.count = self.hidden = 0
        self.ended = self.wider = False

    # writing -----------------------------------------------------------------------------------------

    def write(self, line: str) -> None:
        """Adds a line, where it can be reached."""
        if not self.ended:
            self.lines.append(line)

    def new(self, line: str) -> str:
        """Adds a line that computes, and names its result."""
        self.count += 1
        self.write(f"%t{self.count} = {line}")
        return f"%t{self.count}"

    def number(self, kind: str, line: str) -> Value:
        """Adds a line that computes a number."""
        return Value(kind, (self.new(line),))

    def labels(self, count: int) -> list[str]:
        """Names of places that are new."""
        self.count += count
        return [f"b{self.count - one}" for one in range(count)]

    def go(self, line: str) -> None:
        """Ends what is written here."""
        self.write(line)
        self.ended = True

    def begin(self, label: str) -> None:
        """Goes on at a label."""
        self.lines.append(f"{label}:")
        self.ended = False

    def refuse(self, node: ast.AST, what: str) -> PlanError:
        """Why something cannot be compiled, with its line; `{}` in `what` stands for its text."""
        code, text = self.function.__code__, ast.unparse(node).splitlines()[0]
        line = code.co_firstlineno + getattr(node, "lineno", 1) - 1
        return PlanError(
            f"{code.co_filename}:{line}: {what.format(repr(text))}; functions of the clock have numbers, rows of"
            " records, arrays, tuples of them, `if`, `while`, `for` over a range and calls of other marked functions"
        )

    # names -------------------------------------------------------------------------------------------

    def name_hidden(self) -> ast.Name:
        """A variable that no one wrote."""
        self.hidden += 1
        return ast.Name(f".{self.hidden}")

    def assign(self, target: ast.expr, value: Value) -> None:
        """Writes a value to a name, to the names of a tuple, or to a place of a record or array."""
        if isinstance(target, ast.Tuple):
            for one, item in zip(target.elts, value.items(), strict=True):
                self.assign(one, item)
        elif isinstance(target, ast.Name):
            known = self.kinds.get(target.id, value.kind)
            self.kinds[target.id] = kind = unified(known, value.kind)
            if kind is None:
                raise self.refuse(target, f"{{}} is {known} and {value.kind}")
            self.wider = self.wider or known != kind
            for place, part in enumerate(self.cast(value, kind, target).typed()):
                self.write(f"store {part}, ptr %v.{target.id}.{place}")
        else:
            self.store(*self.place(target), value, target)

    def static(self, node: ast.expr) -> Any:
        """What a name of the module, or a name of a module that it names, stands for."""
        if isinstance(node, ast.Attribute):
            return getattr(self.static(node.value), node.attr)
        for names in (self.outer, self.function.__globals__, vars(builtins)):
            if isinstance(node, ast.Name) and node.id in names:
                return names[node.id]
        raise self.refuse(node, "{} is not known")

    # places ------------------------------------------------------------------------------------------

    def place(self, node: ast.expr) -> tuple[str, str]:
        """Where a number of a record or of an array is, and its kind."""
        if isinstance(node, ast.Attribute):
            row = self.value(node.value)
            if not isinstance(row.kind, RecordKind) or node.attr not in (row.kind.dtype.names or ()):
                raise self.refuse(node, "{} is no field of a record")
            dtype, offset = row.kind.dtype.fields[node.attr][:2]
            place = self.new(f"getelementptr i8, ptr {row.parts[0]}, i64 {offset}")
            return place, REAL if dtype.kind == "f" else INT
        item = self.item(self.value(node.value), node) if isinstance(node, ast.Subscript) else Value((), ())
        if not isinstance(item.kind, ArrayKind) or item.kind.dimensions:
            raise self.refuse(node, "{} cannot be assigned")
        return item.parts[0], item.kind.item

    def item(self, array: Value, node: ast.Subscript) -> Value:
        """A row, a part of an array, or one number of it, which is an array without dimensions."""
        if not isinstance(array.kind, ArrayKind):
            raise self.refuse(node, "{} is of no array")
        pointer, *sizes = array.parts
        places = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        left, offset = sizes[len(places) :], "0"
        for size, place in zip(sizes, [*places, *(ast.Constant(0) for _ in left)], strict=True):
            index = self.part(self.value(place), INT, node)
            offset = self.new(f"add i64 {self.new(f'mul i64 {offset}, {size}')}, {index}")
        item = array.kind.item
        element = "i64" if isinstance(item, str) else f"[{item.itemsize} x i8]"
        pointer = self.new(f"getelementptr {element}, ptr {pointer}, i64 {offset}")
        if left or isinstance(item, str):
            return Value(ArrayKind(item, len(left)), (pointer, *left))
        return Value(RecordKind(item), (pointer,))

    def load(self, place: str, kind: str) -> Value:
        """The number at a place."""
        return self.number(kind, f"load {kind}, ptr {place}{_MEMORY[kind]}")

    def store(self, place: str, kind: str, value: Value, node: ast.AST) -> None:
        """Writes a number to a place."""
        self.write(f"store {kind} {self.part(value, kind, node)}, ptr {place}{_MEMORY[kind]}")

    # values ------------------------------------------------------------------------------------------

    def cast(self, value: Value, kind: Kind, node: ast.AST) -> Value:
        """A value as one of another kind, or as it is where none is asked for."""
        if kind is None or value.kind == kind:
            return value
        if isinstance(kind, tuple) and isinstance(value.kind, tuple) and len(kind) == len(value.kind):
            items = [self.cast(one, to, node) for one, to in zip(value.items(), kind, strict=True)]
            return Value(kind, tuple(part for one in items for part in one.parts))
        if not (isinstance(kind, str) and isinstance(value.kind, str)):
            raise self.refuse(node, f"{{}} is {value.kind} where {kind} is asked for")
        (one,) = value.parts
        if kind == BOOL:
            return self.number(BOOL, f"icmp ne i64 {one}, 0" if value.kind == INT else f"fcmp une double {one}, 0.0")
        if kind == REAL and one.lstrip("-").isdigit():
            return real_of(int(one))
        return self.number(kind, f"{_CASTS[value.kind, kind]} {value.kind} {one} to {kind}")

    def part(self, value: Value, kind: str, node: ast.AST) -> str:
        """The operand of a number of a kind."""
        return self.cast(value, kind, node).parts[0]

    def value(self, node: ast.expr) -> Value:
        """What an expression is."""
        match node:
            case ast.Constant(value=value):
                return self.constant(value, node)
            case ast.Name(id=name) if name in self.kinds:
                kind = self.kinds[name]
                parts = (self.new(f"load {part}, ptr %v.{name}.{place}") for place, part in enumerate(parts_of(kind)))
                return Value(kind, tuple(parts))
            case ast.Name():
                return self.constant(self.static(node), node)
            case ast.Tuple(elts=nodes):
                values = [self.value(one) for one in nodes]
                return Value(tuple(one.kind for one in values), tuple(part for one in values for part in one.parts))
            case ast.BinOp(left=left, op=op, right=right):
                return self.operated(op, self.value(left), self.value(right), node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                found = self.value(operand)
                if found.kind == REAL:
                    return self.number(REAL, f"fneg double {found.parts[0]}")
                return self.operated(ast.Sub(), Value(INT, ("0",)), found, node)
            case ast.UnaryOp(op=ast.Not()) | ast.BoolOp():
                return self.chosen(node, ast.Constant(True), ast.Constant(False))
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.chosen(test, body, other)
            case ast.Compare():
                return self.compared(node)
            case ast.Call():
                return self.called(node)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Subscript():
                return self.subscript(node)
        raise self.refuse(node, "{} is not compiled")

    def constant(self, value: Any, node: ast.AST) -> Value:
        """A number that does not change."""
        if isinstance(value, bool | np.bool_):
            return Value(BOOL, (str(bool(value)).lower(),))
        if isinstance(value, int | np.integer):
            return Value(INT, (str(int(value)),))
        if isinstance(value, float | np.floating):
            return real_of(value)
        raise self.refuse(node, f"{{}} is a {type(value).__name__}")

    def branch(self, node: ast.expr, yes: str, no: str) -> None:
        """Goes on at one label or the other."""
        match node:
            case ast.BoolOp(op=op, values=[first, *others]):
                for value in others:
                    (more,) = self.labels(1)
                    self.branch(first, *((more, no) if isinstance(op, ast.And) else (yes, more)))
                    self.begin(more)
                    first = value
                self.branch(first, yes, no)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.branch(operand, no, yes)
            case _:
                self.go(f"br i1 {self.part(self.value(node), BOOL, node)}, label %{yes}, label %{no}")

    def chosen(self, test: ast.expr, one: ast.expr, other: ast.expr) -> Value:
        """One of two values, of which only that is computed."""
        found, (yes, no, end) = self.name_hidden(), self.labels(3)
        self.branch(test, yes, no)
        for label, node in ((yes, one), (no, other)):
            self.begin(label)
            self.assign(found, self.value(node))
            self.go(f"br label %{end}")
        self.begin(end)
        return self.value(found)

    def attribute(self, node: ast.Attribute) -> Value:
        """A constant of a module, an array of the state, the size of an array or a field of a record."""
        if isinstance(node.value, ast.Name) and node.value.id not in self.kinds:
            return self.constant(self.static(node), node)
        base, place = self.value(node.value), 0
        if isinstance(base.kind, ArrayKind) and node.attr == "size":
            return Value(INT, (base.parts[1],))
        for name, kind in base.kind.fields if isinstance(base.kind, State) else ():
            if name == node.attr:
                parts: list[str] = []
                for part in parts_of(kind):
                    at = self.new(f"getelementptr i64, ptr {base.parts[0]}, i64 {place + len(parts)}")
                    parts.append(self.new(f"load {part}, ptr {at}{_FIXED}"))
                return Value(kind, tuple(parts))
            place += len(parts_of(kind))
        return self.load(*self.place(node))

    def subscript(self, node: ast.Subscript) -> Value:
        """A size of an array, an item of a tuple, a row, a part of an array or one number of it."""
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            return Value(INT, (self.value(node.value.value).parts[1 + ast.literal_eval(node.slice)],))
        value = self.value(node.value)
        if not isinstance(value.kind, tuple):
            found = self.item(value, node)
            last = isinstance(found.kind, ArrayKind) and not found.kind.dimensions
            return self.load(found.parts[0], found.kind.item) if last else found
        if isinstance(node.slice, ast.Constant):
            return list(value.items())[int(node.slice.value)]  # type: ignore[arg-type]
        array, kind = f"%a.{len(self.arrays)}", value.kind[0]
        self.arrays[array] = f"[{len(value.parts)} x {kind}]"
        for place, one in enumerate(value.typed()):
            self.write(f"store {one}, ptr {self.new(f'getelementptr {kind}, ptr {array}, i64 {place}')}")
        index = self.part(self.value(node.slice), INT, node)
        return self.number(kind, f"load {kind}, ptr {self.new(f'getelementptr {kind}, ptr {array}, i64 {index}')}")

    def compared(self, node: ast.Compare) -> Value:
        """Whether comparisons hold, all of a chain."""
        one, found = self.value(node.left), "true"
        for op, other in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn) and isinstance(other, ast.Tuple):
                each = "false"
                for known in other.elts:
                    each = self.new(f"or i1 {each}, {self.comparison(ast.Eq(), one, self.value(known), node)}")
                each = self.new(f"xor i1 {each}, {str(isinstance(op, ast.NotIn)).lower()}")
            else:
                two = self.value(other)
                each, one = self.comparison(op, one, two, node), two
            found = self.new(f"and i1 {found}, {each}")
        return Value(BOOL, (found,))

    def comparison(self, op: ast.cmpop, one: Value, other: Value, node: ast.AST) -> str:
        """Whether two numbers compare so."""
        kind = unified(unified(one.kind, other.kind), INT)
        if type(op) not in _COMPARED or kind is None:
            raise self.refuse(node, "{} is not compared")
        how = ("icmp", "fcmp")[kind == REAL] + " " + _COMPARED[type(op)][kind == REAL]
        return self.new(f"{how} {kind} {self.part(one, kind, node)}, {self.part(other, kind, node)}")

    def operated(self, op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
        """Arithmetic of two numbers."""
        kind = unified(unified(left.kind, right.kind), REAL if isinstance(op, ast.Div | ast.Pow) else INT)
        how = _OPERATED.get(type(op), ("", ""))[kind == REAL]
        if kind is None or not (how or type(op) in _DIVIDED):
            raise self.refuse(node, "{} is no arithmetic of numbers")
        one, other = self.part(left, kind, node), self.part(right, kind, node)
        if how:
            return self.number(kind, f"{how} {kind} {one}, {other}")
        return self.number(kind, f"call {kind} @{_DIVIDED[type(op)]}.{kind}({kind} {one}, {kind} {other})")

    # calls -------------------------------------------------------------------------------------------

    def called(self, node: ast.Call) -> Value:
        """What a function answers: of Python's, of another marked one, or at an address."""
        called: Any = self.static(node.func)
        values = [self.value(one) for one in node.args]
        if called in (min, max):
            return self.extreme(values, "gt" if called is max else "lt", node)
        if called in NUMBERS:
            return self.cast(values[0], NUMBERS[called], node)
        if called is abs:
            return self.extreme([values[0], self.operated(ast.Sub(), Value(INT, ("0",)), values[0], node)], "gt", node)
        if called in _MATHEMATICS:
            found = self.number(REAL, f"call double @{_MATHEMATICS[called]}(double {self.part(values[0], REAL, node)})")
            return self.cast(found, INT, node) if called in (math.ceil, math.floor) else found
        if called is math.isnan:
            return self.number(BOOL, f"fcmp uno double {self.part(values[0], REAL, node)}, 0.0")
        pointer = getattr(called, "pointer", None)
        if isinstance(pointer, Pointer):
            given = [self.cast(value, kind, node) for value, kind in zip(values[1:], pointer.given, strict=True)]
            return self.call(self.new(f"inttoptr i64 {values[0].parts[0]} to ptr"), pointer.answer, given)
        if called not in self.unit.marked:
            raise self.refuse(node.func, "{} is not marked as a function of the clock")
        names = [one.arg for one in tree_of(called).args.args]
        if node.keywords or len(names) != len(values):
            raise self.refuse(node, f"{{}} is to give {', '.join(names)}, in this order")
        wanted = (annotated(called, name) for name in names)
        given = [self.cast(value, kind, node) for value, kind in zip(values, wanted, strict=True)]
        return self.call(*self.unit.function(called, [one.kind for one in given]), given)

    def call(self, named: str, answer: Kind, given: Sequence[Value]) -> Value:
        """What code at a name answers."""
        line = f"call {returned(answer)} {named}({', '.join(part for one in given for part in one.typed())})"
        if not parts_of(answer):
            self.write(line)
            return Value((), ())
        found, size = self.new(line), len(parts_of(answer))
        if size == 1:
            return Value(answer, (found,))
        parts = (self.new(f"extractvalue {returned(answer)} {found}, {place}") for place in range(size))
        return Value(answer, tuple(parts))

    def extreme(self, values: Sequence[Value], way: str, node: ast.AST) -> Value:
        """The first of the largest ('gt'), or of the smallest ('lt'), as Python chooses."""
        kind: Kind = INT
        for value in values:
            kind = unified(kind, value.kind)
        found, *others = (self.part(value, kind, node) for value in values)
        how = "fcmp o" if kind == REAL else "icmp s"
        for one in others:
            found = self.new(f"select i1 {self.new(f'{how}{way} {kind} {one}, {found}')}, {kind} {one}, {kind} {found}")
        return Value(kind, (found,))
