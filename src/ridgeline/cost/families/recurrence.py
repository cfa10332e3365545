"""Layers with a state in place of a cache: gated delta rules over prompts and tokens, and the short convolution.

Shape letters: B sequences, S tokens of each, H value heads, N key heads, K width of a key, V width of a value.
"""

from __future__ import annotations

import math

from ridgeline.compiled import kernel
from ridgeline.cost.families.gemm import norm4
from ridgeline.cost.mechanism import Array, formula

_CHUNK = 64.0  # tokens that are multiplied out together. Source: flash-linear-attention, chunk_gated_delta_rule
_BLOCK = 1024.0  # tokens of a channel that a block of threads takes at a time. Source: Dao-AILab/causal-conv1d
_WALK = 8.0  # tokens that a block walks one after the other. Source: vllm, mamba/ops/causal_conv1d.py, BLOCK_M
_STATE_BYTES = 4.0  # states are kept in fp32


@kernel
def _prompt(sizes: Array, device: Array, values: Array, out: Array) -> None:
    """Chunks of a prompt: products inside them all at once, the state handed from one to the next, one after another.

    Products of a chunk of C tokens: C (2 K + V) pairs in half of the scores, and 3 K V for the state, 2 FLOP each.
    """
    sms, memory, plain = device[0], device[2], device[6]
    start, matrix_share, memory_share, chunk_s, wave_s, spill = (
        values[0], values[1], values[2], values[3], values[4], values[5],
    )  # fmt: skip
    for i in range(sizes.shape[0]):
        batch, tokens, heads, key_heads = sizes[i, 0], sizes[i, 1], sizes[i, 2], sizes[i, 3]
        key, value = sizes[i, 4], sizes[i, 5]
        total, chunks = batch * tokens, math.ceil(tokens / _CHUNK)
        inside = min(_CHUNK, tokens)
        flop = 2.0 * total * heads * (inside * (2.0 * key + value) / 2.0 + 3.0 * key * value)
        compute = flop / (plain * matrix_share)
        row = 4.0 * key_heads * key + 4.0 * heads * value
        state = 2.0 * batch * heads * key * value * _STATE_BYTES
        dram = (total * row * (1.0 + spill) + state) / (memory * memory_share)
        waves = max(1.0, batch * heads / sms)
        serial = waves * (chunks * chunk_s + wave_s)
        out[i, 0] = start + serial + norm4(compute, dram)
        out[i, 1], out[i, 2] = compute + serial, dram


@kernel
def _token(sizes: Array, device: Array, values: Array, out: Array) -> None:
    """One token of each sequence: every head's state is read, changed and written back."""
    sms, memory, l2 = device[0], device[2], device[3]
    start, memory_share, head_s, kept = values[0], values[1], values[2], values[3]
    for i in range(sizes.shape[0]):
        heads = sizes[i, 0] * sizes[i, 2]
        states = heads * sizes[i, 4] * sizes[i, 5] * _STATE_BYTES
        rows = sizes[i, 0] * (4.0 * sizes[i, 3] * sizes[i, 4] + 4.0 * sizes[i, 2] * sizes[i, 5])
        missed = states / (states + kept * l2)
        dram = (2.0 * states * missed + rows) / (memory * memory_share)
        busy = max(1.0, heads / sms) * head_s
        out[i, 0], out[i, 1], out[i, 2] = start + norm4(busy, dram), busy, dram


@kernel
def _convolution(sizes: Array, device: Array, values: Array, out: Array) -> None:
    """A window of some tokens over each channel: elements in and out, or a block for each channel of a sequence.

    A block walks its first tokens one after the other, which short prompts have little else to do than.
    """
    sms, memory, l2 = device[0], device[2], device[3]
    start, memory_share, block_s, kept, token_s = values[0], values[1], values[2], values[3], values[4]
    for i in range(sizes.shape[0]):
        batch, tokens, channels = sizes[i, 0], sizes[i, 1], sizes[i, 2]
        moved = 4.0 * batch * channels * (tokens + sizes[i, 3])
        missed = moved / (moved + kept * l2)
        dram = moved * missed / (memory * memory_share)
        blocks = batch * channels * math.ceil(tokens / _BLOCK)
        walk = (min(tokens, _WALK) - 1.0) * token_s
        out[i, 0], out[i, 1], out[i, 2] = start + walk + norm4(max(1.0, blocks / sms) * block_s, dram), 0.0, dram


DELTA_PREFILL = formula("delta_prefill", _prompt)
DELTA_DECODE = formula("delta_decode", _token)
CONVOLUTION = formula("convolution", _convolution)
