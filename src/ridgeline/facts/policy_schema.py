"""Keys of a policy file: their defaults, units and limits, and how the value of one is read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, field
from difflib import get_close_matches
from typing import Any

_RANGE = re.compile(r"^(\d{1,7})\.\.(\d{1,7})(?:/(\d{1,7}))?$")
_LARGEST_LIST = 20_000

Check = Callable[[object], Any]


def key(default: Any, about: str, *, unit: str = "", **limits: Any) -> Any:
    """A field of a dataclass that is a key of a policy file."""
    return field(default=default, metadata={"about": about, "unit": unit, **limits})


def count(default: Any, about: str, unit: str, low: int = 0) -> Any:
    """A key that is a whole number of `unit`."""
    return key(default, about, unit=unit, kind=int, low=low, high=10**9)


def share(default: float, about: str) -> Any:
    """A key that is a share [1]."""
    return key(default, about, unit="1", kind=float, low=0.0, high=1.0)


def cost(about: str, unit: str = "s") -> Any:
    """A key that nobody sets in a configuration: seconds or bytes that were measured, derived or assumed."""
    return key(0.0, about, unit=unit, kind=float, low=0.0, high=10.0 if unit == "s" else 1e12, measured=True)


def flag(default: bool, about: str) -> Any:
    """A key that is true or false."""
    return key(default, about, kind=bool)


def word(default: str, about: str, *words: str) -> Any:
    """A key that is one of some words."""
    return key(default, about, kind=str, words=words)


def words(default: tuple[str, ...], about: str, *known: str) -> Any:
    """A key that is a list of words, of `known` ones in their order, or of any."""
    return key(default, about, kind="words", words=known)


def rows(about: str, unit: str, high: float, *known: str) -> Any:
    """A key that is a table of measured or counted numbers by name, each with evidence and source of its own."""
    return field(
        default_factory=dict,
        metadata={"about": about, "unit": unit, "kind": dict, "words": known, "low": 0.0, "high": high},
    )


def checked(entry: Field[Any], value: object) -> Any:
    """The value of one key, in the type of the schema; a `ValueError` says what is wrong."""
    rule = entry.metadata
    kind = rule["kind"]
    if kind is tuple:
        return _sizes(value)
    if kind is bool:
        return typed(value, bool, "true or false")
    if kind is str:
        return _one_of(typed(value, str, "one of " + ", ".join(rule["words"])), rule["words"])
    if kind == "words":
        parts = typed(value, list, "a list of words")
        if not rule["words"]:
            return tuple(typed(part, str, "a list of words") for part in parts)
        found = {_one_of(part, rule["words"]) for part in parts}
        return tuple(name for name in rule["words"] if name in found)
    if kind is dict:
        table = typed(value, dict, "a table of numbers by name")
        return {
            _one_of(name, rule["words"]): number(one, float, rule["low"], rule["high"], rule["unit"])
            for name, one in table.items()
        }
    return number(value, kind, rule["low"], rule["high"], rule["unit"])


def number(value: object, kind: type, low: float, high: float, unit: str) -> Any:
    """`value` as a number of `kind` in [low, high] `unit`; a `ValueError` says what is wrong."""
    wanted = "a whole number" if kind is int else "a number"
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
        raise ValueError(f"needs {wanted} of {unit}; got {_short(value)}")
    if not (low <= value <= high) or not math.isfinite(value):
        raise ValueError(f"needs {wanted} from {low:g} to {high:g} {unit}; got {_short(value)}")
    return value if kind is int else float(value)


def typed(value: object, kind: type, wanted: str) -> Any:
    """`value` if it is a `kind`; else a `ValueError` says what is `wanted`."""
    if not isinstance(value, kind):
        raise ValueError(f"needs {wanted}; got {_short(value)}")
    return value


def _one_of(value: object, known: tuple[str, ...]) -> str:
    text = str(value)
    if not isinstance(value, str) or value not in known:
        near = get_close_matches(text, known, n=1, cutoff=0.5)
        raise ValueError(
            f"needs one of {', '.join(known)}; got '{text[:40]}'" + (f"; nearest: {near[0]}" if near else "")
        )
    return text


def _sizes(value: object) -> tuple[int, ...]:
    """Batch sizes in rising order, from whole numbers and runs such as '8..256/8'."""
    found: list[int] = []
    for part in typed(value, list, "a list such as [1, 2, 4, '8..256/8']"):
        found.extend(_run(part))
        if len(found) > _LARGEST_LIST:
            raise ValueError(f"holds more than {_LARGEST_LIST} sizes")
    return tuple(sorted(set(found)))


def _run(part: object) -> Iterator[int] | tuple[int, ...]:
    if not isinstance(part, str):
        return (number(part, int, 1, 10**7, "sequences"),)
    match = _RANGE.match(part)
    if match is None:
        raise ValueError(f"needs runs such as '8..256/8'; got '{part[:40]}'")
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if first < 1 or last < first or step < 1 or (last - first) // step > _LARGEST_LIST:
        raise ValueError(f"needs 1 <= first <= last and a step >= 1; got '{part}'")
    return iter(range(first, last + 1, step))


def _short(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def keys_of(fields: tuple[Field[Any], ...]) -> Mapping[str, Field[Any]]:
    """The keys of a dataclass of keys, by name."""
    return {entry.name: entry for entry in fields}


def measured_of(keys: Mapping[str, Field[Any]]) -> tuple[str, ...]:
    """Keys that nobody sets in a configuration: a shipped file says how each is known."""
    return tuple(name for name, entry in keys.items() if entry.metadata.get("measured"))
