"""Seconds of one iteration when weights or experts lie in host memory: device, processors, host link and disk.

Shape letters: T tokens, N sequences, C context, E experts, k experts that a token takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ridgeline.cost.formats import form
from ridgeline.cost.host import copy_s, disk, experts_touched, products_s
from ridgeline.facts.cpus import cpu_constant
from ridgeline.graph.model import op_params
from ridgeline.lower.pieces import Experts, LayerKind, Piece, Product, Reduce
from ridgeline.seams.host_experts import StreamedBlocks
from ridgeline.serving.hybrid_model import Hybrid, expert_params
from ridgeline.serving.hybrid_placement import DeviceOrder, OffloadMethod, neurons_met, use_share
from ridgeline.serving.hybrid_sides import (
    Array,
    HybridParts,
    Rows,
    crossing_s,
    device_experts_s,
    device_s,
    host_experts_s,
    host_s,
    link_bytes_per_s,
    parts,
    routed,
    widened_s,
)

COPIED, WIDENED, WIDE = 3.0, 5.0, 2.0  # derived: bytes that memory moves for one of a cache in 16 bits, see
# serving.streamed_machine: to pin it, to widen it to 32 bits, to attend to those
_FOUR_BITS = 0.7  # byte, chosen between formats of 4 bits and of 6: weights below it are laid out anew for devices


def decode(hybrid: Hybrid, sequences: float, context: float) -> HybridParts:
    """One token of each of N sequences over C tokens of cache [s]."""
    rows = Rows(
        tokens=np.array([float(sequences)]), sequences=float(sequences), context=np.array([float(context)]),
        prompt=False,
    )  # fmt: skip
    return hybrid_step(hybrid, rows)


def prefill(hybrid: Hybrid, sequences: float, tokens: float, cached: float = 0.0) -> HybridParts:
    """Prompts of `tokens` each of N sequences after `cached` tokens, chunk after chunk [s]."""
    each = max(1.0, tokens)
    chunk = max(1.0, min(float(hybrid.habits.chunk) / sequences, each))
    starts = np.arange(0.0, each, chunk)
    sizes = np.minimum(chunk, each - starts)
    rows = Rows(tokens=sizes * sequences, sequences=float(sequences), context=cached + starts, prompt=True)
    return hybrid_step(hybrid, rows).summed()


def hybrid_step(hybrid: Hybrid, rows: Rows) -> HybridParts:
    """Seconds of each iteration of `rows` [s].

    Raises `NoPlanError` where the weights fit in neither memory. A sum over layers of what the technique lets run
    side by side; nothing overlaps across layers but fetches of engines that fetch ahead.
    """
    longest = float(np.max(rows.context + rows.tokens / rows.sequences))
    share = hybrid.share(rows.sequences * longest)
    hybrid.check_memory(share)
    loop = np.full_like(rows.tokens, hybrid.loop_s)
    total = _with_disk(hybrid, rows, share, _by_technique(hybrid, rows, share)) + parts(rows, sync=loop, total=loop)
    stated = hybrid.placement.cache_on_host
    held = _holds_cache(hybrid) or (hybrid.cache_fits(rows.sequences * longest) if stated is None else not stated)
    return total if held else total + _cache_elsewhere(hybrid, rows)


def _holds_cache(hybrid: Hybrid) -> bool:
    """Whether each layer's cache lies where the layer is computed, so that it never crosses the link."""
    return hybrid.placement.technique in (OffloadMethod.HOST, OffloadMethod.DISK, OffloadMethod.LAYERS)


def _cache_elsewhere(hybrid: Hybrid, rows: Rows) -> HybridParts:
    """Cache that no device holds: written once by prompts; then brought, or read by the processors if that is sooner.

    Source: FlexGen (arXiv:2303.06865) section 4.1, which moves the cache or computes attention where it lies.
    """
    seen = rows.tokens if rows.prompt else rows.context * rows.sequences
    size = hybrid.cache_bytes(1.0) * hybrid.deployment.pp * hybrid.devices * seen
    link = size / link_bytes_per_s(hybrid)
    if hybrid.host is not None and not rows.prompt and (hybrid.habits.relay or hybrid.habits.attends):
        if hybrid.habits.attends:  # without products of 16 bits: widened to a copy, which is read
            groups = max(1.0, hybrid.heads_a_key)  # shared keys are repeated first: read, fetched and written
            repeated = 1.0 + 2.0 * groups if groups > 1.0 else 0.0
            host = (groups * (WIDENED + WIDE) + repeated) * size / hybrid.host.stream_bytes_per_s
            return parts(rows, host=host, total=host)
        copied = COPIED * size / hybrid.host.stream_bytes_per_s  # keys first; values while keys cross
        run = 0.5 * (copied + np.maximum(copied, link) + link)
        return parts(rows, host=copied, link=link, total=run)
    host = size / hybrid.host.read_bytes_per_s if hybrid.host is not None else np.full_like(link, np.inf)
    if rows.prompt or float(np.sum(link)) <= float(np.sum(host)):
        return parts(rows, link=link, total=link)
    return parts(rows, host=host, total=host)


