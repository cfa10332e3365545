"""Products, streams, copies and power of one device, priced by the mechanisms.

Shape letters: m, n, k of a product (m, k) x (k, n).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from ridgeline.cost import questions
from ridgeline.cost.formats import FORMS, Form
from ridgeline.cost.machine import link_efficiency
from ridgeline.cost.price_list import product_works
from ridgeline.cost.questions import Asked, Worked
from ridgeline.errors import InputError
from ridgeline.facts.mechanisms import constant, constants
from ridgeline.facts.records import Evidence
from ridgeline.lower.work import Phase, Stream
from ridgeline.validate.operator_cells import Ask, Priced, priced

LONG_STREAM_BYTES = 2.0**30  # where only a rate is asked and no size is stated
_UNSTATED = re.compile(r"not stated|default|^\s*$", re.IGNORECASE)


def stream(family: str, size_bytes: float, ask: Ask) -> Priced:
    """One elementwise kernel that moves `size_bytes` [s]."""
    moved = Stream(name="stream", phase=Phase.FORWARD, bytes=size_bytes)
    return priced(family, Worked(works=(moved,), form=ask.format()), ask)


def gemm(ask: Ask) -> Priced:
    """One product, or a batch or group of equal ones; without a shape the sustained rate of large products."""
    form = ask.format()
    if not {"m", "n", "k"} <= ask.shape.keys() and "m_per_group" not in ask.shape:
        return _peak(ask, form)
    m, n, k = ask.size("m_per_group", "m"), ask.size("n"), ask.size("k")
    count = ask.size("groups", "batch", "b", "count", default=1.0)
    family = "gemm" if count == 1 and "group" not in ask.op else "grouped gemm" if "group" in ask.op else "batched gemm"
    family = "weight-only gemm" if form.weight_bytes < 0.9 * form.input_bytes else family  # beyond a block's scales
    asked: Asked | Worked = questions.gemm(m, n, k, dtype=form.name, cast=form.cast)
    if count != 1 or FORMS[form.name].matrix != form.matrix:  # other units have kernels of their own
        asked = Worked(works=product_works(m, n, k, count, form, cast=form.cast), form=form)
    found = priced(family, asked, ask, flop=2.0 * m * n * k * count)
    if found.rung or not form.cast:
        return found
    told = f"the engine's layer casts 16-bit activations to {form.matrix} first"
    return replace(found, assumptions=(*found.assumptions, told))


def _peak(ask: Ask, form: Form) -> Priced:
    if not _UNSTATED.search(ask.words):
        raise InputError(f"'{ask.words}' does not state m, n and k", field="shape")
    key = f"matrix.{form.matrix}"
    rate = ask.device.matrix_rate(form.matrix)
    return Priced(
        family="gemm at its best shape",
        seconds=1.0,
        flop=rate,
        sized=False,
        rate=key,
        evidence=ask.device.evidence.get(key, Evidence.DATASHEET),
        assumptions=("shape not stated: the sustained rate of a large product",),
    )


def _moved(ask: Ask, family: str, bytes_per_s: float, evidence: Evidence, *notes: str, start_s: float = 0.0) -> Priced:
    """Bytes at a rate; where the cells give no size the rate alone is told, of a long run."""
    size = ask.size("bytes", default=LONG_STREAM_BYTES)
    return Priced(
        family=family, seconds=size / bytes_per_s + start_s, bytes=size, sized="bytes" in ask.shape, evidence=evidence,
        assumptions=notes,
    )  # fmt: skip


def long_stream(ask: Ask) -> Priced:
    """A long stream over device memory at the sustained rate; its bandwidth counts every byte moved."""
    sized, evidence = "bytes" in ask.shape, ask.device.evidence.get("hbm", Evidence.DATASHEET)
    notes = () if sized else ("size not stated: the sustained rate of a long stream",)
    gap = constant("launch.device") if sized else 0.0
    found = _moved(ask, "stream", ask.device.memory_bytes_per_s, evidence, *notes, start_s=gap)
    return replace(found, rate="hbm")


def host_copy(ask: Ask) -> Priced:
    """A copy between host and device at the host link's rate and PCIe's share of it [byte/s]."""
    rate, share = ask.machine.cluster.host.device_bytes_per_s, constants()["efficiency.pcie.ring"]
    return _moved(ask, "host copy", rate * share.value, share.evidence, "pinned host memory (assumed)")


def peer_copy(ask: Ask) -> Priced:
    """A copy between two devices of a node at their link's rate, one way [byte/s]."""
    cluster = ask.machine.cluster
    if cluster.count < 2:
        raise InputError("a copy between devices needs two of them", field="op")
    tier = cluster.tiers[0]
    share = link_efficiency(tier)
    both = 2.0 if re.search(r"duplex|bidirectional", ask.op) else 1.0
    through = 2.0 if tier.topology == "bus" else 1.0
    rate = tier.bytes_per_s * share.value * both / through
    return _moved(ask, "device copy", rate, share.evidence, f"link {tier.name}")


def power(ask: Ask) -> Priced:
    """Board power of a long run of one kind of work [W]: its share of the rated power."""
    rated = ask.accelerator.tdp_w
    if rated is None:
        raise InputError(f"{ask.accelerator.name}: the catalog holds no rated power", field="hardware")
    key = "power.memory" if re.search(r"memory|bandwidth|stream", ask.op) else "power.matrix"
    fact = constants()[key]
    return Priced(
        family="power",
        seconds=1.0,
        sized=False,
        power_w=rated * fact.value,
        evidence=fact.evidence,
        assumptions=(f"{fact.value:g} of the rated {rated:g} W",),
    )


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
