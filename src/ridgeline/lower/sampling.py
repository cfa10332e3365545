"""A denoiser's operators on one of the devices that divide a picture's patches, and what these tell each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import sqrt

from ridgeline.errors import PlanError
from ridgeline.graph.model import Block, Model
from ridgeline.graph.ops import AttentionOp, ConvolutionOp, ElementwiseOp, Op
from ridgeline.graph.workload import PRECISIONS, Workload
from ridgeline.lower.shard import Sharder
from ridgeline.lower.work import Collective, CollectiveKind, Gemm, Layout, Phase, Work
from ridgeline.plan.sampling import Division
from ridgeline.seams.context import own_card

PATCHED = frozenset({"patches", "borders"})
"""Exchanges of devices that hold parts of a picture, which may be a step old."""


def forward(block: Block, workload: Workload, *, copies: float, by: Division, read: float = 1.0) -> list[Work]:
    """Forward work of one layer on `copies` pictures, products in the workload's own format.

    Patches are divided by `ulysses` and `ring`, widths by `tensor`; Ulysses' attention has all patches of its own
    heads. Of a `pipeline` and of `patches` it is the work on one of as many parts of the patches, which attend to all,
    or of `patches` to their own and the share `read` of the others [1]. What each picture has once is repeated on
    every device. In an engine's graph sums and copies ride in the kernels around them, and narrow operands are written
    so by the kernels before.
    """
    sharder = Sharder(workload, Layout(micro_batch=copies))
    quantize = PRECISIONS[workload.precision].quantize
    engine = workload.execution == "graph"
    divided = [
        _divided(op, by, read) for op in block.ops if not (engine and isinstance(op, ElementwiseOp) and op.rides)
    ]
    work = [piece for op in divided for piece in sharder.op(op, block) if piece.phase is Phase.FORWARD]
    layouts = 0 if engine else 1  # there is no backward to write another for
    return [
        replace(piece, quantized=quantize, cast_layouts=layouts) if isinstance(piece, Gemm) else piece for piece in work
    ]


def _divided(op: Op, by: Division, read: float) -> Op:
    share, tensor = by.parts, by.tensor
    if isinstance(op, AttentionOp):
        heads = max(1, op.heads // (by.ulysses * tensor))
        seen = op.positions * (1.0 + read * (by.patches - 1)) / by.patches if _itself(op) else op.positions
        rows = op.rows / (by.ring * by.pipeline * by.patches)
        return replace(op, heads=heads, kv_heads=heads, rows=rows, positions=round(seen))
    if isinstance(op, ConvolutionOp) and op.rows != 1:
        return replace(op, rows=op.rows / share, n=max(1, op.n // tensor))
    if isinstance(op, ElementwiseOp):
        return replace(op, read=op.read / (share * tensor), write=op.write / (share * tensor))
    return op


def _itself(op: AttentionOp) -> bool:
    """Whether patches attend to each other, not to words, which every device holds."""
    return op.positions >= op.rows


def exchanges(
    block: Block, *, copies: float, by: Division, element_bytes: float, read: float = 1.0
) -> list[Collective]:
    """Collectives of one layer: four all-to-alls of Ulysses, a ring of keys and values, two reductions of widths; of
    `patches` a gather of the share `read` of the others' keys and values [1], and borders of convolutions.
    """
    found: list[Collective] = []
    for op in block.ops:
        if by.patches > 1 and isinstance(op, ConvolutionOp) and op.taps > 1:
            found.append(_border(op, copies=copies, by=by, element_bytes=element_bytes))
        if not isinstance(op, AttentionOp) or not _itself(op):
            continue
        width, tokens = op.heads * op.qk_dim / by.tensor, op.rows / by.parts
        size = copies * tokens * width * element_bytes
        if by.ulysses > 1:
            traded = Collective(
                name="ulysses", phase=Phase.FORWARD, kind=CollectiveKind.ALL_TO_ALL, bytes=size, ranks=by.ulysses,
                stride=by.tensor,
            )  # fmt: skip
            found += [traded] * 4
        if by.ring > 1:
            found.append(
                Collective(
                    name="ring", phase=Phase.FORWARD, kind=CollectiveKind.ALL_GATHER, bytes=2.0 * size * by.ring,
                    ranks=by.ring, stride=by.ulysses * by.tensor, hidden_behind="attention", leaving=own_card,
                )
            )  # fmt: skip
        if by.patches > 1:
            found.append(
                Collective(
                    name="patches", phase=Phase.FORWARD, kind=CollectiveKind.ALL_GATHER,
                    bytes=2.0 * size * by.patches * read, ranks=by.patches, stride=by.inner,
                )
            )  # fmt: skip
        if by.tensor > 1:
            whole = copies * tokens * op.heads * op.qk_dim * element_bytes
            reduced = Collective(
                name="tensor", phase=Phase.FORWARD, kind=CollectiveKind.ALL_REDUCE, bytes=whole, ranks=by.tensor,
                stride=1,
            )  # fmt: skip
            found += [reduced] * 2
    return found


def _border(op: ConvolutionOp, *, copies: float, by: Division, element_bytes: float) -> Collective:
    """Rows of pixels that a filter reads of the parts above and below: (sqrt(taps) - 1) / 2 of sqrt(rows) pixels."""
    pixels = (sqrt(op.taps) - 1.0) / 2.0 * sqrt(op.rows)
    size = 2.0 * copies * pixels * op.k * op.groups / op.taps * element_bytes
    return Collective(
        name="borders", phase=Phase.FORWARD, kind=CollectiveKind.SEND, bytes=size, ranks=2,
        stride=by.inner,
    )  # fmt: skip


def check_division(model: Model, by: Division) -> None:
    """Raises `PlanError` when heads or layers cannot be divided so."""
    for op in _attentions(model.graph.blocks.values()):
        if op.heads % (by.ulysses * by.tensor):
            raise PlanError(
                f"{model.name}: ulysses {by.ulysses} x tensor {by.tensor} does not divide {op.heads} heads;"
                f" legal: {', '.join(str(n) for n in range(1, op.heads + 1) if op.heads % n == 0)}"
            )
    if by.pipeline > len(model.graph.layers):
        raise PlanError(f"{model.name}: pipeline {by.pipeline} exceeds its {len(model.graph.layers)} layers")


def _attentions(blocks: Iterable[Block]) -> list[AttentionOp]:
    return [op for block in blocks for op in block.ops if isinstance(op, AttentionOp) and _itself(op)]
