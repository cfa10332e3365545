"""Operators of a decoder's layer by the names of modules and profilers: products of its widths, and passes over memory.

Letters: T tokens, D hidden, F feed-forward, H heads, K kv heads, d head size, V vocabulary. Names are those of
transformers' and vLLM's modules (`qkv_proj`, `gate_up_proj`) and of Vidur's profiler (`attn_pre_proj`, `mlp_up_proj`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ridgeline.cost import questions
from ridgeline.errors import InputError
from ridgeline.validate.operator_cells import Ask, Priced, priced
from ridgeline.validate.operator_kernels import stream

_BYTES = 2  # of a number that passes between layers
_NORM_PASSES = 3
"""The profiled norm reads its input for the variance and again to scale it, and writes. Source:
github.com/vllm-project/vllm, csrc/layernorm_kernels.cu, rms_norm_kernel."""


def _tokens(ask: Ask) -> float:
    return ask.size("tokens", "num_tokens", "m", "t")


def _hidden(ask: Ask) -> float:
    return ask.size("n_embd", "hidden", "hidden_size", "d_model")


def _feed(ask: Ask) -> float:
    """F of one rank."""
    return ask.size("n_expanded_embd", "intermediate_size", "intermediate", "ffn") / _ranks(ask)


def _ranks(ask: Ask) -> float:
    return ask.size("tp", default=1.0)


def _heads(ask: Ask) -> tuple[float, float]:
    """Width of queries, and that of keys, of one rank: H d and K d."""
    heads = ask.size("n_head", "heads", "num_heads", "num_attention_heads")
    kv_heads = ask.size("n_kv_head", "kv_heads", "num_kv_heads", "num_key_value_heads", default=heads)
    each = ask.size("head_dim", default=_hidden(ask) / heads if "head_dim" not in ask.shape else 0.0)
    return heads * each / _ranks(ask), kv_heads * each / _ranks(ask)


def _gates(ask: Ask, usual: bool) -> bool:
    """Whether half of a feed-forward's first product gates the other half, said or by the operator's name."""
    said = re.search(r"gated\s*=\s*(true|false|0|1)", ask.words.casefold())
    return said[1] in ("true", "1") if said else usual


def _up(*, gated: bool) -> Callable[[Ask], tuple[float, float]]:
    return lambda ask: ((1 + _gates(ask, gated)) * _feed(ask), _hidden(ask))


def _qkv(ask: Ask) -> tuple[float, float]:
    queries, keys = _heads(ask)
    return queries + 2 * keys, _hidden(ask)


_DOWN: Callable[[Ask], tuple[float, float]] = lambda ask: (_hidden(ask), _feed(ask))  # noqa: E731
_OUT: Callable[[Ask], tuple[float, float]] = lambda ask: (_hidden(ask), _heads(ask)[0])  # noqa: E731

PRODUCTS: dict[str, Callable[[Ask], tuple[float, float]]] = {
    "qkv_proj": _qkv, "attn_pre_proj": _qkv, "o_proj": _OUT, "attn_post_proj": _OUT, "gate_up_proj": _up(gated=True),
    "mlp_up_proj": _up(gated=False), "up_proj": _up(gated=False), "down_proj": _DOWN, "mlp_down_proj": _DOWN,
    "lm_head": lambda ask: (ask.size("vocab_size", "vocab") / _ranks(ask), _hidden(ask)),
}  # fmt: skip
"""Operators that are products: columns and inner size of one rank, with T rows."""


def _act(*, gated: bool) -> Callable[[Ask], float]:
    return lambda ask: (2 + _gates(ask, gated)) * _feed(ask)


STREAMS: dict[str, tuple[str, Callable[[Ask], float]]] = {
    "mlp_act": ("activation", _act(gated=False)),
    "act_fn": ("activation", _act(gated=True)),
    "attn_rope": ("rope", lambda ask: 2 * sum(_heads(ask))),
    "rotary_emb": ("rope", lambda ask: 2 * sum(_heads(ask))),
    "qk_norm": ("norm", lambda ask: _NORM_PASSES * sum(_heads(ask))),
    "input_layernorm": ("norm", lambda ask: _NORM_PASSES * _hidden(ask)),
    "post_attention_layernorm": ("norm", lambda ask: _NORM_PASSES * _hidden(ask)),
    "final_layernorm": ("norm", lambda ask: _NORM_PASSES * _hidden(ask)),
    "add": ("residual", lambda ask: 3 * _hidden(ask)),
    "emb": ("embedding", lambda ask: 2 * _hidden(ask)),
    "embedding": ("embedding", lambda ask: 2 * _hidden(ask)),
    "embed_tokens": ("embedding", lambda ask: 2 * _hidden(ask)),
}
"""Operators that only move memory: family, and numbers of 16 bits that are read or written for a token."""


def layer(ask: Ask) -> Priced:
    """A layer's operator by its module's or profiler's name: a product of the layer's widths, or a stream."""
    name = ask.op.rpartition(":")[2].strip().rpartition(".")[2]
    if name in PRODUCTS:
        m, (n, k) = _tokens(ask), PRODUCTS[name](ask)
        asked = questions.gemm(m, n, k, dtype=ask.format().name, cast=False)
        return priced("layer gemm", asked, ask, flop=2 * m * n * k)
    if name in STREAMS:
        family, numbers = STREAMS[name]
        return stream(family, _BYTES * _tokens(ask) * numbers(ask), ask)
    known = ", ".join((*PRODUCTS, *STREAMS))
    raise InputError(f"'{name}' is no layer operator that is predicted; known: {known}", field="op")
