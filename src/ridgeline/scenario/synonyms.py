"""What other programs call the words of a scenario (`data/synonyms.tsv`), so that an error can name the word here."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from ridgeline.facts.store import read_tsv

_ENDINGS = ("_size", "_degree")


@cache
def synonyms() -> dict[str, tuple[str, ...]]:
    """The words of a scenario by what other programs call them."""
    found: dict[str, tuple[str, ...]] = {}
    for row in read_tsv("synonyms.tsv"):
        for word in row["called"].split():
            found[word] = (*found.get(word, ()), row["word"])
    return found


def called_here(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Which of the known words mean what other programs call `word`; none where no other program's is known.

    >>> called_here("tensor-parallel-size", ("tp", "pp"))
    ('tp',)
    """
    key = word.strip().casefold().lstrip("-").replace("-", "_").replace(" ", "_")
    for ending in ("", *_ENDINGS):
        meant = synonyms().get(key.removesuffix(ending), ())
        found = tuple(name for name in meant if name in set(known))
        if found:
            return found
    return ()
