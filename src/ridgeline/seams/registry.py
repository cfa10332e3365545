"""Who fills the seams: techniques by family and key, built in or of another package, through the same door.

A family is a folder of `ridgeline/techniques`; a technique is a class in a file of it, found by its line `key = "..."`.
Another package names its own as entry points of the group `ridgeline.techniques.FAMILY`, `key = "module:Class"`.
Nothing is imported until it is asked for by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ridgeline.errors import PlanError, UnknownNameError
from ridgeline.seams.technique import Technique

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

_GROUP = "ridgeline.techniques"
STRATEGIES = "strategies"  # the family that says how each layer is run
PARTITIONS = "stage_partitions"  # the family that says how many layers each stage has
SHARES = "device_shares"  # the family that says what ranks on unlike devices take of the batch and the states
CHECKPOINTS = "checkpoints"  # the family that says how states are saved
_FOLDER = Path(__file__).parents[1] / "techniques"
KEY = re.compile(r'^    key(?:: ClassVar\[str\])? = "([^"]+)"', re.MULTILINE)


@cache
def modules(family: str) -> Mapping[str, str]:
    """Where each technique of a family is, 'module:Class' or a module of this package, by key; own ones first."""
    own = {
        key: f"{_GROUP}.{family}.{path.stem}"
        for path in sorted((_FOLDER / family).glob("[!_]*.py"))
        for key in KEY.findall(path.read_text(encoding="utf-8"))
    }
    others = {point.name: point.value for point in _installed().select(group=f"{_GROUP}.{family}")}
    taken = sorted(own.keys() & others.keys())
    if taken:
        raise PlanError(f"technique '{taken[0]}' of {others[taken[0]]}: the key is taken by one built in; rename it")
    return own | dict(sorted(others.items()))


@cache
def of_family(family: str, texts: tuple[str, ...]) -> Technique | None:
    """The technique of a family among those that a plan or deployment lists; None where it lists none."""
    keys = {text: text.partition("(")[0].strip() for text in texts}
    return next((technique(family, text) for text, key in keys.items() if family_of(key) == family), None)


@cache
def _installed() -> Any:
    return entry_points()


def built_in(family: str) -> tuple[type[Technique], ...]:
    """The techniques of a family that are of this package."""
    known = modules(family)
    return tuple(kind(family, key) for key, where in known.items() if where.startswith(_GROUP))


@cache
def families() -> tuple[str, ...]:
    """Names of the families, a folder each; one may have no technique built in."""
    return tuple(sorted(path.name for path in _FOLDER.iterdir() if (path / "__init__.py").exists()))


def listed(text: str) -> Technique:
    """The technique that one word names, of whatever family; raises as `technique` does."""
    return technique(family_of(text.partition("(")[0].strip()), text)


def family_of(key: str) -> str:
    """The family of a technique.

    Raises `UnknownNameError` for a key of none, `PlanError` for one that two packages gave to different families.
    """
    found = [family for family in families() if key in names(family)]
    if not found:
        raise UnknownNameError("technique", key, [name for family in families() for name in names(family)])
    if len(found) > 1:
        places = " and ".join(f"one of the {family} ({modules(family)[key]})" for family in found)
        raise PlanError(f"technique '{key}': the key is taken twice, by {places}; rename one of them")
    return found[0]


def names(family: str) -> tuple[str, ...]:
    """Keys of the techniques of a family, built-in ones first."""
    return tuple(modules(family))


@cache
def kind(family: str, key: str) -> type[Technique]:
    """The class of a technique; raises `UnknownNameError` for a key that nobody fills, `PlanError` for a bad file."""
    known = modules(family)
    if key not in known:
        raise UnknownNameError(family.removesuffix("s"), key, known)
    where, _, name = known[key].partition(":")
    try:
        module = import_module(where)
    except ImportError as error:
        raise PlanError(f"technique '{key}': {where} cannot be imported ({error}); reinstall its package") from None
    found = getattr(module, name, None) if name else _only(module, key)
    if not isinstance(found, type) or not issubclass(found, Technique):
        raise PlanError(f"technique '{key}': {known[key]} is no subclass of ridgeline.seams.technique.Technique")
    if (found.key, found.family) != (key, family):
        raise PlanError(
            f"technique '{key}': {known[key]} calls itself '{found.key}' of family '{found.family}'; its key and"
            f" family must be '{key}' and '{family}'"
        )
    return found


def _only(module: object, key: str) -> object:
    """The class of a built-in file that has its key."""
    return next((one for one in vars(module).values() if isinstance(one, type) and vars(one).get("key") == key), None)


@cache
def technique(family: str, text: str) -> Technique:
    """The technique that one word names, with parameters in brackets where they are not their defaults.

    Raises `UnknownNameError` for an unknown key, `PlanError` for a parameter that it has not or that is out of range.

    >>> technique("optimizers", "adamw").text
    'adamw'
    """
    key, inside = in_parts(text)
    one = kind(family, key)
    return cast(Any, one)(**parameters_in(inside, one))  # type: ignore[no-any-return]


def in_parts(text: str) -> tuple[str, str]:
    """A key and what stands in its brackets; raises `PlanError` for a text that is not written so."""
    found = re.fullmatch(r"([\w.-]+)(?:\((.*)\))?", text.strip())
    if found is None:
        raise PlanError(f"technique '{text[:60]}': write a name, or name(parameter=value,...)")
    return found[1], found[2] or ""


def parameters_in(inside: str, one: type[Technique]) -> Mapping[str, object]:
    """The parameters written in the brackets of a word; raises `PlanError` for one that a technique has not."""
    pairs = [pair.partition("=") for pair in inside.split(",") if pair.strip()]
    kinds = {name: type(each.default) for name, each in one.parameters().items()}
    given = {name.strip(): _value(value.strip(), kinds.get(name.strip())) for name, _, value in pairs}
    return _known(given, one)


@cache
def _of_room(room: str) -> Mapping[str, str]:
    paths = sorted(_FOLDER.parent.joinpath(*room.split(".")[1:]).glob("[!_]*.py"))
    return {key: path.stem for path in paths for key in KEY.findall(path.read_text(encoding="utf-8"))}


def keys_in_room(room: str) -> tuple[str, ...]:
    """Keys of what files of a room hold, such as 'ridgeline.metrics', that acts on no scenario."""
    return tuple(_of_room(room))


def in_room(room: str, noun: str, text: str) -> Technique:
    """The one of a room that a word names, with parameters in brackets; raises as `technique` does."""
    key, inside = in_parts(text)
    known = _of_room(room)
    if key not in known:
        raise UnknownNameError(noun, key, tuple(known), hint=f"known: {', '.join(known)}")
    found = _only(import_module(f"{room}.{known[key]}"), key)
    return cast(Technique, cast(Any, found)(**parameters_in(inside, cast(Any, found))))


def _known(given: Mapping[str, object], one: type[Technique]) -> Mapping[str, object]:
    known = one.parameters()
    for name in given:
        if name not in known:
            raise PlanError(f"{one.key}: unknown parameter '{name}'; it has {', '.join(known) or 'none'}")
    return given


def made(family: str, key: str, given: Mapping[str, object]) -> Technique:
    """The technique with these parameters; raises `PlanError` for one that it has not or that is out of range."""
    one = kind(family, key)
    return cast(Any, one)(**_known(given, one))  # type: ignore[no-any-return]


def _value(text: str, kind: type | None = None) -> object:
    """A parameter of some kind as written in a word: text, several numbers, a number, true or false."""
    if kind is str:
        return text
    if kind is tuple:
        return tuple(_value(part.strip()) for part in text.split("/") if part.strip())
    if text == "None":
        return None
    if text in ("True", "true", "False", "false"):
        return text in ("True", "true")
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def each_name(names: ArrayLike) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Each different name of an array over plans, with where it stands."""
    import numpy as np

    named = np.asarray(names)
    return ((name, named == name) for name in sorted(set(named.ravel().tolist())))
