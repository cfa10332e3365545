"""Operators as people and tables state them, turned into questions of the ladder with their FLOP and bytes.

Shape letters: m, n, k of a product; B sequences, S tokens, H heads, K kv heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.answer import Question
from ridgeline.cost.convolution import Images
from ridgeline.cost.formats import WIDE, Form, form
from ridgeline.cost.host_times import issue_seconds
from ridgeline.cost.machine import Machine
from ridgeline.cost.network import OPERATIONS, group_sizes
from ridgeline.lower.work import Attention, Collective, CollectiveKind, Gemm, Number, Stream

FP8_ROW = 1 + 4 / 128  # bytes of an fp8 value with its share of an fp32 scale. Source: DeepEP, README
BF16_ROW = 2.0
LATENT, ROTARY, NOPE, VALUE = 512.0, 64.0, 128.0, 128.0
"""Widths of latent attention of a DeepSeek-V3 head. Source: arXiv:2412.19437, section 4.2."""


def latent_prefill(batch: Number, tokens: Number, heads: Number, cached: Number = 0.0) -> dict[str, Number]:
    """Latent attention, keys and values expanded, as sizes of ordinary prefill: 192 wide scores, 128 wide values."""
    head = (NOPE + ROTARY + VALUE) / 2
    return {"batch": batch, "tokens": tokens, "cached": cached, "kv_heads": heads, "group": 1.0, "head_dim": head}


def latent_decode(batch: Number, context: Number, heads: Number, cache_bytes: float) -> dict[str, Number]:
    """Latent attention with absorbed products, as sizes of ordinary decode: all heads share one latent of 512 + 64."""
    scores, values = LATENT + ROTARY, LATENT
    head = (scores + values) / 2
    read_once = scores / (scores + values)  # values are part of the keys
    return {
        "batch": batch, "context": context, "kv_heads": 1.0, "group": heads, "head_dim": head,
        "kv_bytes": cache_bytes * read_once,
    }  # fmt: skip


_CALLING = ("vllm", "trtllm")  # engines whose own calls of an exchange were timed, SGLang's being DeepEP's kernels


Kernel = Gemm | Attention | Stream | Images
Formula = Kernel | Collective
"""Work that formulas price."""


@dataclass(frozen=True, kw_only=True)
class Worked:
    """An operator that formulas alone price: pieces of work, one after another, in a number format."""

    works: tuple[Formula, ...]
    form: Form


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question with what it computes and moves: `flop` [FLOP], `bytes` once through memory or link [byte]."""

    question: Question
    flop: Number
    bytes: Number

    def by(self, engine: str, version: str = "", kernel: str = "") -> Asked:
        """The same asked of one engine's kernels; exchanges of engines that are measured as they call them, as such."""
        called = self.question.family == "exchange" and engine in _CALLING
        family = "engine_exchange" if called else self.question.family
        named = replace(self.question, family=family, engine=engine, version=version, kernel=kernel)
        return replace(self, question=named)

    def sized(self, **sizes: float) -> Asked:
        """The same with other sizes."""
        return replace(self, question=replace(self.question, sizes={**self.question.sizes, **sizes}))


def asked_of(family: str, form_name: str, flop: Number, moved: Number, **sizes: Number) -> Asked:
    """A question of a family in a number format, with its FLOP and its bytes."""
    return Asked(question=Question(family=family, sizes=sizes, form=form_name), flop=flop, bytes=moved)


def gemm(
    m: Number, n: Number, k: Number, *, count: Number = 1.0, dtype: str = "bf16", cast: bool | None = None
) -> Asked:
    """`count` products (m, k) x (k, n): 2 m n k FLOP each; operands and result once through memory.

    `cast` says whether 16-bit activations are cast to the format first, as serving layers do; None leaves it to the
    format.
    """
    what, told = form(dtype), {} if cast is None else {"cast": float(cast)}
    a, b, c = np.asarray(m), np.asarray(n), np.asarray(k)
    moved = (a * c * what.input_bytes + c * b * what.weight_bytes + a * b * what.output_bytes) * count
    return asked_of("gemm", dtype, 2.0 * a * b * c * count, moved, m=m, n=n, k=k, count=count, **told)


