"""FlexGen's loop over a block, replayed: what each batch of each half layer waits for, iteration by iteration.

A layer is two halves, attention and feed-forward. Before batch k of a half is computed the weights of the next half are
asked for (k = 0) and the cache of batch k + 1, and the loop waits for everything at its end. So

    t(half, k) = max(weights of the next half on the link if k = 0, main thread, copies by other threads)

and what one batch leaves of the link is not used by the next. Caches in host memory are 16 bits wide; to attend to them
the processors first copy them to a workspace of 32 bits, then read that; to bring them to the GPU they are first copied
to pinned memory. Both are the main thread's. Source: flexllmgen, flexllmgen/flex_opt.py:
generation_loop_overlap_multi_batch, load_cache, store_cache; flexllmgen/pytorch_backend.py: general_copy, mha_gen.

Letters: D hidden, F feed-forward, b sequences of a batch, K batches of a block, s prompt and n output tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.serving.hybrid_sides import SIDES, HybridParts
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
    Terms,
    row,
    tier_bytes,
)
from ridgeline.serving.streamed_policy import StreamedPolicy

_ATTENTION_CALLS, _FEED_CALLS = 30.0, 8.0  # derived: operators of mha_gen and mlp in pytorch_backend.py
_FETCH_CALLS = 2.0  # derived: a tensor of the weights is allocated and copied
_TENSORS = (10.0, 6.0)  # derived: weights, biases and norms of the halves


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """Seconds of a block's prompts and of all its further tokens, and how long each side is busy in them [s]."""

    prefill_s: float
    decode_s: float
    prefill: dict[str, float]
    decode: dict[str, float]

    def parts(self) -> tuple[HybridParts, HybridParts]:
        """Prompts, and all further tokens, by side [s]."""
        first, rest = (
            HybridParts(**{side: np.array([spent.get(side, 0.0)]) for side in SIDES}, total=np.array([seconds]))
            for spent, seconds in ((self.prefill, self.prefill_s), (self.decode, self.decode_s))
        )
        return first, rest


@dataclass(frozen=True, kw_only=True)
class _Half:
    """One half of a layer in one iteration, by batch [s]: arrays over iterations (I,).

    `fetch` of this half's weights, on link or disk, whichever is longer; `main` the main thread's own work on a batch;
    `load` its copies of one batch's cache; `brought` the cache of a batch on the link or from disk; `stored` what other
    threads write of a batch; `device` and `host` what of `main` and `load` they are busy with.
    """

    fetch: Floats
    main: Floats
    load: Floats
    brought: Floats
    stored: Floats
    device: Floats
    host: Floats
    link: Floats
    disk: Floats


def scheduled(job: Job, machine: HostMachine, policy: StreamedPolicy) -> Scheduled:
    """What FlexGen's loop takes for a block under a policy [s], whether or not it fits.

    Domain: weights are cut by their share, where FlexGen places whole tensors. Evidence: derived.
    """
    prefill, decode = _prefill(job, machine, policy), _decode(job, machine, policy)
    ends_s = np.array([job.ends_bytes * (1.0 - policy.shares[WEIGHTS, GPU]) / machine.cpu_to_gpu_bytes_per_s])
    first, rest = (
        float((job.layers * _layer_s(*halves, policy.gpu_batches) + ends_s).sum()) for halves in (prefill, decode)
    )
    return Scheduled(
        prefill_s=first, decode_s=rest,
        prefill=_busy(job, policy, prefill), decode=_busy(job, policy, decode),
    )  # fmt: skip


