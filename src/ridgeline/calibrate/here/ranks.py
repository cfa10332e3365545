"""Collectives between local ranks: gloo over the loopback for processors, NCCL for GPUs."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from typing import Any

from ridgeline.calibrate.here.shapes import messages
from ridgeline.calibrate.here.timing import measured
from ridgeline.facts.profiles import Measured

START_S = 12.0  # what starting ranks may take beyond the share; importing torch is most of it
_REPEATS = 60
_WARM = 2
_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "send", "broadcast")
_OPERATION = {"all_reduce": 0.0, "all_gather": 1.0, "reduce_scatter": 2.0, "send": 4.0}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What ranks are told: `world` processes on `kind` devices, groups to measure, seconds and largest buffer."""

    world: int
    kind: str
    groups: tuple[int, ...]
    threads: int
    budget_s: float
    most_bytes: float
    meeting: str  # file where they meet


def collectives(
    *, kind: str, groups: Sequence[int], threads: int, budget_s: float, most_bytes: float
) -> tuple[list[Measured], list[str]]:
    """Times of collectives over each size of group, in new processes that end with it; and what was left out."""
    with tempfile.TemporaryDirectory(prefix="ridgeline-ranks-") as folder:
        asked = Asked(
            world=max(groups),
            kind=kind,
            groups=tuple(groups),
            threads=max(1, threads // max(groups)),
            budget_s=budget_s,
            most_bytes=most_bytes,
            meeting=str(Path(folder) / "meeting"),
        )
        return _run(asked)


def _run(asked: Asked) -> tuple[list[Measured], list[str]]:
    context = get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=_rank, args=(asked, rank, results), daemon=True) for rank in range(asked.world)]
    for rank in ranks:
        rank.start()
    end = time.monotonic() + asked.budget_s + 4 * START_S
    answer: tuple[list[Measured], list[str]] | None = None
    while answer is None and time.monotonic() < end and any(rank.is_alive() for rank in ranks):
        try:
            answer = results.get(timeout=0.2)
        except Empty:
            continue
    if answer is None and not results.empty():
        answer = results.get()
    for rank in ranks:
        rank.join(timeout=START_S if answer else 0.1)
        if rank.is_alive():
            rank.kill()
    return answer or ([], [f"collectives over {asked.world} local ranks: the ranks did not answer in time"])


def _rank(asked: Asked, rank: int, results: Any) -> None:
    """One rank: joins the others, measures with them; the first one answers."""
    import torch
    import torch.distributed as dist

    backend = "nccl" if asked.kind == "cuda" else "gloo"
    if asked.kind == "cpu":
        torch.set_num_threads(asked.threads)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if platform.system() == "Darwin" else "lo")
    else:
        torch.cuda.set_device(rank)
    try:
        dist.init_process_group(backend, init_method=f"file://{asked.meeting}", rank=rank, world_size=asked.world)
        groups = {size: dist.new_group(list(range(size))) for size in asked.groups}
        found = _measure(asked, rank, torch, groups)
        dist.barrier()
        if rank == 0:
            results.put(found)
            results.close()
            results.join_thread()
        dist.destroy_process_group()
    except Exception as error:
        if rank == 0:
            results.put(([], [f"collectives over {backend}: {type(error).__name__}: {str(error)[:120]}"]))
            results.close()
            results.join_thread()


def _measure(asked: Asked, rank: int, torch: Any, groups: dict[int, Any]) -> tuple[list[Measured], list[str]]:
    rows: list[Measured] = []
    left_out: list[str] = []
    sizes = messages(asked.most_bytes)
    end = time.monotonic() + asked.budget_s
    slot_s = asked.budget_s / (len(sizes) * len(asked.groups) * len(_KINDS))
    failed: set[tuple[str, int]] = set()  # at every rank of the group alike
    for size_bytes in sizes:
        for ranks, group in groups.items():
            if not _agree(torch, asked, float(time.monotonic() < end)):
                left_out.append(f"collectives of {size_bytes:.0f} bytes over {ranks} ranks: no time left")
                continue
            if rank >= ranks:
                continue
            for kind in _KINDS:
                if (kind, ranks) in failed:
                    continue
                try:
                    times = _timed(asked, rank, torch, group, ranks, kind, size_bytes, slot_s)
                except (RuntimeError, ValueError, NotImplementedError) as error:
                    failed.add((kind, ranks))
                    left_out.append(f"{kind} over {ranks} ranks: {str(error).splitlines()[0][:100]}")
                    continue
                if kind == "send" and ranks > 2:
                    continue
                sizes_of = {"operation": _OPERATION.get(kind, -1.0), "bytes": size_bytes, "ranks": float(ranks)}
                rows.append(measured("collective", "any", sizes_of, times, moved=size_bytes, note=kind))
    return rows, left_out


def _agree(torch: Any, asked: Asked, value: float, group: Any = None) -> float:
    """The first rank's number, at every rank of a group."""
    import torch.distributed as dist

    told = torch.tensor([value], dtype=torch.float64, device="cuda" if asked.kind == "cuda" else "cpu")
    dist.broadcast(told, 0, group=group)
    return float(told.item())


def _timed(
    asked: Asked, rank: int, torch: Any, group: Any, ranks: int, kind: str, size_bytes: float, slot_s: float
) -> list[float]:
    """Times of repeats between barriers, the slowest rank's [s]."""
    import torch.distributed as dist

    call = _call(torch, "cuda" if asked.kind == "cuda" else "cpu", group, ranks, rank, kind, size_bytes)
    wait: Callable[[], Any] = torch.cuda.synchronize if asked.kind == "cuda" else (lambda: None)

    def once() -> float:
        dist.barrier(group=group)
        start = time.perf_counter()
        call()
        wait()
        return time.perf_counter() - start

    for _ in range(_WARM):
        last = once()
    count = int(_agree(torch, asked, float(max(3, min(_REPEATS, slot_s / max(last, 1e-6)))), group))
    mine = torch.tensor([once() for _ in range(count)], dtype=torch.float64)
    mine = mine.cuda() if asked.kind == "cuda" else mine
    dist.all_reduce(mine, op=dist.ReduceOp.MAX, group=group)
    return [float(value) for value in mine.tolist()]


def _call(
    torch: Any, device: str, group: Any, ranks: int, rank: int, kind: str, size_bytes: float
) -> Callable[[], Any]:
    """One collective; the size is the whole buffer of one rank, in fp32."""
    import torch.distributed as dist

    count = max(ranks, int(size_bytes // 4) // ranks * ranks)
    whole = torch.randn(count, device=device) + 0.1
    piece = torch.randn(count // ranks, device=device) + 0.1
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "all_gather":
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
        return lambda: gather(whole, piece, group=group)
    if kind == "reduce_scatter":
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return lambda: scatter(piece, whole, group=group)
    if kind == "broadcast":
        return lambda: dist.broadcast(whole, 0, group=group)
    if rank == 0:
        return lambda: dist.send(whole, 1, group=group)
    return (lambda: dist.recv(whole, 0, group=group)) if rank == 1 else (lambda: None)
