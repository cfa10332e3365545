"""What there is to measure: the accelerators that torch sees, else the processor as one."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import ClusterError, DomainError
from ridgeline.facts.accelerators import accelerator, canonical
from ridgeline.facts.profiles import memory_bytes, this_machine

INSTALL = "pip install 'ridgeline[measure]'"
KINDS = ("cuda", "mps", "cpu")
_DEFAULT_CACHE_BYTES = 32 * 2.0**20  # where the system does not tell (assumed)


@dataclass(frozen=True, kw_only=True)
class Found:
    """One kind of device of this machine, `count` of them; a processor is one device with all its sockets."""

    kind: str
    name: str
    count: int
    vendor: str
    architecture: str
    units: int  # cores in use, or streaming multiprocessors
    sockets: int
    memory_bytes: float
    cache_bytes: float  # the last level
    clock_hz: float | None
    machine: Mapping[str, str]  # who it is
    versions: Mapping[str, str]  # torch, system, and what else decides times


def import_torch() -> Any:
    """torch, or DomainError that names the extra."""
    try:
        import torch
    except ImportError as error:
        raise DomainError(f"measuring needs PyTorch: {INSTALL}") from error
    return torch


def find(torch: Any, kind: str = "") -> Found:
    """The devices of the kind asked for, else of the best kind there is: cuda (ROCm too), mps, cpu."""
    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if kind and kind not in KINDS:
        raise ClusterError(f"'{kind}' is no kind of device; one of {', '.join(KINDS)}")
    if kind and not has[kind]:
        there = ", ".join(name for name in KINDS if has[name])
        raise ClusterError(f"torch {torch.__version__} sees no {kind} device here; there is {there}")
    chosen = kind or next(name for name in KINDS if has[name])
    return _cuda(torch) if chosen == "cuda" else _processor(torch, chosen)


def _processor(torch: Any, kind: str) -> Found:
    told = this_machine()
    threads = int(torch.get_num_threads())
    sockets = max(1, len(_sys_values("topology/physical_package_id")))
    words = told["processor"].casefold()
    vendor = next((name for word, name in _VENDORS.items() if word in words), "other")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Found(
        kind=kind,
        name=f"{told['processor']}, {threads} core{'s' * (threads > 1)}" if kind == "cpu" else told["processor"],
        count=1,
        vendor=vendor if kind == "cpu" else "Apple",
        architecture=kind,
        units=threads,
        sockets=sockets,
        memory_bytes=memory_bytes() or 8 * 2.0**30,
        cache_bytes=_cache_bytes(),
        clock_hz=_clock_hz(),
        machine=told,
        versions={
            **_versions(torch),
            "processor": told["processor"],
            "threads": str(threads),
            "processors usable": str(usable),
            "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "not told",
            "instructions": str(torch.backends.cpu.get_cpu_capability()),
        },
    )


_VENDORS = {"amd": "AMD", "intel": "Intel", "apple": "Apple", "arm": "Arm", "neoverse": "Arm", "graviton": "Arm"}


def _cuda(torch: Any) -> Found:
    """The GPUs like the first one; others of the box are left out."""
    said = torch.cuda.get_device_properties(0)
    names = [torch.cuda.get_device_properties(index).name for index in range(torch.cuda.device_count())]
    rocm = bool(getattr(torch.version, "hip", None))
    known = accelerator(said.name) if canonical(said.name) else None
    fallback = "cdna" if rocm else f"sm{said.major}{said.minor}"
    return Found(
        kind="cuda",
        name=known.name if known else said.name,
        count=names.count(said.name),
        vendor="AMD" if rocm else "NVIDIA",
        architecture=known.architecture if known else fallback,
        units=int(said.multi_processor_count),
        sockets=1,
        memory_bytes=float(said.total_memory),
        cache_bytes=float(getattr(said, "L2_cache_size", 0) or (known.l2_bytes if known else 0) or 0)
        or _DEFAULT_CACHE_BYTES,
        clock_hz=known.boost_hz if known else None,
        machine={**this_machine(), "device": f"{names.count(said.name)} x {said.name}"},
        versions={
            **_versions(torch),
            "cuda": str(torch.version.cuda or torch.version.hip or ""),
            "processor": this_machine()["processor"],
            "threads": str(torch.get_num_threads()),
        },
    )


def _versions(torch: Any) -> dict[str, str]:
    from importlib.metadata import version

    return {
        "ridgeline": version("ridgeline"),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _sys_values(name: str) -> set[str]:
    """Distinct values of a file that every processor has."""
    found = {_read(path) for path in Path("/sys/devices/system/cpu").glob(f"cpu[0-9]*/{name}")}
    return found - {""}


def _cache_bytes() -> float:
    """Size of the last level of cache, all instances together [byte]."""
    found: dict[tuple[int, str], float] = {}
    for folder in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        level, size = _read(folder / "level"), _read(folder / "size")
        if level.isdigit() and size[:-1].isdigit() and _read(folder / "type") != "Instruction":
            scale = {"K": 2.0**10, "M": 2.0**20}.get(size[-1], 1.0)
            found[int(level), _read(folder / "shared_cpu_list")] = float(size[:-1]) * scale
    if not found:
        return _DEFAULT_CACHE_BYTES
    last = max(level for level, _ in found)
    return sum(size for (level, _), size in found.items() if level == last)


def _clock_hz() -> float | None:
    """The highest clock that the system tells, else the present one [Hz]."""
    highest = _read("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    if highest.isdigit():
        return float(highest) * 1e3
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("cpu MHz"):
            return float(line.partition(":")[2]) * 1e6
    return None
