"""Collectives, copies between devices and expert exchanges: the group that a row names, and its price."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from ridgeline.cost import questions
from ridgeline.cost.answer import interval
from ridgeline.cost.formats import form
from ridgeline.cost.machine import Machine
from ridgeline.cost.questions import Worked
from ridgeline.errors import InputError
from ridgeline.facts.machines import link, machines
from ridgeline.facts.machines import machine as catalogued
from ridgeline.facts.readings import reading
from ridgeline.facts.records import Accelerator, Cluster, Tier
from ridgeline.lower.work import Collective, CollectiveKind, Phase
from ridgeline.validate.machines import Machines, place, read_network
from ridgeline.validate.operator_cells import Ask, Priced, priced
from ridgeline.validate.rows import Row

LARGE_BYTES = 2.0**33  # 'large payload' where only a bandwidth is asked [byte]
LARGEST_GROUP = 100_000  # devices of a group [1]

_RING = re.compile(r"\bring\b|nvls disabled|no (?:nvls|sharp)", re.IGNORECASE)
_NETWORK = re.compile(r"infiniband|\bib\b|\bhdr\b|\bndr\b|\bedr\b|roce|ethernet|\befa\b|gb(?:it)?/s", re.IGNORECASE)
_LOOPED = re.compile(r"\b\d{2,}\s*x\b", re.IGNORECASE)
_PAIRS = re.compile(r"pairwise[_ -]?nvlink", re.IGNORECASE)
_EXCHANGE = {"tokens": 4096.0, "hidden": 7168.0, "topk": 8.0}
"""DeepEP's published setting, where a bandwidth is stated without one. Source: DeepEP, README."""


def group(row: Row, part: Accelerator, source: Machines) -> tuple[Cluster, tuple[str, ...]]:
    """The devices that a row's collective runs over, in the machine that its cells name or imply."""
    op, topology = row.text("op").casefold(), row.text("topology")
    nodes = _count(row, "n_nodes")
    count, notes = _devices(row, op, nodes, source.cluster(part.name).node_devices)
    texts = [topology]
    apart = "low latency" in op and re.match(r"rdma", topology, re.IGNORECASE) is not None
    if apart or (nodes is not None and nodes > 1):
        texts.append(f"{1 if apart else -(-count // max(1, nodes or 1))} devices per node")
    found, more = place(part, count, texts, source)
    if _PAIRS.search(topology) and part.link_bytes_per_s and part.host_bytes_per_s:
        found = _paired(found, part)
        more = (*more, "NVLink joins pairs, PCIe the pairs of a node")
    if _RING.search(topology):
        tiers = tuple(replace(tier, in_network_reduction=False) for tier in found.tiers)
        found, more = replace(found, tiers=tiers), (*more, "no reduction in the switch, as stated")
    return found, (*notes, *more)


def _devices(row: Row, op: str, nodes: int | None, node: int) -> tuple[int, tuple[str, ...]]:
    count = _count(row, "n_devices")
    if count is not None:
        return count, ()
    if nodes is not None and "moe" in op:
        return nodes * node, (f"{node} devices a node (assumed)",)
    if re.search(r"p2p|copy|rdma", op):
        return (1 if "host" in op else 2), ()
    raise InputError("the number of devices is not stated", field="n_devices")


def _count(row: Row, name: str) -> int | None:
    text = row.text(name)
    if not text:
        return None
    if not text.isdecimal() or not 1 <= int(text[:12]) <= LARGEST_GROUP:
        raise InputError(f"'{text[:24]}' is no count from 1 to {LARGEST_GROUP}", field=name)
    return int(text)


