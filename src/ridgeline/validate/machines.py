"""The cluster a row ran on: the catalog's machine, with node size, slices and rates that the row states."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from ridgeline.errors import ClusterError, InputError
from ridgeline.facts.accelerators import accelerators, canonical
from ridgeline.facts.clusters import cluster, clusters, reach
from ridgeline.facts.machines import default_machine, machine
from ridgeline.facts.readings import readings
from ridgeline.facts.records import Accelerator, Cluster
from ridgeline.validate.hardware import family_keys, read_device
from ridgeline.validate.network import NetworkText, read_network, rewire

_OWN = re.compile(r"^(here|profile:\S.*?)(?: \(([^()]*)\))?$")
"""A machine that `ridgeline calibrate` measured, as `ridgeline measure --append` writes it: 'here (its name)'."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Where machines come from: the accelerators known, clusters by text, and clusters cut into slices.

    `usual(name)` is the catalog name that a bare name such as 'h100' stands for.
    `sliced(name, count, slice)` is `count` chips in slices of `slice` joined by the outer network.
    """

    accelerators: Callable[[], Sequence[Accelerator]]
    usual: Callable[[str], str | None]
    cluster: Callable[[str], Cluster]
    systems: Callable[[], Sequence[tuple[str, str, int]]]  # name, accelerator, devices of one unit
    sliced: Callable[[str, int, int], Cluster]


@cache
def machines() -> Machines:
    """The machines that ship with the package."""
    return Machines(
        accelerators=cache(lambda: tuple(accelerators().values())),
        usual=canonical,
        cluster=cache(cluster),
        systems=cache(lambda: tuple(_system(name) for name in clusters())),
        sliced=cache(_sliced),
    )


def _system(name: str) -> tuple[str, str, int]:
    found = machine(name)
    return found.name, found.accelerator, found.devices


def _sliced(name: str, count: int, size: int) -> Cluster:
    default = cluster(f"{count}x{name}")
    unit = default_machine(default.accelerator, count)
    inside = tuple(replace(tier, size=min(tier.size, size)) for tier in unit.inside)
    return replace(default, tiers=reach(inside, unit.outside, count))


def place(part: Accelerator, count: int, texts: Sequence[str], source: Machines) -> tuple[Cluster, tuple[str, ...]]:
    """`count` devices in the machine that the cells name or imply, else the accelerator's default machine.

    `texts` are the interconnect cell and others that may speak of the network. `part` replaces the
    catalog's accelerator, for rows that state their own memory or power cap.
    """
    said = read_network(*texts)
    found, notes = _base(_wired(part, source), count, said, " ".join(texts), source)
    found, more = rewire(found, said)
    if found.accelerator != part:
        found = replace(found, accelerator=part)
    return found, (*notes, *more)


def own_cluster(text: str, count: int, source: Machines) -> Cluster | None:
    """`count` devices of the machine whose profile a hardware cell names; None for cells that name none.

    Raises InputError where the profile is of another machine than the cell says.
    """
    named = _OWN.match(text)
    if named is None:
        return None
    word, name = named.groups()
    found = source.cluster(f"{count}x{word}")
    if name is not None and not found.accelerator.name.startswith(name):
        raise InputError(f"measured on '{name}', the profile '{word}' is of {found.accelerator.name}", field="hardware")
    return found


def _wired(part: Accelerator, source: Machines) -> str:
    """The name under which the catalog has a machine with the part's own link: its own, or a sibling's.

    'H100-SXM-96GB' has no row of machines, 'H100-SXM' has: the same board with other memory.
    """
    if part.link_name is None or source.cluster(f"2x{part.name}").tiers[0].topology != "bus":
        return part.name
    keys, form = family_keys(part.name), read_device(part.name).form
    for other in source.accelerators():
        same = family_keys(other.name) & keys and read_device(other.name).form == form
        linked = same and other.link_name == part.link_name
        if linked and source.cluster(f"2x{other.name}").tiers[0].topology != "bus":
            return other.name
    return part.name


def _base(name: str, count: int, said: NetworkText, text: str, source: Machines) -> tuple[Cluster, tuple[str, ...]]:
    for known in readings("system", words=text):
        for system, part, devices in source.systems():
            if part == name and system.startswith(known.text):
                units = -(-count // devices)
                return _counted(source.cluster(f"{units}x{system}"), count), (f"machine: {system}",)
    if said.slice_devices is not None and said.slice_devices < count:
        note = f"slices of {said.slice_devices} chips as stated, joined by the outer network"
        return source.sliced(name, count, said.slice_devices), (note,)
    default = source.cluster(f"{count}x{name}")
    node = said.node_devices
    if node is None or node == default.node_devices or count <= min(node, default.node_devices):
        return default, ()
    try:
        nodes = source.cluster(f"{-(-count // node)}x{node}x{name}")
    except ClusterError:
        return default, (f"{node} devices a node as stated do not fit the catalog's {name} machine: default kept",)
    return _counted(nodes, count), (f"{node} devices a node as stated",)


def _counted(found: Cluster, count: int) -> Cluster:
    """The cluster with `count` devices in use; the last node or unit may be part empty."""
    return found if found.count == count else replace(found, count=count)
