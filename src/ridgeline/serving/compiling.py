# mypy: disable-error-code="no-untyped-call, misc, attr-defined"
"""How the functions of the request clock are compiled: by Numba, into one library, without counting references.

Numba compiles a function with two wrappers, for callers in Python and in C, and again with the code of each of its
callers. Of the clock only `loop.replay` is called from outside: all that it reaches goes into one library, which is
optimised and kept on disk once (`docs/decisions/0008-clock-hooks.md`).

All arrays come from the caller, who holds them while the clock runs, and none is made on the way. Counted all the same,
some 25 arrays at each call of a function, nine tenths of the time went into atomic additions
(`docs/decisions/0006-borrowed-arrays.md`).
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from functools import cache
from threading import RLock
from typing import Any, ClassVar, TypeVar, cast

import numba
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, Flags
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import (
    InlineOverloads,
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import FixupArgs, GenericRewrites, IRProcessing, ReconstructSSA, TranslateByteCode

_Function = TypeVar("_Function", bound=Callable[..., Any])
_compiles = RLock()
_WRAPPER = "_ZN7cpython"  # how the name of a wrapper for Python begins, in place of _ZN
_PART = {"nopython": True, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_WHOLE = {"nopython": True, "_nrt": False}  # a function that makes an array is refused


def clocked(function: _Function) -> _Function:
    """A function that walks over records, without Python's lock; a division by zero is an error."""
    return cast(_Function, _Part(function, nogil=True))


def formula(function: _Function) -> _Function:
    """A function of numbers and tables alone, in which a division by zero is infinity or NaN."""
    return cast(_Function, _Part(function, error_model="numpy"))


def entered(function: _Function) -> _Function:
    """A clocked function that Python calls: compiled with all that it reaches, and kept on disk where that can be."""
    whole = _entry(function, nogil=True)
    try:
        whole.enable_caching()
    except RuntimeError:  # no folder to keep the compiled code in: for this process alone
        return cast(_Function, whole)
    whole._cache._cache_file._source_stamp = _stamp()  # Numba's own looks at one file
    return cast(_Function, whole)


def address(function: Callable[..., Any], answer: Any, given: Sequence[Any]) -> int:
    """Address of a function that compiled code calls through a pointer, compiled for these types and kept on disk."""
    part = function if isinstance(function, _Part) else _part(function)
    with _compiles:  # a search replays in several threads
        if part.entry is None:
            part.entry = entered(part.py_func)
        started(part.entry.compile, answer(*given))
        found = part.entry.overloads[tuple(given)]
    return int(found.library.get_pointer_to_function(found.fndesc.llvm_func_name))


@cache
def _part(function: Callable[..., Any]) -> _Part:
    return _Part(function, nogil=True)


def started(function: Callable[..., Any], *arguments: Any) -> Any:
    """What an entered function returns; where it is compiled first, without vector instructions.

    Nothing in the clock is long enough for them, and to look for them takes time.
    """
    if getattr(function, "signatures", True):
        return function(*arguments)
    settings: Any = numba.config
    with _compiles:
        kept, settings.LOOP_VECTORIZE = settings.LOOP_VECTORIZE, 0
        try:
            return function(*arguments)
        finally:
            settings.LOOP_VECTORIZE = kept


class _Part(CPUDispatcher):
    """A function of the clock: compiled in the library of the function that was entered, or alone where it is that."""

    known: ClassVar[list[_Part]] = []

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        super().__init__(function, targetoptions={**_PART, **options}, pipeline_class=_PartPasses)
        self.options = options
        self.alone: Any = None
        self.entry: Any = None
        self.known.append(self)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        return super().get_call_template([types.unliteral(one) for one in args], kws)  # once for 1 and for any number

    def __call__(self, *arguments: Any) -> Any:
        if self.alone is None:
            self.alone = _entry(self.py_func, **self.options)
        return self.alone(*arguments)


def _entry(function: Callable[..., Any], **options: Any) -> Any:
    return CPUDispatcher(function, targetoptions={**_WHOLE, **options}, pipeline_class=_WholePasses)


def _stamp() -> tuple[tuple[str, int, int], ...]:
    """Files of the clock's functions, with when and how long they were written."""
    files = sorted({part.py_func.__code__.co_filename for part in _Part.known})
    found = ((file, os.stat(file)) for file in files)
    return tuple((file, one.st_mtime_ns, one.st_size) for file, one in found)


class _Library(JITCodeLibrary):
    """Of a function that is entered and all that it reaches: functions are added one by one, and optimised together."""

    open: _Library | None = None  # that whose functions are compiled now

    def add_linking_library(self, library: Any) -> None:
        if library is not self:
            super().add_linking_library(library)

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        names = [one.name for one in self._final_module.functions if not one.is_declaration]
        wrappers = {name for name in names if name.startswith(("cfunc.", _WRAPPER))}
        kept = wrappers | {"_ZN" + name.removeprefix(_WRAPPER) for name in wrappers}  # what they call
        for name in names:
            function = self._final_module.get_function(name)
            if name not in kept and function.linkage.name == "external":
                function.linkage = "internal"  # what is inlined everywhere is dropped
        super().finalize()


class _Flags(Flags):
    """Options of a compilation, one object for those that are alike: Numba compares them at every operation."""

    known: ClassVar[dict[str, _Flags]] = {}

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def copy(self) -> _Flags:
        return self


class _Passes(CompilerBase):
    """The passes of Numba that the clock needs."""

    no_compile = False
    lowering: Any = NativeLowering

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, args: Any, return_type: Any, flags: Any,
                 locals: Any) -> None:  # fmt: skip
        flags.no_compile = self.no_compile
        flags = _Flags.known.setdefault(flags.summary(), _Flags(flags))
        super().__init__(typingctx, targetctx, library, args, return_type, flags, locals)

    def define_pipelines(self) -> list[PassManager]:
        self.state.library = _Library.open
        passes = PassManager("clock")
        for one in (
            TranslateByteCode, FixupArgs, IRProcessing, GenericRewrites, ReconstructSSA, NopythonTypeInference,
            PreLowerStripPhis, InlineOverloads, IRLegalization, self.lowering, NoPythonBackend,
        ):  # fmt: skip
            passes.add_pass(one, one.__name__)
        passes.finalize()
        return [passes]


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    """Lowers a function that nobody outside of its library calls."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        super().run_pass(state)
        nobody = io.BytesIO().getvalue  # stands for its address: a builtin that no other function has
        state.targetctx.insert_user_function(nobody, state.cr.fndesc, [state.library])
        state.cr = state.cr._replace(cfunc=nobody)
        return True


class _PartPasses(_Passes):
    no_compile = True
    lowering = _PartLowering


class _WholePasses(_Passes):
    def _compile_core(self) -> Any:
        library = _Library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        library.enable_object_caching()
        before, _Library.open = _Library.open, library
        try:
            for part in _Part.known:
                part._reset_overloads()  # what another library has
            return super()._compile_core()
        finally:
            _Library.open = before
