"""How many tokens of a text are rare words, from `data/word_shares.tsv`."""

from __future__ import annotations

from ridgeline.errors import InputError
from ridgeline.facts import store


def word_share(first: int, last: int) -> float:
    """Share of WikiText-103's tokens that are words from rank `first` to before `last` [1].

    Raises `InputError` for ranks that no row has. Evidence: assumed.
    """
    for row in store.read_tsv("word_shares.tsv"):
        if (int(row["first"]), int(row["last"])) == (first, last):
            return float(row["share"])
    raise InputError(f"no share of the words of rank {first} to {last} is known")
