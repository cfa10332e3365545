"""Speeds of each link between nodes: a matrix, a table of pairs or groups of nodes with unlike interfaces.

Shape letters: N nodes, groups of the cluster's innermost tier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.facts.records import Fact
from ridgeline.facts.user_files import MIB, FileKind, read_user_file

MOST_NODES = 1024
_COLUMNS = ("from", "to", "bandwidth", "latency")
LINKS = FileKind(what="a table of links", most_bytes=64 * MIB, most_lines=2 * MOST_NODES**2, most_line_bytes=1000)


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredLinks:
    """What a node sends each other one over, (N, N), rows of senders: [byte/s] one way, for each device, and [s].

    `groups` (N,) numbers the group of alike interfaces that a node is in; all 0 where nobody said any.
    """

    bytes_per_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    groups: NDArray[np.int64]
    fact: Fact

    @property
    def nodes(self) -> int:
        """Nodes N [1]."""
        return len(self.groups)

    @property
    def best(self) -> tuple[float, float]:
        """The highest rate of a link [byte/s] and the lowest latency of one [s]."""
        between = ~np.eye(self.nodes, dtype=bool)
        return float(self.bytes_per_s[between].max()), float(self.latency_s[between].min())

    @property
    def worst(self) -> tuple[float, float]:
        """The lowest rate of a link [byte/s] and the highest latency of one [s]."""
        between = ~np.eye(self.nodes, dtype=bool)
        return float(self.bytes_per_s[between].min()), float(self.latency_s[between].max())


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes one after the other with alike interfaces: their rate among each other [byte/s], one way, and latency [s].

    `kind` is what they speak: groups of one kind reach each other at the lower of their rates, others over the
    cluster's outermost tier.
    """

    kind: str
    nodes: int
    bytes_per_s: float
    latency_s: float


def grouped(groups: Sequence[NodeGroup], outer: tuple[float, float], fact: Fact) -> MeasuredLinks:
    """The links of groups of nodes; `outer` joins what speaks unlike kinds, [byte/s] and [s]."""
    kinds = sorted({group.kind for group in groups})
    rate = np.concatenate([np.full(group.nodes, group.bytes_per_s) for group in groups])
    wait = np.concatenate([np.full(group.nodes, group.latency_s) for group in groups])
    kind = np.concatenate([np.full(group.nodes, kinds.index(group.kind)) for group in groups])
    alike = kind[:, None] == kind[None, :]
    return MeasuredLinks(
        bytes_per_s=np.where(alike, np.minimum(rate[:, None], rate[None, :]), outer[0]),
        latency_s=np.where(alike, np.maximum(wait[:, None], wait[None, :]), outer[1]),
        groups=kind.astype(np.int64),
        fact=fact,
    )


def read_links(
    path: Path, nodes: int, outer: tuple[float, float], fact: Fact, read: Callable[[str, str], float]
) -> MeasuredLinks:
    """The links of a table of pairs: columns from, to, bandwidth and, if measured, latency.

    Pairs that it leaves out are joined as its other direction is, else at `outer` [byte/s] and [s]. `read` turns a
    cell and its unit into a number. Raises `InputError` with file and line.
    """
    rate = np.full((nodes, nodes), np.nan)
    wait = np.full((nodes, nodes), np.nan)
    for line, first, second, cells in _pairs(path, nodes):
        for table, cell, unit in zip((rate, wait), cells, ("byte/s", "s"), strict=False):
            if not np.isnan(table[first, second]):
                _fail(path, line, f"says the link from {first} to {second} a second time")
            try:
                table[first, second] = read(cell, unit)
            except ValueError as error:
                _fail(path, line, f"{cell[:40]!r}: {error}")
    rate, wait = (np.where(np.isnan(table), table.T, table) for table in (rate, wait))
    return MeasuredLinks(
        bytes_per_s=np.where(np.isnan(rate), outer[0], rate),
        latency_s=np.where(np.isnan(wait), outer[1], wait),
        groups=np.zeros(nodes, dtype=np.int64),
        fact=fact,
    )


def _pairs(path: Path, nodes: int) -> Iterator[tuple[int, int, int, list[str]]]:
    """Line, two nodes and the cells behind them of each row."""
    columns: list[str] | None = None
    for line, text in enumerate(read_user_file(path, LINKS, field="links.file").lines(), start=1):
        cells = [cell.strip() for cell in text.split("\t")]
        if not text.strip() or text.startswith("#"):
            continue
        if columns is None:
            columns = cells
            if tuple(columns) not in (_COLUMNS, _COLUMNS[:3]):
                _fail(path, line, f"needs the columns {', '.join(_COLUMNS)} (latency may be left out), apart by tabs")
            continue
        if len(cells) != len(columns):
            _fail(path, line, f"has {len(cells)} cells, needs {len(columns)}, apart by tabs")
        first, second = (_node(path, line, cell, nodes) for cell in cells[:2])
        if first == second:
            _fail(path, line, f"joins node {first} with itself; links inside nodes are the innermost [[tier]]'s")
        yield line, first, second, cells[2:]
    if columns is None:
        _fail(path, 1, "is empty; needs the columns from, to, bandwidth, latency")


def _node(path: Path, line: int, cell: str, nodes: int) -> int:
    if not cell.isdecimal() or len(cell) > 9 or int(cell) >= nodes:
        _fail(path, line, f"{cell[:20]!r} is no node; needs a number from 0 to {nodes - 1}")
    return int(cell)


def _fail(path: Path, line: int, message: str) -> NoReturn:
    raise InputError(message, file=str(path), line=line, field="links")
