"""Operators on all pixels, patches or words of one image, which counts as one token.

Letters: C channels, R x R a filter, P pixels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ridgeline.graph.ops import AttentionOp, ConvolutionOp, ElementwiseOp, Op, Region, Saved, elementwise
from ridgeline.graph.parts import STATISTIC_BYTES

LINEAR = 16
"""Passes over a tensor as wide as the layer, read and written in two bytes, from queries, keys and values to what
linear attention gives: 64 bytes an element for two rectified, three cast to fp32, values padded, two products, a
quotient and a cast back. Source: diffusers 0.33, attention_processor.py, SanaLinearAttnProcessor2_0."""


def kept(elements: float) -> Saved:
    """A tensor of an image that waits for backward."""
    return Saved(elements=elements, region=Region.TENSOR)


def product(
    name: str,
    k: int,
    n: int,
    pixels: float,
    *,
    taps: int = 1,
    entering: int | None = None,
    bias: bool = True,
    kept_input: bool = True,
    **more: Any,
) -> ConvolutionOp:
    """A linear layer on every pixel, or n filters of `taps` points on k channels; what several read is kept once.

    The input has `entering` pixels, as many as come out unless said; `more` are fields of the operator.
    """
    waiting = (kept(k * (pixels if entering is None else entering)),) if kept_input else ()
    fields = {"params": k * taps * n + n * bias, "saved": waiting, **more}
    return ConvolutionOp(name=name, region=Region.TENSOR, k=k * taps, n=n, rows=float(pixels), taps=taps, **fields)


def attention(
    name: str, heads: int, dim: int, queries: int, keys: int, *, v_dim: int | None = None, wide: bool = False
) -> AttentionOp:
    """The core of attention of `queries` to `keys`; keeps queries, keys, values and one statistic for each query.

    Unfused it keeps each score's weight in place of the statistic, with `wide` softmax's result in fp32 as well.
    """
    value = dim if v_dim is None else v_dim
    weights = Saved(elements=heads * queries * keys, region=Region.TENSOR, role="core", kernel="unfused")
    return AttentionOp(
        name=name, region=Region.TENSOR, heads=heads, kv_heads=heads, qk_dim=dim, v_dim=value,
        causal=False, rows=float(queries), positions=keys,
        saved=(
            kept(heads * (dim * queries + (dim + value) * keys)),
            Saved(elements=heads * queries, region=Region.TENSOR, element_bytes=STATISTIC_BYTES, kernel="flash"),
            weights,
            *((replace(weights, element_bytes=STATISTIC_BYTES),) if wide else ()),
        ),
    )  # fmt: skip


def group_norm(name: str, channels: int, pixels: int) -> ElementwiseOp:
    """Statistics, then norm and SiLU: forward reads its input twice, backward input and gradient twice."""
    elements = channels * pixels
    return elementwise(
        name, 2 * elements, elements, 4 * elements, elements, kept=elements, role="norm", params=2 * channels, kernels=2
    )


def layer_norm(name: str, wide: int, pixels: int, *, params: int | None = None) -> ElementwiseOp:
    """A norm over the width of each pixel, of 2 C numbers unless said."""
    elements = wide * pixels
    return elementwise(
        name,
        elements,
        elements,
        2 * elements,
        kept=elements,
        role="norm",
        params=2 * wide if params is None else params,
    )


def riding(name: str, elements: int, *, inputs: int = 1) -> ElementwiseOp:
    """A sum or a copy that an engine's graph does inside the kernels around it, as `mapped` elsewhere.

    Sums ride in the epilogue of the product or convolution before them, attention reads heads where they lie, tensors
    are written beside each other at once. Source: NVIDIA TensorRT documentation, layer fusion catalog.
    """
    return replace(mapped(name, elements, inputs=inputs), rides=True)


def mapped(
    name: str, elements: int, *, inputs: int = 1, outputs: int = 1, params: int = 0, saved: int = 0
) -> ElementwiseOp:
    """`inputs` tensors into one `outputs` as large; backward sums or spreads the gradient likewise."""
    return elementwise(
        name,
        inputs * elements,
        outputs * elements,
        max(inputs, outputs) * elements,
        elements,
        kept=saved,
        params=params,
    )


def activated(name: str, elements: int) -> ElementwiseOp:
    """A function of each element; keeps its input."""
    return elementwise(name, elements, elements, 2 * elements, kept=elements, role="mlp")


def gated(name: str, elements: int) -> ElementwiseOp:
    """An activation of one half times the other; keeps both."""
    return elementwise(name, 2 * elements, elements, 3 * elements, kept=2 * elements, role="mlp", kernels=2)


def scaled(op: Op, times: float) -> Op:
    """An operator of so many times the rows or bytes, as of each part of an input, or of numbers twice as wide."""
    saved = tuple(replace(one, elements=times * one.elements) for one in op.saved)
    if isinstance(op, ConvolutionOp):
        return replace(op, rows=times * op.rows, saved=saved)
    if isinstance(op, ElementwiseOp):
        return replace(
            op, read=times * op.read, write=times * op.write, backward_read=times * op.backward_read,
            backward_write=times * op.backward_write, saved=saved,
        )  # fmt: skip
    raise ValueError(f"{op.name} has neither rows nor bytes to scale")


def narrowed(name: str, elements: float) -> ElementwiseOp:
    """Numbers of four bytes cast to two, and back in backward."""
    return elementwise(name, 2 * elements, elements)
