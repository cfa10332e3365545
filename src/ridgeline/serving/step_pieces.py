"""What the pieces of an iteration take over rows of tokens or sequences, each kind of them asked once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.clocks import clock_share
from ridgeline.cost.engine_kernels import OwnKernels
from ridgeline.cost.formats import Formats
from ridgeline.cost.machine import Machine, of_kind
from ridgeline.cost.seconds import Seconds, nothing
from ridgeline.cost.served import MEASURED_SKEW, ServedPrices
from ridgeline.cost.served_compressed import hyper_connected
from ridgeline.facts.engine_kernels import by_batch
from ridgeline.facts.mechanisms import constant
from ridgeline.lower.pieces import (
    Core,
    ElementwisePiece,
    ExpertAllToAll,
    Experts,
    HyperConnection,
    LayerKind,
    Piece,
    Product,
    Recurrence,
    Reduce,
    Served,
)
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.serving import Adapters, Disaggregation, HostExperts, Placement
from ridgeline.seams.serving import of as chosen
from ridgeline.serving.adapters import adapter_kernels
from ridgeline.serving.launches import launches, served_counts
from ridgeline.serving.nano import sorted_out
from ridgeline.serving.split import memory_only

Array = NDArray[np.float64]


class PieceTimes:
    """Prices the pieces of a `served` model; `prices` answers, `expert_prices` for experts on devices of their own.

    Experts by the kernels that their backend has for iterations with `prompts`, or for steps.
    """

    def __init__(
        self, served: Served, machine: Machine, deployment: Deployment, formats: Formats, own: OwnKernels,
        shelf: Shelf, *, prompts: bool,
    ) -> None:  # fmt: skip
        self._served, self._deployment, self._shelf = served, deployment, shelf
        self._uneven = chosen(deployment, Placement).imbalance or 1.0
        own = replace(own, hybrid=any(isinstance(piece, Recurrence) for kind in served.kinds for piece in kind.pieces))
        self._known, self.prices = shelf.prices(machine, formats, deployment, own, prompts=prompts)
        self._experts_known, self.expert_prices = self._known, self.prices
        if deployment.expert_kind:
            there = of_kind(machine, deployment.expert_kind)
            self._experts_known, self.expert_prices = shelf.prices(there, formats, deployment, own, prompts=prompts)

    def bound(self, rows: Array, *kinds: str) -> tuple[Seconds, Seconds, Seconds, Seconds]:
        """Kernels over `rows` that wait for compute, for memory, and for links, and memory's busy time [s]."""
        compute = memory = network = busy = nothing(rows.shape)
        for of in kinds:
            network = network + self.sum(rows, of, links=True)
            for found, times in self._priced(rows, of, links=False):
                one, two = sorted_out(found.times(times))
                compute, memory = compute + one, memory + two
                busy = busy + memory_only(found.times(times))
        return compute.alike, memory.alike, network, busy

    def _get(self, of: str, piece: Piece, grids: tuple[Array, ...], ask: Callable[[], Seconds]) -> Seconds:
        """The price of a piece on grids, from the shelf where it has been asked before [s]."""
        ranks = self._deployment.tp if isinstance(piece, Reduce) else 1
        known = self._experts_known if isinstance(piece, Experts) else self._known
        key = (known, of, piece, ranks, *((grid.shape, grid.tobytes()) for grid in grids))
        return self._shelf.get(key, ask)

    def mixers(self, of: str, grids: tuple[Array, Array], price: Callable[[Core | Recurrence], Seconds]) -> Seconds:
        """The attention and scans of all layers, each kind of them asked once [s]."""
        counts: dict[Core | Recurrence, int] = {}
        for kind in self._served.kinds:
            for piece in kind.pieces:
                if isinstance(piece, Core | Recurrence):
                    counts[piece] = counts.get(piece, 0) + kind.count
        total: Seconds | None = None
        for mixer, count in counts.items():
            part = self._get(of, mixer, grids, partial(price, mixer)).times(count)
            part = part.streamed() if self.prices.own.pipelined else part
            total = part if total is None else total + part
        return total.alike if total is not None else nothing((1, 1))

    def sum(self, rows: Array, of: str, *, links: bool | None = None) -> Seconds:
        """What all layers and ends take for `rows` of one sort, with `links` only those pieces that use them [s].

        Shapes' own errors average out within one iteration, and come again in the next.
        """
        if self.prices.own.pipelined and links is None:
            return self._slowest(rows, of)
        total = nothing(rows.shape)
        for found, times in self._priced(rows, of, links=links):
            total = total + found.times(times)
        return total.alike

    def _slowest(self, rows: Array, of: str) -> Seconds:
        """What rows take that stream through all layers as one kernel; passes never leave the chip [s]."""
        kernels = links = nothing(rows.shape)
        for found, times in self._priced(rows, of, links=True):
            links = links + found.times(times)
        for found, times in self._priced(rows, of, links=False, passes=False):
            kernels = kernels + found.times(times)
        return kernels.streamed(links).alike

    def under_load(self, rows: Array) -> Seconds:
        """What `rows` of tokens take outside attention and experts, at the clock that the power limit leaves [s].

        Short runs, by which kernels were fitted, end before the limit acts; so may a pass at the low end of its
        interval. At the high end what runs among products draws what the hungriest device does.
        """
        total = self.sum(rows, "tokens")
        found: list[tuple[Array, Array]] = []
        for piece, count in self._by_rows.get("tokens", ()):
            if isinstance(piece, Product):
                times = self._get("tokens", piece, (rows,), partial(self._piece, piece, rows)).mid
                heat = self.prices.heat(piece, rows, times)
                found += [] if heat is None else [(count * times, heat)]
        if not any((heat > 1.0).any() for _, heat in found):
            return total
        products, heats = (np.stack(column) for column in zip(*found, strict=True))
        whole = products.sum(axis=0)
        other = total.mid - whole + self.sum(rows * self._deployment.dp, "group").mid
        added = [
            whole * (1.0 / clock_share(products, heats, other, other_power=constant(key)) - 1.0)
            for key in ("power.memory", "power.memory.high")
        ]
        return replace(
            total, mid=total.mid + added[0], high=total.high + added[1], compute=total.compute + added[0]
        )  # fmt: skip

    def _priced(
        self, rows: Array, of: str, *, links: bool | None, passes: bool = True
    ) -> Iterable[tuple[Seconds, int]]:
        """Each piece over `rows` of one sort ('tokens', 'shared', 'group' or 'sequences') and how often it runs."""
        for piece, times in self._by_rows.get(of, ()):
            if isinstance(piece, ElementwisePiece) and not passes:
                continue
            if isinstance(piece, Experts) and not links:
                fullest = rows * self._uneven
                alike = self._deployment.options.alike and piece.ranks == 1
                apart = chosen(self._deployment, Disaggregation)
                taken = replace(piece, count=piece.top_k if alike else piece.count - apart.replicas)
                placed = chosen(self._deployment, Placement)
                found = placed.computed(taken, self.expert_prices, fullest, self._deployment.dp)
                found = found or chosen(self._deployment, HostExperts).computed(taken, self.expert_prices, fullest)
                found = found or self._get(of, taken, (fullest,), partial(self._piece, taken, fullest))
                yield found.times(apart.uneven(piece, fullest, self.expert_prices.skew)), times
            elif links in (None, isinstance(piece, Reduce | ExpertAllToAll)):
                yield self._get(of, piece, (rows,), partial(self._piece, piece, rows)), times

    def of_pieces(self, pieces: Iterable[Piece], rows: Array) -> Seconds:
        """What some pieces take over `rows` of tokens, one of each and mixers left out [s]."""
        total = nothing(rows.shape)
        for piece in pieces:
            if _rows_of(piece) == "tokens":
                total = total + self._get("tokens", piece, (rows,), partial(self._piece, piece, rows))
        return total.alike

    @cached_property
    def _by_rows(self) -> dict[str, list[tuple[Piece, int]]]:
        """Pieces that work on rows of a sort, in the order of the model, and how often each runs in an iteration."""
        asked: dict[Piece, int] = {}
        for count, pieces in self._pieces():
            for piece in pieces:
                asked[piece] = asked.get(piece, 0) + count
        found: dict[str, list[tuple[Piece, int]]] = {}
        for piece, times in asked.items():
            found.setdefault(_rows_of(piece), []).append((piece, times))
        return found

    def _piece(self, piece: Piece, rows: Array) -> Seconds:
        match piece:
            case Product():
                return self.prices.product(piece, rows)
            case Experts():
                return self.expert_prices.experts(piece, rows)
            case ElementwisePiece():
                return self.prices.stream(piece, rows)
            case HyperConnection():
                return hyper_connected(self.prices, piece, rows)
            case Reduce():
                reduce = self.prices.reduced_on_the_way if self.prices.own.pipelined else self.prices.reduce
                return reduce(piece, rows, self._deployment.tp)
            case ExpertAllToAll():
                return self.prices.expert_all_to_all(piece, rows)
            case _:
                raise AssertionError(piece)

    def _pieces(self) -> Iterable[tuple[int, tuple[Piece, ...]]]:
        kinds: Iterable[LayerKind] = self._served.kinds
        return (*((kind.count, kind.pieces) for kind in kinds), (1, self._served.embedding), (1, self._served.head))

    @cached_property
    def kernels(self) -> float:
        """Launches of one iteration [1]."""
        counts, casts = served_counts(), self.prices.quantizes_activations
        return adapter_kernels(self._served, chosen(self._deployment, Adapters)) + sum(
            count * sum(launches(piece, counts, casts) for piece in pieces) for count, pieces in self._pieces()
        )


