"""What one rank does of operators that transformers lack, and of weights that something is made of before use."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ridgeline.graph.ops import ConvolutionOp, LinearOp, RecurrentOp, ScanOp, SparseTableOp
from ridgeline.graph.workload import Precision
from ridgeline.lower.work import Gemm, Number, Phase, Stream, Work


def convolution(op: ConvolutionOp, precision: Precision, *, pixels: Number) -> Iterable[Work]:
    """An implicit product over output pixels; of input pixels for their gradient, and of channels for filters'.

    A filter of R points at stride s in d directions uses each input R / s^d times, and each output's gradient R.
    """
    spread = float(op.stride**op.axes)
    used = max(1.0, op.taps / spread)
    product = partial(Gemm, name=op.name, count=op.groups, kernels=float(op.kernels), direct=op.direct, loads=op.loads)
    thin = partial(product, output_bytes=precision.activation_bytes)
    yield thin(phase=Phase.FORWARD, m=pixels, n=op.n, k=op.k, taps=used, form=op.formats.forward)
    if not op.leaf:
        inputs = {"m": pixels * spread, "n": op.k / op.taps, "k": op.n * op.taps / spread}
        yield thin(phase=Phase.BACKWARD_INPUT, taps=float(op.taps), **inputs)
    yield product(
        phase=Phase.BACKWARD_WEIGHT, m=op.k, n=op.n, k=pixels, taps=used, output_bytes=precision.grad_bytes,
        accumulate=True,
    )  # fmt: skip


def recurrence(op: RecurrentOp, precision: Precision, *, rows: Number) -> Iterable[Work]:
    """Products of a state: one a step in forward and for its gradient, one of all steps for the weight's."""
    product = partial(Gemm, name=op.name)
    thin = partial(
        product, output_bytes=precision.activation_bytes, steps=op.steps, kernels=float(op.kernels) * op.steps
    )
    yield thin(phase=Phase.FORWARD, m=rows, n=op.n, k=op.k)
    yield thin(phase=Phase.BACKWARD_INPUT, m=rows, n=op.k, k=op.n)
    yield product(
        phase=Phase.BACKWARD_WEIGHT, m=op.k, n=op.n, k=rows * op.steps, output_bytes=precision.grad_bytes,
        accumulate=True,
    )  # fmt: skip


def scan(op: ScanOp, precision: Precision, *, rows: Number) -> Iterable[Work]:
    """A chunked recurrence: products on the matrix units, inputs and what its kernels hand on through memory.

    The backward pass makes states and scores again, and hands on their gradients.
    """
    for phase, factor in ((Phase.FORWARD, 1.0), (Phase.BACKWARD_INPUT, 2.0)):
        moved = (op.read + op.write) if phase is Phase.FORWARD else (op.backward_read + op.backward_write)
        size = rows * (moved * precision.activation_bytes + factor * op.handed)
        flop = factor * rows * op.flop_per_token
        yield Stream(name=op.name, phase=phase, bytes=size, flop=flop, matrix=True, kernels=factor * op.kernels)


def tables(op: SparseTableOp, precision: Precision, *, tokens: Number) -> Iterable[Work]:
    """Rows looked up and summed for each sample, and updated where they lie; every device does its share."""
    size, row = precision.activation_bytes, precision.weight_bytes
    yield Stream(name=op.name, phase=Phase.FORWARD, bytes=tokens * (op.read * row + op.write * size))
    updated = (op.backward_read + op.backward_write) * row
    yield Stream(name=op.name, phase=Phase.BACKWARD_WEIGHT, bytes=tokens * (op.write * size + updated))


def made_of_weight(op: LinearOp, precision: Precision, *, numbers: Number) -> Iterable[Work]:
    """What is made of a weight of so many numbers before it is multiplied, and of its gradient after."""
    if op.made is None:
        return
    made = partial(Stream, name=f"{op.name}.made", kernels=float(op.made.kernels))
    yield made(phase=Phase.FORWARD, bytes=numbers * (precision.weight_bytes + op.made.forward_bytes))
    if op.made.backward_bytes:
        gradient = numbers * (precision.activation_bytes + op.made.backward_bytes)
        yield made(phase=Phase.BACKWARD_WEIGHT, bytes=gradient)
