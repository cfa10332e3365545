"""Operators in people's words: shapes such as '4096x4096x14336', and the operator that each means."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.cost import layer_questions as layers
from ridgeline.cost import questions
from ridgeline.cost.formats import form
from ridgeline.cost.layer_questions import RATIOS
from ridgeline.cost.machine import Machine
from ridgeline.cost.questions import Asked, Worked
from ridgeline.cost.streams import STREAMS, stream_work
from ridgeline.errors import InputError, UnitError
from ridgeline.lower.work import Attention, Collective, CollectiveKind, Phase, Stream
from ridgeline.predict.operator_mechanisms import BLOCKED, COPIES, HALO, LAUNCHES, convolved, lightning, state_space
from ridgeline.units import parse, parse_count

COLLECTIVES = tuple(kind.value for kind in CollectiveKind)
UPDATES = ("adam", "sgd")
"""Streams over one row of numbers, the parameters."""
LINKED = frozenset({*COLLECTIVES, "dispatch", "combine"})
_LARGEST = 2**40  # of one dimension


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is said of an operator beside its kind and shape, and the machine that it is asked of.

    Attention is `causal` and looks back on `window` tokens (0 all) of a cache in `cache_dtype`; experts are chosen with
    a `skew`.
    """

    dtype: str
    machine: Machine
    causal: bool = True
    backward: bool = False
    window: int = 0
    cache_dtype: str = ""
    skew: float = 0.0

    @property
    def formats(self) -> dict[str, Any]:
        """Formats of an operator and of the cache that it reads."""
        return {"dtype": self.dtype, "cache_dtype": self.cache_dtype}


Numbers = tuple[int, ...]
_Build = Callable[[Numbers, Options], Asked | Worked]


def _past(numbers: Numbers, place: int) -> int:
    return numbers[place] if len(numbers) > place else 0


def _gemm(n: Numbers, said: Options) -> Asked:
    count, rows, columns, depth = n if len(n) == 4 else (1, *n)
    return questions.gemm(rows, columns, depth, count=count, dtype=said.dtype)


def _attention(n: Numbers, said: Options) -> Asked | Worked:
    """A pass over whole sequences; tables hold causal forward ones."""
    if said.causal and not said.backward:
        return _prefill(n, said)
    batch, tokens, heads, kv_heads, width = n
    core = Attention(
        name="attention", phase=Phase.BACKWARD_INPUT if said.backward else Phase.FORWARD, sequences=batch, heads=heads,
        kv_heads=kv_heads, q_tokens=tokens, kv_tokens=tokens, mean_context=(tokens + 1) / 2 if said.causal else tokens,
        qk_dim=width, v_dim=width, fused=True,
    )  # fmt: skip
    return Worked(works=(core,), form=form(said.dtype))


def _prefill(n: Numbers, said: Options) -> Asked:
    return questions.prefill(*n[:5], cached=_past(n, 5), window=said.window, **said.formats)


def _latent(sparse: bool, decode: bool) -> _Build:
    return lambda n, said: layers.latent_layer(
        *n[:3], cached=n[1] - 1 if decode else _past(n, 3), decode=decode, sparse=sparse, **said.formats
    )


def _compressed(kind: str, decode: bool) -> _Build:
    return lambda n, said: layers.compressed_layer(
        kind, *n[:3], cached=n[1] - 1 if decode else _past(n, 3), decode=decode, **said.formats
    )


def _experts(family: str) -> _Build:
    def build(n: Numbers, said: Options) -> Asked:
        asked = questions.experts(*n[:5], ranks=n[5] if len(n) == 6 else 1, skew=said.skew, dtype=said.dtype)
        return replace(asked, question=replace(asked.question, family=family))

    return build


def _exchange(combine: bool) -> _Build:
    return lambda n, said: questions.exchange(n[0], n[1], n[2], n[3], said.machine, combine=combine)


def _stream(kind: str) -> _Build:
    def build(n: Numbers, said: Options) -> Worked:
        rows, width = (1, *n) if kind in UPDATES else n
        what = form(said.dtype)
        return Worked(works=(stream_work(kind, rows, width, what.input_bytes),), form=what)

    return build


