"""What makes pixels of latents: the decoder of Stable Diffusion's autoencoder; an image counts as one token.

Source: Rombach et al. 2022 (arXiv:2112.10752), `model.py` of their released code.
"""

from __future__ import annotations

from ridgeline.graph.ops import Block, Graph, Model, Op, OpKind, Region
from ridgeline.graph.pixels import attention, group_norm, kept, mapped, product, riding

WIDTHS = (512, 512, 256, 128)  # channels of each level, coarsest first
RESIDUALS, COLOURS = 3, 3  # residual blocks of a level; channels of an image
SHRINK = 8  # pixels of an image's side to one of its latent's


def decoder(channels: int, *, width: int, height: int) -> Model:
    """The decoder of latents of so many channels for an image of a size.

    >>> decoder(4, width=512, height=512).graph.params
    49490179
    """
    pixels, wide = (width // SHRINK) * (height // SHRINK), WIDTHS[0]
    middle = [
        *_residual("first", wide, wide, pixels),
        *_attention(wide, pixels),
        *_residual("last", wide, wide, pixels),
    ]
    blocks = [Block(name="middle", ops=tuple(middle), boundaries=())]
    entering = wide
    for level, filters in enumerate(WIDTHS):
        for _ in range(RESIDUALS):
            ops = tuple(_residual("block", entering, filters, pixels))
            blocks.append(Block(name=f"block-{level}-{entering}", ops=ops, boundaries=()))
            entering = filters
        if level + 1 < len(WIDTHS):
            pixels *= 4
            grown = (
                mapped("double", filters * pixels // 4, outputs=4),
                _convolution("grown", filters, filters, pixels),
            )
            blocks.append(Block(name=f"up-{level}", ops=grown, boundaries=()))
    graph = Graph(
        blocks={block.name: block for block in blocks}, layers=tuple(block.name for block in blocks),
        embedding=(_convolution("entry", channels, wide, (width // SHRINK) * (height // SHRINK)),),
        head=(group_norm("exit_norm", entering, pixels), _convolution("exit", entering, COLOURS, pixels)),
        hidden=entering * pixels, vocab=0, tied_embeddings=False,
    )  # fmt: skip
    dims = {"layers": len(blocks), "width": width, "height": height}
    return Model(
        name="decoder", model_type="decoder", graph=graph, max_positions=None, source="released code", dims=dims
    )


def _residual(name: str, channels: int, filters: int, pixels: int) -> list[Op]:
    ops = [
        group_norm(f"{name}_norm1", channels, pixels),
        _convolution(f"{name}_conv1", channels, filters, pixels),
        group_norm(f"{name}_norm2", filters, pixels),
        _convolution(f"{name}_conv2", filters, filters, pixels),
    ]
    if channels != filters:
        ops.append(product(f"{name}_shortcut", channels, filters, pixels))
    return [*ops, riding(f"{name}_add", filters * pixels, inputs=2)]


def _attention(wide: int, pixels: int) -> list[Op]:
    """One head over all pixels."""
    return [
        group_norm("attention_norm", wide, pixels),
        *(product(f"attention_{part}", wide, wide, pixels) for part in "qkv"),
        attention("attention", 1, wide, pixels, pixels),
        product("attention_out", wide, wide, pixels),
        riding("attention_add", wide * pixels, inputs=2),
    ]


def _convolution(name: str, channels: int, filters: int, pixels: int) -> Op:
    """A 3 x 3 convolution with bias."""
    taps = 9
    return Op(
        name=name, kind=OpKind.GEMM, region=Region.TENSOR, k=channels * taps, n=filters, rows=float(pixels), taps=taps,
        params=channels * taps * filters + filters, saved=(kept(channels * pixels),),
    )  # fmt: skip
