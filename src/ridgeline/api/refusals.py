"""What cannot be answered, in the form of `--json`: one object that says what, where, and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ridgeline.errors import RidgelineError, printable

_LONGEST = 200  # characters of a value that is repeated


def refusal(error: RidgelineError) -> dict[str, Any]:
    """An error under stable keys; what is not known of it is null.

    An error that was raised for another one lends that one's value and nearest names. What to do is what its text says
    after the first semicolon: every text of the tree is worded as fault, then next step.
    """
    nearest: tuple[str, ...] = _first(error, lambda one: one.nearest) or ()
    return _told(
        str(error),
        error.exit_code,
        kind=type(error).__name__,
        file=error.file,
        line=error.line,
        field=error.field,
        value=_value(_first(error, lambda one: one.value)),
        nearest=list(nearest),
    ) | dict(error.beside)


def misused(error: Any, exit_code: int) -> dict[str, Any]:
    """The same of a command line that Typer could not read: an option that is not there, a value out of range."""
    option, parameter = getattr(error, "option_name", None), getattr(error, "param", None)
    if parameter is not None:
        shown = parameter.metavar if parameter.param_type_name == "argument" else None
        option = shown or parameter.opts[0]
    return _told(
        error.format_message(),
        exit_code,
        kind="UsageError",
        file=None,
        line=None,
        field=option,
        value=_value(getattr(error, "value", None)),
        nearest=sorted(getattr(error, "possibilities", None) or getattr(error, "nearest", None) or ()),
    )


def defect(error: Exception, exit_code: int) -> dict[str, Any]:
    """The same of a defect of the program itself."""
    fault = f"internal error: {type(error).__name__}: {error}; please report it with the command line and files used"
    return _told(fault, exit_code, kind="Defect", file=None, line=None, field=None, value=None, nearest=[])


def _told(text: str, exit_code: int, **known: Any) -> dict[str, Any]:
    fault = printable(text)
    return {"error": fault, "exit_code": exit_code, **known, "next_step": fault.partition("; ")[2] or None}


def _first(error: BaseException | None, get: Callable[[RidgelineError], Any]) -> Any:
    """What `get` finds first, from an error to the ones that it was raised for."""
    while error is not None:
        if isinstance(error, RidgelineError) and get(error) not in (None, ()):
            return get(error)
        error = error.__context__
    return None


def _value(value: object) -> object:
    """A value as JSON holds it: numbers, texts and flags as they are, all else as its text."""
    if value is None or isinstance(value, bool) or (isinstance(value, int) and value.bit_length() <= 64):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    try:
        text = printable(str(value))
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list nested as deep
        return f"{type(value).__name__} too long to print"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
