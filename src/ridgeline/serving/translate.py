"""Translates functions of the request clock from Python to LLVM's language: one text of all that one function reaches.

A function is read as its syntax tree, once for each kinds of arguments. What a name is follows from annotations (`int`,
`float`, `bool`, tuples of them), from what callers give, and from what is assigned: a name to which whole and real
numbers are assigned is real. The same functions run as they are in Python over NumPy's records (`state.plain`), and
give the same bits.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from ridgeline.serving.expressions import Expressions
from ridgeline.serving.kinds import Kind, Value, annotated, parts_of, returned, unified

_HEAD = """
declare double @log(double)
declare double @log2(double)
declare double @exp(double)
declare double @fmod(double, double)
declare double @llvm.ceil.f64(double)
declare double @llvm.floor.f64(double)
declare double @llvm.sqrt.f64(double)
declare double @llvm.pow.f64(double, double)

define internal i64 @rest.i64(i64 %a, i64 %b) alwaysinline {
  %none = icmp eq i64 %b, 0
  %by = select i1 %none, i64 1, i64 %b
  %rest = srem i64 %a, %by
  %signs = xor i64 %rest, %by
  %unlike = icmp slt i64 %signs, 0
  %some = icmp ne i64 %rest, 0
  %below = and i1 %unlike, %some
  %more = select i1 %below, i64 %by, i64 0
  %found = add i64 %rest, %more
  ret i64 %found
}
define internal i64 @down.i64(i64 %a, i64 %b) alwaysinline {
  %none = icmp eq i64 %b, 0
  %by = select i1 %none, i64 1, i64 %b
  %rest = call i64 @rest.i64(i64 %a, i64 %by)
  %whole = sub i64 %a, %rest
  %found = sdiv i64 %whole, %by
  %zero = select i1 %none, i64 0, i64 %found
  ret i64 %zero
}
define internal double @rest.double(double %a, double %b) alwaysinline {
  %rest = call double @fmod(double %a, double %b)
  %negative = fcmp olt double %rest, 0.0
  %under = fcmp olt double %b, 0.0
  %unlike = xor i1 %negative, %under
  %some = fcmp une double %rest, 0.0
  %below = and i1 %unlike, %some
  %more = fadd double %rest, %b
  %found = select i1 %below, double %more, double %rest
  ret double %found
}
define internal double @down.double(double %a, double %b) alwaysinline {
  %rest = call double @rest.double(double %a, double %b)
  %whole = fsub double %a, %rest
  %parts = fdiv double %whole, %b
  %over = fadd double %parts, 0.5
  %found = call double @llvm.floor.f64(double %over)
  ret double %found
}
define internal double @power.double(double %a, double %b) alwaysinline {
  %found = call double @llvm.pow.f64(double %a, double %b)
  ret double %found
}
!0 = !{!"clock"}
!1 = !{!"data", !0}
!2 = !{!5, !5, i64 0}
!3 = !{!6, !6, i64 0}
!4 = !{}
!5 = !{!"whole", !1}
!6 = !{!"real", !1}
"""


@dataclass
class Unit:
    """All functions of one library, of those `marked`, and what has been written of them."""

    marked: frozenset[Any]
    done: dict[tuple[Any, ...], tuple[str, Kind]] = field(default_factory=dict)
    text: list[str] = field(default_factory=lambda: [_HEAD])

    def function(self, function: FunctionType, kinds: Sequence[Kind]) -> tuple[str, Kind]:
        """Name and kind of the answer of a function for these kinds of arguments, written where it is not yet."""
        key = (function, *kinds)
        if key not in self.done:
            named = f"@{function.__module__}.{function.__qualname__}.{len(self.done)}".replace("<locals>", "in")
            self.done[key] = named, annotated(function, "return")
            code = _Function(self, function, kinds, self.done[key][1])
            self.text.append(code.written(f"internal {{}} {named}"))
            self.done[key] = named, code.answer
        return self.done[key]

    def entry(self, function: FunctionType, kinds: Sequence[Kind], answer: Kind, name: str) -> str:
        """The whole text, in which the function can be called by a name from outside."""
        self.text.append(_Function(self, function, kinds, answer).written(f"{{}} @{name}"))
        return "\n".join(self.text)


class _Function(Expressions):
    """One function while it is written: its statements."""

    def __init__(self, unit: Unit, function: FunctionType, kinds: Sequence[Kind], answer: Kind) -> None:
        super().__init__(unit, function)
        names = [one.arg for one in self.tree.args.args]
        self.given = {name: annotated(function, name) or kind for name, kind in zip(names, kinds, strict=True)}
        self.kinds = dict(self.given)
        self.answer, self.free = answer, answer is None
        self.loops: list[tuple[str, str]] = []

    def written(self, head: str) -> str:
        """The text of the function; read again while what is assigned later makes a name's kind wider."""
        self.wider = True
        while self.wider:
            self.lines, self.arrays, self.ended, self.wider = [], {}, False, False
            self.count = self.hidden = 0
            self.block(self.tree.body)
        self.answer = () if self.answer is None else self.answer
        self.go("unreachable" if self.answer else "ret void")
        given = [(f"{name}.{place}", part) for name, kind in self.given.items()
                 for place, part in enumerate(parts_of(kind))]  # fmt: skip
        names = [f"%v.{name}.{place} = alloca {part}" for name, kind in self.kinds.items()
                 for place, part in enumerate(parts_of(kind))]  # fmt: skip
        names += [f"{name} = alloca {kind}" for name, kind in self.arrays.items()]
        names += [f"store {part} %g.{name}, ptr %v.{name}" for name, part in given]
        arguments = ", ".join(f"{part} %g.{name}" for name, part in given)
        body = "\n".join([*names, *self.lines])
        return f"define {head.format(returned(self.answer))}({arguments}) nounwind {{\n{body}\n}}"

    def block(self, nodes: Sequence[ast.stmt]) -> None:
        """Statements one after another."""
        for node in nodes:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        """One statement."""
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.Expr(value=value):
                self.value(value)
            case ast.Assign(targets=targets, value=value):
                found = self.value(value)
                for target in targets:
                    self.assign(target, found)
            case ast.AugAssign(target=ast.Name() as target, op=op, value=value):
                self.assign(target, self.operated(op, self.value(ast.Name(target.id)), self.value(value), node))
            case ast.AugAssign(target=target, op=op, value=value):
                place, kind = self.place(target)
                self.store(place, kind, self.operated(op, self.load(place, kind), self.value(value), node), node)
            case ast.Return(value=value):
                self.end(node, Value((), ()) if value is None else self.value(value))
            case ast.If(test=test, body=body, orelse=other):
                yes, no, end = self.labels(3)
                self.branch(test, yes, no)
                for label, nodes in ((yes, body), (no, other)):
                    self.begin(label)
                    self.block(nodes)
                    self.go(f"br label %{end}")
                self.begin(end)
            case ast.While(test=test, body=body):
                self.loop(test, body, ast.Pass())
            case ast.For(target=ast.Name() as target, iter=ast.Call(func=ast.Name("range"), args=bounds), body=body):
                self.range(target, bounds, body)
            case ast.Break() | ast.Continue():
                self.go(f"br label %{self.loops[-1][isinstance(node, ast.Break)]}")
            case _:
                raise self.refuse(node, "{} is not compiled")

    def loop(self, test: ast.expr, body: Sequence[ast.stmt], after: ast.stmt) -> None:
        """Statements again and again while a test holds, and one more after each time."""
        ask, do, more, end = self.labels(4)
        self.go(f"br label %{ask}")
        self.begin(ask)
        self.branch(test, do, end)
        self.begin(do)
        self.loops.append((more, end))
        self.block(body)
        self.loops.pop()
        self.go(f"br label %{more}")
        self.begin(more)
        self.statement(after)
        self.go(f"br label %{ask}")
        self.begin(end)

    def range(self, target: ast.Name, bounds: Sequence[ast.expr], body: Sequence[ast.stmt]) -> None:
        """Statements for each whole number of a range."""
        zero, one = ast.Constant(0), ast.Constant(1)
        first, last, step = [zero, *bounds, one] if len(bounds) == 1 else [*bounds, one][:3]
        at, end = self.name_hidden(), self.name_hidden()
        self.assign(at, self.value(first))
        self.assign(end, self.value(last))
        down = isinstance(step, ast.UnaryOp)
        test = ast.Compare(at, [ast.Gt() if down else ast.Lt()], [end])
        self.loop(test, [ast.Assign([target], at), *body], ast.AugAssign(at, ast.Add(), step))

    def end(self, node: ast.stmt, value: Value) -> None:
        """Answers with a value."""
        if self.free:
            known = value.kind if self.answer is None else self.answer
            kind = unified(known, value.kind)
            self.answer, self.wider = kind, self.wider or kind != known
        typed = self.cast(value, self.answer, node).typed()
        found = " ".join(typed) or "void"
        if len(typed) > 1:
            whole, kind = "poison", returned(self.answer)
            for place, part in enumerate(typed):
                whole = self.new(f"insertvalue {kind} {whole}, {part}, {place}")
            found = f"{kind} {whole}"
        self.go(f"ret {found}")