def least(job: Job, machine: HostMachine, gpu_batch: int, *, cpu_attention: bool) -> Terms:
    """Rows of what no schedule of a block can beat, each resource busy all the time [s], and what it holds [byte].

    Link, disk, main thread and stores of a layer, for `search.offload_placement.ranked`: `scheduled` is never sooner.
    """
    prompts, steps = job.prompt_tokens, job.prompt_tokens + job.output_tokens / 2.0
    width, sizes = job.hidden, job.halves
    calls = (_ATTENTION_CALLS * machine.call_s, _FEED_CALLS * machine.call_s)
    stored, away = sum(sizes), (DRAM, DISK)
    link_s, disk_s = 1.0 / machine.cpu_to_gpu_bytes_per_s, 1.0 / machine.disk_read_bytes_per_s
    weights = {(WEIGHTS, tier): stored * link_s for tier in away}
    from_disk = {(WEIGHTS, DISK): stored * disk_s}
    once = _FETCH_CALLS * sum(_TENSORS) * machine.call_s
    there = 4.0 * width * (link_s + 1.0 / machine.gpu_to_cpu_bytes_per_s)  # both halves
    new = 4.0 * width
    attend = 4.0 * prompts**2 * width / machine.attention_prefill_flop_per_s
    each = [prompts * size / machine.matmul_prefill_flop_per_s for size in sizes]
    main = max(each[0] + attend, calls[0] / gpu_batch) + max(each[1], calls[1] / gpu_batch)
    stores = {(CACHE, tier): prompts * new / machine.gpu_to_cpu_cache_bytes_per_s for tier in away}
    prefill = [
        row(shares=weights),
        row(shares=from_disk),
        row(constant=main, inverse=once, shares={(HIDDEN, tier): prompts * there for tier in away}),
        row(shares=stores),
        row(shares={(CACHE, DISK): prompts * new / machine.disk_write_cache_bytes_per_s}),
    ]
    memory_s = 1.0 / machine.gpu_memory_bytes_per_s
    each = [max(size / machine.matmul_decode_flop_per_s, size * memory_s / gpu_batch) for size in sizes]
    cached = 4.0 * width * steps
    on_gpu = max(cached / machine.attention_decode_flop_per_s, cached * memory_s)
    elsewhere = machine.cpu_attention_s(cached) if cpu_attention else on_gpu + cached / machine.cpu_pin_bytes_per_s
    elsewhere += new / machine.gpu_to_cpu_cache_bytes_per_s
    crossed = {} if cpu_attention else {(CACHE, tier): cached * link_s for tier in away}
    decode = [
        row(shares=weights | crossed),
        row(shares=from_disk | {(CACHE, DISK): cached * disk_s}),
        row(
            constant=sum(each), inverse=once,
            shares={(CACHE, GPU): on_gpu} | {(CACHE, tier): elsewhere for tier in away}
            | {(HIDDEN, tier): there for tier in away},
        ),
        row(constant=sum(calls) / gpu_batch, inverse=once),
        row(shares={(CACHE, DISK): new / machine.disk_write_bytes_per_s}),
    ]  # fmt: skip
    tiers = tier_bytes(job, gpu_batch, cpu_attention=cpu_attention)
    return Terms(prefill_s=np.stack(prefill), decode_s=np.stack(decode), tier_bytes=tiers)


def _layer_s(attention: _Half, feed: _Half, batches: int) -> Floats:
    """Both halves of a layer over all batches, in the middle of a block [s]."""
    more = float(batches - 1)
    follows = attention.load  # while a batch is computed the cache of the next one is copied
    brought = attention.brought
    first = np.maximum(feed.fetch + brought * (batches > 1), attention.main + follows * (batches > 1))
    middle = np.maximum.reduce([attention.main + follows, brought, attention.stored]) * max(more - 1.0, 0.0)
    last = np.maximum(attention.main, attention.stored) if batches > 1 else 0.0
    opens = feed.main + (follows if batches == 1 else 0.0)  # and that of the first one of the next layer
    begins = np.maximum.reduce([attention.fetch + brought * (batches == 1), opens, attention.stored])
    ends = np.maximum(feed.main + follows, brought) if batches > 1 else 0.0
    return np.asarray(first + middle + last + begins + feed.main * max(more - 1.0, 0.0) + ends)


def _fetched(
    job: Job, machine: HostMachine, policy: StreamedPolicy, half: int, shape: tuple[int, ...]
) -> tuple[Floats, ...]:
    """Weights of a half on the link and from disk, and launches of their copies [s]."""
    _, dram, disk = policy.shares[WEIGHTS]
    link = job.halves[half] * (dram + disk) / machine.cpu_to_gpu_bytes_per_s
    read = job.halves[half] * disk / machine.disk_read_bytes_per_s
    started = _FETCH_CALLS * _TENSORS[half] * machine.call_s
    return tuple(np.full(shape, value) for value in (link, read, started))


def _half(
    fetched: tuple[Floats, ...], batches: int, *, device: Floats, host: Floats | float = 0.0, **more: Floats
) -> _Half:
    link, read, started = fetched
    zero = np.zeros_like(link)
    main = device + started / batches + host
    parts = {"load": zero, "brought": zero, "stored": zero, "link": zero, "disk": zero} | more
    return _Half(
        fetch=np.maximum(link, read), main=main, device=device, host=host + parts["load"],
        load=parts["load"], brought=parts["brought"], stored=parts["stored"],
        link=link / batches + parts["link"], disk=read / batches + parts["disk"],
    )  # fmt: skip


