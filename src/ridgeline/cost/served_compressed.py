"""Attention to entries that stand for far keys or to blocks of keys, and streams of a residual, as they are served."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.fit_choice import find_fits
from ridgeline.cost.layer_questions import compressed_layer, hyper_connection
from ridgeline.cost.seconds import Seconds
from ridgeline.lower.pieces import CompressedKV, Core, HyperConnection
from ridgeline.lower.work import Number

if TYPE_CHECKING:
    from ridgeline.cost.served import ServedPrices

Array = NDArray[np.float64]


def compressed_attention(
    prices: ServedPrices, core: Core, entries: CompressedKV, batch: Number, tokens: Number, cached: Number, *,
    decode: bool = False,
) -> Seconds:  # fmt: skip
    """Attention to entries and near keys, and their choice: a whole layer less one whose tokens see no others [s].

    `tokens` new tokens of each of `batch` sequences after `cached`. What is left out is what all tokens take alike, the
    projections, which are priced as products; a layer without entries is one that ends at its window. Evidence: that
    of the whole layers' fits.
    """
    widths = {
        "hidden": float(entries.hidden), "rank": float(entries.rank), "head_dim": float(core.qk_dim),
        "out_rank": float(entries.out_rank), "group": float(entries.group), "top": float(entries.top),
        "index_heads": 1.0 if entries.kind == "msa" else entries.index_heads, "window": float(entries.window),
    }  # fmt: skip
    ask = partial(
        compressed_layer, entries.kind, heads=core.heads, decode=decode, model=widths, cache_dtype=prices.formats.cache
    )
    past = np.asarray(cached, dtype=float)
    past = past if entries.ratio else np.minimum(past, float(entries.window))
    rows = batch if decode else np.asarray(batch, dtype=float) * tokens
    forms = (prices.formats.attention, prices.products)
    known = [
        name for name in forms
        if find_fits(prices.engines(ask(1.0, 1.0, dtype=name).question), prices.part, prices.machine.rungs[0])
    ]  # fmt: skip
    name = [*known, *forms][0]
    whole = prices.ask(ask(batch, tokens, cached=past, dtype=name))
    bare = prices.ask(ask(rows, 1.0, cached=0.0 * past, dtype=name))
    return whole.beyond(bare) + prices.streamed(np.zeros(1), 1.0)


def hyper_connected(prices: ServedPrices, piece: HyperConnection, rows: Array) -> Seconds:
    """Streams of a residual mixed into an input, or an output into them, over `rows` tokens [s]."""
    asked = hyper_connection(np.maximum(rows, 1.0), piece.width, before=piece.before, streams=float(piece.streams))
    return prices.ask(asked)
