"""The sides of an iteration whose weights lie on both: pieces on the device, on the processors, over the link.

Shape letters: T tokens, N sequences, C context, E experts, k experts that a token takes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.formats import form
from ridgeline.cost.host import experts_touched, pageable_bytes_per_s, products_s
from ridgeline.cost.seconds import Seconds, nothing
from ridgeline.cost.served import ServedPrices
from ridgeline.cost.served_compressed import hyper_connected
from ridgeline.errors import PlanError
from ridgeline.facts.cpus import cpu_constant
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.transfer import joined, run_spread
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
)
from ridgeline.serving.hybrid_model import Hybrid
from ridgeline.serving.hybrid_placement import OffloadMethod
from ridgeline.serving.launches import Counts, launches
from ridgeline.serving.two_sides import SIDES as SIDES
from ridgeline.serving.two_sides import crossing_s as crossing_s
from ridgeline.serving.two_sides import expert_params, host_link_bytes_per_s, spread

Array = NDArray[np.float64]
_LAUNCH = {"graph": "launch.host.graph", "native": "launch.host.compiled", "python": "launch.host.eager"}
# operators of routed experts: router, sort, two products, activation, sum
_NODES = Counts(experts=8.0, trade=2.0, scan=2.0)
_WIDE_BYTES = 2.0  # of a weight that products take as it is
_EAGER_PASS = 6.0  # operators of a norm or rotation without fused kernels: cast, square, mean, root, two products


@dataclass(frozen=True, kw_only=True)
class HybridParts:
    """Seconds of iterations by what they are spent on, arrays [s].

    `device` products, attention and their launches, `host` products and copies of the processors, `link` bytes over
    the host link, `sync` starts of copies and calls between the two, `disk` reads; `total` counts what overlaps once.
    """

    device: Array
    host: Array
    link: Array
    sync: Array
    disk: Array
    total: Array

    def __add__(self, other: HybridParts) -> HybridParts:
        return HybridParts(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def times(self, factor: float) -> HybridParts:
        """The same, `factor` times over [s]."""
        return HybridParts(**{name: factor * value for name, value in vars(self).items()})

    def summed(self) -> HybridParts:
        """Iterations one after the other [s]."""
        return HybridParts(**{name: np.atleast_1d(value.sum()) for name, value in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Iterations of T tokens of N sequences, each after `context` cached tokens: parts of prompts, or a token each."""

    tokens: Array
    sequences: float
    context: Array
    prompt: bool


def device_s(hybrid: Hybrid, pieces: Iterable[Piece], rows: Rows) -> Array:
    """Pieces on the device without routed experts, at least what their launches take the host [s]."""
    prices = hybrid.prices
    assert prices is not None
    total, started = nothing(rows.tokens.shape), 0.0
    loop = hybrid.habits.launches
    python, native = loop == "python", loop == "native"  # graphs hold iterations of one token each
    for piece in pieces:
        if not isinstance(piece, Experts):
            total = total + _priced(hybrid, prices, piece, rows)
            started += launches(piece, _NODES) * (
                _EAGER_PASS if python and isinstance(piece, ElementwisePiece) else 1.0
            )
    return np.maximum(total.mid, started * constant(_LAUNCH["python" if rows.prompt and not native else loop]))


def _priced(hybrid: Hybrid, prices: ServedPrices, piece: Piece, rows: Rows) -> Seconds:
    tokens = rows.tokens
    many = np.full_like(tokens, rows.sequences)
    if isinstance(piece, Product | ElementwisePiece | Reduce):
        counted = many if piece.rows == "sequences" else tokens
        if isinstance(piece, Product):
            return prices.product(piece, counted)
        if isinstance(piece, ElementwisePiece):
            return prices.stream(piece, counted)
        return prices.reduce(piece, counted, hybrid.deployment.tp)
    if isinstance(piece, HyperConnection):
        return hyper_connected(prices, piece, tokens)
    if isinstance(piece, Core):
        prices = (piece.latent and hybrid.latent_prices) or prices
        if rows.prompt:
            return prices.prefill(piece, rows.sequences, tokens / rows.sequences, rows.context)
        return prices.decode(piece, many, rows.context)
    if isinstance(piece, Recurrence):
        if rows.prompt:
            return prices.recurrence(piece, rows.sequences, tokens / rows.sequences)
        return prices.recurrence(piece, many, np.ones_like(many), decode=True)
    assert isinstance(piece, ExpertAllToAll)
    return prices.expert_all_to_all(piece, tokens)


def device_experts_s(hybrid: Hybrid, kind: LayerKind, rows: Rows, uses: float) -> Array:
    """The routed experts of a layer that the device computes, `uses` of all [s]."""
    piece = routed(kind)
    if piece is None or hybrid.prices is None or uses <= 0.0:
        return np.zeros_like(rows.tokens)
    seconds = uses * hybrid.prices.experts(piece, rows.tokens).mid
    if hybrid.habits.launches != "python":
        return seconds
    each = 3.0 + piece.gated  # products and activation of one expert, and its sum into the tokens
    started = (each + 1.0) * experts_touched(piece.count, piece.top_k, rows.tokens) * uses + _NODES.experts
    return np.maximum(seconds, started * constant(_LAUNCH["python"]))


def routed(kind: LayerKind) -> Experts | None:
    """The routed experts of a layer, None where it has none."""
    return next((piece for piece in kind.pieces if isinstance(piece, Experts)), None)