_ROUTED = "TOKENSxHIDDENxINNERxTOP_KxEXPERTS, and xRANKS of experts, e.g. 512x7168x2048x8x256"
_SENT = "TOKENSxHIDDENxTOP_KxEXPERTS, tokens of one rank, e.g. 128x7168x8x256"
_ROWS = "ROWSxWIDTH, e.g. 4096x7168"
_PROMPTS = "BATCHxTOKENSxHEADS, and xCACHED for cached tokens, e.g. 4x4096x"
_CONTEXTS = "BATCHxCONTEXTxHEADS, e.g. 64x4096x"
_SHAPES: Mapping[str, tuple[tuple[int, ...], str, _Build]] = {
    "gemm": ((3, 4), "MxNxK, or COUNTxMxNxK for a batch, e.g. 4096x4096x14336", _gemm),
    "attention": ((5,), "BATCHxSEQUENCExHEADSxKV_HEADSxHEAD_DIM, e.g. 4x4096x32x8x128", _attention),
    "prefill": (
        (5, 6), "BATCHxTOKENSxHEADSxKV_HEADSxHEAD_DIM, and xCACHED for cached tokens, e.g. 4x4096x32x8x128", _prefill,
    ),
    "decode": (
        (5,), "BATCHxCONTEXTxHEADSxKV_HEADSxHEAD_DIM, e.g. 64x4096x32x8x128",
        lambda n, said: questions.decode(*n, window=said.window, **said.formats),
    ),
    "mla_prefill": (
        (3, 4), _PROMPTS + "128", lambda n, said: questions.mla_prefill(*n[:3], cached=_past(n, 3), **said.formats)
    ),
    "mla_decode": ((3,), _CONTEXTS + "128", lambda n, said: questions.mla_decode(*n, **said.formats)),
    "experts": ((5, 6), _ROUTED, _experts("experts")),
    "wide_experts": ((5, 6), _ROUTED + "x32", _experts("wide_experts")),
    "wide_experts_decode": ((5, 6), "TOKENSxHIDDENxINNERxTOP_KxEXPERTS, and xRANKS, e.g. 512x7168x2048x8x256x32",
                            _experts("wide_experts_decode")),
    "dispatch": ((4,), _SENT, _exchange(combine=False)),
    "combine": ((4,), _SENT, _exchange(combine=True)),
    "quantize": (
        (2,), "ROWSxWIDTH, scales known, e.g. 4096x7168", lambda n, said: layers.quantize(*n, dtype=said.dtype)
    ),
    "quantize_dynamic": (
        (2,), "ROWSxWIDTH, scales found first, e.g. 4096x7168",
        lambda n, said: layers.quantize(*n, dynamic=True, dtype=said.dtype),
    ),
    "encoder": (
        (4,), "BATCHxTOKENSxHEADSxHEAD_DIM, e.g. 8x1024x16x80", lambda n, said: layers.encoder(*n, dtype=said.dtype)
    ),
    "mla_bmm": ((4,), "TOKENSxHEADSxNxK, e.g. 64x128x512x128", lambda n, said: layers.mla_bmm(*n, dtype=said.dtype)),
    "mla_layer_prefill": ((3, 4), _PROMPTS + "128", _latent(sparse=False, decode=False)),
    "mla_layer_decode": ((3,), _CONTEXTS + "128", _latent(sparse=False, decode=True)),
    "dsa_layer_prefill": ((3, 4), _PROMPTS + "128", _latent(sparse=True, decode=False)),
    "dsa_layer_decode": ((3,), _CONTEXTS + "128", _latent(sparse=True, decode=True)),
    **{f"{kind}_layer_prefill": ((3, 4), _PROMPTS + "16", _compressed(kind, decode=False)) for kind in RATIOS},
    **{f"{kind}_layer_decode": ((3,), _CONTEXTS + "16", _compressed(kind, decode=True)) for kind in RATIOS},
    "hyper_connection_before": ((2,), _ROWS, lambda n, said: layers.hyper_connection(*n, before=True)),
    "hyper_connection_after": ((2,), _ROWS, lambda n, said: layers.hyper_connection(*n, before=False)),
    "delta_prefill": (
        (6,), "BATCHxTOKENSxHEADSxKEY_HEADSxKEY_DIMxVALUE_DIM, e.g. 4x4096x32x16x128x128",
        lambda n, said: layers.delta_rule(*n),
    ),
    "delta_decode": (
        (5,), "BATCHxHEADSxKEY_HEADSxKEY_DIMxVALUE_DIM, e.g. 64x32x16x128x128",
        lambda n, said: layers.delta_rule(n[0], 1, *n[1:], decode=True),
    ),
    "convolution": ((3,), "BATCHxTOKENSxCHANNELS, e.g. 4x4096x8192", lambda n, said: layers.convolution(*n)),
    "conv2d": (
        (6, 7, 8), "IMAGESxHEIGHTxWIDTHxCHANNELSxFILTERSxSIZE, and xSTRIDE, xSTRIDExGROUPS, e.g. 32x56x56x64x64x3",
        lambda n, said: convolved(n, said.dtype),
    ),
    "state_space_prefill": (
        (6,), "BATCHxTOKENSxHEADSxHEAD_DIMxSTATExGROUPS, e.g. 4x4096x80x64x128x8",
        lambda n, said: state_space(n[0], n[1], n[2:], said.dtype),
    ),
    "state_space_decode": (
        (5,), "BATCHxHEADSxHEAD_DIMxSTATExGROUPS, e.g. 64x80x64x128x8",
        lambda n, said: state_space(n[0], 1, n[1:], said.dtype),
    ),
    "lightning_prefill": (
        (4,), "BATCHxTOKENSxHEADSxHEAD_DIM, e.g. 4x4096x64x128",
        lambda n, said: lightning(n[0], n[1], n[2], n[3], said.dtype),
    ),
    "lightning_decode": (
        (3,), "BATCHxHEADSxHEAD_DIM, e.g. 64x64x128", lambda n, said: lightning(n[0], 1, n[1], n[2], said.dtype)
    ),
}  # fmt: skip
"""Kinds of operators by their shape: how many numbers, what these mean, and the operator."""
KINDS = (*_SHAPES, *LAUNCHES, "stream", *STREAMS, *COPIES, *BLOCKED, *COLLECTIVES)
MECHANISMS = tuple(kind for kind in _SHAPES if kind.startswith(("conv2d", "state_space", "lightning")))
"""Kinds that formulas alone price."""


