"""A technique: one published idea, with its parameters, what it claims for itself alone and where it comes from."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field, fields
from math import nan
from typing import TYPE_CHECKING, Any, ClassVar

from ridgeline.errors import PlanError
from ridgeline.facts.records import Evidence, Fact

if TYPE_CHECKING:
    from ridgeline.seams.setting import Setting


def param(
    default: float | bool | str | tuple[float, ...] | None, unit: str, help: str, *, low: float = 0.0,
    high: float = float("inf"), whole: bool | None = None, word: str = "", choices: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """A parameter of a technique: its default in `unit`, and the range [low, high] that it is defined for.

    One of default None is left to others where it is not given; `whole` says of it that it is a whole number. One whose
    default is a tuple holds several numbers, each in the range. `word` is the field of a deployment that means it too
    (`--kv-kept 512`).
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


def accuracy(what: str, source: str, value: float = nan, unit: str = "") -> Fact:
    """What a technique costs in accuracy, in words, as `source` measured it; a number in `unit` where it tells one."""
    return Fact(value=value, unit=unit, source=source, conditions=what, evidence=Evidence.MEASURED)


EXACT = Fact(
    value=0.0, unit="1", source="definition", conditions="none: it computes the same numbers",
    evidence=Evidence.DERIVED,
)  # fmt: skip
"""The `quality` of a technique that changes where and when things are computed, not what."""


def shown(value: object) -> str:
    """A parameter's value as it is written in a text: of several numbers 4/2/1."""
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, kw_only=True)
class Technique:
    """One idea that fills seams. A subclass is a frozen dataclass whose fields are its parameters (`param`).

    `key` is the word that people write; `family` the folder that it is in, of which a scenario has one, as it has one
    optimizer, unless they are not `exclusive`; `in_plan` says that a plan lists it though it leaves the model as it is.
    `source` are keys of `data/sources.bib`, or an address where the file is not of this package. `owns` are the slots
    that it fills alone: two owners of a slot are refused. `needs` are slots that something must fill. `quality` says
    what it costs in accuracy and who measured it (`accuracy`, or `EXACT`; None where nobody is known to have), `claims`
    what its authors say that it gains, `export` how programs call it in their own configuration. `kinds` are those of
    `Setting.kind` that it is of. `commutes` are keys and families of others that change the model's operators, with
    which it may stand in either order. `tags` are its places in taxonomies (`data/taxonomies.toml`). The docstring is
    its page: what it does, where it stops.
    """

    key: ClassVar[str] = ""
    family: ClassVar[str] = ""
    exclusive: ClassVar[bool] = True
    in_plan: ClassVar[bool] = False
    source: ClassVar[tuple[str, ...]] = ()
    owns: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    quality: ClassVar[Fact | None] = None
    kinds: ClassVar[frozenset[str]] = frozenset({"training"})
    commutes: ClassVar[frozenset[str]] = frozenset()
    claims: ClassVar[tuple[str, ...]] = ()
    export: ClassVar[dict[str, str]] = {}
    tags: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for one in fields(self):
            self._check(one, getattr(self, one.name))

    def _check(self, one: Field[Any], value: object) -> None:
        if value is None and one.default is None:
            return
        if isinstance(one.default, tuple):
            if not isinstance(value, tuple):
                raise PlanError(f"{self.key}: {one.name} = {value}, needs numbers as {shown(one.default) or '4/2/1'}")
            for each in value:
                self._check_number(one, each)
            return
        if isinstance(one.default, bool | str):
            place = f"{self.key}: {one.name} = {value}"
            if not isinstance(value, type(one.default)):
                raise PlanError(f"{place}, needs {'true or false' if isinstance(one.default, bool) else 'a word'}")
            if one.metadata["choices"] and value not in one.metadata["choices"]:
                raise PlanError(f"{place}, needs one of {', '.join(one.metadata['choices'])}")
            return
        self._check_number(one, value)

    def _check_number(self, one: Field[Any], value: object) -> None:
        whole, low, high = (one.metadata[name] for name in ("whole", "low", "high"))
        unit = "" if one.metadata["unit"] == "1" else f" {one.metadata['unit']}"
        place = f"{self.key}: {one.name} = {value}"
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise PlanError(f"{place}, needs a {'whole number' if whole else 'number'}{unit and ' of'}{unit}")
        if not low <= value <= high:
            raise PlanError(f"{place}{unit}, needs {low:g} to {high:g}")

    @classmethod
    def slots(cls) -> frozenset[str]:
        """What it fills alone: its family where that is exclusive, and what it owns besides."""
        return cls.owns | ({cls.family} if cls.exclusive else frozenset())

    def applies(self, setting: Setting) -> str:
        """Why it does not apply to a setting, in a phrase; '' where it does.

        By default: it is of another kind of work, or needs a slot that nothing fills. Seams add what they know.
        """
        if setting.kind not in self.kinds:
            return f"is of {' and '.join(sorted(self.kinds))}, not of {setting.kind}"
        lost = sorted(self.needs - setting.slots) if setting.plan is not None else []
        return f"needs something that fills '{lost[0]}'" if lost else ""

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """Texts of it that are worth trying in a setting: by default, as it is; none where another is always better."""
        return (self.text,)

    def retimed(self, steps: Any, tables: Any) -> Any:
        """Times of iterations (`serving.step.StepTables`, of `StepModel` steps) with what it changes of them [s]."""
        return tables

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
        known = self.parameters().items()
        own = [f"{n}={shown(getattr(self, n))}" for n, one in known if getattr(self, n) != one.default]
        return self.key + (f"({','.join(own)})" if own else "")
