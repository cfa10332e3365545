"""Seconds of products, attention and experts on processors: bytes over sustained memory, or FLOP over product rates.

Shape letters: T tokens, E experts, k experts that a token takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from ridgeline.facts.cpus import Cpu, cpu_constant
from ridgeline.lower.work import Number

_DOT = 4.0  # products of 8 bits for one of 32 where an instruction sums four of them
_WIDE_MATRIX = 8.0  # AMX does eight times the operations of AVX-512 in a cycle (units of data/cpus.tsv)


class Kernel(Enum):
    """Whose products run on the processor; each reaches its own share of the rate."""

    AMX_INT8 = "amx.int8"
    AMX_BF16 = "amx.bf16"
    VECTOR = "vector"  # weights of any format widened to vectors of 32 bits
    LLAMAFILE = "llamafile"  # K-quants multiplied in blocks with AVX2
    LLAMA_CPP = "llama.cpp"  # dot products of quantised rows
    CODEBOOK = "llama.cpp.codebook"  # the same of rows whose values are looked up (IQ1 to IQ3)
    REPACKED = "ik.llama.cpp"  # several rows at a time, widened to 8 bits before a product of many tokens


@dataclass(frozen=True, kw_only=True)
class Processors:
    """Processors of one host that work together: `sockets` of `cpu`, `cores` in use in all [1].

    `memory_bytes_per_s` is the nominal rate of all sockets together, `memory_bytes` what they hold (None unknown).
    With `numa_aware` each socket reads its own copy or part of the weights; otherwise they lie where they fell, or
    `spread` evenly over the memory of all.
    """

    cpu: Cpu
    sockets: int
    cores: int
    memory_bytes_per_s: float
    memory_bytes: float | None = None
    numa_aware: bool = True
    spread: bool = False

    @property
    def read_bytes_per_s(self) -> float:
        """What reading weights once sustains [byte/s].

        share x nominal, at most what the line buffers of the cores in use keep in flight; sockets whose weights lie
        where they fell get of one socket's rate the share that a remote memory leaves, of all sockets' if `spread`.
        """
        rate = self.stream_bytes_per_s * cpu_constant("read.share")
        return min(rate, self.cores * self.core_bytes_per_s)

    @property
    def stream_bytes_per_s(self) -> float:
        """What a long stream sustains, reads and writes together [byte/s]."""
        kind = "lpddr" if self.cpu.memory_type.startswith("LP") else "ddr"
        rate = self.memory_bytes_per_s * cpu_constant(f"stream.{kind}")
        if self.sockets > 1 and not self.numa_aware:
            rate *= cpu_constant("remote.share") / (1 if self.spread else self.sockets)
        return rate

    @property
    def core_bytes_per_s(self) -> float:
        """What line buffers of one core keep in flight, at least twice its share of the memory [byte/s]."""
        fair = self.memory_bytes_per_s / self.sockets / max(self.cpu.cores / 2.0, 1.0)
        return max(cpu_constant("core.bytes_per_s"), fair)

    def flop_per_s(self, kernel: Kernel) -> float:
        """What products of many rows sustain by the cores in use [FLOP/s]."""
        share = self.cores / self.cpu.cores
        vector = self.cpu.peak["fp32"].value * share
        has_matrix = self.has_matrix_units
        if kernel is Kernel.AMX_INT8 and has_matrix:
            return self.cpu.peak["int8"].value * share * cpu_constant("product.amx.int8")
        if kernel is Kernel.AMX_BF16 and has_matrix:
            return self.cpu.peak["bf16"].value * share * cpu_constant("product.amx.bf16")
        if kernel in (Kernel.LLAMAFILE, Kernel.LLAMA_CPP, Kernel.CODEBOOK):
            narrow = min(vector, self.cores * self.cpu.clock_hz * cpu_constant("avx2.operations"))
            return narrow * cpu_constant(f"product.{kernel.value}")
        if kernel is Kernel.REPACKED:
            bytewise = self.cpu.peak_flop_per_s("int8") * share
            if bytewise < _DOT * vector:
                return bytewise * cpu_constant(f"product.{kernel.value}.pairs")
            return _DOT * vector * cpu_constant(f"product.{kernel.value}.dot")  # no tiles
        wide = self.cpu.peak.get("bf16")
        if wide is None:
            return vector * cpu_constant("product.vector")
        rate = wide.value * share
        if has_matrix:
            rate = self.cores * self.cpu.clock_hz * cpu_constant("amx.vector.operations")
        return rate * cpu_constant("product.vector.bf16")

    @property
    def has_matrix_units(self) -> bool:
        """Whether the processor multiplies tiles (AMX)."""
        bf16 = self.cpu.peak.get("bf16")
        return bf16 is not None and bf16.value > _WIDE_MATRIX * self.cpu.peak["fp32"].value


def products_s(host: Processors, weight_bytes: Number, flop: Number, kernel: Kernel) -> Number:
    """Time of products whose weights are read once [s].

    t = max(bytes / sustained reads, FLOP / sustained products); a lower bound without the start of the threads.
    """
    return np.maximum(weight_bytes / host.read_bytes_per_s, flop / host.flop_per_s(kernel))


def copy_s(host: Processors, size_bytes: Number) -> Number:
    """Time in which all cores copy bytes from all sockets to a buffer in the memory of one [s].

    (2 + 1 / sockets) bytes / stream of one socket: what is written is fetched first, and a part is read there.
    """
    return (2.0 + 1.0 / host.sockets) * size_bytes * host.sockets / replace(host, numa_aware=True).stream_bytes_per_s


def pageable_bytes_per_s(link_bytes_per_s: float, host: Processors | None = None, *, new_pages: bool = False) -> float:
    """A copy over a host link from or to memory that is not pinned [byte/s]: 1 / (1 / link + 1 / core).

    A core stages it, one of `host` where that is known. With `new_pages` the memory was just allocated, and each page
    is mapped when it is first written.
    Source: 5 to 6 GB/s where pinned copies reach 11 to 12 over PCIe 3.0, rapidsai/dask-cuda pull request 98.
    """
    fault = 1.0 / cpu_constant("page.bytes_per_s") if new_pages else 0.0
    core = cpu_constant("core.bytes_per_s") if host is None else host.core_bytes_per_s
    return 1.0 / (1.0 / link_bytes_per_s + 1.0 / core + fault)


def experts_touched(experts: Number, top_k: Number, tokens: Number) -> Number:
    """Expected number of distinct experts that T tokens take, each k of E at random [1].

    E (1 - (1 - k / E)^T)
    """
    return experts * (1.0 - (1.0 - np.minimum(top_k / experts, 1.0)) ** tokens)


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A storage device whose blocks are read on demand: first byte [s] and sequential rate [byte/s]."""

    latency_s: float
    bytes_per_s: float

    @property
    def fault_bytes_per_s(self) -> float:
        """Rate of a mapped file that is read as it is touched, one read-ahead window after the other [byte/s]."""
        window = cpu_constant("fault.bytes")
        return window / (self.latency_s + window / self.bytes_per_s)


def disk(kind: str) -> Disk:
    """The usual storage device of a kind of machine: 'nvme', 'sata', 'ufs', 'emmc' or 'card'."""
    return Disk(latency_s=cpu_constant(f"disk.{kind}.latency"), bytes_per_s=cpu_constant(f"disk.{kind}.rate"))
