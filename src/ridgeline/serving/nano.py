"""Nano-batches: an iteration cut in parts, whose compute-, memory- and network-bound kernels run side by side.

Each part is a chain of kernels; while one is at a kernel that waits for memory or a link, the other's products go on.
The device cannot do better than its busiest resource. Source: NanoFlow (Zhu and others, OSDI 2025, arXiv:2408.12757).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from ridgeline.cost.seconds import Seconds
from ridgeline.facts.mechanisms import constant
from ridgeline.serving.state import Array


@dataclass(frozen=True, kw_only=True)
class NanoTables:
    """All parts of an iteration, one after the other, by what each kernel waits for [s].

    `compute`, `memory` and `network` (3, T) of all layers: what T tokens of one attention rank take, then the experts
    when each rank brings T, in a step and in an iteration with prompts; the same with `head_` (N,) of sampling;
    `decode` (N, C) attention of decoding sequences. A kernel counts as that of the resource that it keeps busy longer.
    """

    compute: Seconds
    memory: Seconds
    network: Seconds
    head_compute: Seconds
    head_memory: Seconds
    head_network: Seconds
    decode: Seconds


def shares(*, links_only: bool = False) -> tuple[float, float]:
    """Shares of a device's multiprocessors that memory-bound kernels and collectives hold beside products [1].

    Products that take 1 + x times as long beside a collective have lost x / (1 + x) of them. With `links_only` all
    kernels but the exchange are launched in one stream, so that none runs beside another. Source: sglang,
    python/sglang/srt/batch_overlap/operations.py at 04bb08a; vllm, docs/design/dbo.md at 0621454.
    """
    slowdown = constant("overlap.compute_slowdown")
    return 1.0 if links_only else constant("overlap.memory_sms"), slowdown / (1.0 + slowdown)


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """How nano-batches share a device: `state.RULE`'s numbers of the same names, from a technique's."""

    memory_sms: float
    link_sms: float
    chain: float = 0.5
    chain_step_s: float = 0.0
    chain_seq_s: float = 0.0
    attention_memory: float = 1.0
    attention_link: float = 0.0

    @classmethod
    def of(cls, numbers: Mapping[str, float]) -> Overlap:
        """Those that a technique states, and for what it does not those of two nano-batches."""
        return cls(**{field.name: numbers[field.name] for field in fields(cls) if field.name in numbers})

    def host_s(self, sequences: float) -> float:
        """What the host of one nano-batch takes before its next iteration [s]."""
        return self.chain_step_s + self.chain_seq_s * sequences


def overlapped_s(
    compute_s: Array | float, memory_s: Array | float, network_s: Array | float, *, overlap: Overlap | None = None,
    attention_s: Array | float = 0.0, sequences: float = 0.0,
) -> Array:  # fmt: skip
    """Least time of nano-batches whose kernels share a device [s].

    t = max(c + (m + a) s_m + n s_n, m + f_m a, n + f_n a, k (c + m + a + n) + h)

    Multiprocessors work on products all of c, and a share s_m or s_n of them serves kernels that wait for memory or a
    link; memory is busy for m, the link for n; and each of 1 / k parts is a chain of its own, after its host's h.

    Parameters
    ----------
    compute_s, memory_s, network_s, attention_s : array or float [s]
        c, m, n and a of all parts, each alone on the device.
    overlap : Overlap
        The shares; two nano-batches where there is none.
    sequences : float [1]
        Sequences that get a token.

    Returns
    -------
    array [s]
        Lower bound: a schedule that leaves no gap but these. Never more than c + m + n, never less than any of them.

    >>> round(float(overlapped_s(10.0, 4.0, 2.0)), 3)  # 10 + 4 x 0.5 + 2 x 0.1116
    12.223
    """
    how = overlap or Overlap(**dict(zip(("memory_sms", "link_sms"), shares(), strict=True)))
    own = np.asarray(memory_s) + attention_s
    shared = compute_s + how.memory_sms * own + how.link_sms * np.asarray(network_s)
    chain = how.chain * (compute_s + own + network_s) + how.host_s(sequences)
    read = np.asarray(attention_s)
    memory, network = memory_s + how.attention_memory * read, network_s + how.attention_link * read
    return np.asarray(np.maximum(np.maximum(shared, chain), np.maximum(memory, network)))


def side_by_side(
    compute: Seconds, memory: Seconds, network: Seconds, *, overlap: Overlap | None = None,
    attention: Seconds | None = None, sequences: float = 0.0,
) -> list[Seconds]:  # fmt: skip
    """The parts of nano-batches, each with its share of the time that they take together [s].

    Attention of decoding sequences counts among what waits for memory.
    """
    parts = (compute, memory if attention is None else memory + attention, network)
    found = []
    for part in parts:
        ends = {}
        for end in ("mid", "low", "high"):
            each = [getattr(one, end) for one in (compute, memory, network)]
            read = 0.0 if attention is None else getattr(attention, end)
            taken = overlapped_s(*each, overlap=overlap, attention_s=read, sequences=sequences)
            ends[end] = getattr(part, end) * taken / np.maximum(sum(getattr(one, end) for one in parts), 1e-300)
        found.append(Seconds(**ends, compute=part.compute, memory=part.memory))
    return found


def sorted_out(found: Seconds) -> tuple[Seconds, Seconds]:
    """Kernels that wait for compute, and those that wait for memory, each with zeros in place of the others [s]."""
    bound = found.memory >= found.compute
    return tuple(  # type: ignore[return-value]
        Seconds(**{name: np.where(mask, value, 0.0) for name, value in vars(found).items()}) for mask in (~bound, bound)
    )
