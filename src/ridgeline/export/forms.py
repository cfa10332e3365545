"""Config files as text: YAML, JSON, TOML and command lines, read without running anything in them, and written."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.facts.user_files import FileKind, read_user_file

CONFIG_FILE = FileKind(what="a program's config", most_bytes=4 * 2**20)
_DEEPEST = 32


def read_document(path: str | Path) -> tuple[Any, str]:
    """What a config file holds, and its text; raises `InputError` with the line for what cannot be read.

    The ending says the form; a shell script or a file of flags gives its text alone (None).
    """
    text = read_user_file(path, CONFIG_FILE).text()
    return parsed(text, Path(path).suffix.lower(), str(path)), text


def parsed(text: str, ending: str, file: str) -> Any:
    """The document in a text of a form by its ending: '.yaml', '.json', '.toml'; None of any other."""
    try:
        match ending:
            case ".yaml" | ".yml":
                found = _yaml(text, file)
            case ".json":
                found = json.loads(text)
            case ".toml":
                found = tomllib.loads(text)
            case _:
                return None
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no {ending[1:]}: {str(error)[:200]}", file=file) from None
    if _depth(found) > _DEEPEST:
        raise InputError(f"is nested deeper than {_DEEPEST}", file=file)
    return found


def _depth(value: object, at: int = 0) -> int:
    if at > _DEEPEST or not isinstance(value, dict | list):
        return at
    return max((_depth(one, at + 1) for one in (value.values() if isinstance(value, dict) else value)), default=at)


def _yaml(text: str, file: str) -> Any:
    import yaml

    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):  # a few lines of them stand for gigabytes
                line = event.start_mark.line + 1
                raise InputError("aliases (*name) are not read; write the value out", file=file, line=line)
        return list(yaml.safe_load_all(text)) if "\n---" in text.strip("-\n ") else yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        raise InputError(f"is no YAML: {getattr(error, 'problem', error)}", file=file, line=line) from None


def yaml_text(document: Any, *, head: str = "") -> str:
    """A document as YAML, in the order given, under comment lines `head`; of several a list of documents is made."""
    import yaml

    class Plain(yaml.SafeDumper):  # type: ignore[misc]  # yaml has no types
        """Without aliases, and texts of several lines as they are."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    Plain.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
        ),
    )
    told = "".join(f"# {line}\n" for line in head.splitlines())
    return told + str(yaml.dump(document, Dumper=Plain, sort_keys=False, default_flow_style=False, width=100))


def json_text(document: Any) -> str:
    """A document as JSON with a line for each field."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def flags_text(program: str, document: Mapping[str, Any]) -> str:
    """A command line: `program` and a flag for each field, one a line; true is the flag alone, false leaves it out."""
    parts = [program]
    for name, value in document.items():
        if value is False:
            continue
        values = value if isinstance(value, list) else [value]
        said = "" if value is True else " " + " ".join(shlex.quote(str(one)) for one in values)
        parts.append(("-" if len(name) == 1 else "--") + name + said)
    return " \\\n  ".join(parts) + "\n"


def read_flags_text(script: str, switches: frozenset[str]) -> dict[str, Any]:
    """The flags of a command line or launch script, by name without dashes; numbers as numbers, switches as true.

    Comments and what precedes the first flag are left out. `switches` are names that take no value.
    """
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("#")]
    try:
        parts = shlex.split("\n".join(lines).replace("\\\n", " "))
    except ValueError as error:
        raise InputError(f"is no command line: {error}") from None
    found: dict[str, Any] = {}
    name = ""
    for part in parts:
        if part.startswith("-") and not is_number(part):
            name, equals, text = part.lstrip("-").partition("=")
            found[name] = _value(text) if equals else True
            name = "" if equals or name in switches else name
        elif name:
            before, value = found[name], _value(part)
            several = before if isinstance(before, list) else [before]
            found[name] = value if before is True else [*several, value]
    return found


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _value(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return float(text) if is_number(text) else text


def put(document: dict[str, Any], name: str, value: Any) -> None:
    """Sets a field whose name may have dots, making the tables between."""
    *tables, last = name.split(".")
    for table in tables:
        document = document.setdefault(table, {})
    document[last] = value


def flat(document: Mapping[str, Any], known: frozenset[str], before: str = "") -> dict[str, Any]:
    """Fields by dotted name; a table whose own name is `known` stays whole."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        full = f"{before}{name}"
        if isinstance(value, Mapping) and value and full not in known:
            found |= flat(value, known, f"{full}.")
        else:
            found[full] = value
    return found


def table_in(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table in another; an empty one where there is none."""
    found = holder.get(name)
    return found if isinstance(found, Mapping) else {}