def _by_technique(hybrid: Hybrid, rows: Rows, share: float) -> HybridParts:
    technique = hybrid.placement.technique
    if hybrid.ranked is not None:
        blocks = rank_blocks(hybrid, rows)
        host, read = blocks.compute_s.sum(axis=0), np.full_like(rows.tokens, blocks.load_s.sum())
        return parts(rows, host=host, disk=read, total=hybrid.ranked.window_s(blocks))
    if technique in (OffloadMethod.HOST, OffloadMethod.DISK, OffloadMethod.LAYERS):
        return _layers(hybrid, rows, share)
    if technique is OffloadMethod.STREAMED:
        return _streamed(hybrid, rows, share)
    if technique is OffloadMethod.NEURONS:
        return _neurons(hybrid, rows, share)
    return _experts(hybrid, rows, share)


def rank_blocks(hybrid: Hybrid, rows: Rows) -> StreamedBlocks:
    """Embedding, halves of layers and head of the first of the ranks that are hosts: bytes, reads and seconds.

    A half is as many products as its rank has, and the sum of all ranks' results.
    """
    ranked, host, ranks = hybrid.ranked, hybrid.host, hybrid.deployment.tp
    assert ranked is not None
    assert host is not None
    summed = np.zeros_like(rows.tokens)
    if ranks > 1:
        size = hybrid.weight_bytes * hybrid.whole.hidden * rows.tokens
        summed = ranked.exchange_s(size, ranks, *hybrid.placement.network)
    table = sum(op_params(op, 1) for op in hybrid.model.graph.embedding)
    found = [(table * hybrid.weight_bytes, host_s(hybrid, hybrid.whole.embedding, rows))]
    for kind in hybrid.device_served.kinds:
        feeds = [isinstance(p, Experts) or getattr(p, "part", "") in ("feed", "shared") for p in kind.pieces]
        halves = [[p for p, feed in zip(kind.pieces, feeds, strict=True) if feed is half and not isinstance(p, Reduce)]
                  for half in (False, True)]  # fmt: skip
        layer = [(hybrid.held_bytes_of(half), host_s(hybrid, half, rows) + summed) for half in halves]
        found += layer * kind.count
    found.append((hybrid.held_bytes_of(hybrid.whole.head), host_s(hybrid, hybrid.whole.head, rows)))
    held = np.array([size for size, _ in found])
    file = held * form(hybrid.formats.feed).weight_bytes / hybrid.weight_bytes
    load = file / disk(hybrid.placement.storage).bytes_per_s + WIDENED * file / host.stream_bytes_per_s
    return StreamedBlocks(file_bytes=file, held_bytes=held, load_s=load, compute_s=np.array([s for _, s in found]))


def _ends(hybrid: Hybrid, rows: Rows) -> HybridParts:
    device = device_s(hybrid, (*hybrid.device_served.embedding, *hybrid.device_served.head), rows)
    return parts(rows, device=device, total=device)


def _pairs(hybrid: Hybrid) -> Iterable[tuple[LayerKind, LayerKind]]:
    return zip(hybrid.device_served.kinds, hybrid.whole.kinds, strict=True)


def _experts(hybrid: Hybrid, rows: Rows, share: float) -> HybridParts:
    """Experts that no device holds are computed by the host or fetched; long prompts may run on the device."""
    total = _ends(hybrid, rows)
    front = hybrid.placement.order is DeviceOrder.FRONT
    long = bool(rows.prompt and hybrid.placement.layerwise and np.max(rows.tokens) > hybrid.habits.streams > 0)
    for kind, whole in _pairs(hybrid):
        rest = device_s(hybrid, kind.pieces, rows)
        piece = routed(whole)
        if piece is None:
            total = total + parts(rows, device=rest, total=rest).times(kind.count)
            continue
        uses = share if front else hybrid.uses(piece, share)
        held = (1.0, share) if front else (uses, 1.0)  # of a layer that is split, and how many layers are whole
        if front:
            inside = _expert_layer(hybrid, kind, piece, rows, rest, 1.0, share, long)
            outside = _expert_layer(hybrid, kind, piece, rows, rest, 0.0, share, long)
            total = total + inside.times(kind.count * held[1]) + outside.times(kind.count * (1.0 - share))
        else:
            total = total + _expert_layer(hybrid, kind, piece, rows, rest, uses, share, long).times(kind.count)
    return total