def widened_s(hybrid: Hybrid, params: Array | float) -> Array | float:
    """Packed weights widened to 16 bits in the device's memory before their products, where an engine does so [s]."""
    if hybrid.machine is None or hybrid.weight_bytes >= _WIDE_BYTES or not hybrid.habits.widened_bytes:
        return 0.0 * params
    moved = params * (hybrid.weight_bytes + hybrid.habits.widened_bytes)
    return moved / hybrid.machine.device.memory_bytes_per_s


def host_s(hybrid: Hybrid, pieces: Iterable[Piece], rows: Rows, active: float = 1.0) -> Array:
    """Pieces on the processors: weights read once, cache read once, every operator started [s].

    `active` is the share of feed-forward weights that are read.
    """
    host = hybrid.host
    assert host is not None
    total = np.zeros_like(rows.tokens)
    kernel = hybrid.habits.kernel
    for piece in pieces:
        counted = rows.tokens
        if isinstance(piece, Product):
            counted = np.full_like(rows.tokens, rows.sequences) if piece.rows == "sequences" else rows.tokens
            size = piece.n * piece.k * piece.count * (active if piece.part in ("feed", "shared") else 1.0)
            total = total + products_s(host, size * hybrid.weight_bytes, 2.0 * size * counted, kernel)
        elif isinstance(piece, Experts):
            total = total + host_experts_s(hybrid, piece, rows, 1.0, active)
        elif isinstance(piece, Core):
            total = total + _host_core(hybrid, piece, rows)
        elif isinstance(piece, Recurrence):
            flop = piece.flop_per_token * rows.tokens
            total = total + products_s(host, piece.state_bytes * rows.sequences, flop, kernel)
        total = total + launches(piece, _NODES) * cpu_constant("node.start")
    return total


def _host_core(hybrid: Hybrid, core: Core, rows: Rows) -> Array:
    host = hybrid.host
    assert host is not None
    seen = rows.context + (rows.tokens / rows.sequences / 2.0 if rows.prompt else 0.0)
    if core.window:
        seen = np.minimum(seen, float(core.window))
    if core.choice is not None or core.entries is not None:
        raise PlanError(
            "deployment: attention on processors to keys that an indexer chooses, or to entries, is not modelled"
        )
    size = form(hybrid.formats.cache).weight_bytes
    each = core.token_bytes(size)
    wide = core.heads * (core.qk_dim + core.v_dim) * seen * rows.tokens
    if hybrid.habits.attends_rows and size < _WIDE_BYTES:
        computed = 0.5 * wide * cpu_constant("attention.row.cycles") / (host.cores * host.cpu.clock_hz)
        return np.maximum(computed, hybrid.heads_a_key * each * seen * rows.sequences / host.read_bytes_per_s)
    return np.asarray(products_s(host, each * seen * rows.sequences, 2.0 * wide, hybrid.habits.kernel))


def host_experts_s(hybrid: Hybrid, piece: Experts, rows: Rows, uses: float, active: float = 1.0) -> Array:
    """Routed experts on the processors, `uses` of all uses [s]; `piece` is undivided."""
    host = hybrid.host
    assert host is not None
    if uses <= 0.0:
        return np.zeros_like(rows.tokens)
    each = expert_params(piece) * active
    touched = hybrid.touched(piece, rows.tokens, prompt=rows.prompt) * uses
    flop = 2.0 * each * piece.top_k * rows.tokens * uses
    seconds = products_s(host, touched * each * hybrid.weight_bytes, flop, hybrid.habits.kernel)
    return np.asarray(seconds) + cpu_constant("expert.stages") * cpu_constant("task.start")


def link_bytes_per_s(hybrid: Hybrid) -> float:
    """Host links as the engine copies over them [byte/s]: of all devices together, or of one where they take turns."""
    assert hybrid.machine is not None
    rate = host_link_bytes_per_s(hybrid.machine)
    if not hybrid.habits.pinned:
        rate = pageable_bytes_per_s(rate, hybrid.host)
    in_turn = hybrid.placement.technique is OffloadMethod.LAYERS or hybrid.habits.modules
    return rate if in_turn else rate * max(1, hybrid.devices)


def parts(rows: Rows, **named: Array) -> HybridParts:
    """Seconds by name, zeros for the others [s]."""
    zero = np.zeros_like(rows.tokens)
    names = ("device", "host", "link", "sync", "disk", "total")
    return HybridParts(**{name: named.get(name, zero) for name in names})


def band(spent: HybridParts, *, guessed: Collection[str] = (), prompt: bool = False) -> tuple[float, float]:
    """Low and high end of the 80 % interval of a time, over it [1]: of each part by what it takes, and of whole runs.

    Sides that are `guessed` have theirs squared: 'host' of processors that no table names, all `SIDES` of a job of
    which the processors, the format or what the devices hold are not stated.
    """
    seconds, ends = {name: float(getattr(spent, name).sum()) for name in SIDES}, spread()
    whole = sum(seconds.values()) or 1.0
    power = {name: 2 if name in guessed else 1 for name in SIDES}
    low, high = (sum(ends[name][end] ** power[name] * seconds[name] for name in SIDES) / whole for end in (0, 1))
    return joined(1.0, [low, high, *run_spread("offload prompt" if prompt else "offload")])
