"""Limits of an iteration that TensorRT-LLM's own benchmark, `trtllm-bench`, works out where nobody states them."""

from __future__ import annotations

import math

from ridgeline.cost.formats import EXPERTS_ONLY, form
from ridgeline.errors import InputError
from ridgeline.facts.records import Accelerator
from ridgeline.graph.model import Model, op_params
from ridgeline.graph.ops import Region
from ridgeline.plan.deployment import Deployment

TOOL = "trtllm-bench"
_MOST_SEQUENCES, _MOST_TOKENS, _LEAST_TOKENS, _LEAST_SEQUENCES = 4096, 32768, 2048, 64
_PACKED = 0.5 + 1.0 / 16  # numbers that a file of NVFP4 lists for a weight: half a byte, and a scale for 16 weights
_PACKED_MX = 0.5 + 1.0 / 32  # and one of MXFP4: a scale for 32
_COUNTED = {"nvfp4": 0.5, "fp8": 1.0, "fp8_block": 1.0}  # bytes that it takes each number for [byte]; else 2


def trtllm_bench(
    model: Model, part: Accelerator, pool: Deployment, *, isl: float, osl: float, fraction: float, narrow_kv: bool
) -> tuple[int, int]:
    """The largest batch and the budget of an iteration that `trtllm-bench` works out, (max_seqs, token_budget) [1].

    requests = (devices x memory - size) fraction / (2 L max(tp, K) head_bytes (isl + osl)), at most 4096, over pp;
    tokens = requests (1 + isl / osl), at most 32768. Both are rounded up in steps that widen with their size, to
    no fewer than 64 and 2048, and the budget holds a prompt beside a whole batch. `size` counts the numbers of a
    checkpoint's files, half a byte each in NVFP4, of which those that are packed are counted as half: the
    estimate is above what fits, as it is meant to be. It does not know MXFP4 and takes 2 bytes for each packed pair.
    `fraction` is that of free memory, `narrow_kv` a cache of 8 bits.
    Source: tensorrt-llm, tensorrt_llm/bench/build/tuning.py and bench/benchmark/utils/general.py.
    Raises `InputError` where not one request fits.
    """
    cores = model.graph.attentions
    if not cores or osl <= 0:
        raise InputError(f"{model.name} has no attention whose cache {TOOL} would count", field="model")
    core, devices = cores[0], pool.tp * pool.dp * pool.pp
    heads, width = (core.heads, model.graph.hidden // core.heads) if core.latent else (core.kv_heads, core.qk_dim)
    token = 2.0 * len(model.graph.layers) * max(pool.tp * pool.dp, heads) * width * (1.0 if narrow_kv else 2.0)
    left = devices * part.memory_bytes - _size_bytes(model, form(pool.weights or "bf16").name)
    requests = left * fraction / (token * (isl + osl))
    if requests < 1.0:
        raise InputError(f"{TOOL} finds no room for one request of {isl + osl:g} tokens", field="isl")
    batch = min(requests, _MOST_SEQUENCES) / pool.pp
    most = _up(batch, ((256, 32), (1024, 128), (math.inf, 256)), _LEAST_SEQUENCES)
    tokens = min(batch * (1.0 + isl / osl), _MOST_TOKENS)
    budget = _up(tokens, ((4096, 256), (8192, 512), (math.inf, 1024)), _LEAST_TOKENS)
    return most, max(budget, math.ceil(isl) + most)


def _size_bytes(model: Model, weights: str) -> float:
    """What it takes a checkpoint for [byte]."""
    graph = model.graph
    ends = float(sum(op_params(op, 1) for op in (*graph.embedding, *graph.head)))
    blocks = [graph.blocks[name] for name in graph.layers]
    apart = sum(op_params(op, block.experts) for block in blocks for op in block.ops if op.region is Region.EXPERT)
    packed = {"nvfp4": graph.params - ends} | dict.fromkeys(EXPERTS_ONLY, float(apart))
    share = _PACKED if weights == "nvfp4" else _PACKED_MX
    return (graph.params - (1.0 - share) * packed.get(weights, 0.0)) * _COUNTED.get(weights, 2.0)


def _up(value: float, steps: tuple[tuple[float, int], ...], least: int) -> int:
    """`value` rounded up to the step of the first limit that it lies below, at least `least` [1]."""
    step = next(step for limit, step in steps if value < limit)
    return max(least, step * math.ceil(value / step))
