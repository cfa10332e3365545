"""A technique: one published idea, with its parameters, what it claims for itself alone and where it comes from."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar

from ridgeline.errors import PlanError


def param(
    default: float | bool | str | None, unit: str, help: str, *, low: float = 0.0, high: float = float("inf"),
    whole: bool | None = None, word: str = "", choices: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """A parameter of a technique: its default in `unit`, and the range [low, high] that it is defined for.

    One of default None is left to others where it is not given; `whole` says of it that it is a whole number. `word` is
    the field of a deployment that means it too (`--kv-kept 512`).
    """
    whole = isinstance(default, int) if whole is None else whole
    return field(
        default=default,
        metadata={
            "unit": unit,
            "low": low,
            "high": high,
            "help": help,
            "whole": whole,
            "word": word,
            "choices": choices,
        },
    )


@dataclass(frozen=True, kw_only=True)
class Technique:
    """One idea that fills seams. A subclass is a frozen dataclass whose fields are its parameters (`param`).

    `key` is the word that people write; `family` the folder that it is in, of which a scenario has one, as it has one
    optimizer, unless they are not `exclusive`. `source` are keys of `data/sources.bib`,
    or an address where the file is not of this package. `owns` are the slots that it fills alone: two owners of a slot
    are refused. `needs` are slots that something must fill. `quality` says what it costs in accuracy and who measured
    it, `claims` what its authors say that it gains, `export` how programs call it in their own configuration. The
    docstring is its page: what it does, where it stops.
    """

    key: ClassVar[str] = ""
    family: ClassVar[str] = ""
    exclusive: ClassVar[bool] = True
    source: ClassVar[tuple[str, ...]] = ()
    owns: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    quality: ClassVar[str] = ""
    claims: ClassVar[tuple[str, ...]] = ()
    export: ClassVar[dict[str, str]] = {}

    def __post_init__(self) -> None:
        for one in fields(self):
            self._check(one, getattr(self, one.name))

    def _check(self, one: Field[Any], value: object) -> None:
        if value is None and one.default is None:
            return
        low, high = one.metadata["low"], one.metadata["high"]
        unit = "" if one.metadata["unit"] == "1" else f" {one.metadata['unit']}"
        place = f"{self.key}: {one.name} = {value}"
        if isinstance(one.default, bool | str):
            if not isinstance(value, type(one.default)):
                raise PlanError(f"{place}, needs {'true or false' if isinstance(one.default, bool) else 'a word'}")
            if one.metadata["choices"] and value not in one.metadata["choices"]:
                raise PlanError(f"{place}, needs one of {', '.join(one.metadata['choices'])}")
            return
        whole = one.metadata["whole"]
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise PlanError(f"{place}, needs a {'whole number' if whole else 'number'}{unit and ' of'}{unit}")
        if not low <= value <= high:
            raise PlanError(f"{place}{unit}, needs {low:g} to {high:g}")

    @classmethod
    def slots(cls) -> frozenset[str]:
        """What it fills alone: its family where that is exclusive, and what it owns besides."""
        return cls.owns | ({cls.family} if cls.exclusive else frozenset())

    @classmethod
    def axes(cls) -> tuple[str, ...]:
        """Texts of it that a search for what fits tries where a plan does not name another of its family."""
        return ()

    @classmethod
    def summary(cls) -> str:
        """What it does, in one line of its page."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    @classmethod
    def parameters(cls) -> dict[str, Field[Any]]:
        """Its parameters by name; each has a default, and unit, range and help in its metadata."""
        return {one.name: one for one in fields(cls) if one.default is not MISSING}

    @property
    def text(self) -> str:
        """As it is written in one word: the key, with the parameters that are not their defaults in brackets.

        >>> Technique().text
        ''
        """
        own = [f"{n}={getattr(self, n)}" for n, one in self.parameters().items() if getattr(self, n) != one.default]
        return self.key + (f"({','.join(own)})" if own else "")
