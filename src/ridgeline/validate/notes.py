"""Facts that sources put into notes: 'vp=4; ga=8', 'num-query-groups=8', 'global bs = 4M tokens', 'swiglu'."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.validate.rows import Row

_PAIR = re.compile(r"([A-Za-z][\w .-]*?)\s*=\s*(\S[^;,|]*)")
_NUMBER = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kKMBT]?)\b")
_SCALE = {"": 1.0, "k": 1e3, "K": 1e3, "M": 2.0**20, "B": 1e9, "T": 1e12}
"""'4M tokens' of a batch is 4 * 2**20: sources that print both give 1024 x 4096 and 2048 x 2048."""


@dataclass(frozen=True, kw_only=True)
class Notes:
    """The notes of one row, with what it also reports: key = value pairs, switches and the text itself."""

    text: str
    pairs: Mapping[str, str]
    switches: frozenset[str]

    def number(self, *keys: str) -> float | None:
        """The number under the first of `keys` that is given, 'k', 'M' applied."""
        for key in keys:
            match = _NUMBER.match(self.pairs.get(_key(key), ""))
            if match:
                return float(match[1]) * _SCALE[match[2]]
        return None

    def count(self, *keys: str) -> int | None:
        """The whole number under the first of `keys` that is given [1]."""
        value = self.number(*keys)
        return None if value is None or value < 1 else round(value)

    def word(self, key: str) -> str:
        """The text under a key, '' when absent."""
        return self.pairs.get(_key(key), "")

    def says(self, pattern: str) -> bool:
        """Whether the text matches a pattern, case ignored."""
        return re.search(pattern, self.text, re.IGNORECASE) is not None

    def found(self, pattern: str) -> int | None:
        """The first group of a pattern as a count [1]."""
        match = re.search(pattern, self.text, re.IGNORECASE)
        return int(match[1]) if match and match[1] and int(match[1]) >= 1 else None

    def tokens(self, *patterns: str) -> float | None:
        """A number of tokens such as '4M' in 'global bs = 4M tokens' [token]."""
        for pattern in patterns:
            match = re.search(pattern, self.text, re.IGNORECASE)
            if match:
                number = _NUMBER.match(match[1])
                if number:
                    return float(number[1]) * _SCALE[number[2]]
        return None


def read_notes(row: Row) -> Notes:
    """The notes and also-reported cells of a row, taken apart.

    Of 'vp=1 (5)', which gives two recipes, the one that the row's `second` names is kept.
    """
    text = "; ".join(part for part in (row.text("notes"), row.text("also_reported")) if part)
    pairs: dict[str, str] = {}
    switches: set[str] = set()
    for part in re.split(r"[;,]\s*", text):
        match = _PAIR.search(part)
        if match is None:
            switches.add(_key(part))
            continue
        pairs.setdefault(_key(match[1]), _recipe(match[2].strip(), second=row.second))
    return Notes(text=text, pairs=pairs, switches=frozenset(switches))


def _key(text: str) -> str:
    return re.sub(r"[\s_]+", "-", text.strip().casefold())


def _recipe(value: str, *, second: bool) -> str:
    both = re.match(r"^(\S+)\s*\(([^()]+)\)", value)
    return both[2] if both and second and _NUMBER.match(both[2]) else value
