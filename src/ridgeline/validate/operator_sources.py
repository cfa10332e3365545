"""Rows that Ridgeline's own rates and constants were taken from: their errors are no test of a prediction."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.cost.answer import Rung
from ridgeline.facts.machines import link, link_names
from ridgeline.facts.mechanisms import constants
from ridgeline.facts.records import Accelerator, Fact
from ridgeline.lower.work import CollectiveKind
from ridgeline.validate.operator_cells import Priced
from ridgeline.validate.rows import Row

TABULATED = "this row is one of the measured table that answers"
SUSTAINED = "this row is the source of the device's sustained rate"
SAME = 2e-3  # a value copied, with one figure rounded [1]
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*\d)")
_TRILLION = 1e12
LINKED = frozenset({*(kind.value for kind in CollectiveKind), "host copy", "device copy"})


def own_source(row: Row, accelerator: Accelerator, found: Priced, measured_si: float) -> str | None:
    """Why a row cannot test its prediction, None when it can.

    A rate row whose value and program are those of the device's sustained rate, or a row of the source named by a
    constant or a link whose conditions quote the row's value. A row that merely repeats such a value is marked too.
    """
    if found.rung == Rung.TABLE.value and "aiconfigurator" in row.text("source").casefold():
        return TABULATED
    for key, fact in accelerator.sustained.items():
        if _taken(row, key, fact, found, measured_si):
            return SUSTAINED
    values = tuple(_values(row, found, measured_si))
    for name, fact in _constants(found.family):
        if _from(row, fact) and _about(fact.conditions, found.family) and _quotes(fact.conditions, values):
            return f"this row is a source of the constant {name}"
    place = row.text("source_where")
    for key, fact in constants().items():
        if key.startswith("stream.share.") and found.family == "activation" and _from(row, fact):
            folder = fact.source.split(" ", 1)[1]
            if place.startswith(folder):
                return f"this row is of the kind that the constant {key} comes from"
    return None


def _taken(row: Row, key: str, fact: Fact, found: Priced, measured_si: float) -> bool:
    if not found.rate or found.rate.partition(".")[0] != key.partition(".")[0] or row.text("unit") in ("ms", "us", "s"):
        return False
    held = re.search(r"measured (\S+)e12, held", fact.conditions)
    value = float(held[1]) * _TRILLION if held else fact.value
    library = row.text("library").casefold()
    return library in fact.conditions.casefold() and abs(value / measured_si - 1) < SAME


def _constants(family: str) -> Iterator[tuple[str, Fact]]:
    """The constants that price a family of links or power; those of kernels are not taken from single rows."""
    linked = family in LINKED
    wanted = ("efficiency.", "collective.") if linked else ("power.",) if family == "power" else ()
    for name, fact in constants().items():
        if wanted and name.startswith(wanted):
            yield name, fact
    for name in link_names() if linked else ():
        yield f"hop latency of {name}", link(name).latency


def _about(conditions: str, family: str) -> bool:
    """Whether conditions that name an all-reduce are held against one."""
    return "all-reduce" not in conditions or family == CollectiveKind.ALL_REDUCE.value


def _from(row: Row, fact: Fact) -> bool:
    """Whether a fact's source is the row's: the same commit, or the source's short name."""
    text = row.text("source").casefold()
    commit = re.search(r"@([0-9a-f]{7})", fact.source)
    if commit:
        return commit[0] in text
    short = fact.source.split(",")[0].casefold()
    return len(short) > 5 and f"/{short}" in f"/{text}" and _place(fact.source, row)


def _place(source: str, row: Row) -> bool:
    """Whether the device that a source's place ends on, 'NCCL tables H100', is the row's."""
    return source.split()[-1].casefold() in row.text("hardware").casefold().replace("-", " ")


def _values(row: Row, found: Priced, measured_si: float) -> Iterator[float]:
    """The numbers by which a source may have been quoted: as written, in microseconds, as algorithm bandwidth."""
    measured = row.measured
    if measured is not None:
        yield measured
        yield measured / found.bus
    yield measured_si * 1e6


def _quotes(conditions: str, values: tuple[float, ...]) -> bool:
    """Whether a number of three figures or more in the conditions is one of the values, rounded as it stands."""
    for word in _NUMBER.findall(conditions):
        if len(word.replace(".", "").lstrip("0")) < 3:
            continue
        decimals = max(1, len(word.partition(".")[2]))  # '700' is no rounding of 700.4
        if any(abs(value - float(word)) <= 0.51 * 10.0**-decimals for value in values):
            return True
    return False
