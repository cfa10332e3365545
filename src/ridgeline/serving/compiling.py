"""How functions of the request clock are compiled: by LLVM, with all that they reach in one library, kept on disk.

`clocked` marks a function that may be compiled. It stays the Python function that it is, and `Entered` calls it
compiled (`docs/decisions/0008-clock-hooks.md`).
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import RLock
from types import FunctionType
from typing import Any, TypeVar, cast

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from ridgeline.serving.kinds import BOOL, INT, REAL, Kind, annotated, kind_of_array, kind_of_state, parts_of
from ridgeline.serving.translate import Unit

_Function = TypeVar("_Function", bound=Callable[..., Any])
_C: dict[str, Any] = {BOOL: ctypes.c_bool, INT: ctypes.c_int64, REAL: ctypes.c_double, "ptr": ctypes.c_void_p}
_OPTIMISED, _NAME = 2, "entered"
_marked: set[Any] = set()
_lock = RLock()


def clocked(function: _Function) -> _Function:
    """Marks a function of numbers, records and arrays, which the clock may call compiled."""
    _marked.add(function)
    return function


class Entered:
    """A marked function that Python calls compiled: numbers, arrays and named tuples of arrays in, a number out.

    Compiled code runs without Python's lock.
    """

    def __init__(self, function: Callable[..., Any], answer: Kind = None) -> None:
        self.function = cast(FunctionType, function)
        self.answer = answer or annotated(self.function, "return")
        names = self.function.__code__.co_varnames[: self.function.__code__.co_argcount]
        self._stated = [annotated(self.function, name) for name in names]
        self._libraries: dict[tuple[Kind, ...], _Library] = {}

    def __call__(self, *arguments: Any) -> Any:
        """What the function answers; compiled first where it is not yet."""
        kinds = tuple(one or _kind(argument) for one, argument in zip(self._stated, arguments, strict=True))
        called = self.library(kinds).called
        held = [_operands(kind, argument) for kind, argument in zip(kinds, arguments, strict=True)]
        return called(*(one for operands, _ in held for one in operands))

    def library(self, kinds: Sequence[Kind]) -> _Library:
        """The compiled code for arguments of these kinds."""
        with _lock:
            if tuple(kinds) not in self._libraries:
                self._libraries[tuple(kinds)] = _Library(self.function, kinds, self.answer)
            return self._libraries[tuple(kinds)]


class _Library:
    """Compiled code of a function and of all that it reaches, from disk where it was compiled before."""

    def __init__(self, function: FunctionType, kinds: Sequence[Kind], answer: Kind) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        target = llvm.Target.from_default_triple()
        machine = target.create_target_machine(cpu=cpu, features=features, opt=_OPTIMISED, jit=True)
        kept = _place(function, repr((cpu, features, llvmlite.__version__, sys.version_info[:2], kinds, answer)))
        code = kept.read_bytes() if kept and kept.exists() else b""
        if not code:
            code = _optimised(Unit(frozenset(_marked)).entry(function, kinds, answer, _NAME), machine)
            _keep(kept, code)
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self.engine.finalize_object()
        self.address = int(self.engine.get_function_address(_NAME))
        given = [_C[part] for kind in kinds for part in parts_of(kind)]
        self.called = ctypes.CFUNCTYPE(_C[answer] if answer else None, *given)(self.address)


def _optimised(text: str, machine: Any) -> bytes:
    """Machine code of a text in LLVM's language."""
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMISED)
    options.loop_vectorization = options.slp_vectorization = False  # nothing in the clock is long enough
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return cast(bytes, machine.emit_object(module))


def _kind(argument: Any) -> Kind:
    if isinstance(argument, tuple):
        return kind_of_state(argument)
    if isinstance(argument, np.ndarray):
        return kind_of_array(argument)
    return {bool: BOOL, int: INT, float: REAL}[type(argument)]


def _operands(kind: Kind, argument: Any) -> tuple[list[Any], Any]:
    """What compiled code is given, and what must stay as long as it runs."""
    if isinstance(argument, tuple):
        table = np.array([one for array in argument for one in _operands(None, array)[0]], dtype=np.int64)
        return [table.ctypes.data], table
    if isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous
        return [argument.ctypes.data, *argument.shape], argument
    return [argument], None


def _place(function: FunctionType, conditions: str) -> Path | None:
    """Where compiled code is kept on disk: by conditions, and by the text of the clock and of all that it reaches.

    Beside this file, or where that cannot be written in the user's cache; nowhere where that cannot be either.
    """
    here = Path(__file__).parent
    functions, values = _reached(function)
    found = hashlib.sha256(repr(values).encode())
    for file in sorted({*here.glob("*.py"), *(Path(one.__code__.co_filename) for one in functions)}):
        found.update(file.read_bytes() if file.exists() else b"")
    name = f"{function.__module__}.{function.__qualname__}".replace("<locals>", "in")
    named = f"{name}-{hashlib.sha256(conditions.encode()).hexdigest()[:12]}-{found.hexdigest()[:24]}.o"
    asked = os.environ.get("NUMBA_CACHE_DIR")  # for the pricing of operators too
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline"
    for folder in [Path(asked)] if asked else [here / "__pycache__", cache]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder / named
    return None


def _reached(function: FunctionType) -> tuple[set[FunctionType], list[tuple[str, Any]]]:
    """Marked functions that a function may call, itself among them, and the numbers and words around them by name."""
    functions, values, todo = set[FunctionType](), list[tuple[str, Any]](), [function]
    while todo:
        one = todo.pop()
        if one in functions:
            continue
        functions.add(one)
        around = inspect.getclosurevars(one)
        for name, value in sorted({**around.globals, **around.nonlocals}.items()):
            if isinstance(value, FunctionType) and value in _marked:
                todo.append(value)
            elif isinstance(value, int | float | str | tuple):
                values.append((name, value))
    return functions, sorted(values, key=repr)


def _keep(place: Path | None, code: bytes) -> None:
    """Writes a file at once, so that nobody reads half of it; those of earlier texts and the same conditions go."""
    if place is None:
        return
    for old in place.parent.glob(f"{place.name.rsplit('-', 1)[0]}-*.o"):
        old.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
        file.write(code)
    os.replace(file.name, place)
