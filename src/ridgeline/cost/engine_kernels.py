"""What kernels of an engine's own do otherwise than those of the tables, and products that stream their weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.answer import Rung
from ridgeline.cost.compute import tile_seconds
from ridgeline.cost.fit_choice import find_fits
from ridgeline.cost.formats import WIDENED_BYTES, Form
from ridgeline.cost.machine import Device
from ridgeline.cost.questions import Asked
from ridgeline.errors import DomainError
from ridgeline.facts.engine_kernels import expert_backend, expert_backends, product_backend
from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Accelerator
from ridgeline.lower.pieces import Product

Array = NDArray[np.float64]
TABLED_ENGINES = {"vLLM": "vllm", "SGLang": "sglang", "TensorRT-LLM": "trtllm"}
"""Engines whose kernels public tables hold, and their word for them."""
READ = "read"  # weights of few bits widened in registers


@dataclass(frozen=True, kw_only=True)
class OwnKernels:
    """What an engine has of its own: kernels that no table holds (`unmeasured`), products by streaming.

    Products of `vector_rows` rows or fewer stream their weights [row]. Decode reads a key head once for groups of
    `groups` query heads [head], () of any; with `splits` keys of a sequence are split over idle multiprocessors.
    `wide` is how more rows meet weights of few bits: '' as tables have it, 'widened' to 16 bits, 'int8' inputs, 'read'
    by kernels like those of 16 bits, which read less of them. Where
    attention is not fused a prompt's score moves `score_bytes` [byte]. With `per_query` heads of a group find nothing
    in caches that another has read, as if each had keys of its own. Beyond `block_heads` query heads of all sequences
    [head] each is one block with room for the scores of `room` tokens [token]. Products reach `tuned_share` of the
    matrix rate of tuned ones, between the ends of `tuned_range` [1], and `skinny_share` of the memory rate, between
    those of `skinny_range`. A reduction of up to `graph_rows` rows takes `graph_wait_s` longer than the collective
    alone, of more rows `apart_wait_s` [s]. Activations are kept in `pass_bytes` an element [byte]. With `half_sums`
    products in 16 bits add up in 16 bits. Attention runs by the `earlier` kernels where the device has newer ones.
    Before each product of routed experts the host waits for the router's choice, `choice_wait_s` [s]. Some layers of a
    `hybrid` model keep a state in place of a cache; engines may attend in its others by kernels taken for it alone.
    Where `all_meet` attention ranks give each other tokens and sums by all-reduces of all ranks' tokens. Shares are
    those of products in the format `shared_form` alone, '' of all. Of `pipelined` ones whole layers are one kernel,
    whose operators run side by side. Of a request `beams` sequences share the cache of its prompt.
    """

    unmeasured: bool = False
    vector_rows: int = 0
    wide: str = ""
    score_bytes: float = 0.0
    groups: tuple[int, ...] = ()
    splits: bool = True
    per_query: bool = False
    block_heads: int = 0
    room: float = 0.0
    tuned_share: float = 1.0
    tuned_range: tuple[float, float] = (1.0, 1.0)
    skinny_share: float = 1.0
    skinny_range: tuple[float, float] = (1.0, 1.0)
    graph_rows: float = 0.0
    graph_wait_s: float = 0.0
    apart_wait_s: float = 0.0
    pass_bytes: float = 2.0
    half_sums: bool = False
    earlier: str = ""
    choice_wait_s: float = 0.0
    hybrid: bool = False
    all_meet: bool = False
    shared_form: str = ""
    pipelined: bool = False
    beams: int = 1

    @property
    def stand_ins(self) -> bool:
        """Whether measured kernels of others stand for its own."""
        return self.unmeasured or self.per_query or (min(self.shares) < 1.0 and not self.shared_form)

    def with_products(self, engine: str, backend: str) -> OwnKernels:
        """The same with the products of an engine's `backend`, where they are others than those that were measured."""
        found = product_backend(TABLED_ENGINES.get(engine, ""), backend)
        if found is None:
            return self
        return replace(self, tuned_share=found.share, tuned_range=(found.least, found.most), shared_form=found.form)

    @property
    def shares(self) -> tuple[float, float]:
        """Of the matrix rate and of the memory rate of tuned products [1]."""
        return self.tuned_share, self.skinny_share

    @property
    def ends(self) -> tuple[tuple[float, float], ...]:
        """The least and the most of both that were seen [1]."""
        return tuple(zip(self.tuned_range, self.skinny_range, strict=True))


