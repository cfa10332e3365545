"""Where a batch of a stated size lies if nobody says: the soonest of the ways to fill the device one kind at a time.

A device takes weights, cache and activations in some order, of each as much as fits; host memory takes the rest, and a
disk what that cannot hold. All orders, batch sizes and methods are replayed by FlexGen's loop. Nothing is proven best
here: that is `search.offload_placement`'s question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import numpy as np

from ridgeline.serving.hybrid_model import Hybrid
from ridgeline.serving.streamed_costs import (
    CACHE,
    DISK,
    DRAM,
    GPU,
    HIDDEN,
    WEIGHTS,
    Floats,
    HostMachine,
    Job,
    tier_bytes,
)
from ridgeline.serving.streamed_policy import MOST_GPU_BATCH, StreamedPolicy, vector_of
from ridgeline.serving.streamed_schedule import Scheduled, scheduled

_SLACK = 1e-9  # of a tier's room, against rounding


def filled(
    job: Job, machine: HostMachine, attention: Sequence[bool], batch: int, share: float | None = None
) -> tuple[StreamedPolicy, Scheduled]:
    """The soonest filling of a batch [1], of whose weights the device holds `share` [1] if stated, and its replay [s].

    `attention` holds whether processors attend to cache beside the device, tried in turn. The last batch of a block may
    be part empty. Raises `NoPlanError` where no filling fits every memory.
    """
    found: tuple[float, StreamedPolicy, Scheduled] | None = None
    nearest: tuple[float, StreamedPolicy] | None = None
    for policy in _fillings(job, machine, attention, batch, share):
        if not policy.fits(job, machine):
            over = float((np.array(policy.held_bytes(job)) / np.maximum(machine.usable_bytes, 1.0)).max())
            nearest = (over, policy) if nearest is None or over < nearest[0] else nearest
            continue
        run = scheduled(job, machine, policy)
        seconds = run.prefill_s + run.decode_s
        if found is None or seconds < found[0]:
            found = seconds, policy, run
    if found is None:
        assert nearest is not None  # a batch has at least one filling
        nearest[1].check(job, machine)
        raise AssertionError("a filling that does not fit is refused")
    return found[1], found[2]


def _fillings(
    job: Job, machine: HostMachine, attention: Sequence[bool], batch: int, share: float | None
) -> Iterator[StreamedPolicy]:
    """Every batch size, place of attention and order of filling, whether or not it fits."""
    sizes = {-(-batch // batches) for batches in range(1, batch + 1)}
    kinds = (HIDDEN, CACHE, WEIGHTS) if share is None else (HIDDEN, CACHE)
    held = share or 0.0
    for size, on_host in product(sorted(one for one in sizes if one <= MOST_GPU_BATCH), attention):
        batches = -(-batch // size)
        block, tiers = size * batches, tier_bytes(job, size, cpu_attention=on_host)
        limits = (machine.usable_bytes * (1.0 - _SLACK) / block).tolist()
        for order in permutations(kinds):
            shares = np.array([[held, 1.0 - held, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
            for kind in order:
                shares = _moved(shares, (kind, DRAM, GPU), block, tiers[GPU], limits[GPU], most=True)
            for kind in (WEIGHTS, CACHE) if machine.disk_bytes else ():
                shares = _moved(shares, (kind, DRAM, DISK), block, tiers[DRAM], limits[DRAM], most=False)
            yield StreamedPolicy(gpu_batch=size, gpu_batches=batches, shares=shares, cpu_attention=on_host)


def _moved(shares: Floats, way: tuple[int, int, int], block: int, rows: Floats, limit: float, *, most: bool) -> Floats:
    """Shares of which a kind goes from one tier to another: the most that `limit` lets, or the least that it needs.

    Peaks of a tier are the largest of rows that are linear in what is moved.
    """
    kind, source, target = way
    whole = shares.copy()
    whole[kind, target] += whole[kind, source]
    whole[kind, source] = 0.0
    before = rows @ vector_of(shares, block)
    change = rows @ vector_of(whole, block) - before
    part = 1.0 if most else 0.0
    for each, more in zip(before, change, strict=True):
        if most and more > 0.0:
            part = min(part, (limit - each) / more)
        elif not most and more < 0.0:
            part = max(part, (each - limit) / -more)
    part = min(1.0, max(0.0, part))
    return shares + part * (whole - shares)


def as_placed(hybrid: Hybrid, batch: int, cached_tokens: float) -> StreamedPolicy:
    """One batch whose weights and cache lie where the placement says, by the options that FlexGen takes unasked.

    Hidden states stay on the device, which attends. Source: flexllmgen, flexllmgen/flex_opt.py, add_parser_arguments:
    num-gpu-batches 1, cpu-cache-compute off.
    """
    placement = hybrid.placement
    held, away = placement.share or 0.0, placement.disk_share if placement.from_disk else 0.0
    aside = placement.cache_on_host if placement.cache_on_host is not None else not hybrid.cache_fits(cached_tokens)
    weights = [held, (1.0 - held) * (1.0 - away), (1.0 - held) * away]
    shares = np.array([weights, [1.0 - aside, float(aside), 0.0], [1.0, 0.0, 0.0]])
    return StreamedPolicy(gpu_batch=batch, gpu_batches=1, shares=shares, cpu_attention=False)
