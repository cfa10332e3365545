"""Links of `data/links.tsv`: bandwidth and latency, each with its own evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.errors import UnknownNameError
from ridgeline.facts import rows, store
from ridgeline.facts.records import Fact

FILE = "data/links.tsv"


@dataclass(frozen=True, kw_only=True)
class Link:
    """One kind of link: `bandwidth` [byte/s, one way, per device] and `latency` of one hop [s]."""

    name: str
    bandwidth: Fact
    latency: Fact


@cache
def _rows() -> Mapping[str, dict[str, str]]:
    return {row["name"]: row for row in store.read_tsv("links.tsv")}


def link_names() -> tuple[str, ...]:
    """Names of all links, in table order."""
    return tuple(_rows())


@cache
def link(name: str) -> Link:
    """The link of that name."""
    row = _rows().get(name)
    if row is None:
        raise UnknownNameError("link", name, link_names())
    return Link(
        name=name,
        bandwidth=rows.fact(
            float(row["bandwidth_gbs"]) * 1e9, "byte/s", row["source"], row["conditions"], row["evidence"], file=FILE
        ),
        latency=rows.fact(
            float(row["latency_us"]) * 1e-6,
            "s",
            row["latency_source"],
            row["latency_conditions"],
            row["latency_evidence"],
            file=FILE,
        ),
    )
