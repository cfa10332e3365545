"""Where the all-reduce kernels of serving engines begin and end, from `data/engine_all_reduce.tsv`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.facts import store
from ridgeline.facts.versions import release_key

NEVER_BYTES = 1e15
"""From here on begins a kernel that an engine does not have [byte]."""


@dataclass(frozen=True, kw_only=True)
class AllReduceRule:
    """What an engine does with an all-reduce over `ranks` devices of a node; sizes are of one rank's buffer [byte].

    One-shot below `two_shot_from_bytes`, two-shot from it, kernels of symmetric memory from `symmetric_from_bytes`,
    the collective library above `most_bytes`; infinite where there is no such kernel.
    """

    ranks: int
    two_shot_from_bytes: float
    symmetric_from_bytes: float
    most_bytes: float
    source: str


@cache
def all_reduce_rules(engine: str, version: str, place: str) -> Mapping[int, AllReduceRule]:
    """The rules of an engine by ranks; empty where it has no kernels of its own.

    `place` says 'linked' or 'bus', then vendor, architecture and device. Without a version the newest rules answer.
    """
    wanted = release_key(version)
    found: dict[int, tuple[str, AllReduceRule]] = {}
    for row in store.read_tsv("engine_all_reduce.tsv"):
        newer = bool(version) and release_key(row["since"]) > wanted
        if row["engine"] != engine or newer or not re.search(rf"^{row['pattern']}\b", place):
            continue
        ranks = int(row["ranks"])
        known = found.get(ranks)
        if known is None or release_key(row["since"]) > release_key(known[0]):
            found[ranks] = (row["since"], _rule(row))
    return {ranks: rule for ranks, (_, rule) in sorted(found.items())}


def _rule(row: Mapping[str, str]) -> AllReduceRule:
    sizes = {name: float(row[name]) for name in ("two_shot_from_bytes", "symmetric_from_bytes", "most_bytes")}
    return AllReduceRule(ranks=int(row["ranks"]), source=row["source"], **sizes)
