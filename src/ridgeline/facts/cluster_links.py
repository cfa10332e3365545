"""The tables `[links]` and `[[group]]` of a machine's file: links between nodes that are not all alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ridgeline.facts.file_quantities import FileTable, Name, Rate, Seconds, read_quantity
from ridgeline.facts.records import Evidence, Fabric, Fact, Tier
from ridgeline.facts.user_files import SAID, Toml

if TYPE_CHECKING:
    from ridgeline.facts.measured_links import MeasuredLinks


class LinksTable(FileTable):
    """Measured speeds between nodes, one way and for each device: a table of pairs, or matrices by row of senders."""

    file: Name | None = None
    bandwidth: Annotated[list[list[Rate]], Field(max_length=1024)] | None = None
    latency: Annotated[list[list[Seconds]], Field(max_length=1024)] | None = None


class GroupTable(FileTable):
    """Nodes whose interfaces are alike; groups of other kinds are reached over the outermost tier."""

    kind: Name
    nodes: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    bandwidth: Rate
    latency: Seconds | None = None


def links_of(
    table: LinksTable, groups: Sequence[GroupTable], source: Toml, fact: Fact, *, tiers: Sequence[Tier], count: int
) -> MeasuredLinks | None:
    """The links of each pair of nodes that the file describes, None where it says no more than tiers."""
    if table == LinksTable() and not groups:
        return None
    from ridgeline.facts import measured_links as links

    nodes = -(-count // tiers[0].size)
    place = "group" if groups else "links"
    if not 2 <= nodes <= links.MOST_NODES:
        told = f"{count} devices are {nodes} groups of the innermost tier of {tiers[0].size}"
        source.fail(f"{told}; links differ between 2 to {links.MOST_NODES}", (place,))
    outer = (tiers[-1].bytes_per_s / tiers[-1].oversubscription, tiers[-1].latency_s)
    if groups:
        if table != LinksTable():
            source.fail("says links a second time; leave [links] or [[group]] out", ("links",))
        said = sum(group.nodes for group in groups)
        if said != nodes:
            source.fail(
                f"groups have {said} nodes, the cluster {nodes} of {tiers[0].size} devices", ("group", 0, "nodes")
            )
        kinds = [
            links.NodeGroup(
                kind=group.kind, nodes=group.nodes, bytes_per_s=group.bandwidth,
                latency_s=tiers[-1].latency_s if group.latency is None else group.latency,
            )
            for group in groups
        ]  # fmt: skip
        return links.grouped(kinds, outer, replace(fact, evidence=Evidence.DATASHEET, conditions=SAID))
    if table.file is not None:
        if table.bandwidth is not None or table.latency is not None:
            source.fail("names a file beside a matrix; leave one of them out", ("links", "file"))
        return links.read_links(
            Path(source.name).parent / table.file, nodes, outer, fact,
            lambda cell, unit: read_quantity(float(cell) if _bare(cell) else cell, unit, zero=unit == "s"),
        )  # fmt: skip
    if table.bandwidth is None:
        source.fail("needs file = 'links.tsv' or bandwidth = [[...]]", ("links",))
    return _matrices(table, nodes, outer[1], source, fact)


def _matrices(table: LinksTable, nodes: int, latency_s: float, source: Toml, fact: Fact) -> MeasuredLinks:
    import numpy as np

    from ridgeline.facts.measured_links import MeasuredLinks

    for name, rows in (("bandwidth", table.bandwidth), ("latency", table.latency)):
        lengths = [nodes] if rows is None else [len(rows), *map(len, rows)]
        wrong = next((length for length in lengths if length != nodes), None)
        if wrong is not None:
            source.fail(f"has {wrong} rows or columns, needs {nodes}, one for each node", ("links", name))
    return MeasuredLinks(
        bytes_per_s=np.array(table.bandwidth, dtype=float),
        latency_s=np.full((nodes, nodes), latency_s) if table.latency is None else np.array(table.latency, dtype=float),
        groups=np.zeros(nodes, dtype=np.int64),
        fact=fact,
    )


def _bare(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


MOST_DEVICES = 65_536  # of a fabric whose flows are followed link by link
Few = Annotated[int, Field(strict=True, ge=1, le=4096)]


class FabricTable(FileTable):
    """Switches of the outermost tier; without `uplink` its links carry what the tier's oversubscription says."""

    leaf_devices: Annotated[int, Field(strict=True, ge=1, le=MOST_DEVICES)]
    spines: Few
    rails: Few = 1
    ports: Few = 1
    uplink: Rate | None = None


def fabric_of(
    table: FabricTable | None, source: Toml, tiers: tuple[Tier, ...], count: int, *, unlike: bool
) -> tuple[Fabric | None, tuple[Tier, ...]]:
    """The fabric that a file tells, None where it tells none, and the tiers beside it.

    The outermost tier is then not oversubscribed as a whole: its links are. Raises `InputError` for switches that do
    not hold the cluster's nodes, or beside links of their own.
    """
    if table is None:
        return None, tiers
    inner, outer = (tiers[-2].size if len(tiers) > 1 else 1), tiers[-1]
    if unlike:
        source.fail("beside [links] or [[group]], which say what each pair of nodes has; leave one out", ("fabric",))
    if count > MOST_DEVICES:
        source.fail(f"{count:,} devices; flows are followed for at most {MOST_DEVICES:,}", ("fabric",))
    if table.leaf_devices % inner:
        told = f"{table.leaf_devices} is no multiple of the {inner} devices of the tier inside"
        source.fail(told, ("fabric", "leaf_devices"))
    if table.rails > inner:
        source.fail(f"{table.rails} rails, a node has {inner} devices", ("fabric", "rails"))
    if table.uplink is not None and outer.oversubscription != 1.0:
        source.fail("says again what the tier's oversubscription does; leave one out", ("fabric", "uplink"))
    into = outer.bytes_per_s * table.leaf_devices / (table.rails * table.ports)
    found = Fabric(
        leaf_devices=table.leaf_devices, spines=table.spines, rails=table.rails, ports=table.ports,
        uplink_bytes_per_s=table.uplink or into / (table.spines * outer.oversubscription),
    )  # fmt: skip
    return found, (*tiers[:-1], replace(outer, oversubscription=1.0))
