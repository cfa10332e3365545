"""Answers rows of kernels and collectives: which family a row belongs to, its price, and the row's own unit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ridgeline.cost.answer import ALL, Rung, interval
from ridgeline.cost.machine import Machine, machine
from ridgeline.errors import InputError
from ridgeline.facts.machines import link, link_names
from ridgeline.facts.mechanisms import constant, constants
from ridgeline.facts.readings import reading
from ridgeline.facts.records import Accelerator, Cluster, Evidence, Fact
from ridgeline.facts.transfer import mechanism_spread, source_spread
from ridgeline.lower.work import CollectiveKind
from ridgeline.units import UNITS
from ridgeline.validate import operator_attention as attention
from ridgeline.validate import operator_kernels as kernels
from ridgeline.validate import operator_links as links
from ridgeline.validate import operator_passes as passes
from ridgeline.validate.hardware import find_device, read_device
from ridgeline.validate.machines import Machines
from ridgeline.validate.operator_cells import Ask, Priced, sizes
from ridgeline.validate.rows import Row
from ridgeline.validate.score import scored

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


FAMILIES: dict[str, Callable[[Ask], Priced]] = {
    "power": kernels.power, "layer": kernels.layer, "mixed": attention.mixed, "latent_decode": attention.latent_decode,
    "latent_prefill": attention.latent_prefill, "exchange": links.exchange, "attention": attention.attention,
    "experts": passes.experts, "convolution": passes.convolution, "gemm": kernels.gemm, "host_copy": kernels.host_copy,
    "long_stream": kernels.long_stream, "peer_copy": kernels.peer_copy, "sorted_keys": passes.sorted_keys,
}  # fmt: skip
"""Operators that are priced, by what a reading of their name says; then collectives, then streams."""

_KNOWN = (
    "gemm, attention (prefill, decode, mla), moe, moe dispatch, moe combine, conv2d, stream, copy, power, layer op,"
    " norm, softmax, cross_entropy, activation, rotary, embedding, scan, sort, all_reduce, all_gather, reduce_scatter,"
    " alltoall, send_recv"
)
RUNGS = {  # that rest on measurements of the device itself, or of its relatives
    "tables": (Rung.TABLE.value, Rung.FITTED.value),
    "borrowed": (Rung.BORROWED.value,),
}
WIDEST = "interval.widest"  # high / low of an interval that holds nothing but its own kernels
OWN_SPAN = "interval of the tables alone:"
EVIDENCE_SPAN = "interval of the mechanism: of its family on other devices, or of the evidence behind its rate"
_KEY_UNIT = re.compile(r"^([kMGT]?)keys/s$", re.IGNORECASE)
_RATE_UNIT = re.compile(r"^([kMGTPE]?)(?:FL|I)?OPs?(?:/s|S)?$", re.IGNORECASE)


def answer_operator(row: Row, kind: str, source: Machines, rungs: tuple[Rung, ...] = ALL) -> dict[str, Any]:
    """The keys of a row's answer that its prediction fills; raises Ridgeline's errors with the reason of a refusal."""
    op = row.text("op").casefold()
    measured, measured_si, dimension = _measured(row)
    family = _family(op)
    device = find_device(row.text("hardware"), source.accelerators(), source.usual)
    _same_form(row.text("hardware"), device.accelerator)
    found, notes = _cluster(row, kind, op, device.accelerator, source)
    ask = replace(_ask(row, kind, op, machine(found)), rungs=rungs)
    priced = _of_another_source(family(ask), row)
    value, low, high = _predicted(priced, measured_si / measured, dimension, row)
    assumptions = [*device.assumptions, *notes, *priced.assumptions]
    scenario, evidence = priced.family, priced.evidence
    marked = own_source(row.judged(), device.accelerator, priced, measured_si)
    if marked is not None:
        assumptions.append(marked)
        scenario, evidence = f"{priced.family}, own source", Evidence.MEASURED
    named = {"device": device.accelerator.name, "scenario": scenario, "assumptions": assumptions}
    return scored(row, value, low, high, evidence=evidence, rung=priced.rung or "mechanism", **named)


def _of_another_source(priced: Priced, row: Row) -> Priced:
    """The price with an interval that holds what others measured of the family.

    The ladder's intervals are of the tables' own machines and ways of timing; the mechanism's, where a family was
    measured on several devices, are of that family, else of the evidence behind the deciding rate. Intervals that hold
    an unknown host or network, or sizes that nobody measured, are wide already and only grow.
    """
    if priced.power_w is not None:
        return priced
    if priced.interval_s is None:
        known = mechanism_spread(priced.family, priced.seconds)
        evidence = interval(priced.seconds, priced.evidence)
        ends = evidence if known is None else (priced.seconds * known[0], priced.seconds * known[1])
        return replace(priced, interval_s=ends, assumptions=(*priced.assumptions, EVIDENCE_SPAN))
    rung = next((name for name, rungs in RUNGS.items() if priced.rung in rungs), None)
    if rung is None or "aiconfigurator" in row.text("source").casefold():
        return priced
    (low_s, high_s), (low, high) = priced.interval_s, source_spread(rung, priced.family)
    told = (
        f"{OWN_SPAN} {low_s / priced.seconds:.3f} to {high_s / priced.seconds:.3f} of the time; of other sources here"
    )
    ends = (priced.seconds * low, priced.seconds * high)
    if high_s > constant(WIDEST) * low_s:
        ends = (min(low_s, ends[0]), max(high_s, ends[1]))
    return replace(priced, interval_s=ends, assumptions=(*priced.assumptions, told))


def _measured(row: Row) -> tuple[float, float, str]:
    """The measured value, the same in SI, and the dimension of its unit."""
    if row.measured is None:
        raise InputError(f"'{row.text('metric')}' asks for a word; only times and rates are predicted", field="metric")
    value = row.positive()
    unit = row.text("unit")
    dimension, factor = UNITS.get(unit, ("", 0.0))
    rate = _RATE_UNIT.match(unit)
    if rate:
        dimension, factor = "FLOP/s", UNITS[f"{rate[1].upper().replace('K', 'k')}FLOP/s"][1]
    keys = _KEY_UNIT.match(unit)
    if keys:
        dimension, factor = "keys/s", UNITS[f"{keys[1].upper().replace('K', 'k')}Hz"][1]
    if dimension not in ("s", "FLOP/s", "byte/s", "keys/s", "W"):
        raise InputError(f"'{unit}' is no unit of an operator's time, rate or power", field="unit")
    return value, value * factor, dimension


def _family(op: str) -> Callable[[Ask], Priced]:
    refused, named = reading("op_refused", words=op), reading("op", words=op)
    if refused is not None:
        raise InputError(f"'{op}': {refused.value}", field="op")
    if named is not None:
        return FAMILIES[named.text]
    for key, family in (("collective", links.collective), ("stream", passes.streamed)):
        if reading(key, words=op) is not None:
            return family
    raise InputError(f"'{op[:60]}' is no operator that is predicted; known: {_KNOWN}", field="op")


def _same_form(text: str, part: Accelerator) -> None:
    """Refuses a mobile part in place of which the catalog would give the desktop's."""
    if read_device(text).form == "laptop" and read_device(part.name).form != "laptop":
        raise InputError(f"'{text}' is a laptop's part, which the catalog does not hold", field="hardware")


