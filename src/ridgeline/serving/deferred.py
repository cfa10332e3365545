"""All-reduces beside the next part of a layer, where a part's sum enters the residual one part later.

Shape letters: T tokens of an iteration on one attention rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.seconds import Seconds
from ridgeline.graph.ops import OpRole
from ridgeline.lower.pieces import LayerKind, Piece, Product, Reduce
from ridgeline.serving.nano import shares
from ridgeline.serving.step_pieces import PieceTimes

Array = NDArray[np.float64]


def beside_link_s(kernels_s: Array, compute_s: Array, link_s: Array) -> Array:
    """What kernels and a collective that runs beside them take together [s].

    t = max(n, k + min(n, k) s c / k): a collective of n seconds holds the share s of the multiprocessors, of which
    kernels of k seconds lose what they wait for compute, c of them. Never more than n + k.

    >>> round(float(beside_link_s(10.0, 0.0, 4.0)), 3), round(float(beside_link_s(1.0, 0.0, 4.0)), 3)
    (10.0, 4.0)
    """
    _, link_sms = shares(links_only=True)
    kernels, link = np.asarray(kernels_s, dtype=float), np.asarray(link_s, dtype=float)
    bound = np.minimum(np.asarray(compute_s) / np.maximum(kernels, 1e-30), 1.0)
    return np.asarray(np.maximum(link, kernels + np.minimum(link, kernels) * link_sms * bound))


def hidden(pieces: PieceTimes, kinds: tuple[LayerKind, ...], tokens: Array) -> tuple[Array, Array]:
    """What T tokens save of all layers beside products and passes, and what their attention could save more [s].

    The reduction after attention runs beside the feed-forward, and the feed-forward's beside the next layer's
    attention: of what its projections and passes do not cover, its core may cover the rest.
    """
    saved, rest = np.zeros(tokens.shape), np.zeros(tokens.shape)
    for kind in kinds:
        reduces = [piece for piece in kind.pieces if isinstance(piece, Reduce)]
        if kind.deferred and reduces:
            link = pieces.of_pieces(reduces[:1], tokens).mid
            sides = [pieces.of_pieces(part, tokens) for part in parts(kind)]
            for one in sides:
                saved += kind.count * (one.mid + link - beside_link_s(one.mid, one.compute, link))
            rest += kind.count * np.maximum(link - sides[0].mid, 0.0)
    return saved, rest


def parts(kind: LayerKind) -> tuple[list[Piece], list[Piece]]:
    """The pieces of a layer that are not reductions: those to attention's last product, and those after it."""
    pieces: list[Piece] = [piece for piece in kind.pieces if not isinstance(piece, Reduce)]
    last = next(i for i, one in enumerate(pieces) if isinstance(one, Product) and one.role is OpRole.OUTPUT)
    return pieces[: last + 1], pieces[last + 1 :]


def without(found: Seconds, saved: Array) -> Seconds:
    """A time less what runs beside others, with the interval and the busy times that it has [s]."""
    zero = np.zeros_like(found.mid)
    return found.beyond(Seconds(mid=zero + saved, low=zero, high=zero, compute=zero, memory=zero))
