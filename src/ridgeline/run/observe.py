"""What one rank's steps do under PyTorch's profiler: bytes of tensors at their peak, and spans of collectives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

_KINDS = ("reduce_scatter", "all_gather", "all_reduce", "all_to_all", "broadcast", "send", "recv")
_BACKENDS = ("gloo:", "nccl:")
_STEP = "ridgeline step"
_MEMORY = "[memory]"
_DEVICE = "gpu_user_annotation"  # the same spans as the device saw them


def observe(begin: Callable[[], Callable[[int], object]], *, kind: str, steps: int) -> dict[str, Any]:
    """Builds what runs and runs `steps` of it: `tensor_bytes` at their peak, `spans` of collectives by step.

    Everything is allocated under the profiler, so the running total of PyTorch's allocator is that of all tensors; on
    a GPU the allocator counts by itself. Times are those of the machine's clock [s], equal for all its processes.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if kind == "cuda" else [])]
    with profile(activities=activities, profile_memory=kind == "cpu") as seen:
        run = begin()
        for step in range(steps):
            with record_function(_STEP):
                run(step)
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        seen.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))
    return {"tensor_bytes": _peak_bytes(trace["traceEvents"]), "spans": _spans(trace)}


def _peak_bytes(events: list[dict[str, Any]]) -> int:
    told = (event["args"]["Total Allocated"] for event in events if event["name"] == _MEMORY)
    return int(max(told, default=0))


def _spans(trace: dict[str, Any]) -> list[list[tuple[str, float, float]]]:
    """Kind, begin and end [s] of each collective of a step, by step."""
    base_s = float(trace.get("baseTimeNanoseconds", 0)) * 1e-9
    timed = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    on_device = any(event.get("cat") == _DEVICE and _kind(event["name"].lower()) for event in timed)
    hosts = [event for event in timed if event.get("cat") != _DEVICE]
    steps = sorted((event["ts"], event["ts"] + event["dur"]) for event in hosts if event["name"] == _STEP)
    found: list[list[tuple[str, float, float]]] = [[] for _ in steps]
    for event in [one for one in timed if one.get("cat") == _DEVICE] if on_device else hosts:
        kind = _kind(event["name"].lower())
        for place, (first, last) in enumerate(steps):
            if kind and first <= event["ts"] <= last:
                begin = base_s + event["ts"] * 1e-6
                found[place].append((kind, begin, begin + event["dur"] * 1e-6))
    return found


def _kind(name: str) -> str:
    """The kind of collective that an event of a backend is, '' for other events."""
    if not name.startswith(_BACKENDS):
        return ""
    name = name.replace("allgather", "all_gather").replace("allreduce", "all_reduce")
    name = name.replace("alltoall", "all_to_all")
    return next((one for one in _KINDS if one in name), "")
