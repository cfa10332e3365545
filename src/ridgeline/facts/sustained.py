"""Rates measured in long runs, and what to expect of a device that nobody measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from ridgeline.facts import rows, store
from ridgeline.facts.records import Fact

FILE = "data/sustained.tsv"


@cache
def _measured() -> Mapping[str, Mapping[str, Fact]]:
    table: dict[str, dict[str, Fact]] = {}
    for row in store.read_tsv("sustained.tsv"):
        fact = rows.fact(
            float(row["value"]) * 1e12,
            row["unit"],
            row["source"],
            f"{row['shape']}; {row['library']}" + (f"; {row['notes']}" if row["notes"] else ""),
            row["evidence"],
            file=FILE,
        )
        table.setdefault(row["accelerator"], {})[row["key"]] = fact
    return table


def sustained_facts(name: str, peaks: Mapping[str, Fact], memory: Fact) -> Mapping[str, Fact]:
    """Measured rates of a device by key ('matrix.bf16', 'hbm') [FLOP/s or byte/s].

    A device may run above the clock that its datasheet assumes; such a rate is held to the
    datasheet's peak, and its conditions say what was measured.
    """
    return MappingProxyType(
        {key: _held(fact, _peak(key, peaks, memory)) for key, fact in _measured().get(name, {}).items()}
    )


def _peak(key: str, peaks: Mapping[str, Fact], memory: Fact) -> Fact | None:
    return memory if key.startswith("hbm") else peaks.get(key.rsplit(".", 1)[-1])


def _held(fact: Fact, peak: Fact | None) -> Fact:
    if peak is None or fact.value <= peak.value:
        return fact
    text = f"{fact.conditions}; measured {fact.value / 1e12:.4g}e12, held to the datasheet's {peak.value / 1e12:.4g}e12"
    return replace(fact, value=peak.value, conditions=text)