def peak_share(own: OwnKernels, part: Accelerator, matrix: str) -> float:
    """Peak rate of the units that an engine's products run on, over that of a format's own [1]."""
    peaks = part.peak_flop_per_s
    known = peaks.get(matrix) or peaks.get("bf16") or peaks.get("fp16") or part.vector_flop_per_s
    integers = peaks.get("int8", 0.0) if own.wide == "int8" else 0.0
    return max(1.0, integers / known, half_sums(part) if own.half_sums else 1.0)


def vector_seconds(weight_bytes: Array, kernels: float, device: Device) -> tuple[Array, Array]:
    """Time of products with a vector and, of it, that of their bytes [s].

    t = kernels (launch + 2 latency) + weights / min(M, SMs clock b)

    M is the memory's rate. A multiprocessor has only so many loads under way: they bring it b bytes a cycle
    (`vector.bytes_per_cycle`), and less where lanes of a wider wavefront than the kernels' own stay idle
    (`vector.wide_lanes`). Domain: devices of which `sm_count` is known; others stream at M. Evidence: derived.

    >>> from ridgeline.cost.machine import machine
    >>> from ridgeline.facts.clusters import cluster
    >>> device = machine(cluster("1xA100-SXM-80GB")).device
    >>> f"{vector_seconds(np.array(14.5e9), 1.0, device)[0] * 1e3:.1f} ms"  # Llama-2-7B in 16 bits
    '12.7 ms'
    """
    lanes = constant("vector.wide_lanes") if device.accelerator.architecture.startswith("cdna") else 1.0
    asked = device.sm_count * device.clock_hz * constant("vector.bytes_per_cycle") * lanes
    memory = weight_bytes / min(device.memory_bytes_per_s, asked if device.sm_count > 1 else np.inf)
    return memory + kernels * device.kernel_s, memory


def half_sums(part: Accelerator) -> float:
    """Rate of 16-bit products whose sums are 16 bits wide over that with sums of 32 [1].

    Matrix units of NVIDIA's do half as many as of 8-bit integers; cards for games halve it again for wider sums.
    Source: nvidia-ada-whitepaper, appendix A: RTX 4090 660.6, 330.3 and 165.2 TFLOP/s. Domain: 1 for other vendors'
    devices and where no integer rate is known. Evidence: datasheet.

    >>> from ridgeline.facts.accelerators import accelerator
    >>> [round(half_sums(accelerator(name)), 2) for name in ("RTX-4090", "RTX-A6000", "H100-SXM", "MI300X")]
    [2.0, 1.0, 1.0, 1.0]
    """
    wide, integers = part.peak_flop_per_s.get("fp16", 0.0), part.peak_flop_per_s.get("int8", 0.0)
    return max(1.0, integers / (2.0 * wide)) if part.vendor == "NVIDIA" and wide > 0 else 1.0


