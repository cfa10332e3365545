"""Seconds of attention over whole sequences, by generation of kernels. Every formula broadcasts over NumPy arrays.

Letters: S queries of a sequence, D head size, SMs multiprocessors, R sustained matrix rate.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ridgeline.cost.answer import Cost
from ridgeline.cost.compute import tile_seconds
from ridgeline.cost.formats import ELEMENT_BYTES
from ridgeline.cost.machine import Device
from ridgeline.facts.mechanisms import OTHER, AttentionKernel, attention_kernel, constant
from ridgeline.lower.work import Attention, Number, Phase

AMPERE_INSTRUCTIONS = ("flash1", "flash2", "triton")
HOPPER_FLOP_PER_CYCLE = 4096.0  # 16-bit matrix FLOP of an SM and cycle: 989.4e12 a second on 132 SMs at 1.83 GHz
NEWEST = {"hopper": "flash3", "blackwell": "flash3"}
"""Newest fused kernels that were measured, by architecture; others run those of FlashAttention-2's generation."""
_ROWS = 128.0  # queries of a tile. Source: flash-attention, flash_fwd_launch_template.h
# Bytes per element of a head's rows that a backward moves around its core: reads outputs and their gradients for their
# dot product, clears the fp32 gradient of queries, reads it and writes it in 16 bits.
_AROUND_VALUES, _AROUND_QUERIES = 4.0, 10.0  # derived
_DROPOUT_MASKS = (1.0, 2.0)  # bytes of its mask per score, forward and backward, beside the scores in and out
_CHAIN = (4.0, 2.0)  # scores that kernels of their own read and write to scale and mask, and to scale their gradients


def attention_cost(work: Attention, device: Device, *, dtype: str, kernel: str | AttentionKernel = "flash") -> Cost:
    """Time of the attention core [s].

    A score costs its products, two forward and five backward, at a share of the sustained matrix rate, and its softmax:
    one exponential on the special-function units and a few fp32 operations, of which a share shows. Tiles of 128
    queries spread over the SMs, each with a fill and drain; none ends before the keys of its last query:

        s = | 2 products D (1 + wide_ max(0, D / narrow - 1)) / (share_ R), exposed_ softmax |norm (1 + masked_)
        t = max((scores s + tiles fill_s_ / SMs), 128 S s SMs + fill_s_)

    and a backward's kernels around the core: the dot product of outputs and their gradients, and the fp32 gradient of
    the queries. `masked_` counts fully under a causal mask and not at all without one. Devices with one large array
    have no such kernels: products and operations one after the other.

    Parameters
    ----------
    kernel : str or AttentionKernel
        flash (the newest of the architecture), flash1, flash2, flash3, cudnn, triton, or values of one; work that is
        not fused is unfused whatever this says. A backward that nobody measured takes that of FlashAttention-2 over
        `attention.newer_backward`.

    Source: Dao 2023 (arXiv:2307.08691) and Shah et al. 2024 (arXiv:2407.08608) for the algorithms; fitted to public
    rates of the kernels, `data/attention_kernels.tsv`. Evidence: measured for H100 and A100, derived elsewhere.
    Domain: head sizes from 64 to 256.
    """
    forward = work.phase in (Phase.FORWARD, Phase.RECOMPUTE)
    if not work.fused:
        return unfused_attention_cost(work, device, dtype=dtype)
    mean = np.asarray(work.mean_context)
    context = np.minimum(mean + _ROWS / 2, work.kv_tokens)  # half a tile on the mask's edge
    rows = np.asarray(work.sequences) * work.heads * work.q_tokens
    scores = rows * context
    products = (work.qk_dim + work.v_dim) if forward else (3 * work.qk_dim + 2 * work.v_dim)
    operations = constant("attention.forward_vector_ops" if forward else "attention.backward_vector_ops")
    vector = operations / (device.vector_flop_per_s / 2)
    tiles = np.ceil(rows / _ROWS)
    if device.sm_count <= 1:
        core = scores * (2.0 * products / device.matrix_rate(dtype) + vector) + 2 * device.memory_latency_s * tiles
    else:
        masked = np.clip(2 * (1 - mean / work.kv_tokens), 0, 1)
        values, speedup = _values(kernel, device.accelerator.architecture, forward)
        if speedup == 1.0:  # newer kernels, whose backward was measured as FlashAttention-2's alone, have their own
            values = _with_older_instructions(values, device, dtype)
        score = (1 + values.masked_ * masked) * _score_seconds(
            values, products, max(work.qk_dim, work.v_dim), vector, device, dtype=dtype, forward=forward
        )
        block = np.minimum(_ROWS, work.q_tokens) * np.asarray(work.kv_tokens) * score * device.sm_count
        core = np.maximum(scores * score + tiles * values.fill_s_ / device.sm_count, block + values.fill_s_) / speedup
    around = 0.0 if forward else rows * (_AROUND_VALUES * work.v_dim + _AROUND_QUERIES * work.qk_dim)
    keys = np.asarray(work.sequences) * work.kv_heads * work.kv_tokens
    traffic = (rows + keys) * (work.qk_dim + work.v_dim) * (2.0 if forward else 6.0)
    compute = core + around / (device.memory_bytes_per_s * device.stream_share)
    memory = traffic / device.memory_bytes_per_s
    return Cost(
        seconds=np.maximum(compute, memory),
        flop=2.0 * scores * products,
        bytes=traffic + around,
        compute_s=compute,
        memory_s=memory,
        kernels=1.0 if forward else 3.0,
    )


