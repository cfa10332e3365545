"""Kernels that the host launches one by one where no graph holds an iteration, and operators of processors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.facts.mechanisms import constant
from ridgeline.lower.pieces import Core, ElementwisePiece, ExpertAllToAll, Experts, Piece, Product, Recurrence


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many kernels pieces take that are more than one, and what is added to an attention core's one [1]."""

    experts: float
    trade: float
    scan: float
    latent: float = 0.0
    indexer: float = 0.0
    contexts: float = 0.0


def served_counts() -> Counts:
    """Those of engines that serve from device memory."""
    names = ("experts", "trade", "scan", "latent", "indexer", "contexts")
    return Counts(**{name: constant(f"launch.served.{name}") for name in names})


def launches(piece: Piece, counts: Counts, casts: Callable[[Product], bool] = lambda _: False) -> float:
    """Kernels of one piece of an iteration; a product that `casts` has a cast of its input first [1]."""
    match piece:
        case ElementwisePiece():
            return piece.kernels
        case Experts():
            return counts.experts
        case ExpertAllToAll():
            return counts.trade
        case Recurrence():
            return counts.scan
        case Product():
            return 2.0 if casts(piece) else 1.0
        case Core():
            indexed = piece.choice is not None and piece.choice.heads > 0
            more = (counts.latent if piece.latent else 0.0) + (counts.indexer if indexed else 0.0)
            return 1.0 + more + (counts.contexts if piece.ranks > 1 else 0.0)
        case _:
            return 1.0
