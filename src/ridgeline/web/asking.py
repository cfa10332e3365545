"""What the page asks for, read from the bytes of a request, and the command line that asks the same."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.api.verb import VERBS, Verb
from ridgeline.errors import InputError, UnknownNameError
from ridgeline.web.forms import QUESTIONS, shown

MOST_BYTES = 2 * 2**20  # of one request, files included
_MOST_WORDS, _LONGEST_TEXT, _MOST_FILES = 300, 4_096, 8
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_PATH = re.compile(r"^\s*(?:\w+:)?\s*(?:[/\\~]|\.{1,2}[/\\]|[A-Za-z]:[/\\])|(?:^|[/\\])\.\.(?:[/\\]|$)")


@dataclass(frozen=True, kw_only=True)
class WebQuestion:
    """One question of the page: words as a person wrote them, and texts of the files given with it, by name."""

    verb: str
    words: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)


def read_question(body: bytes) -> WebQuestion:
    """The question in a request; raises `InputError` for anything that is none, `UnknownNameError` for its names.

    Words that name a file must name one that came along: no other file is read.
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise InputError("the request is not JSON") from None
    if not isinstance(asked, dict) or not isinstance(asked.get("words"), dict):
        raise InputError("the request is no object with 'verb' and 'words'")
    verb, files = asked.get("verb"), asked.get("files") or {}
    if verb not in QUESTIONS:
        raise UnknownNameError("question", str(verb)[:80], QUESTIONS)
    _check_files(files)
    words = {str(name): value for name, value in asked["words"].items() if value not in ("", None)}
    if len(words) > _MOST_WORDS:
        raise InputError(f"{len(words)} words are given; at most {_MOST_WORDS} are read")
    known = {*shown(verb), *(each.name for table in VERBS[verb].fields.values() for each in table)}
    for name, value in words.items():
        if name not in known:
            raise UnknownNameError("word", name[:80], known)
        _check_word(name, value)
    return WebQuestion(verb=verb, words=words, files=files)


def _check_files(files: object) -> None:
    if not isinstance(files, dict) or len(files) > _MOST_FILES:
        raise InputError(f"files are an object of name to text, at most {_MOST_FILES}")
    for name, text in files.items():
        if not _FILE_NAME.fullmatch(name) or not isinstance(text, str):
            raise InputError("is no name of a file; letters, digits, dots and dashes only", value=name[:80])


def _check_word(name: str, value: object) -> None:
    """Raises for what no field takes, and for paths."""
    if not isinstance(value, str | int | float | bool):
        raise InputError("is no text, number or switch", field=name)
    if isinstance(value, int) and value.bit_length() > 64:
        raise InputError("the number is too large", field=name)
    text = str(value)
    if len(text) > _LONGEST_TEXT:
        raise InputError(f"has {len(text)} characters; at most {_LONGEST_TEXT} are read", field=name)
    if _PATH.search(text) or "\0" in text:
        raise InputError("names a path, which this app does not read; add the file to the page", field=name, value=text)


def command_of(asked: WebQuestion) -> str:
    """The command line that asks the same."""
    one = VERBS[asked.verb]
    parts = ["ridgeline", asked.verb]
    places = [name for name, option in one.own.items() if not option.flag]
    parts += [str(asked.words[name]) for name in places if name in asked.words]
    for name, value in asked.words.items():
        if name not in places:
            parts += _said(one, name, value)
    return shlex.join(parts)


def _said(one: Verb, name: str, value: object) -> list[str]:
    """A word as its flag; nothing for a switch at its default."""
    option = one.own.get(name)
    yes = value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value))
    if option is not None and option.kind is bool:
        on, _, off = option.flag.partition("/")
        flag = on if yes else off
        return [flag] if flag and yes != option.default else []
    flag = option.flag if option is not None else "--" + name.replace("_", "-")
    if yes is not None and option is None:
        return [flag if yes else "--no" + flag[1:]]
    return [flag, str(value)]


def word_at_fault(refused: Mapping[str, Any], asked: WebQuestion) -> str:
    """The word of the page that a refusal is about; '' where it names none that the page has."""
    said = str(refused.get("field") or "")
    of_table = {"MODEL": "subject", "MODEL|SCENARIO.toml": "subject", "model": "subject", "cluster": "on"}
    name = of_table.get(said, said.removeprefix("--").replace("-", "_").rpartition(".")[2])
    if said.startswith(("model.", "cluster.")):
        name = of_table[said.partition(".")[0]]
    own = VERBS[asked.verb].own
    by_flag = {option.flag.partition("/")[0]: each for each, option in own.items() if option.flag}
    name = by_flag.get(said, name)
    if name in own or any(each.name == name for table in VERBS[asked.verb].fields.values() for each in table):
        return name
    value = str(refused.get("value") or "")
    holding = [each for each, text in asked.words.items() if value and value in str(text)]
    return holding[0] if len(holding) == 1 else ""