def block_seconds(heads: Array, context: Array, elements: float, room: float, device: Device) -> tuple[Array, Array]:
    """Time of decode with one block for each query head of each sequence, and of it that of the cache [s].

    t = launch + 2 latency + context elements / (b clock) max(1, heads / (SMs floor(shared memory / 4 room)))

    A block keeps 4 bytes for the score of each of `room` tokens, however short its own context is, so that few blocks
    run on a multiprocessor at once; each waits for what it reads, b elements a cycle (`paged.elements_per_cycle`).
    `elements` are those of one token and head [1]. Source: vllm, csrc/attention/attention_kernels.cu at 00f5113,
    paged_attention_v1_launcher. Domain: CDNA. Evidence: derived.

    >>> from ridgeline.cost.machine import machine
    >>> from ridgeline.facts.clusters import cluster
    >>> device = machine(cluster("1xMI300X")).device
    >>> times = [block_seconds(np.array(8192.0), np.array(1024.0), 256.0, room, device)[0] for room in (4096, 8192)]
    >>> " ".join(f"{time * 1e6:.0f} us" for time in times)
    '1690 us 3372 us'
    """
    blocks = max(1.0, constant("sm.shared_bytes.cdna") // (4.0 * max(room, 1.0)))
    waves = np.maximum(1.0, heads / (device.sm_count * blocks))
    reading = context * elements / (constant("paged.elements_per_cycle") * device.clock_hz) * waves
    return np.asarray(reading + device.kernel_s), np.asarray(reading)


_TILE_ROWS, _TILE_STEP = 128.0, 8.0  # Source: llama-cpp, ggml/src/ggml-cuda/mmq.cuh, mul_mat_q_case
_INTEGER_BYTES = 1.125  # of an 8-bit integer and its part of a scale of 32. Source: llama-cpp, block_q8_1


def widened_bytes(elements: Array | float, what: Form) -> Array:
    """Memory traffic of a pass that widens weights of a format to 16 bits before their product [byte]."""
    return np.asarray(elements * (what.weight_bytes + WIDENED_BYTES))


def operand_bytes(rows: Array | float, k: float, n: float, *, wide: str, pass_bytes: float) -> Array:
    """Memory traffic around a product (rows, k) x (k, n) whose operands are kept in `pass_bytes` an element [byte].

    Inputs are read and written again, as 8-bit integers with scales or in 16 bits; results are written, where the
    product is in 16 bits after another pass that widens them. Nothing where operands are in 16 bits themselves.
    Source: llama-cpp, ggml/src/ggml-cuda/ggml-cuda.cu: quantize_mmq_q8_1, ggml_cuda_op_mul_mat_cublas.

    >>> float(operand_bytes(1.0, 16.0, 8.0, wide="int8", pass_bytes=4.0))  # 16 x (4 + 9/8) + 8 x 4
    114.0
    """
    if pass_bytes <= WIDENED_BYTES:
        return np.asarray(0.0 * np.asarray(rows))
    cast, results = (_INTEGER_BYTES, 0.0) if wide == "int8" else (WIDENED_BYTES, 2.0 * WIDENED_BYTES)
    return np.asarray(rows * (k * (pass_bytes + cast) + n * (pass_bytes + results)))


def tiled_rows(tokens: Array, top_k: float, experts: Array) -> Array:
    """Rows that `experts` compute when each of `tokens` takes `top_k`: whole tiles, half a tile more on average [1].

    Tiles are as wide as the tokens, in eights, up to 128. Source: llama-cpp, ggml/src/ggml-cuda/mmq.cuh,
    mul_mat_q_case.

    >>> float(tiled_rows(np.array(16.0), 4.0, np.array(32.0)))  # 32 experts, each a tile of 16
    512.0
    """
    tile = np.minimum(_TILE_ROWS, _TILE_STEP * np.ceil(tokens / _TILE_STEP))
    return np.asarray(experts * np.maximum(tile, tokens * top_k / experts + tile / 2))


def integer_seconds(flop: Array, weight_bytes: Array, kernels: float, device: Device) -> tuple[Array, Array, Array]:
    """Products of weights of few bits by 8-bit inputs, and of it the arithmetic's and the memory's time [s].

    t = kernels (launch + 2 latency) + max(flop / R + flop c / (SMs clock), weights / M)

    R is the matrix rate of 8-bit integers. Between its instructions sums of each block are converted and scaled, c
    cycles of a multiprocessor for an operation (`int8.sm_cycles`). Domain: devices with such a rate. Evidence: derived.
    """
    scaled = flop * constant("int8.sm_cycles") / (device.sm_count * device.clock_hz)
    compute = flop / device.matrix_rate("int8") + scaled
    memory = weight_bytes / device.memory_bytes_per_s
    started = kernels * device.kernel_s
    return started + np.maximum(compute, memory), compute, memory


def wide_seconds(rows: Array, piece: Product, what: Form, device: Device) -> tuple[Array, Array, Array]:
    """Products of numbers in 32 bits over `rows`, and of it the arithmetic's and the memory's time [s].

    t = launch + 2 latency + max(tiles in waves at the format's rate, operands and results / M)

    The rate of fp32 is that of the vector units, of tf32 that of the matrix units. No public table of operators holds
    either. Domain: as `tile_seconds`. Evidence: derived.
    """
    n, k, count = piece.n, piece.k, piece.count
    compute = tile_seconds(
        (rows, n, k), count, rate_flop_per_s=device.matrix_rate(what.matrix), element_bytes=what.weight_bytes,
        device=device, result_bytes=what.output_bytes,
    )  # fmt: skip
    moved = count * (rows * k * what.input_bytes + n * k * what.weight_bytes + rows * n * what.output_bytes)
    memory = moved / device.memory_bytes_per_s
    started = constant("launch.device") + 2.0 * device.memory_latency_s
    return np.asarray(started + np.maximum(compute, memory)), np.asarray(compute), np.asarray(memory)


def score_seconds(
    batch: float, tokens: Array, cached: Array, heads: float, head_dim: float, score_bytes: float, device: Device
) -> tuple[Array, Array, Array]:
    """Attention of prompts whose scores pass through memory, and of it the arithmetic's and the memory's time [s].

    t = two products of batch x heads matrices, T x (P + T) scores each, unmasked + scores x score_bytes / stream rate

    Source: as `unfused_attention_cost`, with the bytes that an engine's operators move for a score. Evidence: derived.
    """
    keys = tokens + cached
    shapes = ((tokens, keys, head_dim), (tokens, head_dim, keys))
    compute = sum(
        tile_seconds(
            (m, n, k), batch * heads, rate_flop_per_s=device.half_rate, element_bytes=2, device=device,
            result_bytes=0.0,
        )
        for m, n, k in shapes
    )  # fmt: skip
    memory = batch * heads * tokens * keys * score_bytes / (device.memory_bytes_per_s * device.stream_share)
    started = 4.0 * device.kernel_s
    return np.asarray(started + compute + memory), np.asarray(compute), np.asarray(memory)


WIDE_EXPERT_RANKS = 16  # two nodes (assumed): tokens go to the ranks of their experts alone, unless a backend gathers


class ExpertKernels:
    """The kernels of one engine's `backend` on a device, in one number format; '' those it was measured with.

    Pools of `prompts` sort long batches, others answer few tokens each in a step. Kernels that were not measured on the
    device are lent by its relatives rather than stood in for by others of its own. A backend whose kernels in a format
    nobody measured there changes nothing; raises `DomainError` for a word that is none.
    """

    def __init__(self, part: Accelerator, engine: str, backend: str, form: str, *, prompts: bool) -> None:
        if backend and backend not in expert_backends():
            raise DomainError(f"expert_backend = '{backend}': none of {', '.join(expert_backends())}")
        self._part, self._prompts = part, prompts
        self._known = expert_backend(engine, backend, form) if backend else None

    @property
    def exchanges(self) -> bool:
        """Whether the backend sends each token to the ranks of its experts only, however few ranks there are."""
        return self._known is not None and self._known.exchange == "deepep"

    def over(self, ranks: int) -> bool:
        """Whether so many ranks trade each token with those of its experts only, rather than gather all tokens."""
        gathers = self._known is not None and self._known.exchange == "gather"
        return self.exchanges or (ranks >= WIDE_EXPERT_RANKS and not gathers)

    @property
    def narrow(self) -> bool:
        """Whether tokens are cast to the experts' format before they are gathered, and their sums scattered."""
        return self._known is not None and self._known.exchange == "narrow"

    @property
    def quick(self) -> bool:
        """Whether it sends tokens in the way of few, which steps take."""
        return self._known is None or not self.exchanges or self._family == "wide_experts_decode"

    @property
    def _family(self) -> str:
        """The family of its kernels, of prompts or of steps; '' where they are those that were measured."""
        return "" if self._known is None else self._known.prompts if self._prompts else self._known.steps

    def of(self, asked: Asked) -> tuple[Asked, Rung]:
        """The same asked of the backend's kernels, and the best rung that knows them; else unchanged."""
        known = self._known
        if known is not None and known.form == asked.question.form:
            named = replace(asked.question, family=self._family, kernel=known.kernel, engine=known.library)
            for rung in (Rung.FITTED, Rung.BORROWED):
                found = find_fits(named, self._part, rung)
                if any(fit.kernel.split(" ")[0] == known.kernel for fit in found):
                    return replace(asked, question=named), rung
        return asked, Rung.FITTED
