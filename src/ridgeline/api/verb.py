"""A verb of the product: what it takes, and the function that answers. Every way in reads this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from ridgeline.api.answer import Answer
from ridgeline.errors import InputError, UnitError, UnknownNameError
from ridgeline.scenario.fields import Field
from ridgeline.scenario.synonyms import called_here
from ridgeline.units import parse_count

REQUIRED: Any = object()
"""The default of an argument that has none."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A verb's own argument or option: its type, what it may be, and its flag ('' for a positional argument)."""

    kind: type  # str, int, float, bool, or list (of texts)
    help: str
    flag: str = ""
    short: str = ""  # '-o', beside the flag
    default: Any = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    metavar: str | None = None
    shown: bool = True  # whether help names the default

    def read(self, value: Any) -> Any:
        """The value as the function gets it; raises `InputError`, or `UnknownNameError` for no choice."""
        if value is None:
            return None
        if self.kind is list:
            return [value] if isinstance(value, str) else list(value)
        if self.choices:
            if value not in self.choices:
                raise UnknownNameError("word", str(value), self.choices, hint=f"one of: {', '.join(self.choices)}")
            return value
        if isinstance(value, self.kind) or (self.kind is float and isinstance(value, int)):
            return self._bounded(value)
        try:
            return self._bounded(parse_count(value) if self.kind is int else self.kind(value))
        except (TypeError, ValueError, UnitError):
            whole = "a whole number" if self.kind is int else "a number"
            raise InputError(f"'{value}' is not {whole}", value=value) from None

    def _bounded(self, value: Any) -> Any:
        if self.least is None and self.most is None:
            return value
        above = self.least is None or value >= self.least
        below = self.most is None or value <= self.most
        if above and below:  # NaN keeps to no bound
            return value
        least = "" if self.least is None else f" at least {self.least}"
        most = "" if self.most is None else f" at most {self.most}"
        both = " and" if least and most else ""
        raise InputError(f"{value} is out of range; it must be{least}{both}{most}", value=value)


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb: the function of this room that answers it, its own arguments and options, and tables of fields.

    The function gets one value: the own ones as attributes, and as `words` those of the fields, None where not given.
    """

    run: str  # 'module.function'
    help: str
    short_help: str
    epilog: str | None = None
    own: Mapping[str, Argument]
    fields: Mapping[str, tuple[Field, ...]] = field(default_factory=dict)  # by heading

    def answer(self, own: Mapping[str, Any], words: Mapping[str, Any]) -> Answer:
        """The answer for own options that were read and for words as a person wrote them."""
        module, _, function = self.run.partition(".")
        asked: Any = getattr(import_module(f"ridgeline.api.{module}"), function)
        if own.get("from_config") is None:
            if "from_config" in own and own["subject"] is None:
                raise InputError("say a model, a scenario file, or --from-config FILE", field="MODEL|SCENARIO.toml")
            found: Answer = asked(SimpleNamespace(**own, words=dict(words)))
            return found
        from ridgeline.api.importing import told, with_config

        filled, laid, config = with_config(own, words)
        return told(asked(SimpleNamespace(**filled, words=laid)), config)

    def words(self) -> tuple[str, ...]:
        """Names of all that it takes: own options, then fields."""
        return (*self.own, *dict.fromkeys(each.name for table in self.fields.values() for each in table))


VERBS: dict[str, Verb] = {}


def ask(name: str, /, **words: Any) -> Answer:
    """The answer of a verb ('predict'), for words as on the command line, `_` for `-`.

    Raises `UnknownNameError` for a verb or word that is not there, `InputError` and its kin for what cannot be
    read, `NoPlanError` where nothing fits and there is nothing to show.
    """
    from ridgeline.api import options as _  # noqa: F401  (fills the table)

    if name not in VERBS:
        raise UnknownNameError("command", name, VERBS)
    one = VERBS[name]
    known = one.words()
    for word in words:
        if word not in known:
            near = called_here(word, known)
            raise UnknownNameError("word", word, known, hint=f"here it is called {' or '.join(near)}" if near else "")
    own = {}
    for each, option in one.own.items():
        value = words.get(each, option.default)
        if value is REQUIRED:
            raise InputError(f"{name} needs it: {option.help}", field=each)
        try:
            own[each] = value if each not in words else option.read(value)
        except (InputError, UnknownNameError) as error:
            raise InputError(str(error), field=option.flag or each, value=value) from error
    return one.answer(own, {each: words.get(each) for each in known if each not in one.own})


def read_line(parts: list[str]) -> tuple[str, dict[str, Any]]:
    """The verb and words of a command line that is cut into parts: `predict gpt2 --on 1xA100 --serve`.

    It reads what the command line reads, for commands that are kept as text. Raises `InputError` for a flag that is
    not there or lacks its value.
    """
    from ridgeline.api import options as _  # noqa: F401  (fills the table)

    if not parts or parts[0] not in VERBS:
        raise UnknownNameError("command", parts[0] if parts else "", VERBS)
    one = VERBS[parts[0]]
    switches, valued = _flags(one)
    places = [each for each, option in one.own.items() if not option.flag]
    words: dict[str, Any] = {}
    rest = iter(parts[1:])
    for part in rest:
        flag, equals, value = part.partition("=")
        if part in switches:
            each, said = switches[part]
            words[each] = said
        elif flag in valued:
            each = valued[flag]
            text = value if equals else next(rest, None)
            if text is None:
                raise InputError("needs a value", field=flag)
            many = each in one.own and one.own[each].kind is list
            words[each] = [*words.get(each, []), text] if many else text
        elif part.startswith("--") or not places:
            raise UnknownNameError("option", part, [*switches, *valued])
        elif one.own[places[0]].kind is list:
            words.setdefault(places[0], []).append(part)
        else:
            words[places.pop(0)] = part
    return parts[0], words


def _flags(one: Verb) -> tuple[dict[str, tuple[str, bool]], dict[str, str]]:
    """Flags of a verb: switches with what they say, and those with a value."""
    switches: dict[str, tuple[str, bool]] = {}
    valued: dict[str, str] = {}
    for each, option in one.own.items():
        if option.flag and option.kind is bool:
            on, _, off = option.flag.partition("/")
            switches |= {on: (each, True)} | ({off: (each, False)} if off else {})
        elif option.flag:
            valued |= dict.fromkeys(filter(None, (option.flag, option.short)), each)
    for table in one.fields.values():
        for said in table:
            if said.switch:
                switches |= {said.flag: (said.name, True), "--no" + said.flag[1:]: (said.name, False)}
            else:
                valued[said.flag] = said.name
    return switches, valued
