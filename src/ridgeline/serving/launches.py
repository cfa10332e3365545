"""Kernels that the host launches one by one where no graph holds an iteration."""

from __future__ import annotations

from ridgeline.cost.served import ServedPrices
from ridgeline.facts.mechanisms import constant
from ridgeline.lower.inference import Core, Experts, Pass, Piece, Product, Recurrence, Trade


def launches(piece: Piece, prices: ServedPrices) -> float:
    """Kernels of one piece of an iteration with prompts; a product in 8 or 4 bits has a cast of its input first [1]."""
    match piece:
        case Pass():
            return piece.kernels
        case Experts():
            return constant("launch.served.experts")
        case Trade():
            return constant("launch.served.trade")
        case Recurrence():
            return constant("launch.served.scan")
        case Product():
            return 2.0 if prices.casts(piece) else 1.0
        case Core():
            copies = constant("launch.served.latent") if piece.latent else 0.0
            copies += constant("launch.served.indexer") if piece.choice and piece.choice.heads else 0.0
            return 1.0 + copies + (constant("launch.served.contexts") if piece.ranks > 1 else 0.0)
        case _:
            return 1.0