def _expert_layer(
    hybrid: Hybrid, kind: LayerKind, piece: Experts, rows: Rows, rest: Array, uses: float, share: float, long: bool
) -> HybridParts:
    """One layer: `uses` of the experts' uses meet the device, which holds `share` of them."""
    rate = link_bytes_per_s(hybrid)
    inside = device_experts_s(hybrid, kind, rows, uses)
    if uses >= 1.0:
        return parts(rows, device=rest + inside, total=rest + inside)
    each = expert_params(piece) * hybrid.weight_bytes
    touched = hybrid.touched(piece, rows.tokens, prompt=rows.prompt) * (1.0 - uses)
    each_expert = piece.top_k / piece.count if hybrid.habits.counts_uses else 1.0
    if rows.prompt and hybrid.habits.lends and float(np.min(rows.tokens)) * each_expert >= hybrid.habits.streams:
        device = rest + device_experts_s(hybrid, kind, rows, 1.0)
        return parts(rows, device=device, link=touched * each / rate, total=device + touched * each / rate)
    if long:
        return _brought(hybrid, kind, piece, rows, rest, each * piece.count * (1.0 - share), rate)
    fetched = touched * each / rate
    whole = device_experts_s(hybrid, kind, rows, 1.0)
    if hybrid.placement.technique is OffloadMethod.FETCHED:
        run = np.maximum(rest + whole, fetched) if hybrid.habits.prefetch else rest + whole + fetched
        return parts(rows, device=rest + whole, link=fetched, total=run)
    computed = host_experts_s(hybrid, piece, rows, 1.0 - uses)
    sync = crossing_s(rows.tokens, piece.hidden, rate)
    run = rest + np.maximum(inside, computed) + sync
    if hybrid.habits.fetches:
        other = rest + whole + fetched
        sooner = other < run
        return parts(
            rows, device=np.where(sooner, rest + whole, rest + inside), host=np.where(sooner, 0.0, computed),
            link=np.where(sooner, fetched, 0.0), sync=np.where(sooner, 0.0, sync), total=np.minimum(other, run),
        )  # fmt: skip
    return parts(rows, device=rest + inside, host=computed, sync=sync, total=run)


def _brought(
    hybrid: Hybrid, kind: LayerKind, piece: Experts, rows: Rows, rest: Array, size_bytes: float, rate: float
) -> HybridParts:
    """A layer whose experts are copied to pinned memory, brought to the device and computed there."""
    device = rest + device_experts_s(hybrid, kind, rows, 1.0)
    ones = np.ones_like(rows.tokens)
    if hybrid.weight_bytes < _FOUR_BITS:
        device = device + piece.count * cpu_constant("repack.expert")
    host = ones * (float(copy_s(hybrid.host, size_bytes)) if hybrid.host is not None else 0.0)
    link = ones * (size_bytes / rate)
    return parts(rows, device=device, host=host, link=link, total=device + host + link)


def _streamed(hybrid: Hybrid, rows: Rows, share: float) -> HybridParts:
    """Weights that are not on the device cross the host link in every iteration."""
    total = _ends(hybrid, rows)
    rate = link_bytes_per_s(hybrid)
    for kind, whole in _pairs(hybrid):
        device = device_s(hybrid, kind.pieces, rows) + device_experts_s(hybrid, kind, rows, 1.0)
        piece = routed(whole)
        moved = np.full_like(rows.tokens, hybrid.layer_bytes(whole, experts=False))
        tensors = np.full_like(rows.tokens, sum(isinstance(p, Product) for p in whole.pieces))
        if piece is not None:
            touched = np.full_like(rows.tokens, piece.count)
            if hybrid.habits.touched:
                touched = hybrid.touched(piece, rows.tokens, prompt=rows.prompt)
            moved = moved + touched * expert_params(piece) * hybrid.weight_bytes
            tensors = tensors + (2.0 + piece.gated) * touched
        link = (1.0 - share) * moved / rate
        if hybrid.habits.modules:
            link = link + (1.0 - share) * tensors * cpu_constant("load.module")
        read = np.zeros_like(link)
        if hybrid.placement.from_disk:
            read = (
                hybrid.placement.disk_share
                * (1.0 - share)
                * moved
                / _disk_bytes_per_s(hybrid, not hybrid.habits.mapped)
            )
        device = device + widened_s(hybrid, moved / hybrid.weight_bytes)
        ahead = np.maximum(device, np.maximum(link, read))
        run = ahead if hybrid.habits.prefetch else device + link + read
        total = total + parts(rows, device=device, link=link, disk=read, total=run).times(kind.count)
    return total


