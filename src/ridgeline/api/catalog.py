"""The command `catalog`: what ships with the package, each fact with source and evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ridgeline.api.answer import Answer
from ridgeline.facts.records import Accelerator, Cluster, Fact
from ridgeline.graph.model import Model
from ridgeline.report.as_json import as_value, cluster_as_dict, model_as_dict, picked
from ridgeline.report.blocks import Block, Line, Table, blank
from ridgeline.report.text import count_text
from ridgeline.units import bytes_text, rate_text, time_text

if TYPE_CHECKING:
    from ridgeline.facts.cpus import Cpu

_WIDTH = 160  # columns of a list that is piped
Forms = tuple[list[Block], Any]  # the printed and the JSON form


def catalog(given: SimpleNamespace) -> Answer:
    """Prints the list of a kind, or all facts of one name."""
    listed, told = KINDS[given.kind]
    blocks, answer = listed() if given.name is None else told(given.name)
    answer = {"kind": given.kind, "entries": answer} if given.name is None else answer
    return Answer(lambda: answer, lambda: blocks, width=_WIDTH)


def fact_text(fact: Fact) -> str:
    """A fact's value with its unit, for people."""
    match fact.unit:
        case "byte":
            return bytes_text(fact.value)
        case "byte/s":
            return rate_text(fact.value, "B/s")
        case "FLOP/s" | "Hz" | "W":
            return rate_text(fact.value, fact.unit)
        case "s":
            return time_text(fact.value)
        case unit:
            return f"{fact.value:g}" + ("" if unit == "1" else f" {unit}")


def _facts(facts: Mapping[str, Fact]) -> Table:
    rows = [(name, fact_text(f), f.evidence.label, f.source, f.conditions) for name, f in facts.items()]
    return Table(
        columns=("fact", "value", "evidence", "source", "conditions"), rows=tuple(rows), right=frozenset({"value"})
    )


def _list(
    found: Iterable[Any],
    row: Callable[[Any], tuple[str, ...]],
    told: Callable[[Any], Any],
    columns: Sequence[str],
    right: slice,
) -> Forms:
    """Entries as the rows of a table, of which some columns align right, and as JSON."""
    known = list(found)
    table = Table(columns=tuple(columns), rows=tuple(map(row, known)), right=frozenset(columns[right]), indent=0)
    return [table], [told(one) for one in known]


def _models() -> Forms:
    from ridgeline.graph.load import catalog as names
    from ridgeline.graph.load import load
    from ridgeline.graph.networks import networks

    def row(model: Model) -> tuple[str, ...]:
        positions = "" if model.max_positions is None else str(model.max_positions)
        sizes = count_text(model.graph.params), count_text(model.graph.active_params), str(len(model.graph.layers))
        return model.name, model.model_type, *sizes, positions

    columns = ("model", "type", "parameters", "active", "layers", "positions")
    return _list(map(load, (*names(), *networks())), row, model_as_dict, columns, slice(2, None))


def _model(name: str) -> Forms:
    from ridgeline.graph.checkpoint import checkpoint_weights
    from ridgeline.graph.load import load

    model: Model = load(name)
    rows = tuple((key, str(value)) for key, value in model.dims.items())
    rows += (("checkpoint's weights", checkpoint_weights(model.config) or "16 bits"),)
    graph = model.graph
    sizes = f"{graph.params:,} parameters, {graph.active_params:,} active, {len(graph.layers)} layers"
    blocks: list[Block] = [
        Line(text=f"{model.name}: {model.model_type}, {sizes}", strong=True),
        Line(text=f"source: {model.source}"),
        *(Line(text=f"note: {note}", hang=2) for note in model.notes),
        blank(),
        Table(columns=("dimension", "value"), rows=rows, right=frozenset({"value"})),
    ]
    return blocks, {**model_as_dict(model), "dims": as_value(model.dims), "weights": checkpoint_weights(model.config)}


def _accelerators() -> Forms:
    from ridgeline.facts.accelerators import accelerators

    columns = ("accelerator", "vendor", "year", "memory", "memory rate", "bf16", "fp8", "power")
    return _list(accelerators().values(), _accelerator_row, _accelerator_dict, columns, slice(2, None))


def _accelerator_row(one: Accelerator) -> tuple[str, ...]:
    rates = [one.peak_flop_per_s.get(name) for name in ("bf16", "fp8")]
    return (
        one.name,
        one.vendor,
        "" if one.year is None else str(one.year),
        bytes_text(one.memory_bytes),
        rate_text(one.memory_bytes_per_s, "B/s"),
        *("" if rate is None else rate_text(rate, "FLOP/s") for rate in rates),
        "" if one.tdp_w is None else rate_text(one.tdp_w, "W"),
    )


def _accelerator(name: str) -> Forms:
    from ridgeline.facts.accelerators import accelerator

    one = accelerator(name)
    blocks: list[Block] = [
        Line(text=f"{one.name}: {one.vendor}, {one.architecture}", strong=True),
        *([Line(text=one.notes, hang=2)] if one.notes else []),
        blank(),
        _facts(one.facts),
    ]
    if one.sustained:
        blocks += [blank(), Line(text="Sustained in long runs", strong=True), _facts(one.sustained)]
    return blocks, _accelerator_dict(one)


