"""LoRA adapters served together: their popularity, what their products add to an iteration, their memory and loading.

An adapter of rank r adds, beside a product of (T, k) by (k, n), a shrink (T, k) by (k, r) and an expand (T, r) by
(r, n), each row with the matrices of its own adapter. Sources: Punica (Chen and others, MLSys 2024, arXiv:2310.18547),
S-LoRA (Sheng and others, MLSys 2024, arXiv:2311.03285).

Letters: T tokens, N sequences of one rank, A adapters, r their rank, s slices of a product with adapters of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.cost.seconds import Seconds, nothing
from ridgeline.cost.served import ServedPrices
from ridgeline.errors import PlanError
from ridgeline.graph.ops import OpRole
from ridgeline.lower.pieces import ElementwisePiece, Experts, Product, Served
from ridgeline.plan.deployment import Deployment
from ridgeline.seams.serving import Adapters, of
from ridgeline.serving.state import Array, Whole

_SEED = 0  # of whose requests are for which adapter
_BYTES = 2.0  # of a number of an adapter: 16 bits
_DOWN = {
    OpRole.UP: OpRole.DOWN,
    OpRole.SHARED_UP: OpRole.SHARED_DOWN,
}  # the last product of a feed-forward by its first
_PARTS = {"attention": ("attention", "out"), "all": ("attention", "out", "feed", "shared")}


def popularity(one: Adapters) -> Array:
    """Share of requests that are for each adapter, (A,): a power law of its place [1]."""
    weights = np.arange(1.0, float(one.count + 1)) ** -one.skew
    return np.asarray(weights / weights.sum())


def distinct(shares: Array, sequences: ArrayLike) -> Array:
    """Different adapters among so many sequences, on average [1]: sum of 1 - (1 - p)^N.

    >>> round(float(distinct(np.array([0.5, 0.5]), 2.0)), 3)
    1.5
    """
    count = np.asarray(sequences, dtype=float)
    return np.asarray((1.0 - (1.0 - shares) ** count[..., None]).sum(axis=-1))


def drawn(one: Adapters, requests: int) -> Whole:
    """The adapter that each request is for, (R,)."""
    return np.random.default_rng(_SEED).choice(one.count, size=requests, p=popularity(one)).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class _Adapted:
    """A product of (T, k) by (k, n), run `count` times in an iteration, that joins so many `slices` of adapters."""

    k: float
    n: float
    count: float
    slices: float

    def numbers(self, rank: int) -> float:
        """Of the matrices of one adapter [1]: each slice shrinks by itself, and expands to its outputs."""
        return rank * (self.slices * self.k + self.n)


def _products(served: Served, one: Adapters) -> list[_Adapted]:
    """The products of all layers that adapters change; queries, keys and values, and gate and up, are slices of one."""
    found = []
    for kind in served.kinds:
        if one.on == "all" and any(isinstance(piece, Experts) for piece in kind.pieces):
            raise PlanError("deployment: adapters on routed experts are not modelled; take adapter_on = attention")
        inner = {piece.role: piece.k for piece in kind.pieces if isinstance(piece, Product)}
        for piece in kind.pieces:
            if isinstance(piece, Product) and piece.part in _PARTS[one.on]:
                down = inner.get(_DOWN.get(piece.role, OpRole.OTHER))
                slices = 3.0 if piece.role is OpRole.QKV else piece.n / down if piece.role in _DOWN and down else 1.0
                found.append(_Adapted(k=piece.k, n=piece.n, count=kind.count * piece.count, slices=slices))
    return found


def adapter_bytes(served: Served, one: Adapters) -> float:
    """One adapter on one device [byte]: 2 r (s k + n) of every product of s slices, divided as the products are."""
    return _BYTES * sum(each.count * each.numbers(one.rank) for each in _products(served, one))


def kept_bytes(served: Served, deployment: Deployment) -> float:
    """The adapters that are kept on one device [byte]."""
    one = of(deployment, Adapters)
    if not one.count:
        return 0.0
    return (one.on_device or one.count) * adapter_bytes(served, one) / deployment.pp


def adapter_kernels(served: Served, one: Adapters) -> float:
    """Launches that adapters add to one iteration [1]: a shrink and an expand for every product."""
    return 2.0 * sum(each.count for each in _products(served, one)) if one.count else 0.0


def token_seconds(served: Served, one: Adapters, prices: ServedPrices, tokens: Array) -> Seconds:
    """What shrinks and expands of T tokens take beside their matrices, (T,) [s].

    Both kernels wait for memory: activations of k + n + 2 s r numbers a token, read or written, and two launches.
    Domain: ranks of at most 128, from which on multiplying takes longer than reading on none of the devices known.
    """
    total = nothing(tokens.shape)
    for each in _products(served, one):
        elements = each.k + each.n + 2.0 * each.slices * one.rank
        asked = ElementwisePiece(name="adapter", elements=elements, kernels=2.0)
        total = total + prices.stream(asked, tokens).times(each.count)
    return total


def sequence_seconds(served: Served, one: Adapters, prices: ServedPrices, sequences: Array) -> Seconds:
    """What reading the matrices of the different adapters among N sequences takes, (N,) [s]."""
    different = np.minimum(distinct(popularity(one), sequences), float(one.on_device or one.count))
    each = adapter_bytes(served, one) / 2.0  # a pass is over numbers of two bytes
    return prices.stream(ElementwisePiece(name="adapters", elements=each, kernels=0.0), different)