def _paired(found: Cluster, part: Accelerator) -> Cluster:
    """Nodes whose bridges join two devices each; PCIe joins the pairs."""
    host = part.host_bytes_per_s or 0.0
    bus = min(("pcie3", "pcie4", "pcie5"), key=lambda name: abs(link(name).bandwidth.value - host))
    node = found.node_devices if found.count <= found.node_devices else found.tiers[0].size
    pair = Tier(
        name=found.tiers[0].name if found.tiers[0].name.startswith("nvlink") else "nvlink3",
        size=min(2, found.count),
        bytes_per_s=part.link_bytes_per_s or host,
        latency_s=link("nvlink3").latency.value,
        topology="switch",
    )
    shared = Tier(name=bus, size=node, bytes_per_s=host, latency_s=link(bus).latency.value, topology="bus")
    inner = [tier for tier in (pair, shared) if tier.size > 1]
    outer = [tier for tier in found.tiers[1:] if tier.size > node]
    if node == 1:
        inner, outer = [], list(found.tiers)
    kept = inner[:1] if inner and inner[0].size >= found.count else [*inner, *outer]
    return replace(found, tiers=tuple(kept) or found.tiers)


def collective(ask: Ask) -> Priced:
    """A collective over the whole group; `bytes` is the whole buffer of one rank, busbw as nccl-tests tells it."""
    named = reading("collective", words=ask.op)
    assert named is not None  # its family was told by the same reading
    kind = CollectiveKind(named.value)
    ranks = ask.machine.cluster.count
    if ranks < 2:
        raise InputError(f"{kind.value} needs at least 2 devices; got {ranks}", field="n_devices")
    if re.search(r"\bosu\b|\bmpi\b", f"{ask.op} {ask.library}", re.IGNORECASE) and "nccl" not in ask.library.casefold():
        raise InputError("messages of MPI go through host memory, which is not modelled", field="library")
    size, sized = ask.shape.get("bytes"), "bytes" in ask.shape
    size = LARGE_BYTES if size is None else size
    ring = {CollectiveKind.ALL_REDUCE: 2.0 * (ranks - 1) / ranks, CollectiveKind.SEND: 1.0}
    bus = ring.get(kind, (ranks - 1) / ranks)
    notes = () if sized else (f"size not stated: {LARGE_BYTES / 2**30:g} GiB (assumed)",)
    cost = replace(_collective(ask, ask.machine, kind, size, notes), bus=bus, sized=sized)
    rates = _unstated_networks(ask)
    if rates is None:
        return cost
    slow, fast = (_collective(ask, _rewired(ask.machine, rate), kind, size, notes) for rate in rates)
    ends = [end.interval_s or interval(end.seconds, end.evidence) for end in (fast, slow)]
    told = f"network not stated: {rates[0] / 1e9:.3g} to {rates[1] / 1e9:.3g} GB/s a device in the catalog's machines"
    return replace(cost, interval_s=(ends[0][0], ends[1][1]), assumptions=(*cost.assumptions, told))


def _unstated_networks(ask: Ask) -> tuple[float, float] | None:
    """10 % and 90 % quantile of the networks that catalogued machines with the device have [byte/s of one device].

    None where the group stays in its node, the cells state a rate, or the catalog has no other machine. Never without
    the machine's own.
    """
    cluster, said = ask.machine.cluster, read_network(ask.words)
    stated = said.node_bytes_per_s or said.device_bytes_per_s or _NETWORK.search(ask.words)
    if len(cluster.tiers) < 2 or stated or cluster.count <= cluster.tiers[0].size:
        return None
    known = [
        catalogued(name).outside[0].bytes_per_s
        for name, row in machines().items()
        if row["accelerator"] == cluster.accelerator.name and catalogued(name).outside
    ]
    own = cluster.tiers[1].bytes_per_s
    slow, fast = np.quantile([*known, own], (0.1, 0.9))
    return (min(float(slow), own), max(float(fast), own)) if known else None


def _rewired(found: Machine, rate: float) -> Machine:
    """The machine with another rate of its network [byte/s of one device]."""
    tiers = (found.tiers[0], *(replace(tier, bytes_per_s=rate) for tier in found.tiers[1:]))
    return replace(found, tiers=tiers)


