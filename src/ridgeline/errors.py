"""Every error a person can meet, in one tree.

RidgelineError                  exit code 2: the input cannot be used
├── InputError                  a file, row or field is malformed
│   └── UnitError               a quantity or its unit cannot be parsed
├── UnknownNameError            a name is in no catalog; carries its nearest neighbours
├── ModelError                  an architecture cannot be built from what was given
├── ClusterError                a machine cannot be built from what was given
├── WorkloadError               a workload contradicts itself or its model
├── PlanError                   a plan breaks a rule of the model, the machine or the schedule
├── DomainError                 a cost model was asked outside its domain
├── LimitError                  a question needs more time or memory than it may take
└── NoPlanError                 exit code 1: asked well, but nothing fits
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType


def printable(text: str) -> str:
    """Text without control characters but line ends and tabs, which a file's cells must not send to a terminal."""
    return "".join(char if char in "\n\t" or char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def closest(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """At most three known names near to `word`, the nearest first.

    Names that hold all parts of `word` come first, whole parts before beginnings of parts, then short names, then names
    that begin with its first part: 'A100-40' is in 'A100-SXM-40GB' and in 'dgx-a100-40gb'. Then names spelt alike.

    >>> closest("A100-40", ["dgx-a100-40gb", "A100-SXM-40GB", "A100-SXM-80GB"])
    ('A100-SXM-40GB', 'dgx-a100-40gb', 'A100-SXM-80GB')
    """
    by_key = {key.casefold(): key for key in reversed(list(known))}
    parts, holding = _parts(word.casefold()), []
    if len(parts) > 1 or len(word) > 2:  # a letter or two begin too many names
        for key in reversed(by_key):
            found = _parts(key)
            if parts and all(any(one.startswith(part) for one in found) for part in parts):
                holding.append((sum(part not in found for part in parts), len(found), found[0] != parts[0], key))
    near = [key for *_, key in sorted(holding, key=lambda one: one[:3])]
    near += [key for key in get_close_matches(word.casefold(), by_key, n=3, cutoff=0.5) if key not in near]
    return tuple(by_key[key] for key in near[:3])


def nearest_text(word: str, known: Iterable[str]) -> str:
    """'nearest: NAME, ...' of the known names near to `word`; '' where none is."""
    near = closest(word, known)
    return f"nearest: {', '.join(near)}" if near else ""


def _parts(text: str) -> list[str]:
    """Runs of letters and runs of digits."""
    return re.findall(r"[^\W\d_]+|\d+", text)


class RidgelineError(Exception):
    """An error worded for the person who asked: what is wrong, then after a semicolon what to do.

    Beside the text, where they are known: the file, line and field at fault, the value found there, valid names
    near it, and entries that the JSON of an answer would have too.
    """

    exit_code = 2
    file: str | None = None
    line: int | None = None
    field: str | None = None
    value: object = None
    nearest: tuple[str, ...] = ()
    beside: Mapping[str, object] = MappingProxyType({})


class InputError(RidgelineError):
    """A file, row or field is malformed; the text names file, line and field where known."""

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        value: object = None,
    ) -> None:
        place = file or ""
        if line is not None:
            place += f":{line}"
        if field is not None:
            place += f"{': ' if place else ''}field '{field}'"
        super().__init__(f"{place}: {message}" if place else message)
        self.file, self.line, self.field, self.value = file, line, field, value


class UnitError(InputError):
    """A quantity or its unit cannot be parsed."""


class UnknownNameError(RidgelineError):
    """A name is in no catalog."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str = "") -> None:
        near = closest(name, known)
        text = f"unknown {kind} '{name}'"
        if near:
            text += "; nearest: " + ", ".join(near)
        if hint:
            text += f"; {hint}"
        super().__init__(text)
        self.kind, self.name, self.value, self.nearest = kind, name, name, near

    def __reduce__(self) -> tuple[object, ...]:
        """Names the text and what it carries: worker processes send errors back, and the catalog need not go along."""
        return _again, (type(self), str(self), vars(self))


def _again(kind: type[RidgelineError], text: str, carried: dict[str, object]) -> RidgelineError:
    """An error as it was, from its text and what it carries."""
    found = kind.__new__(kind, text)
    found.__dict__.update(carried)
    return found


class ModelError(RidgelineError):
    """An architecture cannot be built from what was given."""


class ClusterError(RidgelineError):
    """A machine cannot be built from what was given."""


class WorkloadError(RidgelineError):
    """A workload contradicts itself or its model."""


class PlanError(RidgelineError):
    """A plan breaks a rule of the model, the machine or the schedule."""


class DomainError(RidgelineError):
    """A cost model was asked outside its domain."""


class LimitError(RidgelineError):
    """A question needs more time or memory than it may take."""


class NoPlanError(RidgelineError):
    """Asked well, but nothing fits; the text names the nearest feasible change."""

    exit_code = 1
