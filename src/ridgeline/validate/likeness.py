"""Models of the catalog that a row describes without naming them: by dimensions, or by family and size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from ridgeline.graph import load as catalog

SAME_SIZE = 0.10  # sizes in names are rounded: 'Llama 3 8B' has 8.03e9 parameters, 'GPT-3 175B' 174.6e9
_SAME_WORDS = 0.02  # vocabularies differ by their padding


def alike_in_dimensions(name: str, given: Mapping[str, object], params: float | None) -> str | None:
    """The catalog's model with the stated layers, width, heads and, where stated, vocabulary and parameters [1].

    `given` holds `layers`, `hidden`, `heads` and perhaps `vocab`; None where one of the three is missing or no model
    agrees. Of several the one that shares most words of the `name`, then the nearest in size.

    >>> alike_in_dimensions("QwQ-32B", {"layers": 64, "hidden": 5120, "heads": 40, "vocab": 152064}, 32.8e9)
    'qwen2.5-32b'
    """
    shape = [given.get(name) for name in ("layers", "hidden", "heads")]
    if None in shape:
        return None
    words, found = set(_words(name)), []
    for other, held in _whole_numbers().items():
        if held.issuperset(shape):
            dims = catalog.load(other).dims
            size = float(str(dims["parameters"]))
            far = 0.0 if params is None else abs(size / params - 1.0)
            vocab, own = given.get("vocab"), dims.get("vocab")
            told = not isinstance(vocab, int) or (isinstance(own, int) and abs(own - vocab) <= _SAME_WORDS * vocab)
            if [dims.get(each) for each in ("layers", "hidden", "heads")] == shape and told and far <= SAME_SIZE:
                found.append((-len(words & set(_words(other))), far, other))
    return min(found)[2] if found else None


def alike_in_name(name: str, params: float | None) -> str | None:
    """The catalog's model of the family that a name begins with and of the same size [1]; None where there is none.

    Of several the one that shares most words and numbers of its name, then the nearest in size. A size that is not
    stated is the one in the name.

    >>> alike_in_name("Mistral-Small-3-24B", None)
    'mistral-small-24b'
    """
    words = _words(name)
    named = re.search(r"(?<![\d.a-z])(\d+(?:\.\d+)?)\s?b(?![a-z])", name, re.IGNORECASE)
    size = params or (float(named[1]) * 1e9 if named else None)
    if not words or size is None or not words[0].isalpha():
        return None
    found = []
    for other in catalog.catalog():
        theirs = _words(other)
        if theirs[:1] == words[:1] and len(set(words) & set(theirs)) > 1:
            far = abs(float(str(catalog.load(other).dims["parameters"])) / size - 1.0)
            if far <= SAME_SIZE:
                found.append((-len(set(words) & set(theirs)), far, other))
    return min(found)[2] if found else None


def _words(name: str) -> list[str]:
    """Words and numbers of a name, without its size: 'Qwen3.5-9B' is qwen, 3.5."""
    sizes = r"\ba?\d+(?:\.\d+)?[bm]\b"
    return re.findall(r"[a-z]{2,}|\d+(?:\.\d+)?", re.sub(sizes, " ", name.casefold()))


@cache
def _whole_numbers() -> Mapping[str, frozenset[int]]:
    """The whole numbers in the config of each model of the catalog."""
    return {name: frozenset(_numbers_in(catalog.catalog_config(name))) for name in catalog.catalog()}


def _numbers_in(value: Any) -> Iterator[int]:
    for each in value.values() if isinstance(value, Mapping) else (value,):
        if isinstance(each, Mapping):
            yield from _numbers_in(each)
        elif isinstance(each, int):
            yield each
