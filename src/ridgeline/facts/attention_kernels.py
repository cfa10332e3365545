"""Generations of fused attention kernels and what was fitted to each, from `data/attention_kernels.tsv`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ridgeline.facts.store import read_tsv

OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """Values of one generation of kernels on one architecture; those fitted end in `_`.

    `norm` in which products and softmax add up (1 one after the other, 2 the root of the squares), `narrow` head size
    up to which the matrix rate holds. Shares of the sustained matrix rate, `exposed_` share of the softmax that
    products do not hide, `wide_` loss of the rate for each further `narrow` of head size, `fill_s_` fill and drain of
    a tile [s], `masked_` more time of a score under a causal mask [1]. `low`, `high`: 10 % and 90 % quantiles of
    measured / predicted on sequence lengths left out.
    """

    kernel: str
    architecture: str
    norm: float
    narrow: float
    forward_share_: float
    backward_share_: float | None
    exposed_: float
    wide_: float
    fill_s_: float
    masked_: float
    low: float
    high: float


@cache
def _kernels() -> dict[tuple[str, str], AttentionKernel]:
    found = {}
    for row in read_tsv("attention_kernels.tsv"):
        numbers = {name: float(row[name]) for name in ("norm", "narrow", "exposed_", "wide_", "fill_s_", "masked_")}
        found[row["kernel"], row["architecture"]] = AttentionKernel(
            kernel=row["kernel"],
            architecture=row["architecture"],
            forward_share_=float(row["forward_share_"]),
            backward_share_=float(row["backward_share_"]) if row["backward_share_"] else None,
            low=float(row["low"]),
            high=float(row["high"]),
            **numbers,
        )
    return found


def attention_kernel(kernel: str, architecture: str) -> AttentionKernel:
    """The values of a kernel on an architecture: its own, those of other architectures, or the only ones it has."""
    table = _kernels()
    own = table.get((kernel, architecture)) or table.get((kernel, OTHER))
    return own or next(values for (name, _), values in table.items() if name == kernel)


def attention_kernels() -> tuple[str, ...]:
    """Names of the kernels."""
    return tuple(dict.fromkeys(kernel for kernel, _ in _kernels()))