def attention_interval(kernel: str, architecture: str) -> tuple[float, float] | None:
    """Low and high factors of the 80 % interval of a kernel's time [1]; None where it was not measured.

    Quantiles of measured / predicted on sequence lengths left out of the fit; `unfused` stands for plain operators, of
    which one device was left out. Source: `data/attention_kernels.tsv`, `attention.plain.*` of the constants.
    """
    measured_on = "hopper" if architecture == "hopper" else OTHER if architecture == "ampere" else None
    if measured_on is None:
        return None
    if kernel == "unfused":
        return constant("attention.plain.low"), constant("attention.plain.high")
    values = attention_kernel(NEWEST.get(architecture, "flash2") if kernel == "flash" else kernel, architecture)
    return (values.low, values.high) if values.architecture == measured_on else None


def _values(kernel: str | AttentionKernel, architecture: str, forward: bool) -> tuple[AttentionKernel, float]:
    """The values that price a kernel's pass, and how much faster than them it is [1]."""
    if isinstance(kernel, AttentionKernel):
        return kernel, 1.0
    values = attention_kernel(NEWEST.get(architecture, "flash2") if kernel == "flash" else kernel, architecture)
    if forward or values.backward_share_ is not None:
        return values, 1.0
    return attention_kernel("flash2", values.architecture), constant("attention.newer_backward")


def _with_older_instructions(values: AttentionKernel, device: Device, dtype: str) -> AttentionKernel:
    """Shares of a kernel whose matrix instructions are older than the device's own.

    FlashAttention-2 and Triton's kernels multiply with Ampere's mma.sync. Per SM and clock that is as fast on Hopper as
    on Ampere, 1090 and 970 multiply-adds of FlashAttention-2, though Hopper's own instructions are twice as fast; a
    device with still wider ones is taken to reach Hopper's. Evidence: derived; no rate of Blackwell B200 is public.
    """
    accelerator = device.accelerator
    if values.kernel not in AMPERE_INSTRUCTIONS or accelerator.architecture != "blackwell":
        return values
    hopper = attention_kernel(values.kernel, "hopper")
    wider = accelerator.peak_flop_per_s[dtype] / (device.sm_count * device.clock_hz * HOPPER_FLOP_PER_CYCLE)
    shares = {
        name: min(own, at / wider)
        for name in ("forward_share_", "backward_share_")
        if (own := getattr(values, name)) is not None and (at := getattr(hopper, name)) is not None
    }
    return replace(values, **shares)


