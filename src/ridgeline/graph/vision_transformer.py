"""Vision transformers that classify images: patches are tokens, and one more token names the class.

Letters: D hidden, P pixels of a patch's side. Source: Dosovitskiy et al. 2021 (arXiv:2010.11929), table 1; the smaller
ones are those of Touvron et al. 2021 (arXiv:2012.12877), table 1.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ridgeline.errors import UnknownNameError
from ridgeline.graph.build import from_dims
from ridgeline.graph.model import Block, Model
from ridgeline.graph.ops import AttentionOp, ConvolutionOp, CrossEntropyOp, NormOp, Op, Region, ResidualOp, elementwise
from ridgeline.graph.parts import STATISTIC_BYTES
from ridgeline.graph.pixels import narrowed, scaled
from ridgeline.graph.vision import CLASSES

SIZES = {
    "tiny": (12, 192, 3), "small": (12, 384, 6), "base": (12, 768, 12), "large": (24, 1024, 16), "huge": (32, 1280, 16),
}  # fmt: skip
"""Layers, width and heads by size."""
_NAME = re.compile(r"vit-(\w+)-patch(\d+)-(\d+)")


def vision_tokens(name: str) -> int:
    """Tokens of one image: its patches and the class token [token].

    >>> vision_tokens("vit-base-patch16-224")
    197
    """
    _, patch, side = _parts(name)
    return (side // patch) ** 2 + 1


def vision_transformer(name: str, *, autocast: bool = False) -> Model:
    """A vision transformer by name, 'vit-SIZE-patchP-SIDE'; `autocast` as for `vision.Layers`.

    >>> vision_transformer("vit-base-patch16-224").graph.params
    86567656
    """
    size, patch, side = _parts(name)
    layers, hidden, heads = SIZES[size]
    tokens = vision_tokens(name)
    model = from_dims(
        name=name, source="table 1 of the paper", layers=layers, hidden=hidden, heads=heads, vocab=CLASSES,
        positions="none", encoder=True, embed_norm=False,
    )  # fmt: skip
    pixels = 3 * patch**2
    patches = ConvolutionOp(
        name="patches", region=Region.TENSOR, k=pixels, n=hidden, params=(pixels + 1) * hidden, leaf=True, lora=True
    )
    added = elementwise(
        "positions", 2 * hidden, hidden, backward_write=hidden, region=Region.SEQUENCE, params=(tokens + 1) * hidden
    )
    norm = next(op for op in model.graph.blocks[model.graph.layers[0]].ops if op.params == 2 * hidden)
    classes = replace(
        patches, name="classes", k=hidden, n=CLASSES, params=(hidden + 1) * CLASSES, rows=1 / tokens, leaf=False
    )
    loss = CrossEntropyOp(name="cross_entropy", region=Region.VOCAB, n=max(1, CLASSES // tokens))
    blocks = {key: _autocast(block, tokens) if autocast else block for key, block in model.graph.blocks.items()}
    graph = replace(
        model.graph,
        blocks=blocks,
        embedding=(patches, added),
        head=(replace(norm, name="final_norm"), classes, loss),
        tied_embeddings=False,
    )
    return replace(model, model_type="vision-transformer", graph=graph, dims={**model.dims, "image": side})


def _autocast(block: Block, tokens: int) -> Block:
    """A layer whose norms, softmax and stream are in fp32: each norm's output is cast, each sum reads and writes more.

    Backward of a sum casts its gradient for the branch and adds it to the norm's; softmax writes four bytes, kept and
    cast for the product.
    """
    ops: list[Op] = []
    for op in block.ops:
        if isinstance(op, NormOp):
            ops += [scaled(op, 2), narrowed(f"{op.name}_cast", op.write)]
        elif isinstance(op, ResidualOp):
            size = op.write
            ops.append(replace(op, read=3 * size, write=2 * size, backward_read=6 * size, backward_write=3 * size))
        else:
            ops.append(op)
        if isinstance(op, AttentionOp):
            scores = op.heads * tokens
            ops.append(
                elementwise(
                    "softmax_cast", 2 * scores, 2 * scores, kept=op.heads, element_bytes=STATISTIC_BYTES, role="core",
                    times_seq=True, kernel="unfused",
                )
            )  # fmt: skip
    return replace(block, ops=tuple(ops))


def _parts(name: str) -> tuple[str, int, int]:
    """Size, side of a patch and side of the image [pixel]."""
    match = _NAME.fullmatch(name)
    if match is None or match[1] not in SIZES or int(match[3]) % int(match[2]):
        raise UnknownNameError("vision transformer", name, [f"vit-{size}-patch16-224" for size in SIZES])
    return match[1], int(match[2]), int(match[3])