def _rows_of(piece: Piece) -> str:
    if isinstance(piece, Experts | ExpertAllToAll):
        return "group"
    if isinstance(piece, Core | Recurrence):
        return ""
    return piece.rows


@dataclass
class Shelf:
    """Prices that deployments on one machine, of one or two kinds of devices, share: a piece is asked once on a grid.

    `rungs_used` of shared prices tells what answered any of those deployments.
    """

    _prices: dict[Hashable, ServedPrices] = field(default_factory=dict)
    _found: dict[Hashable, Seconds] = field(default_factory=dict)

    def prices(
        self, machine: Machine, formats: Formats, deployment: Deployment, own: OwnKernels, *, prompts: bool
    ) -> tuple[Hashable, ServedPrices]:
        """What prices a deployment in these formats, and the key under which it is known.

        Backends of experts may have other kernels for iterations with `prompts`.
        """
        skew = MEASURED_SKEW if deployment.expert_skew is None else deployment.expert_skew
        skew = skew if chosen(deployment, Placement).imbalance is None else 0.0  # the fullest rank's rows are known
        kind = machine.cluster.accelerator.name
        backend, products = deployment.options.expert_backend, deployment.options.product_backend
        key = (
            kind, formats, deployment.engine, deployment.version, skew, own, backend, products,
            prompts and by_batch(backend),
        )  # fmt: skip
        if key not in self._prices:
            self._prices[key] = ServedPrices(
                machine, formats, engine=deployment.engine, version=deployment.version, skew=skew,
                own=own.with_products(deployment.engine, products), expert_backend=backend, prompts=prompts,
            )  # fmt: skip
        return key, self._prices[key]

    def get(self, key: Hashable, ask: Callable[[], Seconds]) -> Seconds:
        """The price under a key, asked for where it is not known yet [s]."""
        if key not in self._found:
            self._found[key] = ask()
        return self._found[key]