def _disk_bytes_per_s(hybrid: Hybrid, ahead: bool, threads: int = 1) -> float:
    """Weights from disk [byte/s]: read `ahead`, or by `threads` of which each waits for the faults of its own rows."""
    placement = hybrid.placement
    storage = disk(placement.storage)
    storage = replace(storage, bytes_per_s=placement.read_bytes_per_s or storage.bytes_per_s)
    return storage.bytes_per_s if ahead else min(storage.bytes_per_s, threads * storage.fault_bytes_per_s)


def _layers(hybrid: Hybrid, rows: Rows, share: float) -> HybridParts:
    """Whole layers on the device or on the processors; without a device all are the processors', perhaps from disk."""
    streams, beside = hybrid.habits.streams, hybrid.placement.technique is OffloadMethod.LAYERS
    has_device = hybrid.prices is not None and beside
    brought = has_device and rows.prompt and streams > 0 and bool(np.min(rows.tokens) >= streams)
    ends = (*hybrid.whole.embedding, *hybrid.whole.head)
    if share > 0.0 and has_device:
        total = _ends(hybrid, rows)
        if share < 1.0:  # else nothing crosses to the processors
            sync = crossing_s(rows.tokens, hybrid.whole.hidden, link_bytes_per_s(hybrid))
            total = total + parts(rows, sync=sync, total=sync)
    else:
        host = host_s(hybrid, ends, rows)
        total = parts(rows, host=host, total=host)
    for kind, whole in _pairs(hybrid):
        if share > 0.0 or brought:
            device = device_s(hybrid, kind.pieces, rows) + device_experts_s(hybrid, kind, rows, 1.0)
            total = total + parts(rows, device=device, total=device).times(kind.count * share)
        if share >= 1.0:
            continue
        if brought:
            size = hybrid.layer_bytes(whole, experts=True) + hybrid.layer_bytes(whole, experts=False)
            link = np.full_like(rows.tokens, size / link_bytes_per_s(hybrid))
            part = parts(rows, device=device, link=link, total=device + link)
        else:
            host = host_s(hybrid, whole.pieces, rows)
            part = parts(rows, host=host, total=host)
        total = total + part.times(kind.count * (1.0 - share))
    return total


def _with_disk(hybrid: Hybrid, rows: Rows, share: float, total: HybridParts) -> HybridParts:
    """Adds reads of what memory does not hold.

    Dense weights are read in a circle, so of a file larger than memory the least recently used page is always the
    next one and everything is read again; of experts a cache holds some. Reads wait for faults unless the engine
    fetches ahead.
    """
    placement = hybrid.placement
    if hybrid.ranked is not None:  # a window reads what it goes over
        return total
    resident = hybrid.resident_bytes(share)
    size = hybrid.kept_bytes(share)
    if resident is None or placement.from_disk or resident >= size + hybrid.workspace_bytes:
        return total
    kinds = [(kind, routed(kind)) for kind in hybrid.whole.kinds]
    experts = hybrid.expert_bytes * (1.0 - share)
    dense = size - experts
    room = resident - dense - hybrid.workspace_bytes
    read = np.zeros_like(rows.tokens)
    if room <= 0.0 or experts == 0.0:
        read = read + dense
        room = 0.0
    for kind, piece in kinds:
        if piece is not None:
            hit = use_share(piece.count, max(0.0, room) / experts, DeviceOrder.RECENT, placement.popularity_skew)
            touched = experts_touched(piece.count, piece.top_k, rows.tokens) * (1.0 - share)
            read = read + kind.count * touched * (1.0 - hit) * expert_params(piece) * hybrid.weight_bytes
    ahead = hybrid.habits.prefetch
    seconds = read / _disk_bytes_per_s(hybrid, ahead, 1 if hybrid.host is None else hybrid.host.cores)
    beside = np.maximum(total.total, seconds) - total.total if ahead else seconds
    return total + parts(rows, disk=seconds, total=beside)


