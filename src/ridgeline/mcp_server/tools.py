"""What an agent is offered: a tool for each question, its input schema made from the table of questions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ridgeline.api import options as _  # noqa: F401  (fills the table of questions)
from ridgeline.api.verb import REQUIRED, VERBS, Argument, Verb
from ridgeline.errors import RidgelineError, UnknownNameError
from ridgeline.scenario.fields import Field

ASKED = ("predict", "plan", "simulate", "advise", "export", "op")
"""Questions that are tools; `explain` and `details` stand beside them."""
_FOR_PEOPLE = frozenset({"trace", "html", "picture"})
"""Own options that write pages and pictures: an agent gets the numbers."""
COMMON = frozenset(
    {"seq_len", "global_batch", "tokens", "precision", "optimizer", "framework", "lora_rank", "task"}
    | {"tp", "pp", "cp", "dp", "ep", "micro_batch", "schedule", "zero", "recompute", "technique"}
    | {"batch", "prompt", "output", "engine", "weights", "kv", "offload"}
    | {"rate", "concurrency", "slo", "duration", "requests", "trace"}
)
"""Words that a schema tells in full; of the others it tells the names, and `explain` the rest."""
_TEXT, _NUMBER = {"type": "string"}, {"type": ["number", "string"]}


@dataclass(frozen=True, kw_only=True)
class Offered:
    """One tool: what it is for and what it takes, as JSON Schema; `writes` where it may write files."""

    name: str
    title: str
    help: str
    schema: dict[str, Any]
    writes: bool = False


def offered() -> list[Offered]:
    """All tools, in the order of use."""
    return [*map(_asked, ASKED), _EXPLAIN, _DETAILS]


def own_of(verb: str) -> dict[str, Argument]:
    """A question's own arguments that an agent may say."""
    return {name: each for name, each in VERBS[verb].own.items() if name not in _FOR_PEOPLE or not each.flag}


def fields_of(verb: str) -> dict[str, Field]:
    """A question's fields by name; of a word of two tables the first."""
    found: dict[str, Field] = {}
    for table in VERBS[verb].fields.values():
        for each in table:
            found.setdefault(each.name, each)
    return found


def words_of(verb: str) -> tuple[str, ...]:
    """All words that a tool takes."""
    return tuple(dict.fromkeys((*own_of(verb), *fields_of(verb))))


def laid_flat(verb: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Words of a call, those of `more` beside the others; raises `UnknownNameError` for one that is not there."""
    more = arguments.get("more")
    words = {name: value for name, value in arguments.items() if name != "more" and value is not None}
    words |= more if isinstance(more, dict) else {}
    for name in words:
        if name not in words_of(verb):
            raise UnknownNameError("word", name, words_of(verb), hint="the tool `explain` tells what each means")
    return words


def _asked(name: str) -> Offered:
    one = VERBS[name]
    own, fields = own_of(name), fields_of(name)
    properties = {each: _of_argument(option) for each, option in own.items()}
    properties |= {each: _of_field(field) for each, field in fields.items() if each in COMMON and each not in own}
    others = [each for each in fields if each not in properties]
    if others:
        properties["more"] = {
            "type": "object",
            "description": "further words; `explain` tells what each means",
            "propertyNames": {"enum": others},
        }
    needed = [each for each, option in own.items() if option.default is REQUIRED]
    schema = {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}
    return Offered(name=name, title=one.short_help, help=_help(one), schema=schema, writes="out" in own)


def _help(one: Verb) -> str:
    said = one.help
    if "Training: the workload" in one.fields and "serve" in one.own:
        said += " Training unless serve is true."
    return said + " Numbers of the answer are SI; estimates have value, low, high (80 % interval), unit and evidence."


def _of_argument(option: Argument) -> dict[str, Any]:
    kinds: dict[type, dict[str, Any]] = {
        str: _TEXT, bool: {"type": "boolean"}, int: {"type": "integer"}, float: {"type": "number"},
        list: {"type": "array", "items": _TEXT},
    }  # fmt: skip
    found = {**kinds[option.kind], "description": option.help}
    if option.choices:
        found["enum"] = list(option.choices)
    for key, bound in (("minimum", option.least), ("maximum", option.most)):
        if bound is not None:
            found[key] = bound
    if option.default not in (None, REQUIRED, "") and option.shown:
        found["default"] = option.default
    return found


def _of_field(field: Field) -> dict[str, Any]:
    """A field, read by the table's own reader: numbers may be texts such as 15T or 50ms."""
    said = field.help + (f"; one of: {', '.join(field.choices)}" if field.choices else "")
    if field.switch:
        return {"type": "boolean", "description": said}
    if field.name == "technique":
        return {"type": "array", "items": _TEXT, "description": said}
    return {**(_NUMBER if _is_number(field) else _TEXT), "description": said}


def _is_number(field: Field) -> bool:
    """Whether a field is read from a number."""
    for written in ("1", "0.5"):
        with suppress(ValueError, RidgelineError):
            return not isinstance(field.read(written), str)
    return False


_EXPLAIN = Offered(
    name="explain",
    title="What a word, technique or name means.",
    help="Tells what a word of a tool means and may be, what a technique does, or what is known of a model, "
    "accelerator or cluster. Names that are not there bring the nearest.",
    schema={
        "type": "object",
        "properties": {
            "name": {**_TEXT, "description": "a word (zero_group), a technique (zero-infinity), or a name (H100-SXM)"},
            "tool": {**_TEXT, "enum": list(ASKED), "description": "only words of this tool; without name, all of them"},
        },
        "additionalProperties": False,
    },
)
_DETAILS = Offered(
    name="details",
    title="A part of an earlier answer.",
    help="The part of an earlier answer that its summary left out.",
    schema={
        "type": "object",
        "properties": {
            "answer": {**_TEXT, "description": "the `answer_id` of the summary"},
            "path": {**_TEXT, "description": "which part, as `left_out` names it: memory, best.0.ops"},
            "start": {"type": "integer", "minimum": 0, "description": "of a list: its first entry to show"},
        },
        "required": ["answer", "path"],
        "additionalProperties": False,
    },
)


def explained(name: str | None, tool: str | None) -> dict[str, Any] | None:
    """Words of the tools by this name, or all words of a tool; None where no tool has such a word."""
    found = [word for word in _all_words(tool) if name is None or word["word"] == name.lstrip("-").replace("-", "_")]
    if name is None:
        return {"words": [{key: each[key] for key in ("word", "help")} for each in found]}
    return {"words": found} if found else None


def _all_words(tool: str | None) -> Iterator[dict[str, Any]]:
    if tool is not None and tool not in ASKED:
        raise UnknownNameError("tool", tool, ASKED)
    seen: dict[tuple[str, str], dict[str, Any]] = {}
    for verb in ASKED if tool is None else (tool,):
        told = {name: (option.help, list(option.choices)) for name, option in own_of(verb).items()}
        told |= {name: (field.help, list(field.choices)) for name, field in fields_of(verb).items() if name not in told}
        for name, (help_, choices) in told.items():
            known = seen.setdefault((name, help_), {"word": name, "help": help_, "choices": choices, "tools": []})
            known["tools"].append(verb)
    yield from seen.values()
