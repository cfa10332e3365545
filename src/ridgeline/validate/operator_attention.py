"""Attention kernels: prefill, decode and training passes, with shared or latent keys and values."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from ridgeline.cost import questions
from ridgeline.cost.attention import attention_cost, attention_interval, unfused_attention_cost
from ridgeline.cost.compute import KernelCost
from ridgeline.errors import InputError
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.readings import reading
from ridgeline.lower.work import Attention, Phase
from ridgeline.validate.operator_cells import LARGEST_HEAD, Ask, Priced, bill, laddered
from ridgeline.validate.operator_kernels import stream

LATENT, ROTARY, NOPE, VALUE = 512, 64, 128, 128
"""Widths of latent attention of a DeepSeek-V3 head. Source: arXiv:2412.19437, section 4.2."""
BENCHMARK_HIDDEN = 2048
"""Heads x head size of FlashAttention's benchmark. Source: arXiv:2307.08691, section 4.1."""
BACKWARD_FLOP = 2.5  # of a backward over a forward: five products against two, arXiv:2307.08691 section 4.1
_NEWEST = ("flash", "the newest kernels of the architecture")
_WIDTHS = "widths of DeepSeek-V3's heads (assumed)"
_ROTATED = "with the engine's kernel that rotates queries and keys and writes the cache"


def _kernel(ask: Ask) -> tuple[str, str]:
    """The generation of kernels, and how it was told, from the operator's and the library's name."""
    said = f"{ask.op} {ask.library}".casefold()
    found = reading("attention_library", words=said)
    return _NEWEST if found is None else (found.text, found.told)


