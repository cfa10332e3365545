"""Where facts come from: the keys of `data/sources.bib`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.errors import UnknownNameError
from ridgeline.facts import store

_ENTRY = re.compile(r"^@\w+\{([^,\s]+),\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s*(\w+) = \{(.*)\},?$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One public source."""

    key: str
    title: str
    author: str
    year: str = ""
    url: str = ""
    note: str = ""

    @property
    def citation(self) -> str:
        """The source in one line for people."""
        head = f"{self.author}{f' ({self.year})' if self.year else ''}: {self.title}"
        return ". ".join(part for part in (head, self.url, self.note) if part)


@cache
def sources() -> Mapping[str, Source]:
    """All sources by key."""
    found = {}
    for key, body in _ENTRY.findall(store.read_text("sources.bib")):
        fields = dict(_FIELD.findall(body))
        found[key] = Source(key=key, **fields)
    return found


def source(fact_source: str) -> Source:
    """The source that a fact's 'key, place' names.

    >>> source("ml-engineering, compute/accelerator/README.md L354").author
    'Stas Bekman'
    """
    key = fact_source.split(",", 1)[0].strip()
    found = sources().get(key)
    if found is None:
        raise UnknownNameError("source", key, sources())
    return found