def _accelerator_dict(one: Accelerator) -> dict[str, Any]:
    return picked(one, "name", "vendor", "architecture", "facts", "sustained", "notes")


def _clusters() -> Forms:
    from ridgeline.facts.clusters import cluster, clusters

    def row(one: Cluster) -> tuple[str, ...]:
        price = "" if one.price_usd_per_device_h is None else f"${one.price_usd_per_device_h.value:.2f}"
        tiers = ", ".join(f"{tier.name} x{tier.size}" for tier in one.tiers)
        return one.name, one.accelerator.name, str(one.count), price, tiers

    columns = ("machine", "accelerator", "devices", "per device-hour", "network")
    return _list(map(cluster, clusters()), row, cluster_as_dict, columns, slice(2, 4))


def _cluster(name: str) -> Forms:
    from ridgeline.facts.clusters import cluster

    one: Cluster = cluster(name)
    tiers = tuple(
        (
            tier.name,
            str(tier.size),
            rate_text(tier.bytes_per_s, "B/s"),
            time_text(tier.latency_s),
            f"{tier.oversubscription:g}",
            tier.topology,
            "" if tier.fact is None else f"{tier.fact.evidence.label}: {tier.fact.source}",
        )
        for tier in one.tiers
    )
    columns = ("tier", "devices", "one way", "latency", "oversubscribed", "topology", "evidence")
    prices = {"price": one.price_usd_per_device_h, "pue": one.pue, "carbon": one.carbon_kg_per_j}
    blocks: list[Block] = [
        Line(text=f"{one.name}: {one.count} x {one.accelerator.name}, {one.node_devices} per host", strong=True),
        blank(),
        Table(columns=columns, rows=tiers, right=frozenset(columns[1:5])),
        blank(),
        _facts({key: fact for key, fact in prices.items() if fact is not None}),
    ]
    return blocks, cluster_as_dict(one)


def _processors() -> Forms:
    from ridgeline.facts.cpus import cpus

    def row(one: Cpu) -> tuple[str, ...]:
        rates = (rate_text(one.peak[form].value, "FLOP/s") if form in one.peak else "" for form in ("fp32", "bf16"))
        memory = f"{one.channels} x {one.memory_type}", rate_text(one.memory.value, "B/s")
        return one.name, one.vendor, str(one.year), str(one.cores), *memory, *rates

    columns = ("processor", "vendor", "year", "cores", "memory", "rate", "fp32", "bf16")
    return _list(cpus().values(), row, _processor_dict, columns, slice(5, None))


def _processor(name: str) -> Forms:
    from ridgeline.facts.cpus import cpu

    one = cpu(name)
    facts = {"memory": one.memory, **{f"peak.{form}": fact for form, fact in one.peak.items()}}
    title = f"{one.name}: {one.vendor}, {one.cores} cores at {one.clock_hz / 1e9:g} GHz, one socket"
    return [Line(text=title, strong=True), blank(), _facts(facts)], _processor_dict(one)


def _processor_dict(one: Cpu) -> dict[str, Any]:
    own = picked(one, "name", "vendor", "year", "cores", "clock_hz", "channels", "memory_type")
    return {**own, "memory_bytes_per_s": as_value(one.memory), "peak_flop_per_s": as_value(one.peak)}


def _recipes() -> Forms:
    from ridgeline.facts.recipes import recipes

    columns = ("recipe", "engine", "releases", "model", "device", "precision", "settings")
    rows = [
        (one.name, one.engine, one.versions, one.models, one.device, one.precision, str(len(one.rules)))
        for one in recipes().values()
    ]
    told = [dict(zip(columns, row, strict=True)) | {"source": recipes()[row[0]].source} for row in rows]
    return [Table(columns=columns, rows=tuple(rows), right=frozenset({"settings"}), indent=0)], told


def _recipe(name: str) -> Forms:
    from ridgeline.facts.recipes import recipe

    one = recipe(name)
    columns = ("setting", "value", "where", "source", "evidence")
    rows = []
    for rule in one.rules:
        open_ = [f"{part} {getattr(rule, part)}" for part in ("model", "device", "precision")
                 if getattr(rule, part) and not getattr(one, part)]  # fmt: skip
        where = "; ".join(filter(None, (*open_, rule.versions and f"release {rule.versions}", rule.condition)))
        rows.append((rule.key, f"{rule.value} {rule.unit}".strip(), where, rule.source, rule.evidence.label))
    title = ", ".join(filter(None, (one.engine, one.versions, one.models, one.device, one.precision)))
    blocks: list[Block] = [
        Line(text=f"{one.name}: {title}", strong=True), Line(text=f"source: {one.source}"),
        *([Line(text=one.note)] if one.note else []), blank(), Table(columns=columns, rows=tuple(rows)),
    ]  # fmt: skip
    told = {**vars(one), "versions": one.versions, "settings": [dict(zip(columns, row, strict=True)) for row in rows]}
    return blocks, told


KINDS: Mapping[str, tuple[Callable[[], Forms], Callable[[str], Forms]]] = {
    "models": (_models, _model),
    "accelerators": (_accelerators, _accelerator),
    "clusters": (_clusters, _cluster),
    "processors": (_processors, _processor),
    "recipes": (_recipes, _recipe),
}