def _collective(ask: Ask, found: Machine, kind: CollectiveKind, size: float, notes: tuple[str, ...]) -> Priced:
    """A collective over the whole group of a machine; both ways at once it takes half the time."""
    asking, ranks = replace(ask, machine=found), found.cluster.count
    if kind is CollectiveKind.SEND:
        work = Collective(name=kind.value, phase=Phase.FORWARD, kind=kind, bytes=size, ranks=ranks, stride=1)
        cost = priced(kind.value, Worked(works=(work,), form=form("any")), asking, notes=notes)
    else:
        said = ask.library.casefold()
        in_place = kind is CollectiveKind.ALL_REDUCE and re.search(r"in-place|torch", said) is not None
        eager = re.search(r"nccl-tests|torch|\bmpi\b", said) is not None
        alone = _timed_alone(ask)
        notes = (*notes, "each call timed between synchronisations") if alone else notes
        asked = questions.collective(kind, size, ranks, found, in_place=in_place, eager=eager, alone=alone)
        cost = priced(kind.value, asked, asking, notes=notes)
    both = 2.0 if not cost.rung and re.search(r"bidirectional|duplex", ask.op) else 1.0
    return replace(cost, seconds=cost.seconds / both)


def _timed_alone(ask: Ask) -> bool:
    """Whether a benchmark waits for each call, as PyTorch's do: a barrier, an event, the call, an event, a wait.

    nccl-tests and MPI loop over calls; a profiler reads the kernels' own times; a row may say how many calls it loops.
    Source: stas00/ml-engineering network/benchmarks/all_reduce_bench.py, NVIDIA/nccl-tests src/common.cu.
    """
    return (
        "torch" in ask.library.casefold() and "profil" not in ask.library.casefold() and not _LOOPED.search(ask.notes)
    )


def exchange(ask: Ask) -> Priced:
    """Tokens sent to their experts' ranks or combined again [s].

    A rate is of all bytes that the slower network carries, a rank's own included, as DeepEP counts: low-latency kernels
    send every one of top_k copies on its own, normal ones a token once to each of R places that it reaches,
    R (1 - (1 - 1/R)^top_k) on average: nodes, or ranks of one.
    """
    cells = {name: ask.shape.get(name) or _worded(name, ask.words) for name in _EXCHANGE}
    stated = all(value is not None for value in cells.values())
    tokens, hidden, top_k = (cells[name] or _EXCHANGE[name] for name in _EXCHANGE)
    cluster = ask.machine.cluster
    ranks, node = cluster.count, max(1, min(cluster.tiers[0].size, cluster.count))
    if ranks < 2:
        raise InputError("experts are exchanged between at least 2 devices", field="n_devices")
    combine, quick, experts = "combine" in ask.op, "low latency" in ask.op, ask.shape.get("experts", 256.0)
    asked = questions.exchange(
        tokens, hidden, top_k, experts, ask.machine, combine=combine, quick=quick, sms=ask.shape.get("sms", 20.0)
    )
    notes = ["fp8 with fp32 scales out, bf16 back (assumed)", "balanced routing (assumed)"]
    if stated and "experts" not in ask.shape:
        notes.append(f"{experts:g} experts (assumed)")
    if not stated:
        notes.append("4096 tokens, hidden 7168, top 8: DeepEP's published setting (assumed)")
    token_bytes = tokens * hidden * (questions.BF16_ROW if combine else questions.FP8_ROW)
    copies = top_k if quick else questions.places_reached(ranks if ranks <= node else -(-ranks // node), top_k)
    asking = ask if stated else replace(ask, rungs=())  # a rate of unknown sizes is the links', not some kernels'
    cost = priced("expert exchange", asked, asking, notes=notes)
    return replace(cost, bytes=token_bytes * float(copies), sized=stated)


_WORDS = {
    "tokens": r"(\d{1,9})(k?)\s*tokens",
    "hidden": r"hidden[ =](\d{1,9})()",
    "topk": r"top-?(\d{1,4})()(?!\s*groups|\d)",
}


def _worded(name: str, text: str) -> float | None:
    """A setting that the topology cell words: '8K tokens hidden 7168 top-8' [1]."""
    match = re.search(_WORDS[name], text.casefold())
    return float(match[1]) * (1024 if match[2] else 1) if match and int(match[1]) else None
