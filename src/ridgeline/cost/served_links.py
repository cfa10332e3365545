"""Seconds of what served layers pass over memory and links: elementwise passes, collectives, sends.

Shape letters: T tokens, N sequences, m of R ranks in a node.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.all_reduce import all_reduce_seconds
from ridgeline.cost.engine_kernels import TABLED_ENGINES
from ridgeline.cost.host_times import dispatch_seconds
from ridgeline.cost.machine import Machine, kernel_start_s, outside
from ridgeline.cost.network import collective_seconds, datasheet_links, link_limit_s, path, send_seconds
from ridgeline.cost.seconds import Seconds, limited, unfitted
from ridgeline.facts.mechanisms import constant
from ridgeline.lower.pieces import Core, ElementwisePiece, ExpertAllToAll, Reduce
from ridgeline.lower.work import Collective, CollectiveKind, Number, Phase

Array = NDArray[np.float64]


class LinkPrices:
    """Prices passes, collectives and sends of served layers on one machine with one engine's all-reduces."""

    def __init__(self, machine: Machine, *, engine: str = "", version: str = "") -> None:
        self.machine, self.part, self._datasheet_links = machine, machine.part, datasheet_links(machine)
        self.dispatch_s = dispatch_seconds(self.part)
        self.engine = TABLED_ENGINES.get(engine, "")
        self.version = version if self.engine else ""

    def gaps(self, kernels: float, shape: tuple[int, ...]) -> Seconds:
        """What kernels launched one by one lose to those of a graph, on the device [s]."""
        lost = np.full(shape, kernels * constant("launch.stream"))
        return Seconds(mid=lost, low=0.5 * lost, high=2.0 * lost, compute=0.0 * lost, memory=0.0 * lost)

    def stream(self, piece: ElementwisePiece, rows: Array) -> Seconds:
        """A pass over elements of 16 bits: launch, first load, and bytes at the stream's rate [s].

        A processor that is the device issues a kernel and then runs it, so its launch is the time to issue one.
        """
        return self.streamed(2.0 * piece.elements * rows, piece.kernels)

    def streamed(self, moved_bytes: Array, kernels: float) -> Seconds:
        """Passes over so many bytes by so many kernels [s]."""
        device = self.machine.device
        memory = moved_bytes / (device.memory_bytes_per_s * device.stream_share)
        each_s = device.kernel_s
        if self.dispatch_s is not None:
            each_s = max(self.dispatch_s + 2.0 * device.memory_latency_s, kernel_start_s(self.part))
        mid = memory + kernels * each_s
        return limited(unfitted(mid, memory=memory), moved_bytes / self.part.memory_bytes_per_s)

    def reduce(self, piece: Reduce, rows: Array, ranks: int) -> Seconds:
        """A reduction (or gathering) of 16-bit activations over tensor-parallel ranks [s]."""
        size = 2.0 * piece.width * np.maximum(rows, 1.0)
        if piece.gather:
            found = self.collective(CollectiveKind.ALL_GATHER, size, ranks)
        else:
            found = self.all_reduce(size, ranks)
        return limited(unfitted(found), link_limit_s(self._datasheet_links, size, ranks))

    def reduced_on_the_way(self, piece: Reduce, rows: Array, ranks: int) -> Seconds:
        """How long links are busy with a reduction (or gathering) that is part of the kernels on either side [s].

        t = 2 (R - 1) / R bytes / W, half of it to gather: rows stream through, so that starts are hidden.
        """
        size = (1.0 if piece.gather else 2.0) * 2.0 * piece.width * np.maximum(rows, 1.0) * (ranks - 1.0) / ranks
        return unfitted(np.asarray(size / path(self.machine, ranks, 1).bytes_per_s, dtype=float))

    def all_reduce(self, size_bytes: Array, ranks: int) -> Array:
        """An all-reduce of so many bytes by the engine's kernels or the library's [s]."""
        found = all_reduce_seconds(size_bytes, ranks, self.machine, engine=self.engine, version=self.version)
        return np.asarray(found, dtype=float)

    def collective(self, kind: CollectiveKind, size_bytes: Array, ranks: int, stride: int = 1) -> Array:
        """A collective of the library over `ranks` devices, `stride` apart [s]."""
        work = Collective(name=kind.value, phase=Phase.FORWARD, kind=kind, bytes=size_bytes, ranks=ranks, stride=stride)
        return np.asarray(collective_seconds(work, self.machine), dtype=float)

    def passed_on(self, piece: ExpertAllToAll, tokens: Array) -> Seconds:
        """Rows of the mean rank's `tokens` from expert to expert: out to all of them, and together where they stay [s].

        All-to-alls of as many bytes as keep the busier of both links busy for as long as these rows do:
        B max(i / W, b / W') / max((m - 1) / (R W), (R - m) / (R W')), m of R ranks in a node, i and b rows inside and
        beyond, W and W' the rates.
        """
        where = path(self.machine, piece.ranks, 1)
        alike = (where.inner_ranks - 1.0) / piece.ranks, (piece.ranks - where.inner_ranks) / piece.ranks
        rows = [(2.0 * piece.top_k - 1.0) * share if said is None else np.asarray(said)
                for share, said in zip(alike, (piece.inside, piece.between), strict=True)]  # fmt: skip
        rates = where.inner_bytes_per_s, where.outer_bytes_per_s
        even, here = (
            np.maximum(*(part / rate for part, rate in zip(parts, rates, strict=True))) for parts in (alike, rows)
        )
        exchanges = 2 if piece.top_k > 1 else 1
        size = 2.0 * piece.width * tokens * (here / even) / exchanges
        return unfitted(exchanges * self.collective(CollectiveKind.ALL_TO_ALL, size, piece.ranks))

    def gathered(self, size_bytes: Array, ranks: int) -> Seconds:
        """An all-gather of so many bytes of all ranks together [s]."""
        found = unfitted(self.collective(CollectiveKind.ALL_GATHER, size_bytes, ranks))
        return limited(found, link_limit_s(self._datasheet_links, size_bytes, ranks))

    def context_parts(self, core: Core, sequences: Array) -> Seconds:
        """What ranks that hold parts of contexts send each other for one token of each sequence [s].

        The queries of all are gathered; each rank sends every other its heads' sums over its part, in 16 bits, with
        the weight of the part, in 32; whoever has the head adds them up. Source: sglang, advanced_features/dcp; Helix
        (Bhatia and others, 2025, arXiv:2507.07120), section 2.
        """
        heads = core.heads * core.ranks
        asked = heads * core.query_elements + (core.token_elements if core.kv_heads > 1.0 else 0.0)
        parts = sequences * heads * (2.0 * core.result_elements + 4.0)
        moved = self.collective(CollectiveKind.ALL_GATHER, 2.0 * sequences * asked, core.ranks)
        moved = moved + self.collective(CollectiveKind.ALL_TO_ALL, parts, core.ranks)
        added = self.streamed(parts + 2.0 * sequences * core.heads * core.result_elements, 1.0)
        return unfitted(moved) + added

    def group(self, ranks: int) -> Machine:
        """The machine of `ranks` of the devices."""
        return replace(self.machine, cluster=replace(self.machine.cluster, count=ranks))

    def send(self, size_bytes: Number, stride: int) -> Seconds:
        """Activations sent to the next pipeline stage, `stride` devices away [s]."""
        found, limit = (send_seconds(size_bytes, stride, one) for one in (self.machine, self._datasheet_links))
        return limited(unfitted(np.asarray(found, dtype=float)), np.asarray(limit, dtype=float))

    def outward(self, size_bytes: Array) -> Seconds:
        """Bytes that a device sends to devices of another kind beside it, or takes in from them [s]."""
        end = outside(self.machine)
        return unfitted(np.asarray(send_seconds(size_bytes, end.tiers[0].size, end), dtype=float))