def _prefill(job: Job, machine: HostMachine, policy: StreamedPolicy) -> tuple[_Half, _Half]:
    """Both halves over a batch's prompts."""
    tokens, b, width = job.prompt_tokens, policy.gpu_batch, job.hidden
    hidden = _hidden_s(job, machine, policy, float(tokens))
    matmul, attend = b * tokens / machine.matmul_prefill_flop_per_s, 4.0 * b * tokens**2 * width
    new = 4.0 * width * b * tokens
    _, dram, disk = policy.shares[CACHE]
    stored = new * (dram + disk) / machine.gpu_to_cpu_cache_bytes_per_s
    written = new * disk / machine.disk_write_cache_bytes_per_s
    products = (job.halves[0] * matmul + attend / machine.attention_prefill_flop_per_s, job.halves[1] * matmul)
    calls = (_ATTENTION_CALLS, _FEED_CALLS)
    first, second = (
        _half(
            _fetched(job, machine, policy, half, (1,)), policy.gpu_batches,
            device=np.array([max(products[half], calls[half] * machine.call_s) + hidden]),
            **({"stored": np.array([max(stored, written)]), "link": np.array([stored]), "disk": np.array([written])}
               if half == 0 else {}),
        )
        for half in (0, 1)
    )  # fmt: skip
    return first, second


def _decode(job: Job, machine: HostMachine, policy: StreamedPolicy) -> tuple[_Half, _Half]:
    """Both halves over one new token of each sequence of a batch, iteration by iteration."""
    b, width, on_host = policy.gpu_batch, job.hidden, policy.cpu_attention
    context = job.prompt_tokens + np.arange(1.0, job.output_tokens)
    memory = machine.gpu_memory_bytes_per_s
    products = [max(b * size / machine.matmul_decode_flop_per_s, size / memory) for size in job.halves]
    held, dram, disk = policy.shares[CACHE]
    cached = 4.0 * width * b * context
    on_gpu = held if on_host else 1.0
    attended = on_gpu * np.maximum(cached / machine.attention_decode_flop_per_s, cached / memory)
    away = 1.0 - held if on_host else 0.0
    host = away * np.array([machine.cpu_attention_s(each) for each in cached.tolist()])
    copied = machine.cpu_copy_share * host
    pinned = 0.0 if on_host else (dram + disk) * cached / machine.cpu_pin_bytes_per_s
    crossed = 0.0 if on_host else (dram + disk) * cached / machine.cpu_to_gpu_bytes_per_s
    read = disk * cached / machine.disk_read_bytes_per_s
    written = disk * 4.0 * width * b / machine.disk_write_bytes_per_s
    zero = np.zeros_like(context)
    shape = context.shape
    hidden = _hidden_s(job, machine, policy, 1.0)
    new = (dram + disk) * 4.0 * width * b / machine.gpu_to_cpu_cache_bytes_per_s
    first = _half(
        _fetched(job, machine, policy, 0, shape), policy.gpu_batches,
        device=np.maximum(products[0] + attended, _ATTENTION_CALLS * machine.call_s) + hidden + new, host=host - copied,
        load=copied + pinned, brought=np.maximum(_relayed(crossed + zero, pinned + zero), read), stored=written + zero,
        link=crossed + zero,
        disk=read + written,
    )  # fmt: skip
    second = _half(
        _fetched(job, machine, policy, 1, shape), policy.gpu_batches,
        device=np.full(shape, max(products[1], _FEED_CALLS * machine.call_s) + hidden),
    )  # fmt: skip
    return first, second


def _relayed(crossed: Floats, pinned: Floats) -> Floats:
    """Until a batch's cache has arrived [s]: keys are pinned, then cross while values are pinned, which cross last."""
    return np.asarray(0.5 * (pinned + np.maximum(pinned, crossed) + crossed))


def _hidden_s(job: Job, machine: HostMachine, policy: StreamedPolicy, tokens: float) -> float:
    """A batch's activations of a half, from host memory and back between kernels [s]."""
    away = float(policy.shares[HIDDEN, DRAM] + policy.shares[HIDDEN, DISK])
    size = 2.0 * job.hidden * policy.gpu_batch * tokens * away
    return size * (1 / machine.cpu_to_gpu_bytes_per_s + 1 / machine.gpu_to_cpu_bytes_per_s)


def _busy(job: Job, policy: StreamedPolicy, halves: tuple[_Half, _Half]) -> dict[str, float]:
    """How long device, processors, link and disk are busy in all layers, batches and iterations [s]."""
    times = job.layers * policy.gpu_batches
    return {
        name: times * float(sum(getattr(half, name).sum() for half in halves))
        for name in ("device", "host", "link", "disk")
    }
