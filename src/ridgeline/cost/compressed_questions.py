"""Layers with compressed or block-chosen keys, and hyper-connections, as questions of the ladder.

Shape letters: B sequences, S tokens, H heads on this device.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ridgeline.cost.answer import Question
from ridgeline.cost.compressed_readers import layer_sizes
from ridgeline.cost.families.layers import INDEX
from ridgeline.cost.formats import form
from ridgeline.cost.questions import Asked
from ridgeline.lower.work import Number


def compressed_layer(
    kind: str,
    batch: Number,
    tokens: Number,
    heads: Number,
    *,
    cached: Number = 0.0,
    decode: bool = False,
    model: str | Mapping[str, float] = "",
    dtype: str = "bf16",
    cache_dtype: str = "",
) -> Asked:
    """A whole attention layer whose far keys are compressed ('csa', 'hca') or chosen in blocks ('msa').

    `tokens` new tokens after `cached`, on a device that holds `heads` heads; with `decode` one of each sequence. The
    widths are those of `model`, by name or as `compressed_widths` names them ('' DeepSeek-V4-Pro's and MiniMax-M3's).
    """
    what = form(dtype)
    narrow = 1.0 if form(cache_dtype or "bf16").weight_bytes < 2 else 2.0
    sizes = layer_sizes(kind, model or ("MiniMax-M3" if kind == "msa" else "DeepSeek-V4-Pro"), heads, narrow)
    size, past = np.asarray(1.0 if decode else tokens, dtype=float), np.asarray(cached, dtype=float)
    ratio, window, top = (np.asarray(sizes[name], dtype=float) for name in ("ratio", "window", "top"))
    pairs = size * (past + (size + 1.0) / 2.0)
    most = np.where(top > 0.0, size * np.minimum(top, (past + size) / ratio), pairs / ratio)
    entries = batch * (np.minimum(most, pairs / ratio) + np.minimum(pairs, size * window))
    flop = 2.0 * batch * size * sizes["elements"] + entries * 4.0 * np.asarray(heads) * sizes["head_dim"]
    read = np.where(decode, most, (past + size) / ratio) + np.minimum(window, past + size)
    return Asked(
        question=Question(
            family=f"{kind}_layer_{'decode' if decode else 'prefill'}",
            sizes={"batch": batch, "tokens": size, "cached": cached, **sizes},
            form=dtype,
        ),
        flop=flop + 2.0 * batch * pairs / ratio * np.asarray(sizes["index_heads"]) * INDEX,
        bytes=np.asarray(sizes["elements"]) * what.weight_bytes
        + batch * (4.0 * size * sizes["hidden"] + read * np.asarray(sizes["key_heads"]) * sizes["entry_bytes"]),
    )


def hyper_connection(rows: Number, width: Number, *, before: bool, streams: Number = 4.0) -> Asked:
    """Mixes the streams of a residual into a layer's input (`before`), or its output into them: 16-bit rows once."""
    count = np.asarray(rows, dtype=float) * width
    each = np.asarray(streams, dtype=float)
    return Asked(
        question=Question(
            family="hyper_connection",
            sizes={"rows": rows, "width": width, "streams": streams, "before": float(before)},
            form="bf16",
        ),
        flop=2.0 * count * each * each * (each + 2.0) if before else 0.0 * count,
        bytes=2.0 * count * (each + 1.0 if before else 2.0 * each + 1.0),
    )
