"""Kernels that the host launches one by one where no graph holds an iteration."""

from __future__ import annotations

from ridgeline.cost.served import ServedPrices
from ridgeline.lower.inference import Core, Experts, Pass, Piece, Product, Recurrence, Trade

_EXPERT_KERNELS = 8.0  # launches of a layer's routed experts: choice, sort, two casts and products, activation, sum
_SCAN_KERNELS = 9.0  # of a chunked gated scan (flash-linear-attention, ops/gated_delta_rule/chunk.py): gates, two
# norms, sums of gates, keys by keys, their inverse, new keys and values, states, results
_LATENT_COPIES = 2.0  # keys of latent attention are put together of their two parts, and values made contiguous


def launches(piece: Piece, prices: ServedPrices) -> float:
    """Kernels of one piece of an iteration with prompts; a product in 8 or 4 bits has a cast of its input first [1]."""
    match piece:
        case Pass():
            return piece.kernels
        case Experts():
            return _EXPERT_KERNELS
        case Trade():
            return 2.0
        case Recurrence():
            return _SCAN_KERNELS
        case Product():
            return 2.0 if prices.casts(piece) else 1.0
        case Core():
            return 1.0 + (_LATENT_COPIES if piece.latent else 0.0)
        case _:
            return 1.0
