"""How much longer hosts take than those of H100 and H200, from public tables of modules that were issued eagerly.

    python benchmarks/hosts.py    # needs ridgeline[measured]; prints what `launch.slowness.*` of the constants state

A module of many small kernels takes the same time for one token and for hundreds: its host's. Those shapes are kept
whose time is within NEAR of the least on each of the six devices; of the ratios between their times the median counts.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

from ridgeline.facts.opdata import OpTable, read, tables

MODULES = (
    ("wideep_context_mla_perf", "sglang", "0.5.10"),
    ("wideep_context_moe_perf", "sglang", "0.5.10"),
    ("msa_context_module_perf", "sglang", "0.5.16"),
    ("dsa_context_module_perf", "sglang", "0.5.14"),
    ("dsa_context_module_perf", "vllm", "0.24.0"),
)
"""Tables of whole modules whose least times are hundreds of microseconds and flat in size: name, engine, version."""
HOSTS = {
    "hopper": ("H100-SXM", "H200-SXM"),
    "blackwell": ("B200-SXM", "B300-SXM"),
    "grace": ("GB200", "GB300"),
}
NEAR, LEAST = 1.25, 0.01  # times the quantile that stands for the least
SHAPE = (
    "model", "mla_dtype", "kv_cache_dtype", "gemm_type", "num_heads", "batch_size", "isl", "tp_size", "step",
    "moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size",
    "distribution",
)  # fmt: skip


def times_s(table: OpTable) -> dict[tuple[object, ...], float]:
    """Shape -> the least time [s] of a table."""
    columns = read(table, (*SHAPE, "latency"))
    found: dict[tuple[object, ...], float] = {}
    for *shape, latency_ms in zip(*columns.values(), strict=True):
        key = tuple(str(part) for part in shape)
        found[key] = min(found.get(key, math.inf), float(latency_ms) * 1e-3)
    return found


def held_by_hosts(name: str, engine: str, version: str) -> NDArray[np.float64]:
    """Times [s] of shapes that wait for the host on all devices, (shape, device) in the order of `HOSTS`."""
    devices = [device for pair in HOSTS.values() for device in pair]
    all_times = []
    for device in devices:
        one = [t for t in tables(name, device) if (t.engine, t.version) == (engine, version)]
        all_times.append(times_s(one[0]))
    shared = sorted(set.intersection(*(set(times) for times in all_times)))
    grid = np.array([[times[shape] for times in all_times] for shape in shared])
    return grid[np.all(grid < NEAR * np.quantile(grid, LEAST, axis=0), axis=1)]


def main() -> int:
    if not tables(MODULES[0][0]):
        print("needs the operator tables: pip install 'ridgeline[measured]'", file=sys.stderr)
        return 2
    logs: dict[str, list[float]] = {host: [] for host in HOSTS}
    for name, engine, version in MODULES:
        held = held_by_hosts(name, engine, version)
        mean = dict(zip(HOSTS, held.reshape(len(held), len(HOSTS), 2).mean(axis=2).T, strict=True))
        text = [f"{name} {engine} {version}: {len(held)} shapes, {np.median(mean['hopper']) * 1e6:.0f} us on Hopper's"]
        for host in ("blackwell", "grace"):
            ratio = mean[host] / mean["hopper"]
            low, middle, high = np.quantile(ratio, (0.1, 0.5, 0.9))
            logs[host].append(math.log(middle))
            text.append(f"{host} {middle:.2f} ({low:.2f} to {high:.2f})")
        print("; ".join(text))
    for host in ("blackwell", "grace"):
        print(f"{host}: geometric mean {math.exp(float(np.mean(logs[host]))):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