def attention_form(dtype: str, cache_dtype: str = "") -> str:
    """The format of attention: that of its products, and of the cache where it is narrower."""
    products = form(dtype).name
    narrow = bool(cache_dtype) and form(cache_dtype).weight_bytes < 2
    return "fp8" if products.startswith("fp8") else "bf16_kv8" if narrow else "bf16"


def _core_form(dtype: str, cache_dtype: str) -> str:
    """As `attention_form`; formats wider than 16 bits stay what they are, unless the cache is narrower."""
    name = form(dtype).name
    return name if name in WIDE and not cache_dtype else attention_form(dtype, cache_dtype)


def prefill(
    batch: Number,
    tokens: Number,
    heads: Number,
    kv_heads: Number,
    head_dim: Number,
    *,
    cached: Number = 0.0,
    window: Number = 0.0,
    dtype: str = "bf16",
    cache_dtype: str = "",
) -> Asked:
    """Causal attention of `tokens` new tokens after `cached` ones: 4 H D FLOP for each query and key that it sees."""
    what = form(_core_form(dtype, cache_dtype))
    size, past = np.asarray(tokens, dtype=float), np.asarray(cached, dtype=float)
    limit = np.where(np.asarray(window) > 0, window, np.inf)
    whole = np.clip(limit - past, 0, size)  # queries that the window does not cut
    seen = whole * (past + (whole + 1) / 2) + np.where(whole < size, (size - whole) * np.minimum(limit, 2.0**62), 0)
    keys = np.minimum(past + size, np.minimum(limit, 2.0**62) + size)
    moved = batch * head_dim * (2.0 * what.output_bytes * size * heads + 2.0 * keys * kv_heads * what.weight_bytes)
    return asked_of(
        "prefill", what.name, 4.0 * batch * heads * head_dim * seen, moved, batch=batch, tokens=tokens, cached=cached,
        kv_heads=kv_heads, group=np.asarray(heads) / kv_heads, head_dim=head_dim, window=window,
    )  # fmt: skip


def decode(
    batch: Number,
    context: Number,
    heads: Number,
    kv_heads: Number,
    head_dim: Number,
    *,
    window: Number = 0.0,
    dtype: str = "bf16",
    cache_dtype: str = "",
) -> Asked:
    """Attention of one new token a sequence over `context` keys, which are read once at the cache's own size."""
    what = form(_core_form(dtype, cache_dtype))
    seen = np.where(np.asarray(window) > 0, np.minimum(context, np.maximum(window, 1)), context)
    moved = batch * head_dim * (2.0 * kv_heads * seen * what.weight_bytes + 2.0 * what.output_bytes * heads)
    return asked_of(
        "decode", what.name, 4.0 * batch * heads * head_dim * seen, moved, batch=batch, context=context,
        kv_heads=kv_heads, group=np.asarray(heads) / kv_heads, head_dim=head_dim, window=window,
    )  # fmt: skip


def mla_prefill(
    batch: Number, tokens: Number, heads: Number, *, cached: Number = 0.0, dtype: str = "bf16", cache_dtype: str = ""
) -> Asked:
    """Latent attention over whole prompts with keys and values expanded, in DeepSeek-V3's widths."""
    sizes = latent_prefill(batch, tokens, heads, cached)
    name = attention_form(dtype, cache_dtype)
    size = np.asarray(tokens, dtype=float)
    seen = size * (np.asarray(cached) + (size + 1) / 2)
    head = np.asarray(sizes["head_dim"])
    moved = batch * heads * head * (4.0 * size + 2.0 * (size + np.asarray(cached)) * form(name).weight_bytes)
    return asked_of("mla_prefill", name, 4.0 * batch * heads * head * seen, moved, **sizes)