def _score_seconds(
    values: AttentionKernel, products: int, head: int, vector: float, device: Device, *, dtype: str, forward: bool
) -> float:
    """Time of one score at the rate of the whole device [s]."""
    share = values.forward_share_ if forward else values.backward_share_
    if share is None:
        raise ValueError(f"{values.kernel} has no backward values")
    wide = 1 + values.wide_ * max(0.0, head / values.narrow - 1)
    matrix = 2.0 * products * wide / (share * device.matrix_rate(dtype))
    softmax = values.exposed_ * (vector + 1 / device.exp_per_s)
    return float((matrix**values.norm + softmax**values.norm) ** (1 / values.norm))


def unfused_attention_cost(work: Attention, device: Device, *, dtype: str) -> Cost:
    """Time of attention as separate products and softmax, the score matrix passing through memory between them [s].

    Bytes per score in 16 bits, forward: written 2, softmax 4, read by the second product 2; backward: read 2, written
    2, softmax 6, read by two products 4; and what dropout moves. Twice that in 32 bits. One kernel that scales, masks
    and normalises (Megatron-LM's) reads unmasked scores alone; where the three are `chained`, scores are read and
    written twice more, and their gradients once. Kernels over scores reach `attention.plain_share` of the stream rate.

    `plain` operators of PyTorch: inputs are laid out anew for the batched products (12 bytes per element),
    and a causal mask is added by a broadcasting kernel that is bound by its index arithmetic:
    `elementwise.broadcast_per_cycle` scores a cycle and SM.
    Source: NVIDIA/apex, csrc/megatron/scaled_upper_triang_masked_softmax.h. Evidence: derived; the two constants are
    fitted to public rates of H100 and A100.
    """
    forward, plain = work.phase in (Phase.FORWARD, Phase.RECOMPUTE), work.plain
    matrices = np.asarray(work.sequences) * work.heads
    scores = matrices * work.q_tokens * work.kv_tokens
    passes = 1 if forward else 2
    rate = device.matrix_rate(dtype)
    size = max(2.0, ELEMENT_BYTES[dtype])
    stored = 0.0 if plain else size  # bytes of a score that its tile waits to store; else in the traffic alone
    shapes = ((work.q_tokens, work.kv_tokens, work.qk_dim), (work.q_tokens, work.v_dim, work.kv_tokens))
    compute: Number = 0.0
    for m, n, k in shapes:
        compute = compute + passes * tile_seconds(
            (m, n, k), matrices, rate_flop_per_s=rate, element_bytes=size, device=device, result_bytes=stored
        )
    width = work.qk_dim + work.v_dim
    operands = np.asarray(work.sequences) * (work.heads * work.q_tokens + work.kv_heads * work.kv_tokens) * width
    way = 0 if forward else 1
    each: Number = (4.0 if forward else 7.0) * size + (_DROPOUT_MASKS[way] + 2.0 * size if work.dropout else 0.0)
    if work.chained:
        each = each + _CHAIN[way] * size
    elif not plain:
        each = each - (1.0 if forward else 2.0) * size * (1.0 - np.asarray(work.mean_context) / work.kv_tokens)
    around = (2.0 if forward else 4.0) + 3.0 if plain else (2.0 if forward else 6.0)
    traffic = scores * each + operands * around * size / 2.0
    memory = traffic / (device.memory_bytes_per_s * constant("attention.plain_share"))
    if plain and forward and device.sm_count > 1:
        masked = np.asarray(work.mean_context) < work.kv_tokens
        per_cycle = constant("elementwise.broadcast_per_cycle") * device.sm_count * device.clock_hz
        memory = memory + np.where(masked, scores / per_cycle, 0.0)
    flop = passes * 2.0 * scores * width
    return Cost(
        seconds=compute + memory,
        flop=flop,
        bytes=traffic,
        compute_s=compute,
        memory_s=memory,
        kernels=5.0 if forward else 7.0,
    )
