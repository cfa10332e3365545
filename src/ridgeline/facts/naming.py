"""Names as people type them, matched to the names of the tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

Key = tuple[str, ...]

_WORD = re.compile(r"[a-z0-9]+")
_RULES = (
    (re.compile(r"(?<![a-z0-9])(rtx|gtx|rx)(?=\d)"), r"\1 "),  # rtx4090 -> rtx 4090
    (re.compile(r"(?<=\d)(ti|super|laptop|xtx|xt)\b"), r" \1"),  # 3080ti -> 3080 ti
    (re.compile(r"\bsxm\d\b"), "sxm"),  # sxm2 .. sxm6 -> sxm
    (re.compile(r"\b(titan|quadro)(?=[a-z])"), r"\1 "),  # titanrtx -> titan rtx
    (re.compile(r"(\d+)[\s_-]*gi?b\b"), r"\1gb"),  # 80 GB, 80GiB -> 80gb
)
_SILENT = frozenset(
    (
        *("nvidia", "amd", "intel", "google", "aws", "huawei", "habana", "geforce", "tesla", "quadro", "radeon"),
        *("instinct", "gpu", "gpus", "tensor", "core", "graphics", "generation", "edition", "gaming", "gen4", "gen5"),
        *("tm", "r", "gb", "gib"),  # a unit without its number says nothing
    )
)
_MEMORY = re.compile(r"^(?:(\d+)gb|hbm\d?e?|gddr\dx?|g)$")


@lru_cache(maxsize=4096)
def key(text: str) -> Key:
    """The words of a name that tell machines apart, in sorted order.

    Case, punctuation, order, vendor words and the SXM revision do not matter.

    >>> key("NVIDIA A100-SXM4-80GB") == key("a100 80 GB sxm")
    True
    """
    folded = text.casefold()
    for pattern, replacement in _RULES:
        folded = pattern.sub(replacement, folded)
    words = _WORD.findall(folded)
    return tuple(sorted({word for word in words if word not in _SILENT} or set(words)))


def split_memory(words: Key) -> tuple[Key, float | None]:
    """The words without memory size and type, and the size [GB] if one was named."""
    size = None
    rest = []
    for word in words:
        found = _MEMORY.match(word)
        if found is None:
            rest.append(word)
        elif found[1]:
            size = float(found[1])
    return tuple(rest), size


def index(rows: Iterable[tuple[str, Iterable[str]]]) -> Mapping[Key, str]:
    """Canonical name of each key; a canonical name beats an alias, an earlier row a later one."""
    table: dict[Key, str] = {}
    listed = [(name, tuple(aliases)) for name, aliases in rows]
    for name, _ in listed:
        table.setdefault(key(name), name)
    for name, aliases in listed:
        for alias in aliases:
            if alias:
                table.setdefault(key(alias), name)
    return table