def operator(kind: str, shape: str, said: Options) -> Asked | Worked:
    """The operator that a kind and a shape mean; raises `InputError` where the shape is none of the kind."""
    if kind == CollectiveKind.SEND.value:
        work = Collective(
            name=kind, phase=Phase.FORWARD, kind=CollectiveKind.SEND, bytes=buffer_bytes(shape), stride=1,
            ranks=said.machine.cluster.count,
        )  # fmt: skip
        return Worked(works=(work,), form=form("any"))
    if kind in COLLECTIVES:
        return questions.collective(CollectiveKind(kind), buffer_bytes(shape), said.machine.cluster.count, said.machine)
    if kind == "stream":
        moved = Stream(name=kind, phase=Phase.FORWARD, bytes=buffer_bytes(shape))
        return Worked(works=(moved,), form=form(said.dtype))
    build = _stream(kind) if kind in STREAMS else _SHAPES[kind][2]
    return build(dimensions(kind, shape), said)


_NUMBERS = ((1,), "a number of parameters, e.g. 7B")
_KERNELS = ((1,), "a number of kernels, e.g. 1200")
_BLOCKS = ((3, 5, 7), "bytes of a block, then count and stride in bytes of each repetition, e.g. 24x256x2096")
_OTHERS = {
    **dict.fromkeys(UPDATES, _NUMBERS), **dict.fromkeys(LAUNCHES, _KERNELS), **dict.fromkeys(BLOCKED, _BLOCKS),
    HALO: ((6,), "XxYxZxRADIUSxFIELDSxBYTES of the whole grid, e.g. 768x512x256x3x8x8"),
}  # fmt: skip


def _dimension(word: str) -> int | None:
    """A dimension [1] such as '4096', '4k' or '128Ki'; None for any other text."""
    with suppress(UnitError):
        return parse_count(word)
    return None


def dimensions(kind: str, shape: str) -> tuple[int, ...]:
    """The numbers of a shape such as '4096x4096x14336' [1]; raises `InputError` for another number of them."""
    counts, meaning, *_ = _SHAPES.get(kind, _OTHERS.get(kind, ((2,), _ROWS)))
    words = re.split("x", shape, flags=re.IGNORECASE)
    if len(words) not in counts or None in (numbers := [_dimension(word) for word in words]):
        raise InputError(f"'{shape}' is no shape of {kind}; write {meaning}", field="SHAPE", value=shape)
    found = tuple(number for number in numbers if number is not None)
    if not all(0 < number <= _LARGEST for number in found):
        raise InputError(f"'{shape}' has a dimension outside 1 to {_LARGEST}", field="SHAPE", value=shape)
    fault = _contradiction(kind, found)
    if fault:
        raise InputError(f"'{shape}' has {fault}", field="SHAPE", value=shape)
    return found


def _contradiction(kind: str, numbers: tuple[int, ...]) -> str:
    """What of a shape no model has; '' where nothing is."""
    if kind in ("attention", "prefill", "decode") and numbers[2] % numbers[3]:
        return f"{numbers[3]} heads of keys, which do not divide its {numbers[2]} heads"
    if kind in ("experts", "wide_experts", "wide_experts_decode", "dispatch", "combine"):
        top_k, experts = numbers[2:4] if kind in ("dispatch", "combine") else numbers[3:5]
        if top_k > experts:
            return f"{top_k} experts for each token, of only {experts}"
        if len(numbers) == 6 and numbers[5] > experts:
            return f"{numbers[5]} ranks for only {experts} experts"
    return ""


def buffer_bytes(shape: str) -> float:
    """A size in words, such as '256 MiB' [byte]; raises `InputError` for none."""
    size = parse(shape, "byte", field="SHAPE")
    if size <= 0:
        raise InputError(f"'{shape}' is no size to move; needs more than 0 bytes", field="SHAPE")
    return size