def _cluster(row: Row, kind: str, op: str, part: Accelerator, source: Machines) -> tuple[Cluster, tuple[str, ...]]:
    if kind == "collectives":
        return links.group(row, part, source)
    count = 2 if re.search(r"device to device|p2p", op) else 1
    found = source.cluster(f"{count}x{part.name}")
    return (found if found.accelerator == part else replace(found, accelerator=part)), ()


def _ask(row: Row, kind: str, op: str, resolved: Machine) -> Ask:
    words = row.text("topology" if kind == "collectives" else "shape")
    shape = sizes(words)
    size = row.text("bytes")
    if size:
        shape["bytes"] = _bytes(size)
    return Ask(
        op=op,
        shape=shape,
        words=words,
        dtype=row.text("dtype"),
        library=row.text("library"),
        notes=row.text("notes"),
        metric=row.text("metric").casefold(),
        machine=resolved,
    )


def _bytes(cell: str) -> float:
    """A size [byte], as a number or with the unit that nccl-tests print: '64M' and '64MB' are 64 MiB there."""
    told = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([kKMGT])(i?)B?", cell)
    if told:
        return float(told[1]) * 1024.0 ** (" KMGT".index(told[2].upper()))
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", cell)
    if not re.fullmatch(r"\d{1,18}(?:\.\d*)?(?:e\+?\d\d?)?", plain, re.IGNORECASE) or not 1 <= float(plain) < 1e18:
        raise InputError(f"'{cell[:24]}' is no size in bytes; needs 1 to 1e18, or such as 64M", field="bytes")
    return float(plain)


def _predicted(priced: Priced, unit_si: float, dimension: str, row: Row) -> tuple[float, float | None, float | None]:
    """The value in the row's unit with the ends of its 80 % interval."""
    if dimension == "W":
        if priced.power_w is None:
            raise InputError(f"power is not predicted for '{row.text('op')}'", field="metric")
        return priced.power_w / unit_si, None, None
    if priced.power_w is not None:
        raise InputError(f"'{row.text('unit')}' is no unit of power; wanted W", field="unit")
    low_s, high_s = priced.interval_s or interval(priced.seconds, priced.evidence)
    if dimension == "s":
        if not priced.sized:
            raise InputError(f"a time needs a size; '{row.text('op')}' states none", field="metric")
        return priced.seconds / unit_si, low_s / unit_si, high_s / unit_si
    bus = priced.bus if "bus" in row.text("metric").casefold() else 1.0
    amount = {"FLOP/s": priced.flop, "keys/s": priced.keys}.get(dimension, priced.bytes * bus)
    if not amount > 0:
        raise InputError(f"'{row.text('op')}' has no rate in {row.text('unit')}", field="metric")
    return tuple(amount / seconds / unit_si for seconds in (priced.seconds, high_s, low_s))  # type: ignore[return-value]
