"""Collectives between local ranks: gloo over the loopback for processors, NCCL for GPUs."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from statistics import median
from typing import Any

from ridgeline.calibrate.here import calls
from ridgeline.calibrate.here.kernels import PRODUCT, TRIAD_BYTES, KernelClock, Kernels, measured, messages
from ridgeline.facts.profiles import BenchmarkRow

START_S = 12.0  # what starting ranks may take beyond the share; importing torch is most of it
_REPEATS = 60
_TINY = 64  # width of layers that take the host's time alone
_PASSES = 24
_LEAST_S = 1e-7  # of a difference of times
_TOGETHER_S = 0.4  # of a kernel that ranks compute at the same time
_CALLS_SHARE = 0.55  # of a processor's ranks' time
_WARM = 2
_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "send", "broadcast")
_OPERATION = {"all_reduce": 0.0, "all_gather": 1.0, "reduce_scatter": 2.0, "send": 4.0}


@dataclass(frozen=True, kw_only=True)
class RanksAsked:
    """What ranks are told: `world` processes on `kind` devices, groups to measure, seconds and largest buffer."""

    world: int
    kind: str
    groups: tuple[int, ...]
    threads: int
    budget_s: float
    most_bytes: float
    cache_bytes: float
    meeting: str  # file where they meet


def collectives(
    *, kind: str, groups: Sequence[int], threads: int, budget_s: float, most_bytes: float, cache_bytes: float
) -> tuple[list[BenchmarkRow], list[str]]:
    """Times of collectives over each size of group, in new processes that end with it; and what was left out."""
    with tempfile.TemporaryDirectory(prefix="ridgeline-ranks-") as folder:
        asked = RanksAsked(
            world=max(groups),
            kind=kind,
            groups=tuple(groups),
            threads=max(1, threads // max(groups)),
            budget_s=budget_s,
            most_bytes=most_bytes,
            cache_bytes=cache_bytes,
            meeting=str(Path(folder) / "meeting"),
        )
        return _run(asked)


def _run(asked: RanksAsked) -> tuple[list[BenchmarkRow], list[str]]:
    context = get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=_rank, args=(asked, rank, results), daemon=True) for rank in range(asked.world)]
    for rank in ranks:
        rank.start()
    end = time.monotonic() + asked.budget_s + 4 * START_S
    answer: tuple[list[BenchmarkRow], list[str]] | None = None
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


def _rank(asked: RanksAsked, rank: int, results: Any) -> None:
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
        together = _together(asked, rank, torch, groups) if asked.kind == "cpu" else []
        calling, untimed = _calls(asked, rank, torch, groups) if asked.kind == "cpu" else ([], [])
        rows, left_out = _measure(asked, rank, torch, groups)
        divided = _divided(torch, groups[asked.world]) if asked.kind == "cpu" else []
        found = [*together, *calling, *divided, *rows], [*untimed, *left_out]
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


def _measure(asked: RanksAsked, rank: int, torch: Any, groups: dict[int, Any]) -> tuple[list[BenchmarkRow], list[str]]:
    rows: list[BenchmarkRow] = []
    left_out: list[str] = []
    sizes = messages(asked.most_bytes)
    budget_s = (1.0 - _CALLS_SHARE * (asked.kind == "cpu")) * asked.budget_s
    end = time.monotonic() + budget_s
    slot_s = budget_s / (len(sizes) * len(asked.groups) * len(_KINDS))
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


def _together(asked: RanksAsked, rank: int, torch: Any, groups: dict[int, Any]) -> list[BenchmarkRow]:
    """A product and a triad that every rank of a group computes at the same time: the mean rank's time."""
    import torch.distributed as dist

    rows = []
    kernels = Kernels(torch=torch, device="cpu")
    product, flop = kernels.product("fp32", PRODUCT), 2 * PRODUCT["m"] * PRODUCT["n"] * PRODUCT["k"]
    triad, moved = kernels.stream("triad", TRIAD_BYTES)
    for ranks, group in groups.items():
        if rank >= ranks:
            continue
        torch.set_num_threads(max(1, asked.threads * asked.world // ranks))
        for name, call in (("product", product), ("triad", triad)):
            dist.barrier(group=group)
            times = KernelClock(kind="cpu", torch=torch).repeats(call, _TOGETHER_S)
            mean = torch.tensor([min(times), median(times)], dtype=torch.float64)
            dist.all_reduce(mean, group=group)
            best_s, middle_s = (mean / ranks).tolist()
            times = [best_s, middle_s, 2 * middle_s - best_s]
            ends = (flop, 0.0) if name == "product" else (0.0, moved)
            rows.append(measured("together", name, {"ranks": float(ranks)}, times, flop=ends[0], moved=ends[1]))
    torch.set_num_threads(asked.threads)
    return rows


def _calls(asked: RanksAsked, rank: int, torch: Any, groups: dict[int, Any]) -> tuple[list[BenchmarkRow], list[str]]:
    """The calls of a training step (`calls.py`) by all ranks of a group at the same time: the mean rank's times."""
    import torch.distributed as dist

    rows: list[BenchmarkRow] = []
    left_out: list[str] = []
    for ranks, group in groups.items():
        if rank >= ranks:
            continue
        threads = max(1, asked.threads * asked.world // ranks)
        torch.set_num_threads(threads)
        timer = calls.Calls(torch=torch, threads=threads, cache_bytes=asked.cache_bytes)
        plans = [(form, call, sizes) for form in calls.FORMS for call, sizes in calls.plan(form)]
        share_s = _CALLS_SHARE * asked.budget_s / len(groups)
        mine: list[BenchmarkRow] = []
        end = time.monotonic() + share_s
        for form, call, sizes in plans:
            if not _agree(torch, asked, float(time.monotonic() < end), group):
                left_out.append(
                    f"calls by {ranks} ranks at once: {len(plans) - len(mine)} of {len(plans)}, no time left"
                )
                break
            mine.append(timer.row(call, form, sizes, share_s / len(plans), ranks=ranks))
        means = torch.tensor([[one.best_s, one.seconds] for one in mine], dtype=torch.float64)
        dist.all_reduce(means, group=group)
        rows += [
            replace(one, best_s=best_s, seconds=seconds)
            for one, (best_s, seconds) in zip(mine, (means / ranks).tolist(), strict=True)
        ]
    torch.set_num_threads(asked.threads)
    return rows, left_out


def _divided(torch: Any, group: Any) -> list[BenchmarkRow]:
    """What the host adds to a linear layer that is divided over ranks, forward and backward: for one of a pair.

    Two tiny layers, columns then rows, divided over a group's ranks, and whole; without the sum of each way.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    divided, whole = (
        torch.nn.Sequential(*(torch.nn.Linear(_TINY, _TINY, bias=False) for _ in range(2))) for _ in range(2)
    )
    parallelize_module(divided, DeviceMesh.from_group(group, "cpu"), {"0": ColwiseParallel(), "1": RowwiseParallel()})
    given = torch.randn(4, 8, _TINY, requires_grad=True)
    summed = torch.randn(4, 8, _TINY)

    def passes(layers: Any) -> tuple[float, float]:
        begin = time.perf_counter()
        result = layers(given)
        middle = time.perf_counter()
        torch.autograd.backward(result, torch.ones_like(result))
        return middle - begin, time.perf_counter() - middle

    def sum_s() -> float:
        begin = time.perf_counter()
        dist.all_reduce(summed, group=group)
        return time.perf_counter() - begin

    found = []
    for _ in range(_PASSES):
        (forward, backward), (plain, again), one_s = passes(divided), passes(whole), sum_s()
        found.append((forward - plain - one_s, backward - again - one_s))
    ways = zip(("divided", "divided backward"), zip(*found[_WARM:], strict=True), strict=True)
    return [
        measured("launch", form, {"kernels": 1.0}, [max(one, _LEAST_S) / len(whole) for one in times])
        for form, times in ways
    ]


def _agree(torch: Any, asked: RanksAsked, value: float, group: Any = None) -> float:
    """The first rank's number, at every rank of a group."""
    import torch.distributed as dist

    told = torch.tensor([value], dtype=torch.float64, device="cuda" if asked.kind == "cuda" else "cpu")
    dist.broadcast(told, 0, group=group)
    return float(told.item())


def _timed(
    asked: RanksAsked, rank: int, torch: Any, group: Any, ranks: int, kind: str, size_bytes: float, slot_s: float
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
