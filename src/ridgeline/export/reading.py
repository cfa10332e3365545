"""Configs of programs as words: a file, or the folder that holds a file for each pool."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, UnknownNameError
from ridgeline.export.fleet import ROLES, together
from ridgeline.export.forms import read_document
from ridgeline.export.target import Imported, Target, target, targets

_COUNT = re.compile(r"^# \w+: (\d+) instances$", re.MULTILINE)
_FORMS = frozenset({".yaml", ".yml", ".json", ".sh", ".py", ".toml"})


def read_config(said: str) -> Imported:
    """The words of a config, `FILE` or `TARGET:FILE`; without a target the one that knows most of its fields.

    A folder is read whole: of two files one is the prefill pool, one decodes. Raises `InputError` for a file that
    cannot be read, or that no target knows.
    """
    key, colon, path = said.partition(":")
    named = [key] if colon and key in targets() else []
    if colon and not named and "/" not in key and "." not in key and len(key) > 1:
        raise UnknownNameError("target", key, targets(), hint=f"known: {', '.join(targets())}")
    path = path if named else said
    if not Path(path).is_dir():
        return _read(path, named)[0]
    files = sorted(str(one) for one in Path(path).iterdir() if one.suffix in _FORMS)
    if len(files) == 1:
        return _read(files[0], named)[0]
    if len(files) != 2:
        raise InputError(f"holds {len(files)} configs; one is read, or two: a prefill and a decode pool", file=path)
    return _joined({file: _read(file, named) for file in files}, path)


def _joined(found: dict[str, tuple[Imported, str]], path: str) -> Imported:
    """The configs of two pools as one deployment's; where a file does not say its instances there is one."""
    read, counts, notes = {}, {}, []
    for file, (one, text) in found.items():
        said = str(one.words.get("pool.role"))
        role = said if said in ROLES else Path(file).name.partition("-")[0]
        count = _COUNT.search(text)
        read[role], counts[role] = one, int(count[1]) if count else 1
        if not count:
            notes.append(f"{Path(file).name} does not say its instances; one is taken, say --{role} otherwise")
    if read.keys() != {"prefill", "decode"}:
        raise InputError("holds two configs that are not of a prefill and a decode pool", file=path)
    words, differ = together(read, counts)
    return Imported(
        target=read["decode"].target, words=words, notes=(*notes, *differ),
        fields={f"{role} {name}": value for role, one in read.items() for name, value in one.fields.items()},
        idle=tuple(f"{role} {name}" for role, one in read.items() for name in one.idle),
        unknown=tuple(f"{role} {name}" for role, one in read.items() for name in one.unknown),
    )  # fmt: skip


def _read(path: str, named: list[str]) -> tuple[Imported, str]:
    """One file's words, and its text."""
    document, text = read_document(path)
    best: tuple[float, Target, dict[str, Any]] | None = None
    for each in named or targets():
        one = target(each)
        try:
            fields = one.fields_of(document, text)
        except InputError:
            if named:
                raise
            continue
        if not fields:
            continue
        share = one.share(fields)
        if best is None or share > best[0]:
            best = share, one, fields
    if best is None or (not named and best[0] < 0.5):
        raise InputError(
            f"is the config of no program that is known; say TARGET:FILE with one of {', '.join(targets())}", file=path
        )
    try:
        return best[1].imported(best[2]), text
    except InputError as error:
        error.file = error.file or path
        raise
