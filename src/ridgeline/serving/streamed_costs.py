"""FlexGen's cost model as rows of numbers: what a token of a block takes, and holds, for every share.

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
    def layer_bytes(self) -> float:
        """Weights of one layer at two bytes each [byte]: 4 D x D and 2 D x F."""
        return 8.0 * self.hidden**2 + 4.0 * self.hidden * self.feed_forward


@dataclass(frozen=True, kw_only=True)
class HostMachine:
    """One GPU, its host and a disk: memory [byte], links [byte/s] and rates [FLOP/s], as they are reached in practice.

    `usable` is the share of each memory that a policy may fill. `gpu_memory_bytes_per_s` bounds decode on the GPU,
    which reads weights once per batch and the cache once; FlexGen leaves it out, as its batches are large.
    `cpu_attention_flop_per_s` and `cpu_memory_bytes_per_s` bound attention in DRAM, whichever is slower;
    `cpu_small_batch` (c1, c2, c3) lowers the first below 64 sequences and 4,096 hidden as FlexGen fits it.
    `disk_weight_share` is the part of the disk's rate that weights reach in decode, `compressed_share` the size of
    4-bit values in groups of 64 (with scale and least value) over that of 2-byte values.

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
    cpu_small_batch: tuple[float, float, float] = (0.0, 0.0, 0.0)
    disk_weight_share: float = 1.0
    decompress_bytes_per_s: float = math.inf
    compressed_share: float = 0.28125
    activations_on_disk: bool = False
    call_s: float = 0.0
    cpu_copy_share: float = 0.0
    cpu_pin_bytes_per_s: float = math.inf
    usable: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name.endswith(("_per_s", "_bytes", "_share")) and not value >= 0.0:
                raise InputError(f"{value}; needs at least 0", field=name)
            if name.endswith(("_per_s", "_share")) and value == 0.0 and name != "cpu_copy_share":
                raise InputError("0; needs more than 0", field=name)

    @property
    def usable_bytes(self) -> Floats:
        """What a policy may fill of GPU, DRAM and disk (3) [byte]."""
        held: Floats = np.array([self.gpu_bytes, self.cpu_bytes, self.disk_bytes]) * np.array(self.usable)
        return held

    def cpu_attention_s(self, flop: float, moved_bytes: float, gpu_batch: int, hidden: int) -> float:
        """Time of attention in DRAM, by arithmetic or memory, whichever is slower [s]."""
        batch, width = max(0.0, math.log2(64 / gpu_batch)), max(0.0, math.log2(4096 / hidden))
        first, second, third = self.cpu_small_batch
        factor = max(0.1, 1.0 + first * batch * width - second * batch - third * width)
        return max(flop / (self.cpu_attention_flop_per_s * factor), moved_bytes / self.cpu_memory_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Method:
    """How a block runs: attention over cache in DRAM on the CPU, weights and cache in 4 bits."""

    cpu_attention: bool = True
    compress_weights: bool = False
    compress_cache: bool = False


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


def terms(job: Job, machine: HostMachine, gpu_batch: int, method: Method) -> Terms:
    """The rows of one batch size and method [s], [byte]."""
    return Terms(
        prefill_s=_prefill_s(job, machine, method),
        decode_s=_decode_s(job, machine, gpu_batch, method),
        tier_bytes=(
            _gpu_bytes(job, machine, gpu_batch, method),
            _cpu_bytes(job, machine, gpu_batch, method),
            _disk_bytes(job, machine, method),
        ),
    )


def _sizes(job: Job, machine: HostMachine, method: Method) -> tuple[float, float]:
    """Bytes of a layer's weights, and of a token's keys and values in a layer, as they are stored."""
    weights = job.layer_bytes * (machine.compressed_share if method.compress_weights else 1.0)
    return weights, 4.0 * job.hidden * (machine.compressed_share if method.compress_cache else 1.0)


def _unpack(job: Job, machine: HostMachine, method: Method, cached_tokens: float) -> Floats:
    """Time to decompress a layer's weights for the block and the cached tokens of each sequence [s]."""
    weights = job.layer_bytes / machine.decompress_bytes_per_s if method.compress_weights else 0.0
    cache = 4.0 * job.hidden * cached_tokens / machine.decompress_bytes_per_s if method.compress_cache else 0.0
    return row(constant=cache, inverse=weights)


def _prefill_s(job: Job, machine: HostMachine, method: Method) -> Floats:
    """Time of one layer's prefill (3, 16) [s]: fetching, storing, computing."""
    tokens, width = job.prompt_tokens, job.hidden
    weights, token = _sizes(job, machine, method)
    fetched, written = 2.0 * tokens * width, token * (tokens + 1)
    fetch = row(
        shares={
            (WEIGHTS, DRAM): weights / machine.cpu_to_gpu_bytes_per_s,
            (WEIGHTS, DISK): weights * (1 / machine.cpu_to_gpu_bytes_per_s + 1 / machine.disk_read_bytes_per_s),
            (HIDDEN, DRAM): fetched / machine.cpu_to_gpu_bytes_per_s,
            (HIDDEN, DISK): fetched * (1 / machine.cpu_to_gpu_bytes_per_s + 1 / machine.disk_read_bytes_per_s),
        }
    )
    store_cache, store = written / machine.gpu_to_cpu_cache_bytes_per_s, fetched / machine.gpu_to_cpu_bytes_per_s
    stored = row(
        shares={
            (CACHE, DRAM): store_cache,
            (CACHE, DISK): store_cache + written / machine.disk_write_cache_bytes_per_s,
            (HIDDEN, DRAM): store,
            (HIDDEN, DISK): store + fetched / machine.disk_write_bytes_per_s,
        }
    )
    matmul_flop = tokens * (8.0 * width**2 + 4.0 * width * job.feed_forward)
    attention_flop = 4.0 * tokens**2 * width
    compute = row(
        constant=matmul_flop / machine.matmul_prefill_flop_per_s + attention_flop / machine.attention_prefill_flop_per_s
    )
    return np.stack([fetch, stored, compute + _unpack(job, machine, method, 0.0)])


def _decode_s(job: Job, machine: HostMachine, gpu_batch: int, method: Method) -> Floats:
    """Time of one layer's decode step (4, 16) [s]: fetching, plus storing, reading, writing or computing."""
    width, context = job.hidden, job.prompt_tokens + job.output_tokens / 2
    weights, token = _sizes(job, machine, method)
    to_gpu, hidden, cache = 1 / machine.cpu_to_gpu_bytes_per_s, 2.0 * width, token * context
    streamed = 0.0 if method.cpu_attention else cache
    load = row(
        shares={(WEIGHTS, tier): weights * to_gpu for tier in (DRAM, DISK)}
        | {(HIDDEN, tier): hidden * to_gpu for tier in (DRAM, DISK)}
        | {(CACHE, tier): streamed * to_gpu for tier in (DRAM, DISK)}
    )
    new = 0.0 if method.cpu_attention else token / machine.gpu_to_cpu_cache_bytes_per_s
    store = row(
        shares={(HIDDEN, tier): hidden / machine.gpu_to_cpu_bytes_per_s for tier in (DRAM, DISK)}
        | {(CACHE, tier): new for tier in (DRAM, DISK)}
    )
    read = row(
        shares={
            (CACHE, DISK): cache / machine.disk_read_bytes_per_s,
            (HIDDEN, DISK): hidden / machine.disk_read_bytes_per_s,
            (WEIGHTS, DISK): weights / (machine.disk_read_bytes_per_s * machine.disk_weight_share),
        }
    )
    write = row(
        shares={
            (CACHE, DISK): token / machine.disk_write_bytes_per_s,
            (HIDDEN, DISK): hidden / machine.disk_write_bytes_per_s,
        }
    )
    flop, over_memory = 4.0 * context * width, 1 / machine.gpu_memory_bytes_per_s
    on_gpu = max(flop / machine.attention_decode_flop_per_s, 4.0 * width * context * over_memory)
    matmul_flop = 8.0 * width**2 + 4.0 * width * job.feed_forward
    matmul = max(matmul_flop / machine.matmul_decode_flop_per_s, job.layer_bytes / gpu_batch * over_memory)
    away = machine.cpu_attention_s(flop, flop, gpu_batch, width) if method.cpu_attention else on_gpu
    compute = row(
        constant=matmul,
        shares={(CACHE, GPU): on_gpu, (CACHE, DRAM): away, (CACHE, DISK): away},
    )
    return load + np.stack([store, read, write, compute + _unpack(job, machine, method, context)])


def _gpu_bytes(job: Job, machine: HostMachine, gpu_batch: int, method: Method) -> Floats:
    """Peak on the GPU per sequence of the block, in prefill and in decode (2, 16) [byte]."""
    width, wide, tokens = job.hidden, job.feed_forward, job.prompt_tokens
    longest = tokens + job.output_tokens
    weights, token = _sizes(job, machine, method)
    unpacked = job.layer_bytes if method.compress_weights else 0.0
    home = {(WEIGHTS, GPU): weights * (job.layers - 2), (CACHE, GPU): token * longest * job.layers}
    inner = gpu_batch * tokens * (18.0 * width + 2.0 * wide + 2.0 * job.heads * tokens)
    prefill = row(
        inverse=2.0 * weights + unpacked + 2.0 * tokens * width * gpu_batch + inner,
        shares=home | {(HIDDEN, GPU): 2.0 * tokens * width},
        products={(HIDDEN, GPU): -2.0 * tokens * width * gpu_batch},
    )
    attended = gpu_batch * (4.0 * width + 8.0 * longest * width + 2.0 * job.heads * longest)
    decode = row(
        inverse=2.0 * weights + unpacked + gpu_batch * (16.0 * width + 2.0 * wide),
        shares=home | {(HIDDEN, GPU): 2.0 * width},
        products={(HIDDEN, GPU): -2.0 * width * gpu_batch}
        | {(CACHE, tier): attended for tier in ((GPU,) if method.cpu_attention else (GPU, DRAM, DISK))},
    )
    return np.stack([prefill, decode])


def _cpu_bytes(job: Job, machine: HostMachine, gpu_batch: int, method: Method) -> Floats:
    """Peak in DRAM per sequence of the block, in prefill and in decode (2, 16) [byte]."""
    width, tokens, longest = job.hidden, job.prompt_tokens, job.prompt_tokens + job.output_tokens
    weights, token = _sizes(job, machine, method)
    passing = 2.0 * tokens * width * gpu_batch
    prefill = row(
        inverse=weights + passing,
        shares={
            (WEIGHTS, GPU): -weights,
            (WEIGHTS, DRAM): weights * job.layers,
            (HIDDEN, DRAM): 2.0 * tokens * width,
            (CACHE, DRAM): token * tokens * job.layers,
        },
        products={(HIDDEN, GPU): -passing},
    )
    scores = 2.0 * job.heads * longest * gpu_batch if method.cpu_attention else 0.0
    decode = row(
        inverse=scores + 2.0 * width * gpu_batch,
        shares={
            (WEIGHTS, DRAM): weights * job.layers,
            (WEIGHTS, DISK): weights,
            (HIDDEN, DRAM): 2.0 * width,
            (CACHE, DRAM): token * longest * job.layers,
        },
        products={(HIDDEN, DISK): 4.0 * width * gpu_batch, (CACHE, DISK): 2.0 * token * longest * gpu_batch},
    )
    return np.stack([prefill, decode])


def _disk_bytes(job: Job, machine: HostMachine, method: Method) -> Floats:
    """What the disk holds per sequence of the block (1, 16) [byte]."""
    weights, token = _sizes(job, machine, method)
    longest = job.prompt_tokens + job.output_tokens
    return row(
        shares={
            (WEIGHTS, DISK): weights * job.layers,
            (HIDDEN, DISK): 2.0 * job.prompt_tokens * job.hidden,
            (CACHE, DISK): token * longest * job.layers,
        }
    )[None]
