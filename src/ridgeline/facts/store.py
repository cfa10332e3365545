"""The sole reader of `data/`: text, tables and JSON that ship with the package."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError

_DATA = Path(__file__).parents[1] / "data"


def read_text(name: str) -> str:
    """The text of `data/<name>`."""
    return (_DATA / name).read_text(encoding="utf-8")


def read_bytes(name: str) -> bytes:
    """The bytes of `data/<name>`, for files that are packed."""
    return (_DATA / name).read_bytes()


@cache
def read_tsv(name: str) -> tuple[dict[str, str], ...]:
    """The rows of the tab-separated table `data/<name>`; one header line, '#' lines are comments."""
    lines = [line for line in read_text(name).splitlines() if line and not line.startswith("#")]
    header = lines[0].split("\t")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        cells = line.split("\t")
        if len(cells) != len(header):
            raise InputError(f"{len(cells)} cells, the header has {len(header)}", file=f"data/{name}", line=number)
        rows.append(dict(zip(header, cells, strict=True)))
    return tuple(rows)


def read_json(name: str) -> Any:
    """The content of the JSON file `data/<name>`."""
    return json.loads(read_text(name))


@cache
def names(folder: str, suffix: str) -> tuple[str, ...]:
    """File names in `data/<folder>` that end in `suffix`, without it, sorted."""
    found = [entry.name for entry in (_DATA / folder).iterdir() if entry.name.endswith(suffix)]
    return tuple(sorted(name.removesuffix(suffix) for name in found))
