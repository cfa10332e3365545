"""The price list: what one piece of work costs on one machine under one policy, whoever asks.

A policy says whose kernels run, and so which evidence is preferred: measured tables and fits of an engine's kernels, or
published rates of the attention kernels and sustained rates of the products that a training program calls. Formulas
answer what nobody measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.answer import ALL, Cost, Rung, interval, together
from ridgeline.cost.attention import attention_cost, attention_interval
from ridgeline.cost.compute import gemm_cost, stream_cost, under_load
from ridgeline.cost.formats import Form, form
from ridgeline.cost.ladder import price as laddered
from ridgeline.cost.machine import Device, Machine, kernel_start_s
from ridgeline.cost.network import OPERATIONS, collective_seconds
from ridgeline.cost.questions import Asked, Formula, Kernel, Worked, places_reached
from ridgeline.errors import DomainError
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Evidence
from ridgeline.lower.work import Attention, Collective, CollectiveKind, Gemm, Number, Phase, Stream


@dataclass(frozen=True, kw_only=True)
class KernelPolicy:
    """Whose kernels run, and what is known of them that is preferred.

    Of an `engine` (vllm, sglang, trtllm; nccl; '' any) in a `version`, or of what `library` names, the `rungs` that
    may answer. Where `attention` names published kernels (flash2, flash3, cudnn, triton), their rates are preferred.
    With `measured_only` no formula stands in for kernels that nobody measured.
    """

    engine: str = ""
    version: str = ""
    library: str = ""
    rungs: tuple[Rung, ...] = ALL
    attention: str = ""
    measured_only: bool = False


def price(asked: Asked | Worked, machine: Machine, policy: KernelPolicy) -> Cost:
    """The cost of an operator with its 80 % interval, by the best evidence that the policy allows [s].

    Raises `DomainError` where none answers: a format or device that nobody measured and no formula prices.
    """
    if isinstance(asked, Worked):
        return by_formula(asked.works, machine, asked.form, attention=policy.attention or "flash")
    if policy.rungs and not (policy.attention and asked.question.family == "prefill"):
        question = asked.by(policy.engine, policy.version, policy.library).question
        try:
            found = laddered(question, machine.cluster.accelerator, rungs=policy.rungs)
            rate = f"matrix.{form(question.form).matrix}" if found.rung is Rung.BORROWED else ""
            return replace(found, flop=asked.flop, bytes=asked.bytes, rate=rate)
        except DomainError:
            if policy.measured_only or not formulas(asked, machine):
                raise
    works = formulas(asked, machine)
    if not works:
        raise DomainError(f"no formula prices {asked.question.family}; allow measured kernels")
    return by_formula(works, machine, form(asked.question.form), attention=policy.attention or "flash")


def formulas(asked: Asked, machine: Machine) -> Sequence[Formula]:
    """The pieces of work by which formulas price an operator that tables know; none where only kernels tell."""
    question = asked.question
    sizes, what = {"cached": 0.0, "count": 1.0, **question.sizes}, form(question.form)
    if question.family == "gemm":
        return product_works(
            sizes["m"], sizes["n"], sizes["k"], sizes["count"], what, cast=bool(sizes.get("cast", what.cast))
        )
    if question.family == "prefill":
        heads, tokens = np.asarray(sizes["kv_heads"]) * sizes["group"], np.asarray(sizes["tokens"])
        pairs = 4.0 * np.asarray(sizes["batch"]) * heads * sizes["head_dim"] * tokens
        width = int(np.max(sizes["head_dim"]))
        core = Attention(
            name="attention", phase=Phase.FORWARD, sequences=sizes["batch"], heads=heads, kv_heads=sizes["kv_heads"],
            q_tokens=tokens, kv_tokens=tokens + sizes["cached"], mean_context=asked.flop / pairs, qk_dim=width,
            v_dim=width, fused=True,
        )  # fmt: skip
        return (core,)
    if question.family == "collective":
        kind = CollectiveKind(OPERATIONS[int(np.max(sizes["operation"]))])
        ranks = machine.cluster.count
        return (Collective(name=kind.value, phase=Phase.FORWARD, kind=kind, bytes=asked.bytes, ranks=ranks, stride=1),)
    return _exchange_works(sizes, machine) if question.family == "exchange" else ()


def _exchange_works(sizes: Mapping[str, Number], machine: Machine) -> tuple[Formula, ...]:
    """All-to-alls of tokens: every copy on its own, or one to each node, and side by side one to each rank inside."""
    ranks, node = machine.cluster.count, max(1, min(machine.tiers[0].size, machine.cluster.count))
    token_bytes, top_k = np.asarray(sizes["tokens"]) * sizes["row_bytes"], sizes["top_k"]

    def sent(copies: Number, members: int, stride: int) -> Collective:
        return Collective(
            name="exchange", phase=Phase.FORWARD, kind=CollectiveKind.ALL_TO_ALL, bytes=token_bytes * copies,
            ranks=members, stride=stride,
        )  # fmt: skip

    if np.any(sizes["quick"]):
        return (sent(top_k, ranks, 1),)
    inside = sent(places_reached(ranks, top_k), min(ranks, node), 1)
    nodes = -(-ranks // node)
    if ranks <= node:
        return (inside,)
    beyond = sent(places_reached(nodes, top_k), nodes, node)
    return (beyond, inside) if node > 1 else (beyond,)


def product_works(
    m: Number, n: Number, k: Number, count: Number, what: Form, *, cast: bool = False
) -> tuple[Formula, ...]:
    """`count` products (m, k) x (k, n) as work, after a `cast` of 16-bit inputs to the format where it is asked."""
    product = Gemm(name="gemm", phase=Phase.FORWARD, m=m, n=n, k=k, count=count, output_bytes=what.output_bytes)
    moved = np.asarray(m) * k * count * (2 + what.input_bytes)
    return (product, Stream(name="cast", phase=Phase.FORWARD, bytes=moved)) if cast else (product,)


def by_formula(works: Sequence[Formula], machine: Machine, what: Form, *, attention: str = "flash") -> Cost:
    """Pieces of work one after another, or collectives side by side, by formulas; a start for each kernel [s].

    Evidence is that of the rate of the side that lasts longer, of links that of their own; so is the interval, or that
    of attention kernels where theirs was judged.
    """
    device = machine.device
    if isinstance(works[0], Collective):
        linked = [collective_seconds(work, machine) for work in works if isinstance(work, Collective)]
        seconds = max(float(np.asarray(one)) for one in linked)
        low_s, high_s = interval(seconds, machine.link_evidence)
        return Cost(
            seconds=seconds, bytes=works[0].bytes, low_s=low_s, high_s=high_s, evidence=machine.link_evidence
        )  # fmt: skip
    kernels = [work for work in works if not isinstance(work, Collective)]
    costs = [formula_cost(work, device, what, attention=attention) for work in kernels]
    found = together(costs)
    starts_s = (
        float(np.asarray(cost.kernels)) * start_s(work, device) for work, cost in zip(kernels, costs, strict=True)
    )
    seconds = float(found.seconds + sum(starts_s))
    rate = f"matrix.{what.matrix}" if found.compute_s >= found.memory_s else "hbm"
    evidence = device.evidence.get(rate, Evidence.DATASHEET)
    low_s, high_s = interval(seconds, evidence)
    alone = all(isinstance(work, Attention) for work in works)
    known = attention_interval(attention, device.accelerator.architecture) if alone else None
    if known is not None:
        low_s, high_s = seconds * known[0], seconds * known[1]
    return replace(found, seconds=seconds, low_s=low_s, high_s=high_s, evidence=evidence, rate=rate)


def formula_cost(work: Kernel, device: Device, what: Form, *, attention: str = "flash", loaded: bool = False) -> Cost:
    """One piece of work in a number format by its formula, gaps between kernels excluded; arrays broadcast [s].

    `attention` is the generation of fused kernels; `loaded` products follow each other for hours, at the rate that the
    power limit leaves.
    """
    if isinstance(work, Gemm):
        found = gemm_cost(work, device, what)
        return under_load(found, device, dtype=what.matrix) if loaded else found
    if isinstance(work, Attention):
        return attention_cost(work, device, dtype=what.matrix, kernel=attention)
    if isinstance(work, Stream):
        return stream_cost(work, device, dtype=what.matrix)
    return work.cost(what, device)


def start_s(work: Kernel, device: Device) -> float:
    """Time of a kernel beside what its formula counts [s]: its launch, or the shortest kernel measured on the device.

    A pass over memory waits for its first and last bytes as well; formulas of products and attention count these.
    """
    if isinstance(work, Stream):
        return device.kernel_s
    return max(constant("launch.device"), kernel_start_s(device.accelerator))
