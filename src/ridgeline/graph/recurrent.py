"""Operators of mixers that carry a state: lightning attention, Mamba-2, the gated delta rule.

Letters: D hidden, H heads, P head width, N state, G groups, Q chunk. All run chunk by chunk:
inside a chunk as masked matrix products, across chunks through the state. What one of their kernels writes for the next
(states of chunks, scores, halves of sums) goes through memory.
"""

from __future__ import annotations

from ridgeline.graph.ops import Op, OpRole, Region, Saved, ScanOp, Split, elementwise
from ridgeline.graph.parts import gate_op, linear, norm_op
from ridgeline.graph.spec import GatedDelta, Lightning, Norm, StateSpace

LIGHTNING_CHUNK = 256  # tokens; BLOCK of MiniMax-Text-01's released modeling code
DELTA_CHUNK = 64  # tokens; chunk_size of the delta rule in Qwen3-Next's released modeling code
_FP32_BYTES, _HALF_BYTES = 4.0, 2.0


def recurrent_ops(spec: Lightning | StateSpace | GatedDelta, hidden: int, kept: tuple[Saved, ...]) -> list[Op]:
    """Operators of a mixer that carries a state; `kept` is the input that its first product keeps."""
    match spec:
        case Lightning():
            return lightning_ops(spec, hidden, kept)
        case StateSpace():
            return state_space_ops(spec, hidden, kept)
        case GatedDelta():
            return gated_delta_ops(spec, hidden, kept)


def lightning_ops(spec: Lightning, hidden: int, kept: tuple[Saved, ...]) -> list[Op]:
    """MiniMax-01 lightning attention: SiLU on q, k, v; linear attention; RMS norm; sigmoid gate.

    Forward FLOP per token and head: 4 P^2 through the state and 4 P Q inside the chunk. Four kernels: states of chunks
    in fp32 are written, summed up in place and read (16 bytes), q, k and v read twice, results added to.
    Source: vllm, vllm/model_executor/layers/lightning_attn.py.
    """
    width = spec.heads * spec.head_dim
    handed = _FP32_BYTES * 4 * width * spec.head_dim / LIGHTNING_CHUNK + _HALF_BYTES * 5 * width
    inner = 4 * spec.head_dim * (spec.head_dim + LIGHTNING_CHUNK)
    tensor = Region.TENSOR
    return [
        linear("qkv", hidden, 3 * width, split=Split.COLUMN, role=OpRole.QKV, kept=kept),
        elementwise("qkv_activation", 3 * width, 3 * width, 6 * width, kept=3 * width, role="mlp"),
        ScanOp(
            name="lightning_attention",
            region=tensor,
            heads=spec.heads,
            kv_heads=spec.heads,
            qk_dim=spec.head_dim,
            v_dim=spec.head_dim,
            read=3 * width,
            write=width,
            backward_read=5 * width,
            backward_write=3 * width,
            flop_per_token=spec.heads * inner,
            handed=handed,
            kernels=4,
            saved=(Saved(elements=3 * width, region=tensor),),
        ),
        norm_op("attention_norm", Norm(kind="rms"), width, region=tensor),
        linear("output_gate", hidden, width, split=Split.COLUMN),
        gate_op("gate", width),
        linear("attention_out", width, hidden, split=Split.ROW, role=OpRole.OUTPUT),
    ]


