"""Versions of engines in the order in which their writers released them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache


def nearest_version(known: Iterable[str], wanted: str) -> str:
    """The newest version that is not newer than the one wanted, else the oldest; the newest when none is wanted."""
    ordered = sorted(known, key=release_key)
    older = [version for version in ordered if not wanted or release_key(version) <= release_key(wanted)]
    return (older or ordered[:1] or [""])[-1]


@cache
def release_key(version: str) -> tuple[tuple[int, int | str], ...]:
    """Sorts versions as their writers meant: 0.5.14 after 0.5.9, candidates before a release, post-releases after."""
    words = re.findall(r"\d+|[a-z]+", version.casefold())
    keys = tuple((1, int(word)) if word.isdigit() else (2 if word == "post" else 0, word) for word in words)
    return keys if any(word.isalpha() for word in words) else (*keys, (0, "zz"))
