"""Ridgeline: how a deep-learning workload will run, before anyone rents the machine.

    import ridgeline as rl

    rl.predict("llama-3.1-8b", on="8xH100-SXM", zero=3, micro_batch=1)

Each command is a function of the same words, `_` for `-`, with the same defaults. What it returns is an `Answer`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.api.answer import Answer as Answer
    from ridgeline.api.verbs import (
        advise,
        calibrate,
        catalog,
        check,
        claims,
        export,
        init,
        measure,
        numerics,
        op,
        plan,
        predict,
        score,
        simulate,
        sweep,
        techniques,
    )

__all__ = [
    "Answer",
    "advise",
    "calibrate",
    "catalog",
    "check",
    "claims",
    "export",
    "init",
    "measure",
    "numerics",
    "op",
    "plan",
    "predict",
    "score",
    "simulate",
    "sweep",
    "techniques",
]
"""The public surface; all else may change between releases."""


_VERBS = frozenset(__all__) - {"Answer"}


class _Public(ModuleType):
    """This package, whose verbs are functions although rooms of the same names (`ridgeline.predict`) are loaded below.

    Python binds a loaded submodule to its package's attribute; names of verbs are left to the functions, and the room
    is reached by `from ridgeline.predict import ...` alone.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _VERBS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'ridgeline' has no attribute '{name}'")
        found = getattr(import_module("ridgeline.api.answer" if name == "Answer" else "ridgeline.api.verbs"), name)
        super().__setattr__(name, found)
        return found

    def __dir__(self) -> list[str]:
        return [*vars(self), *__all__]


sys.modules[__name__].__class__ = _Public
