"""Configs that are Python modules: written as one function, and read with `ast` alone, so nothing in them runs."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from ridgeline.errors import InputError

CALL = "call"
"""The name, inside a table, of what is called to make it: {'call': 'FullAC.Config', 'debug': True}."""
_DEEPEST = 32


def module_text(document: Mapping[str, Any], imports: tuple[str, ...], *, name: str = "config") -> str:
    """A module with one function `name` that returns a document: tables with `call` become calls of that."""
    head = "\n".join(imports)
    return f"{head}\n\n\ndef {name}() -> {document[CALL]}:\n    return {_expression(document, 1)}\n"


def _expression(value: Any, depth: int) -> str:
    if not isinstance(value, Mapping):
        return repr(value)
    pad = "    " * (depth + 1)
    said = {key: _expression(one, depth + 1) for key, one in value.items() if key != CALL}
    parts = [text if key.isdigit() else f"{key}={text}" for key, text in said.items()]
    if len(parts) <= 1:
        return f"{value[CALL]}({''.join(parts)})"
    return f"{value[CALL]}(\n" + "".join(f"{pad}{part},\n" for part in parts) + "    " * depth + ")"


def read_module(text: str) -> dict[str, Any] | None:
    """Fields by dotted name of the last function that returns a call, or sets fields of one; None where none does.

    `training=TrainingConfig(seq_len=4096)` gives 'training.call' and 'training.seq_len'; values that are no constants
    are left out. A local name stands for what was assigned to it. Raises `InputError` for what is no Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"is no Python module: {error}") from None
    made = [_of_function(one) for one in tree.body if isinstance(one, ast.FunctionDef)]
    found = next((one for one in reversed(made) if one), None)
    modules = {alias.name: node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
               for alias in node.names if node.module}  # fmt: skip
    return None if found is None else found | _where_from(found, modules)


def _where_from(found: Mapping[str, Any], modules: Mapping[str, str]) -> dict[str, Any]:
    """The modules that calls come from, as '<field>.module'."""
    calls = {name: str(value) for name, value in found.items() if name.endswith(f".{CALL}")}
    named = {name: modules.get(value.partition(".")[0]) for name, value in calls.items()}
    return {name.removesuffix(CALL) + "module": module for name, module in named.items() if module}


def _of_function(function: ast.FunctionDef) -> dict[str, Any]:
    """The fields that a function's statements set, in their order."""
    local: dict[str, ast.expr] = {}
    found: dict[str, Any] = {}
    for node in function.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            place = node.targets[0]
            if isinstance(place, ast.Name):
                local[place.id] = node.value
            else:
                path = _path(place)
                if path and "." in path:
                    _read(node.value, path.partition(".")[2], local, found)
        elif isinstance(node, ast.Return) and node.value is not None:
            mine: dict[str, Any] = {}
            _read(node.value, "", local, mine)
            found = mine | found
    return found


def _path(node: ast.expr) -> str:
    """'a.b.c' of attributes of a name; '' of anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _DEEPEST:
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _read(node: ast.expr, name: str, local: Mapping[str, ast.expr], found: dict[str, Any], depth: int = 0) -> None:
    """Puts the fields of an expression at `name` into `found`."""
    if depth > _DEEPEST:
        raise InputError(f"is nested deeper than {_DEEPEST}")
    if isinstance(node, ast.Name) and node.id in local:
        _read(local[node.id], name, {key: one for key, one in local.items() if key != node.id}, found, depth + 1)
    elif isinstance(node, ast.Call):
        found[f"{name}.{CALL}".lstrip(".")] = _path(node.func)
        arguments = [(str(at), one) for at, one in enumerate(node.args)]
        arguments += [(one.arg, one.value) for one in node.keywords if one.arg]
        for key, value in arguments:
            _read(value, f"{name}.{key}".lstrip("."), local, found, depth + 1)
    else:
        try:
            found[name] = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return