def mla_decode(batch: Number, context: Number, heads: Number, *, dtype: str = "bf16", cache_dtype: str = "") -> Asked:
    """Latent attention of one token a sequence with absorbed products: one latent of 576 elements for all heads."""
    name = attention_form(dtype, cache_dtype)
    sizes = latent_decode(batch, context, heads, form(name).weight_bytes)
    wide = LATENT + ROTARY
    moved = batch * (np.asarray(context) * wide * form(name).weight_bytes + 2.0 * heads * (wide + LATENT))
    return asked_of("mla_decode", name, 2.0 * batch * heads * np.asarray(context) * (wide + LATENT), moved, **sizes)


def experts(
    tokens: Number,
    hidden: Number,
    inner: Number,
    top_k: Number,
    count: Number,
    *,
    ranks: Number = 1.0,
    skew: Number = 0.0,
    gated: bool = True,
    dtype: str = "bf16",
) -> Asked:
    """The feed-forward of one rank's experts; `inner` is an expert's width on this rank, `skew` 0 balanced routing."""
    what = form(dtype)
    rows = np.asarray(tokens, dtype=float) * top_k / ranks
    reached = np.minimum(np.asarray(count, dtype=float) / ranks, np.ceil(rows))
    weights = reached * (2.0 + gated) * hidden * inner * what.weight_bytes
    moved = weights + rows * hidden * (what.input_bytes + 2.0)
    return asked_of(
        "experts", dtype, 2.0 * rows * hidden * inner * (2.0 + gated), moved, tokens=tokens, hidden=hidden, inner=inner,
        top_k=top_k, experts=count, ranks=ranks, skew=skew, gated=float(gated),
    )  # fmt: skip


def places_reached(places: Number, top_k: Number) -> Number:
    """Places that a token's `top_k` copies reach, of R alike, on average [1]: R (1 - (1 - 1/R)^top_k)."""
    return places * (1.0 - (1.0 - 1.0 / np.asarray(places)) ** top_k)


def exchange(
    tokens: Number,
    hidden: Number,
    top_k: Number,
    count: Number,
    machine: Machine,
    *,
    combine: bool = False,
    quick: bool = False,
    sms: Number = 20.0,
) -> Asked:
    """Tokens of every rank sent to their experts' ranks in fp8 with scales, or combined again in bf16."""
    ranks = machine.cluster.count
    where = group_sizes(machine, ranks, 1)
    row_bytes = np.asarray(hidden) * (2.0 if combine else FP8_ROW)
    return asked_of(
        "exchange", "any", 0.0, tokens * row_bytes * top_k, quick=float(quick), combine=float(combine), tokens=tokens,
        row_bytes=row_bytes, top_k=top_k, experts=count, ranks=ranks, nodes=where["nodes"], sms=1.0 if quick else sms,
        link_bytes_per_s=where["link_bytes_per_s"], nic_bytes_per_s=where["nic_bytes_per_s"],
    )  # fmt: skip


def collective(
    kind: CollectiveKind,
    size_bytes: Number,
    ranks: Number,
    machine: Machine,
    *,
    stride: Number = 1,
    in_place: bool = False,
    eager: bool = False,
    alone: bool = False,
) -> Asked:
    """A collective of `ranks` devices, `stride` apart; `size_bytes` is the whole buffer of one rank [byte].

    `eager` calls are issued one by one by the host, others replayed from a graph. Where the host waits for each,
    `alone`, a call takes its issue as well.
    """
    issue_s = issue_seconds(machine.cluster.accelerator, machine.cluster.host) if eager else 0.0
    asked = asked_of(
        "collective", "any", 0.0, size_bytes, operation=float(OPERATIONS.index(kind.value)), bytes=size_bytes,
        ranks=ranks, in_place=float(in_place), **group_sizes(machine, ranks, stride),
    )  # fmt: skip
    return replace(asked, question=replace(asked.question, issue_s=issue_s, alone=alone))