def neuron_room(hybrid: Hybrid, share: float) -> tuple[float, bool, float]:
    """Of weights of which devices hold a share: that of attention there, whether the head is, and that of neurons [1].

    PowerInfer's loader fills a device with attention, then the head, then neurons; logits that a program takes from
    the embedding are the host's. Source: SJTU-IPADS/PowerInfer, llama.cpp: buffered_tensor_allocator::flush.
    """
    dense, feed = (
        sum(kind.count * hybrid.held_bytes_of(_side(kind, feed=one)) for kind in hybrid.whole.kinds)
        for one in (False, True)
    )
    room = share * (dense + feed + hybrid.ends_bytes)
    head = not hybrid.neurons.head_on_host and room - dense >= hybrid.ends_bytes
    left = max(0.0, room - dense - (hybrid.ends_bytes if head else 0.0))
    neurons = left / feed if feed else 0.0  # of a model whose feed-forwards all are experts
    return min(1.0, room / dense), head, min(1.0, neurons)


def _neurons(hybrid: Hybrid, rows: Rows, share: float) -> HybridParts:
    """Hot neurons on the device, the others on the processors side by side; only neurons that fire are read.

    Neurons lie as PowerInfer's program places them in the room that attention and head leave; of attention that the
    device does not hold the processors compute the last layers. Before each layer's feed-forward the device computes a
    predictor of the neurons that fire.
    """
    assert hybrid.host is not None
    assert hybrid.machine is not None
    law, weight = hybrid.neurons, hybrid.weight_bytes
    layers = sum(whole.count for whole in hybrid.whole.kinds)
    attended, head, neurons = neuron_room(hybrid, share)
    feed = sum(kind.count * hybrid.held_bytes_of(_side(kind, feed=True)) for kind in hybrid.whole.kinds)
    sync = crossing_s(rows.tokens, hybrid.whole.hidden, link_bytes_per_s(hybrid))
    sooner = 1.0 / hybrid.host.read_bytes_per_s - 1.0 / hybrid.machine.device.memory_bytes_per_s
    bound = sooner > 0.0 and feed > 0.0
    least = float(np.min(sync)) / (sooner * feed / layers) if bound else 1.0  # of a layer's neurons
    active, met = neurons_met(law, layers, neurons, min(1.0, least))
    total, first = _neuron_ends(hybrid, rows, head=head), 0
    for kind, whole in _pairs(hybrid):
        weights = sum(p.n * p.k * p.count for p in whole.pieces if isinstance(p, Product))
        rank = law.predictor * weights / hybrid.whole.hidden
        predictor = Product(name="predictor", n=rank, k=float(hybrid.whole.hidden))
        ahead, rest = device_s(hybrid, [predictor], rows), _side(kind, feed=False)
        device = attended * device_s(hybrid, rest, rows) + ahead
        away = (1.0 - attended) * host_s(hybrid, _side(whole, feed=False), rows) if attended < 1.0 else 0.0 * device
        these = slice(first, first + whole.count)
        fired = np.minimum(1.0, law.active * active[these, None] * rows.tokens)
        inside = device_s(hybrid, _side(kind, feed=True), rows) * fired * met[these, None]
        each = sum(p.n * p.k * p.count for p in _side(whole, feed=True) if isinstance(p, Product))
        size = each * fired * (1.0 - met[these, None])
        host = np.asarray(products_s(hybrid.host, size * weight, 2.0 * size * rows.tokens, hybrid.habits.kernel))
        run = (device + away + sync) * whole.count + np.maximum(inside, host).sum(axis=0)
        device_all, host_all = device * whole.count + inside.sum(axis=0), away * whole.count + host.sum(axis=0)
        total = total + parts(rows, device=device_all, host=host_all, sync=sync * whole.count, total=run)
        first += whole.count
    return total


def _side(kind: LayerKind, *, feed: bool) -> list[Piece]:
    """Products of a layer's feed-forward, or all else."""
    return [p for p in kind.pieces if (isinstance(p, Product) and p.part == "feed") is feed]


def _neuron_ends(hybrid: Hybrid, rows: Rows, *, head: bool) -> HybridParts:
    """Embedding and head, which the processors compute where the device does not hold it."""
    if head:
        return _ends(hybrid, rows)
    host = host_s(hybrid, hybrid.whole.head, rows)
    return parts(rows, host=host, total=host)
