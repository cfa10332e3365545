"""Nano-batches: an iteration cut in two halves, whose compute-, memory- and network-bound kernels run side by side.

Each half is a chain of kernels; while one is at a kernel that waits for memory or a link, the other's products go on.
The device cannot do better than its busiest resource. Source: NanoFlow (Zhu and others, OSDI 2025, arXiv:2408.12757).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.cost.seconds import Seconds
from ridgeline.facts.mechanisms import constant
from ridgeline.serving.state import Array


@dataclass(frozen=True, kw_only=True)
class NanoTables:
    """Both halves of an iteration, one after the other, by what each kernel waits for [s].

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


def overlapped_s(
    compute_s: Array | float, memory_s: Array | float, network_s: Array | float, *, links_only: bool = False
) -> Array:
    """Least time of two nano-batches whose kernels share a device [s].

    t = max(c + m s_m + n s_n, m, n, (c + m + n) / 2)

    Multiprocessors work on products all of c, and a share s_m or s_n of them serves kernels that wait for memory or a
    link; memory is busy for m, the link for n; and each half is a chain of its own.

    Parameters
    ----------
    compute_s, memory_s, network_s : array or float [s]
        c, m and n of both halves, each alone on the device.
    links_only : bool
        Whether only links overlap with kernels: s_m = 1.

    Returns
    -------
    array [s]
        Lower bound: a schedule that leaves no gap but these. Never more than c + m + n, never less than any of them.

    >>> round(float(overlapped_s(10.0, 4.0, 2.0)), 3)  # 10 + 4 x 0.5 + 2 x 0.1116
    12.223
    """
    memory, link = shares(links_only=links_only)
    shared = compute_s + memory * np.asarray(memory_s) + link * np.asarray(network_s)
    half = 0.5 * (compute_s + np.asarray(memory_s) + network_s)
    return np.asarray(np.maximum(np.maximum(shared, half), np.maximum(memory_s, network_s)))


def side_by_side(compute: Seconds, memory: Seconds, network: Seconds, *, links_only: bool = False) -> list[Seconds]:
    """The parts of two nano-batches, each with its share of the time that they take together [s]."""
    parts = (compute, memory, network)
    found = []
    for part in parts:
        ends = {}
        for end in ("mid", "low", "high"):
            each = [getattr(one, end) for one in parts]
            ends[end] = getattr(part, end) * overlapped_s(*each, links_only=links_only) / np.maximum(sum(each), 1e-300)
        found.append(Seconds(**ends, compute=part.compute, memory=part.memory))
    return found


def sorted_out(found: Seconds) -> tuple[Seconds, Seconds]:
    """Kernels that wait for compute, and those that wait for memory, each with zeros in place of the others [s]."""
    bound = found.memory >= found.compute
    return tuple(  # type: ignore[return-value]
        Seconds(**{name: np.where(mask, value, 0.0) for name, value in vars(found).items()}) for mask in (~bound, bound)
    )
