"""What FlexGen's blocks hold of each memory, as rows of numbers over the shares of what lies where.

Each quantity is a row over one vector, everything divided by the block (sequences that share a fetch of the weights):

    v = [W (3), c (3), h (3), y, y c (3), y h (3)],   y = 1 / block,   W = w y

with w, c, h the shares of weights, cache and activations on (GPU, DRAM, disk). Source: Sheng et al. 2023 (flexgen),
section 4.3, and the authors' published program. Letters: D hidden, F feed-forward, H heads, s prompt, n output tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError

Floats = NDArray[np.float64]
WEIGHTS, CACHE, HIDDEN = 0, 1, 2
GPU, DRAM, DISK = 0, 1, 2
INVERSE = 9  # place of y
SIZE = 16


@dataclass(frozen=True, kw_only=True)
class Job:
    """A decoder and the lengths of its requests: layers, hidden, feed-forward, heads, prompt and output tokens [1].

    `ends_bytes` are the tables before and after the layers [byte], which FlexGen's program leaves out.
    """

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    prompt_tokens: int
    output_tokens: int
    ends_bytes: float = 0.0

    def __post_init__(self) -> None:
        small = [name for name, value in vars(self).items() if value < 1 and name != "ends_bytes"]
        if small:
            raise InputError(f"{getattr(self, small[0])}; needs at least 1", field=small[0])

    @property
    def halves(self) -> tuple[float, float]:
        """Weights of a layer's attention and feed-forward at two bytes each [byte]: 4 D x D and 2 D x F."""
        return 8.0 * self.hidden**2, 4.0 * self.hidden * self.feed_forward


