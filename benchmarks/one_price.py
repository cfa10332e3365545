"""The same shapes as a training step, a served layer and `op` price them; writes one_price.md.

    python benchmarks/one_price.py    # needs ridgeline[measured]

All three go through `cost/price_list.py` and `cost/ladder.py`. What differs is the evidence that each policy prefers:
`op` the measured tables, an engine the fits of its kernels with cold caches, a training program published rates of its
attention kernels and sustained rates of products under a long load, launches apart. `none` is serving by no engine.

Training priced by the tables' fits was tried on published runs: products by them make the median error of nearly every
metric worse, by 0.5 to 3.5 points (a benchmark's kernels end before the power limit acts); forward attention by them
that of forward times by 1.2 points, others by less than 0.3. Short prompts differ most: tables time the engines' paged
kernels, half as fast as FlashAttention's published rates below 2,048 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ridgeline.cost.formats import Formats
from ridgeline.cost.machine import Machine, machine
from ridgeline.cost.network import collective_seconds
from ridgeline.cost.price import Pricer
from ridgeline.cost.served import ServedPrices
from ridgeline.errors import DomainError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.workload import Workload
from ridgeline.lower.pieces import Core, ElementwisePiece, Product
from ridgeline.lower.work import Attention, Collective, CollectiveKind, Gemm, Phase, Stream
from ridgeline.predict.operator import operator_cost

DEVICES = ("H100-SXM", "A100-SXM-80GB", "B200-SXM", "MI300X")
WIDTH, DEPTH = 6144, 4096  # of the product: queries, keys and values of Llama 3.1 8B
PAGE = Path(__file__).with_suffix(".md")
Ask = Callable[[], object]


def _us(ask: Ask) -> float:
    """A price [us]; NaN where nothing answers."""
    try:
        return float(np.ravel(np.asarray(ask()))[0]) * 1e6
    except DomainError:
        return float("nan")


def products(found: Machine, number: str) -> Iterator[tuple[str, tuple[Ask, ...]]]:
    """Products of a number format over few and many rows."""
    name = found.cluster.accelerator.name
    train = Pricer(found, Workload(seq_len=4096, global_batch=8, precision=number))
    engine, none = (ServedPrices(found, Formats(feed=number), engine=one) for one in ("vLLM", ""))
    for rows in (1, 16, 128, 1024, 4096, 16384):
        work = Gemm(name="qkv", phase=Phase.FORWARD, m=rows, n=WIDTH, k=DEPTH, quantized=number != "bf16")
        piece, size = Product(name="qkv", n=WIDTH, k=DEPTH), np.array([float(rows)])
        yield f"product {number}, {rows:,} rows", (
            lambda work=work: train.kernel(work).seconds,
            lambda piece=piece, size=size: engine.product(piece, size).mid,
            lambda piece=piece, size=size: none.product(piece, size).mid,
            lambda rows=rows: operator_cost("gemm", f"{rows}x{WIDTH}x{DEPTH}", number, cluster(name)).seconds,
        )  # fmt: skip


def attention(found: Machine) -> Iterator[tuple[str, tuple[Ask, ...]]]:
    """Causal attention of one sequence, 32 heads of 128 with 8 of keys."""
    name = found.cluster.accelerator.name
    train = Pricer(found, Workload(seq_len=4096, global_batch=8))
    engine, none = (ServedPrices(found, Formats(), engine=one) for one in ("vLLM", ""))
    core = Core(heads=32, kv_heads=8, qk_dim=128, v_dim=128)
    for tokens in (512, 1024, 2048, 4096, 8192):
        work = Attention(
            name="core", phase=Phase.FORWARD, sequences=1, heads=32, kv_heads=8, q_tokens=tokens, kv_tokens=tokens,
            mean_context=(tokens + 1) / 2, qk_dim=128, v_dim=128, fused=True,
        )  # fmt: skip
        size, past = np.array([float(tokens)]), np.zeros(1)
        yield f"causal attention, {tokens:,} tokens", (
            lambda work=work: train.kernel(work).seconds,
            lambda size=size, past=past: engine.prefill(core, 1.0, size, past).mid,
            lambda size=size, past=past: none.prefill(core, 1.0, size, past).mid,
            lambda tokens=tokens: operator_cost("attention", f"1x{tokens}x32x8x128", "bf16", cluster(name)).seconds,
        )  # fmt: skip


def passes(found: Machine) -> Iterator[tuple[str, tuple[Ask, ...]]]:
    """Norms over rows of 4,096 elements."""
    name, train = found.cluster.accelerator.name, Pricer(found, Workload(seq_len=4096, global_batch=8))
    engine, none = (ServedPrices(found, Formats(), engine=one) for one in ("vLLM", ""))
    for rows in (16, 1024, 16384):
        work = Stream(name="norm", phase=Phase.FORWARD, bytes=3.0 * rows * 4096 * 2)
        piece, size = ElementwisePiece(name="norm", elements=3.0 * 4096), np.array([float(rows)])
        yield f"norm, {rows:,} rows", (
            lambda work=work: train.kernel(work).seconds,
            lambda piece=piece, size=size: engine.stream(piece, size).mid,
            lambda piece=piece, size=size: none.stream(piece, size).mid,
            lambda rows=rows: operator_cost("norm", f"{rows}x4096", "bf16", cluster(name)).seconds,
        )  # fmt: skip


def collectives(found: Machine) -> Iterator[tuple[str, tuple[Ask, ...]]]:
    """All-reduces and all-gathers over the eight devices."""
    engine, none = (ServedPrices(found, Formats(), engine=one) for one in ("vLLM", ""))
    for kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER):
        for size in (2**16, 2**20, 2**24, 2**28):
            work = Collective(name="x", phase=Phase.FORWARD, kind=kind, bytes=float(size), ranks=8, stride=1)
            served = [
                lambda one=one, size=size, kind=kind: (
                    one.all_reduce(np.array([float(size)]), 8)
                    if kind is CollectiveKind.ALL_REDUCE
                    else one.collective(kind, np.array([float(size)]), 8)
                )
                for one in (engine, none)
            ]
            yield f"{kind.value}, {size / 2**20:g} MiB over 8", (
                lambda work=work: collective_seconds(work, found),
                *served,
                lambda kind=kind, size=size: operator_cost(kind.value, f"{size} B", "bf16", found.cluster).seconds,
            )  # fmt: skip


def page() -> str:
    """The page, as Markdown."""
    told = (__doc__ or "").strip().splitlines()
    lines = [
        "# One price: the same shapes, whoever asks",
        "",
        "`python benchmarks/one_price.py`. Times in microseconds.",
    ]
    lines += ["", *told[4:], ""]
    for device in DEVICES:
        found = machine(cluster(f"8x{device}"))
        rows = [*products(found, "bf16"), *attention(found), *passes(found), *collectives(found)]
        rows += list(products(found, "fp8")) if "fp8" in found.device.matrix else []
        lines += [f"## {device}", "", "| work | training | vLLM | none | `op` | training / none | `op` / none |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for name, asks in rows:
            train, engine, none, op = map(_us, asks)
            times = " | ".join(f"{time:,.1f}" for time in (train, engine, none, op))
            lines.append(f"| {name} | {times} | {train / none:.2f} | {op / none:.2f} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
