"""Operators in people's words: shapes such as '4096x4096x14336', and what each asks of the ladder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from ridgeline.cost import layer_questions, questions
from ridgeline.cost.layer_questions import RATIOS
from ridgeline.cost.machine import Machine
from ridgeline.cost.streams import STREAMS
from ridgeline.errors import InputError, UnitError
from ridgeline.lower.work import CollectiveKind
from ridgeline.predict.operator_mechanisms import COPIES, LAUNCHES
from ridgeline.units import parse, parse_count, whole_number

COLLECTIVES = tuple(kind.value for kind in CollectiveKind)
_SHAPES = {
    "gemm": ((3, 4), "MxNxK, or COUNTxMxNxK for a batch, e.g. 4096x4096x14336"),
    "attention": ((5,), "BATCHxSEQUENCExHEADSxKV_HEADSxHEAD_DIM, e.g. 4x4096x32x8x128"),
    "prefill": ((5, 6), "BATCHxTOKENSxHEADSxKV_HEADSxHEAD_DIM, and xCACHED for cached tokens, e.g. 4x4096x32x8x128"),
    "decode": ((5,), "BATCHxCONTEXTxHEADSxKV_HEADSxHEAD_DIM, e.g. 64x4096x32x8x128"),
    "mla_prefill": ((3, 4), "BATCHxTOKENSxHEADS, and xCACHED for cached tokens, e.g. 4x4096x128"),
    "mla_decode": ((3,), "BATCHxCONTEXTxHEADS, e.g. 64x4096x128"),
    "experts": ((5, 6), "TOKENSxHIDDENxINNERxTOP_KxEXPERTS, and xRANKS of experts, e.g. 512x7168x2048x8x256"),
    "wide_experts": ((5, 6), "TOKENSxHIDDENxINNERxTOP_KxEXPERTS, and xRANKS of experts, e.g. 512x7168x2048x8x256x32"),
    "wide_experts_decode": ((5, 6), "TOKENSxHIDDENxINNERxTOP_KxEXPERTS, and xRANKS, e.g. 512x7168x2048x8x256x32"),
    "dispatch": ((4,), "TOKENSxHIDDENxTOP_KxEXPERTS, tokens of one rank, e.g. 128x7168x8x256"),
    "combine": ((4,), "TOKENSxHIDDENxTOP_KxEXPERTS, tokens of one rank, e.g. 128x7168x8x256"),
    "quantize": ((2,), "ROWSxWIDTH, scales known, e.g. 4096x7168"),
    "quantize_dynamic": ((2,), "ROWSxWIDTH, scales found first, e.g. 4096x7168"),
    "encoder": ((4,), "BATCHxTOKENSxHEADSxHEAD_DIM, e.g. 8x1024x16x80"),
    "mla_bmm": ((4,), "TOKENSxHEADSxNxK, e.g. 64x128x512x128"),
    "mla_layer_prefill": ((3, 4), "BATCHxTOKENSxHEADS, and xCACHED for cached tokens, e.g. 4x4096x128"),
    "mla_layer_decode": ((3,), "BATCHxCONTEXTxHEADS, e.g. 64x4096x128"),
    "dsa_layer_prefill": ((3, 4), "BATCHxTOKENSxHEADS, and xCACHED for cached tokens, e.g. 4x4096x128"),
    "dsa_layer_decode": ((3,), "BATCHxCONTEXTxHEADS, e.g. 64x4096x128"),
    **{
        f"{kind}_layer_prefill": ((3, 4), "BATCHxTOKENSxHEADS, and xCACHED for cached tokens, e.g. 4x4096x16")
        for kind in RATIOS
    },
    **{f"{kind}_layer_decode": ((3,), "BATCHxCONTEXTxHEADS, e.g. 64x4096x16") for kind in RATIOS},
    "hyper_connection_before": ((2,), "ROWSxWIDTH, e.g. 4096x7168"),
    "hyper_connection_after": ((2,), "ROWSxWIDTH, e.g. 4096x7168"),
    "delta_prefill": ((6,), "BATCHxTOKENSxHEADSxKEY_HEADSxKEY_DIMxVALUE_DIM, e.g. 4x4096x32x16x128x128"),
    "delta_decode": ((5,), "BATCHxHEADSxKEY_HEADSxKEY_DIMxVALUE_DIM, e.g. 64x32x16x128x128"),
    "convolution": ((3,), "BATCHxTOKENSxCHANNELS, e.g. 4x4096x8192"),
    "conv2d": (
        (6, 7, 8),
        "IMAGESxHEIGHTxWIDTHxCHANNELSxFILTERSxSIZE, and xSTRIDE, xSTRIDExGROUPS, e.g. 32x56x56x64x64x3",
    ),
    "state_space_prefill": ((6,), "BATCHxTOKENSxHEADSxHEAD_DIMxSTATExGROUPS, e.g. 4x4096x80x64x128x8"),
    "state_space_decode": ((5,), "BATCHxHEADSxHEAD_DIMxSTATExGROUPS, e.g. 64x80x64x128x8"),
    "lightning_prefill": ((4,), "BATCHxTOKENSxHEADSxHEAD_DIM, e.g. 4x4096x64x128"),
    "lightning_decode": ((3,), "BATCHxHEADSxHEAD_DIM, e.g. 64x64x128"),
    **dict.fromkeys(LAUNCHES, ((1,), "a number of kernels, e.g. 1200")),
}
UPDATES = ("adam", "sgd")
"""Streams over one row of numbers, the parameters."""
KINDS = (*_SHAPES, "stream", *STREAMS, *COPIES, *COLLECTIVES)
LINKED = frozenset({*COLLECTIVES, "dispatch", "combine"})
_ROWS = ((2,), "ROWSxWIDTH, e.g. 4096x7168")
_NUMBERS = ((1,), "a number of parameters, e.g. 7B")
_LARGEST = 2**40  # of one dimension
_Build = Callable[[tuple[int, ...], str, str], questions.Asked]


def dimensions(kind: str, shape: str) -> tuple[int, ...]:
    """The numbers of a shape such as '4096x4096x14336' [1]; raises `InputError` for another number of them."""
    counts, meaning = _SHAPES.get(kind, _ROWS if kind not in UPDATES else _NUMBERS)
    words = shape.lower().split("x")
    if kind in (*UPDATES, *LAUNCHES):
        with suppress(UnitError):
            words = [str(parse_count(shape))]
    if len(words) not in counts or None in (numbers := [whole_number(word) for word in words]):
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


def _layer(sparse: bool, decode: bool) -> _Build:
    def build(numbers: tuple[int, ...], dtype: str, cache_dtype: str) -> questions.Asked:
        batch, tokens, heads = numbers[:3]
        cached = tokens - 1 if decode else numbers[3] if len(numbers) == 4 else 0
        return layer_questions.latent_layer(
            batch, tokens, heads, cached=cached, decode=decode, sparse=sparse, dtype=dtype, cache_dtype=cache_dtype
        )

    return build


def _compressed(kind: str, decode: bool) -> _Build:
    def build(numbers: tuple[int, ...], dtype: str, cache_dtype: str) -> questions.Asked:
        batch, tokens, heads = numbers[:3]
        cached = tokens - 1 if decode else numbers[3] if len(numbers) == 4 else 0
        return layer_questions.compressed_layer(
            kind, batch, tokens, heads, cached=cached, decode=decode, dtype=dtype, cache_dtype=cache_dtype
        )

    return build


_LAYERS: Mapping[str, _Build] = {
    "quantize": lambda n, dtype, cache: layer_questions.quantize(n[0], n[1], dtype=dtype),
    "quantize_dynamic": lambda n, dtype, cache: layer_questions.quantize(n[0], n[1], dynamic=True, dtype=dtype),
    "encoder": lambda n, dtype, cache: layer_questions.encoder(n[0], n[1], n[2], n[3], dtype=dtype),
    "mla_bmm": lambda n, dtype, cache: layer_questions.mla_bmm(n[0], n[1], n[2], n[3], dtype=dtype),
    "mla_layer_prefill": _layer(sparse=False, decode=False),
    "mla_layer_decode": _layer(sparse=False, decode=True),
    "dsa_layer_prefill": _layer(sparse=True, decode=False),
    "dsa_layer_decode": _layer(sparse=True, decode=True),
    **{f"{kind}_layer_prefill": _compressed(kind, decode=False) for kind in RATIOS},
    **{f"{kind}_layer_decode": _compressed(kind, decode=True) for kind in RATIOS},
    "hyper_connection_before": lambda n, dtype, cache: layer_questions.hyper_connection(n[0], n[1], before=True),
    "hyper_connection_after": lambda n, dtype, cache: layer_questions.hyper_connection(n[0], n[1], before=False),
    "delta_prefill": lambda n, dtype, cache: layer_questions.delta_rule(n[0], n[1], n[2], n[3], n[4], n[5]),
    "delta_decode": lambda n, dtype, cache: layer_questions.delta_rule(n[0], 1, n[1], n[2], n[3], n[4], decode=True),
    "convolution": lambda n, dtype, cache: layer_questions.convolution(n[0], n[1], n[2]),
}


def question(
    kind: str, shape: str, dtype: str, resolved: Machine, *, window: int, cache_dtype: str, skew: float
) -> questions.Asked:
    """The operator as the ladder is asked for it."""
    if kind in COLLECTIVES:
        return questions.collective(CollectiveKind(kind), buffer_bytes(shape), resolved.cluster.count, resolved)
    numbers = dimensions(kind, shape)
    if kind == "gemm":
        count, m, n, k = numbers if len(numbers) == 4 else (1, *numbers)
        return questions.gemm(m, n, k, count=count, dtype=dtype)
    if kind in ("attention", "prefill", "decode"):
        build: Callable[..., questions.Asked] = questions.decode if kind == "decode" else questions.prefill
        more = {"cached": numbers[5]} if len(numbers) == 6 else {}
        return build(*numbers[:5], window=window, dtype=dtype, cache_dtype=cache_dtype, **more)
    if kind == "mla_prefill":
        more = {"cached": numbers[3]} if len(numbers) == 4 else {}
        return questions.mla_prefill(*numbers[:3], dtype=dtype, cache_dtype=cache_dtype, **more)
    if kind == "mla_decode":
        return questions.mla_decode(*numbers, dtype=dtype, cache_dtype=cache_dtype)
    if kind in ("experts", "wide_experts", "wide_experts_decode"):
        ranks = numbers[5] if len(numbers) == 6 else 1
        asked = questions.experts(*numbers[:5], ranks=ranks, skew=skew, dtype=dtype)
        return replace(asked, question=replace(asked.question, family=kind))
    if kind in _LAYERS:
        return _LAYERS[kind](numbers, dtype, cache_dtype)
    tokens, hidden, top_k, count = numbers
    return questions.exchange(tokens, hidden, top_k, count, resolved, combine=kind == "combine")


def buffer_bytes(shape: str) -> float:
    """A size in words, such as '256 MiB' [byte]; raises `InputError` for none."""
    size = parse(shape, "byte", field="SHAPE")
    if size <= 0:
        raise InputError(f"'{shape}' is no size to move; needs more than 0 bytes", field="SHAPE")
    return size
