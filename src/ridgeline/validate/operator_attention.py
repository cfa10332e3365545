"""Attention kernels: prefill, decode and training passes, with shared or latent keys and values."""

from __future__ import annotations

import re
from dataclasses import replace

from ridgeline.cost import questions
from ridgeline.cost.price_list import formulas
from ridgeline.cost.questions import Worked
from ridgeline.errors import InputError
from ridgeline.facts.readings import reading
from ridgeline.lower.work import Attention, Phase
from ridgeline.validate.operator_cells import LARGEST_HEAD, Ask, Priced, priced

BENCHMARK_HIDDEN = 2048
"""Heads x head size of FlashAttention's benchmark. Source: arXiv:2307.08691, section 4.1."""
BACKWARD_FLOP = 2.5  # of a backward over a forward: five products against two, arXiv:2307.08691 section 4.1
_PLAIN = "unfused"
_NEWEST = "the newest kernels of the architecture"
_WIDTHS = "widths of DeepSeek-V3's heads (assumed)"


def attention(ask: Ask) -> Priced:
    """A pass over whole sequences; FLOP as FlashAttention counts them: 4 B H S^2 D, half when causal.

    Where operator or library name a generation of kernels its published rates are preferred. Tables hold causal
    forward passes; others take those of the newest kernels.
    """
    if "decode" in ask.op:
        return decode(ask)
    form = ask.format()
    batch, tokens = ask.size("batch", "b"), ask.size("isl", "seq", "seq_len", "seqlen", "s", "q_len", "tokens")
    head = _head(ask.size("head_dim", "d"))
    notes = []
    if not {"heads", "h", "num_heads"} & ask.shape.keys():
        notes.append(f"heads not stated: {BENCHMARK_HIDDEN} / head size, as FlashAttention's benchmark (assumed)")
    heads = ask.size("heads", "h", "num_heads", default=max(1.0, BENCHMARK_HIDDEN // head))
    kv_heads = ask.size("kv_heads", "num_kv_heads", "kv", default=heads)
    if min(batch, tokens, heads, kv_heads) <= 0:
        raise InputError(f"'{ask.words}' has a size of 0", field="shape")
    past, causal = ask.size("kv_past", "past", default=0.0), _causal(ask)
    asked = questions.prefill(
        batch, tokens, heads, kv_heads, head, cached=past, window=_window(ask), dtype=form.name,
        cache_dtype=ask.cache_format,
    )  # fmt: skip
    found = reading("attention_library", words=f"{ask.op} {ask.library}".casefold())
    named = "" if found is None else found.text
    passes = _passes(ask)
    if causal and not named and [phase for phase, _ in passes] == [Phase.FORWARD]:
        flop = None if ask.serving else 2.0 * batch * heads * tokens * (tokens + past) * head
        return priced("attention prefill", asked, ask, flop=flop, notes=notes)
    notes.append(_NEWEST if found is None else found.told)
    (core,) = formulas(asked, ask.machine)
    assert isinstance(core, Attention)
    core = replace(core, fused=named != _PLAIN, plain=named == _PLAIN)
    core = core if causal else replace(core, mean_context=core.kv_tokens)
    share = sum(counted for _, counted in passes)
    flop = share * 4.0 * batch * heads * tokens * (tokens + past) * head * (0.5 if causal else 1.0)
    family = "attention unfused" if named == _PLAIN else "attention training" if share > 1 else "attention prefill"
    work = Worked(works=tuple(replace(core, phase=phase) for phase, _ in passes), form=form)
    return priced(family, work, ask, flop=flop, notes=notes, attention=named or "flash")


def decode(ask: Ask) -> Priced:
    """One new token a sequence: keys and values are read once at their own size, or scores are computed."""
    batch, heads = ask.size("batch", "b"), ask.size("heads", "h", "num_heads")
    kv_heads = ask.size("kv_heads", "num_kv_heads", "kv", default=heads)
    head = _head(ask.size("head_dim", "d"))
    context = ask.size("kv_past", "past", "context", "kv_len", "s", "seq_len", "seqlen") + ask.size("isl", default=1.0)
    if min(batch, heads, kv_heads) <= 0:
        raise InputError(f"'{ask.words}' has a size of 0", field="shape")
    asked = questions.decode(
        batch, context, heads, kv_heads, head, window=_window(ask), dtype=ask.format().name,
        cache_dtype=ask.cache_format,
    )  # fmt: skip
    return priced("attention decode", asked, ask)


def mixed(ask: Ask) -> Priced:
    """Attention of one iteration: a chunk of a prompt beside sequences that decode, one kernel after the other."""
    heads = ask.size("heads", "h", "num_heads")
    kv_heads, head = ask.size("kv_heads", "num_kv_heads", "kv", default=heads), _head(ask.size("head_dim", "d"))
    chunk, past = ask.size("prefill_chunk"), ask.size("kv_prefill", default=0.0)
    rows, context = ask.size("n_decode", default=0.0), ask.size("kv_decode", default=0.0)
    if min(heads, kv_heads) <= 0 or max(chunk, rows) <= 0:
        raise InputError(f"'{ask.words}' has no work: prefill_chunk and n_decode are 0", field="shape")
    dtype, cache, told = ask.format().name, ask.cache_format, []
    if chunk:
        asked = questions.prefill(1.0, chunk, heads, kv_heads, head, cached=past, dtype=dtype, cache_dtype=cache)
        told.append(priced("attention mixed", asked, ask, notes=("kv_prefill is the cache before the chunk",)))
    if rows:
        asked = questions.decode(rows, context + 1.0, heads, kv_heads, head, dtype=dtype, cache_dtype=cache)
        told.append(priced("attention mixed", asked, ask))
    first, last = told[0], told[-1]
    if first is last:
        return first
    ends = [one.interval_s or (one.seconds, one.seconds) for one in told]
    return replace(
        first, seconds=first.seconds + last.seconds, flop=first.flop + last.flop, bytes=first.bytes + last.bytes,
        interval_s=(ends[0][0] + ends[1][0], ends[0][1] + ends[1][1]), evidence=min(first.evidence, last.evidence),
        assumptions=(*first.assumptions, *last.assumptions),
    )  # fmt: skip


def latent_decode(ask: Ask) -> Priced:
    """Latent attention of one token a sequence with absorbed products: all heads share one latent of 512 + 64."""
    batch, heads = ask.size("batch", "b"), ask.size("heads", "h")
    context = ask.size("step", "kv_past", default=0.0) + ask.size("isl", default=1.0)
    asked = questions.mla_decode(batch, context, heads, dtype=ask.format().name, cache_dtype=ask.cache_format)
    return priced("mla decode", asked, ask, notes=(_WIDTHS,))


def latent_prefill(ask: Ask) -> Priced:
    """Latent attention over whole prompts with keys and values expanded: 192 wide scores, 128 wide values."""
    batch, heads, tokens = ask.size("batch", "b"), ask.size("heads", "h"), ask.size("isl", "seq")
    past = ask.size("step", "kv_past", default=0.0)
    dtype = ask.format().name
    asked = questions.mla_prefill(batch, tokens, heads, cached=past, dtype=dtype, cache_dtype=ask.cache_format)
    return priced("mla prefill", asked, ask, notes=(_WIDTHS,))


def _window(ask: Ask) -> float:
    """Keys that a query may look back on; 0 without a sliding window [token]."""
    return ask.size("window", "window_size", default=0.0)


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