def state_space_ops(spec: StateSpace, hidden: int, kept: tuple[Saved, ...]) -> list[Op]:
    """Mamba-2: one input projection to z, x, B, C, dt; a short convolution; the scan; a gated norm.

    Forward FLOP per token: heads * (4 P N through the state + 2 Q P inside the chunk) and
    2 Q N for each group's scores.
    """
    inner = spec.heads * spec.head_dim
    mixed = inner + 2 * spec.groups * spec.state
    scan = spec.heads * spec.head_dim * (4 * spec.state + 2 * spec.chunk) + 2 * spec.chunk * spec.state * spec.groups
    tensor = Region.TENSOR
    states = (2 * _FP32_BYTES + 2 * _HALF_BYTES) * inner * spec.state / spec.chunk
    handed = states + 2 * _FP32_BYTES * spec.groups * spec.chunk + _HALF_BYTES * mixed
    steps = Saved(elements=spec.heads, region=tensor, element_bytes=_FP32_BYTES)
    core = ScanOp(
        name="scan",
        region=tensor,
        heads=spec.heads,
        kv_heads=spec.groups,
        qk_dim=spec.state,
        v_dim=spec.head_dim,
        read=mixed + spec.heads,
        write=inner,
        backward_read=2 * mixed + inner,
        backward_write=mixed,
        flop_per_token=scan,
        handed=handed,
        kernels=5,
        params=3 * spec.heads,  # A, D and the bias of dt
        params_split=True,
        saved=(Saved(elements=mixed, region=tensor), steps),
    )
    bias = spec.bias
    return [
        linear("mixer_in", hidden, inner + mixed + spec.heads, split=Split.COLUMN, bias=bias, kept=kept),
        _convolution(mixed, spec.conv_kernel, bias=spec.conv_bias),
        core,
        _gated_norm(inner, params=inner, split=True),
        linear("mixer_out", inner, hidden, split=Split.ROW, bias=bias, kept=(Saved(elements=inner, region=tensor),)),
    ]


def gated_delta_ops(spec: GatedDelta, hidden: int, kept: tuple[Saved, ...]) -> list[Op]:
    """Gated delta rule: one projection to q, k, v, z and two scalars a head; convolution; scan; gated norm.

    Forward FLOP per token and value head, key width N and value width P, in chunks of Q:
    6 N P through the state, 2 Q (3 N + 2 P) inside the chunk, 2 Q^2 / 3 for its triangular inverse. Six kernels: sums
    of gates, scores of a chunk and their inverse, new keys and values of it, states, results. Source:
    flash-linear-attention, fla/ops/gated_delta_rule/chunk.py, chunk_gated_delta_rule_fwd.
    """
    keys, values = spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim
    mixed, chunk, tensor = 2 * keys + values, DELTA_CHUNK, Region.TENSOR
    head = 6 * spec.key_dim * spec.value_dim + 2 * chunk * (3 * spec.key_dim + 2 * spec.value_dim) + 2 * chunk**2 / 3
    scores = (2 * _FP32_BYTES + 2 * _HALF_BYTES) * chunk  # written and read in fp32, their inverse in 16 bits
    chained = 2 * _HALF_BYTES * (spec.key_dim + 2 * spec.value_dim + spec.key_dim * spec.value_dim / chunk)
    steps = Saved(elements=2 * spec.value_heads, region=tensor, element_bytes=_FP32_BYTES)
    core = ScanOp(
        name="delta_rule",
        delta=True,
        region=tensor,
        heads=spec.value_heads,
        kv_heads=spec.key_heads,
        qk_dim=spec.key_dim,
        v_dim=spec.value_dim,
        read=mixed + 2 * spec.value_heads,
        write=values,
        backward_read=2 * mixed + values,
        backward_write=mixed,
        flop_per_token=spec.value_heads * head,
        handed=spec.value_heads * (scores + chained) + _HALF_BYTES * mixed,
        kernels=6,
        params=2 * spec.value_heads,  # A and the bias of dt
        params_split=True,
        saved=(Saved(elements=mixed, region=tensor), steps),
    )
    wide = mixed + values + 2 * spec.value_heads
    out = (Saved(elements=values, region=tensor),)
    return [
        linear("mixer_in", hidden, wide, split=Split.COLUMN, kept=kept, parts=spec.parts),
        _convolution(mixed, spec.conv_kernel, bias=False),
        core,
        _gated_norm(values, params=spec.value_dim, split=False),
        linear("mixer_out", values, hidden, split=Split.ROW, kept=out),
    ]


def _convolution(width: int, kernel: int, *, bias: bool) -> Op:
    """A causal convolution of each channel with itself, and its SiLU."""
    return elementwise(
        "convolution", width, width, 2 * width, kept=width, params=width * (kernel + int(bias)), params_split=True
    )


def _gated_norm(width: int, *, params: int, split: bool) -> Op:
    """RMS norm times the SiLU of a gate; keeps both inputs."""
    return elementwise(
        "gated_norm",
        2 * width,
        width,
        3 * width,
        kept=2 * width,
        role="norm",
        kernels=3,
        params=params,
        params_split=split,
    )