def attention(ask: Ask) -> Priced:
    """A pass over whole sequences; FLOP as FlashAttention counts them: 4 B H S^2 D, half when causal."""
    said = ask.op
    if "decode" in said:
        return decode(ask)
    form = ask.format()
    batch, tokens = ask.size("batch", "b"), ask.size("isl", "seq", "seq_len", "seqlen", "s", "q_len", "tokens")
    head = _head(ask.size("head_dim", "d"))
    notes = []
    if not {"heads", "h", "num_heads"} & ask.shape.keys():
        notes.append(f"heads not stated: {BENCHMARK_HIDDEN} / head size, as FlashAttention's benchmark (assumed)")
    heads = ask.size("heads", "h", "num_heads", default=max(1.0, BENCHMARK_HIDDEN // head))
    kv_heads = ask.size("kv_heads", "num_kv_heads", "kv", default=heads)
    if batch * tokens <= 0:
        raise InputError(f"'{ask.words}' has a size of 0", field="shape")
    past = ask.size("kv_past", "past", default=0.0)
    causal = _causal(ask)
    if causal and ask.serving and kv_heads > 0:
        asked = questions.prefill(
            batch, tokens, heads, kv_heads, head, cached=past, window=_finite(_window(ask)), dtype=form.name,
            cache_dtype=ask.cache_format,
        )  # fmt: skip
        found = laddered("attention prefill", asked, ask, flop=float(np.asarray(asked.flop)), notes=notes)
        if found is not None:
            return found
    kernel, told = _kernel(ask)
    fused = kernel != "unfused"
    notes.append(told)
    costs, share = [], 0.0
    for phase, counted in _passes(ask):
        work = Attention(
            name="attention",
            phase=phase,
            sequences=batch,
            heads=heads,
            kv_heads=kv_heads,
            q_tokens=tokens,
            kv_tokens=tokens + past,
            mean_context=_mean_context(ask, tokens, past) if causal else past + tokens,
            qk_dim=head,
            v_dim=head,
            fused=fused,
        )
        if fused:
            costs.append(attention_cost(work, ask.device, dtype=form.matrix, kernel=kernel))
        else:
            costs.append(unfused_attention_cost(work, ask.device, dtype=form.matrix, plain=True))
        share += counted
    if _rotates(ask):
        costs.append(_rotated(ask, batch * tokens, heads, kv_heads, head))
        notes.append(_ROTATED)
    flop = share * 4.0 * batch * heads * tokens * (tokens + past) * head * (0.5 if causal else 1.0)
    family = "attention training" if share > 1 else "attention prefill"
    priced = bill(family if fused else "attention unfused", costs, ask, form.matrix, flop=flop, notes=notes)
    known = attention_interval(kernel, ask.accelerator.architecture) if not _rotates(ask) else None
    if known is None:
        return priced
    return replace(priced, interval_s=(priced.seconds * known[0], priced.seconds * known[1]))


def decode(ask: Ask) -> Priced:
    """One new token a sequence: keys and values are read once at their own size, or scores are computed."""
    batch, heads = ask.size("batch", "b"), ask.size("heads", "h", "num_heads")
    kv_heads = ask.size("kv_heads", "num_kv_heads", "kv", default=heads)
    head = _head(ask.size("head_dim", "d"))
    context = ask.size("kv_past", "past", "context", "kv_len", "s", "seq_len", "seqlen") + ask.size("isl", default=1.0)
    if ask.serving and kv_heads > 0:
        asked = questions.decode(
            batch, context, heads, kv_heads, head, window=_finite(_window(ask)), dtype=ask.format().name,
            cache_dtype=ask.cache_format,
        )  # fmt: skip
        priced = laddered("attention decode", asked, ask, flop=float(np.asarray(asked.flop)))
        if priced is not None:
            return priced
    context = min(context, _window(ask))
    size = 2 * batch * kv_heads * context * head * _kv_bytes(ask) + 4 * batch * heads * head
    found = _decoded("attention decode", ask, batch, heads, kv_heads, context, (head, head), size)
    return _with_rotation(found, _rotated(ask, batch, heads, kv_heads, head)) if _rotates(ask) else found


def latent_decode(ask: Ask) -> Priced:
    """Latent attention of one token a sequence with absorbed products: all heads share one latent of 512 + 64."""
    batch, heads = ask.size("batch", "b"), ask.size("heads", "h")
    context = ask.size("step", "kv_past", default=0.0) + ask.size("isl", default=1.0)
    asked = questions.mla_decode(batch, context, heads, dtype=ask.format().name, cache_dtype=ask.cache_format)
    priced = laddered("mla decode", asked, ask, flop=float(np.asarray(asked.flop)), notes=(_WIDTHS,))
    if priced is not None:
        return priced
    wide = (LATENT + ROTARY, LATENT)
    size = batch * context * wide[0] * _kv_bytes(ask) + 2 * batch * heads * sum(wide)
    return _decoded("mla decode", ask, batch, heads, 1.0, context, wide, size)


def latent_prefill(ask: Ask) -> Priced:
    """Latent attention over whole prompts with keys and values expanded: 192 wide scores, 128 wide values."""
    form = ask.format()
    batch, heads, tokens = ask.size("batch", "b"), ask.size("heads", "h"), ask.size("isl", "seq")
    past = ask.size("step", "kv_past", default=0.0)
    asked = questions.mla_prefill(batch, tokens, heads, cached=past, dtype=form.name, cache_dtype=ask.cache_format)
    priced = laddered("mla prefill", asked, ask, flop=float(np.asarray(asked.flop)), notes=(_WIDTHS,))
    if priced is not None:
        return priced
    work = Attention(
        name="mla",
        phase=Phase.FORWARD,
        sequences=batch,
        heads=heads,
        kv_heads=heads,
        q_tokens=tokens,
        kv_tokens=tokens + past,
        mean_context=past + (tokens + 1) / 2,
        qk_dim=NOPE + ROTARY,
        v_dim=VALUE,
        fused=True,
    )
    cost = attention_cost(work, ask.device, dtype=form.matrix)
    return bill("mla prefill", [cost], ask, form.matrix, flop=float(np.asarray(cost.flop)), notes=(_WIDTHS,))


def _decoded(
    family: str,
    ask: Ask,
    batch: float,
    heads: float,
    kv_heads: float,
    context: float,
    wide: tuple[int, int],
    size: float,
) -> Priced:
    matrix = ask.format().matrix
    work = Attention(
        name=family,
        phase=Phase.FORWARD,
        sequences=batch,
        heads=heads,
        kv_heads=kv_heads,
        q_tokens=1.0,
        kv_tokens=context,
        mean_context=context,
        qk_dim=wide[0],
        v_dim=wide[1],
        fused=True,
    )
    cost = attention_cost(work, ask.device, dtype=matrix)
    memory = size / ask.device.memory_bytes_per_s
    priced = KernelCost(
        seconds=np.maximum(cost.compute_s, memory),
        flop=cost.flop,
        bytes=size,
        compute_s=cost.compute_s,
        memory_s=memory,
        kernels=1.0,
    )
    notes = (_WIDTHS,) if family.startswith("mla") else ()
    return bill(family, [priced], ask, matrix, flop=float(np.asarray(cost.flop)), size=size, notes=notes)


def _rotates(ask: Ask) -> bool:
    """Whether the library's attention rotates and stores keys itself: TensorRT-LLM's takes unrotated, packed inputs.

    Source: github.com/ai-dynamo/aiconfigurator, collector/trtllm/collect_attn.py, which times that operator whole.
    """
    return re.search(r"trt-?llm|tensorrt", ask.library, re.IGNORECASE) is not None


def _rotated(ask: Ask, tokens: float, heads: float, kv_heads: float, head: int) -> KernelCost:
    """The kernel that reads packed queries, keys and values, and writes queries and the cache."""
    width = heads + 2 * kv_heads
    return stream(tokens * head * (2 * width + 2 * heads + 2 * kv_heads * _kv_bytes(ask)), ask)


def _with_rotation(found: Priced, kernel: KernelCost) -> Priced:
    more = float(np.asarray(kernel.seconds + kernel.kernels * constant("launch.device")))
    return replace(found, seconds=found.seconds + more, assumptions=(*found.assumptions, _ROTATED))


def _window(ask: Ask) -> float:
    """Keys that a query may look back on; infinite without a sliding window [token]."""
    return ask.size("window", "window_size", default=0.0) or math.inf


def _finite(window: float) -> float:
    return 0.0 if math.isinf(window) else window


def _mean_context(ask: Ask, tokens: float, past: float) -> float:
    """Mean over i = 1 ... S of min(past + i, window) [token]: keys of one query under a causal mask."""
    full = min(max(_window(ask) - past, 0.0), tokens)  # queries that the window does not yet cut
    cut = tokens - full
    return (full * (past + (full + 1) / 2) + (cut * _window(ask) if cut else 0.0)) / tokens


def _kv_bytes(ask: Ask) -> float:
    return 1.0 if re.search(r"kv\W*(?:fp8|int8|float8)", ask.dtype, re.IGNORECASE) else 2.0


def _head(size: float) -> int:
    if not 1 <= size <= LARGEST_HEAD:
        raise InputError(f"head size {size:g} is out of range; needs 1 to {LARGEST_HEAD}", field="shape")
    return int(size)


def _causal(ask: Ask) -> bool:
    said = re.search(r"causal\s*=\s*(true|false|0|1)", ask.words.casefold())
    return said[1] in ("true", "1") if said else "causal" in ask.op


def _passes(ask: Ask) -> tuple[tuple[Phase, float], ...]:
    """Phases of the row's pass and their FLOP, in those of a forward."""
    backward = (Phase.BACKWARD_INPUT, BACKWARD_FLOP)
    if re.search(r"fwd\s*\+\s*bwd|forward\s*(?:\+|and)\s*backward", ask.op):
        return (Phase.FORWARD, 1.0), backward
    return (backward,) if re.search(r"backward|bwd", ask.op) else ((Phase.FORWARD, 1.0),)