@dataclass(frozen=True, kw_only=True)
class HostMachine:
    """One GPU, its host and a disk: memory [byte], links [byte/s] and rates [FLOP/s], as they are reached in practice.

    `gpu_memory_bytes_per_s` bounds decode on the GPU, which reads weights once per batch and the cache once;
    `cpu_attention_flop_per_s` and `cpu_memory_bytes_per_s` bound attention in DRAM, whichever is slower.

    What FlexGen's loop adds (`streamed_schedule`): `call_s` [s] of the host for an operator, `cpu_copy_share` of the
    time of attention in DRAM that copies the cache to a workspace, `cpu_pin_bytes_per_s` at which cache is copied to
    pinned memory on its way to the GPU.
    """

    gpu_bytes: float
    cpu_bytes: float
    disk_bytes: float
    cpu_to_gpu_bytes_per_s: float
    gpu_to_cpu_bytes_per_s: float
    gpu_to_cpu_cache_bytes_per_s: float
    disk_read_bytes_per_s: float
    disk_write_bytes_per_s: float
    disk_write_cache_bytes_per_s: float
    matmul_prefill_flop_per_s: float
    matmul_decode_flop_per_s: float
    attention_prefill_flop_per_s: float
    attention_decode_flop_per_s: float
    cpu_attention_flop_per_s: float
    cpu_memory_bytes_per_s: float = math.inf
    gpu_memory_bytes_per_s: float = math.inf
    call_s: float = 0.0
    cpu_copy_share: float = 0.0
    cpu_pin_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0.0:
                raise InputError(f"{value}; needs at least 0", field=name)
            if name.endswith("_per_s") and value == 0.0:
                raise InputError("0; needs more than 0", field=name)

    @property
    def usable_bytes(self) -> Floats:
        """What a policy may fill of GPU, DRAM and disk (3) [byte]."""
        return np.array([self.gpu_bytes, self.cpu_bytes, self.disk_bytes])

    def cpu_attention_s(self, size: float) -> float:
        """Time of attention in DRAM over so much cache, by arithmetic or memory, whichever is slower [s]."""
        return max(size / self.cpu_attention_flop_per_s, size / self.cpu_memory_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Rows over v: times of one layer, each the largest of its rows (rows, 16) [s], peaks of the tiers [byte]."""

    prefill_s: Floats
    decode_s: Floats
    tier_bytes: tuple[Floats, Floats, Floats]


def place_of(kind: int, tier: int, *, product: bool = False) -> int:
    """Where a share, or its product with y, stands in v."""
    return 3 * kind + tier + (7 if product else 0)


def row(
    constant: float = 0.0,
    inverse: float = 0.0,
    shares: Mapping[tuple[int, int], float] | None = None,
    products: Mapping[tuple[int, int], float] | None = None,
) -> Floats:
    """A row over v; `constant` is carried by the cache's shares, which add up to 1."""
    made = np.zeros(SIZE)
    made[INVERSE] = inverse
    made[place_of(CACHE, GPU) : place_of(CACHE, DISK) + 1] = constant
    for (kind, tier), value in (shares or {}).items():
        made[place_of(kind, tier)] += value
    for (kind, tier), value in (products or {}).items():
        made[place_of(kind, tier, product=True)] += value
    return made


def tier_bytes(job: Job, gpu_batch: int, *, cpu_attention: bool) -> tuple[Floats, Floats, Floats]:
    """Peaks in prefill and in decode per sequence of the block, on GPU and in DRAM (2, 16), and on disk (1, 16) [byte].

    `cpu_attention` says that processors attend to cache that lies beside the GPU.
    """
    width, wide, tokens = job.hidden, job.feed_forward, job.prompt_tokens
    longest, weights, token = tokens + job.output_tokens, sum(job.halves), 4.0 * job.hidden
    everywhere = (GPU,) if cpu_attention else (GPU, DRAM, DISK)
    home = {(WEIGHTS, GPU): weights * (job.layers - 2), (CACHE, GPU): token * longest * job.layers}
    passing, scores = 2.0 * tokens * width * gpu_batch, 2.0 * job.heads * longest * gpu_batch
    inner = gpu_batch * tokens * (18.0 * width + 2.0 * wide + 2.0 * job.heads * tokens)
    attended = gpu_batch * (4.0 * width + 8.0 * longest * width + 2.0 * job.heads * longest)
    on_gpu = (
        row(
            inverse=2.0 * weights + passing + inner,
            shares=home | {(HIDDEN, GPU): 2.0 * tokens * width},
            products={(HIDDEN, GPU): -passing},
        ),
        row(
            inverse=2.0 * weights + gpu_batch * (16.0 * width + 2.0 * wide),
            shares=home | {(HIDDEN, GPU): 2.0 * width},
            products={(HIDDEN, GPU): -2.0 * width * gpu_batch} | {(CACHE, tier): attended for tier in everywhere},
        ),
    )
    in_dram = (
        row(
            inverse=weights + passing,
            shares={
                (WEIGHTS, GPU): -weights,
                (WEIGHTS, DRAM): weights * job.layers,
                (HIDDEN, DRAM): 2.0 * tokens * width,
                (CACHE, DRAM): token * tokens * job.layers,
            },
            products={(HIDDEN, GPU): -passing},
        ),
        row(
            inverse=(scores if cpu_attention else 0.0) + 2.0 * width * gpu_batch,
            shares={
                (WEIGHTS, DRAM): weights * job.layers,
                (WEIGHTS, DISK): weights,
                (HIDDEN, DRAM): 2.0 * width,
                (CACHE, DRAM): token * longest * job.layers,
            },
            products={(HIDDEN, DISK): 4.0 * width * gpu_batch, (CACHE, DISK): 2.0 * token * longest * gpu_batch},
        ),
    )
    on_disk = row(
        shares={
            (WEIGHTS, DISK): weights * job.layers,
            (HIDDEN, DISK): 2.0 * tokens * width,
            (CACHE, DISK): token * longest * job.layers,
        }
    )
    return np.stack(on_gpu), np.stack(in_dram), on_disk[None]
