"""U-Nets that mark what the voxels of a volume are; a volume counts as one token.

Sources: Isensee et al. 2018 (arXiv:1809.10486); channels and layers as mlcommons/training,
image_segmentation/pytorch/model builds them: instance norms, leaky ReLU.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.errors import UnknownNameError
from ridgeline.graph.model import Block, Graph, Model
from ridgeline.graph.ops import ConvolutionOp, ElementwiseOp, Op, Region, Saved
from ridgeline.graph.pixels import scaled

CHANNELS = (32, 64, 128, 256, 320)
SIDE, CLASSES = 128, 3  # voxels of a side of what is cut from a scan; background, kidney, tumour
VOLUMES = ("unet-3d",)


def volume_unet(name: str, *, parts: int = 1) -> Model:
    """A U-Net of volumes by name, on one of `parts` equal parts of a volume; what their edges share is left out.

    >>> volume_unet("unet-3d").graph.params
    31190243
    """
    if name not in VOLUMES:
        raise UnknownNameError("network of volumes", name, VOLUMES)
    first, last = CHANNELS[0], CHANNELS[-1]
    layers = [_block("entry", [*_step("conv1", 1, first, SIDE), *_step("conv2", first, first, SIDE)])]
    side = SIDE
    for channels, filters in zip(CHANNELS, (*CHANNELS[1:], last), strict=True):
        down = [*_step("conv1", channels, filters, side, stride=2), *_step("conv2", filters, filters, side // 2)]
        side //= 2
        layers.append(_block(f"down-{side}", down))
    for channels, filters in zip((last, *CHANNELS[:0:-1]), CHANNELS[::-1], strict=True):
        layers.append(_block(f"up-{side}", _up(channels, filters, side)))
        side *= 2
    voxels = SIDE**3
    head = (_product("classes", first, CLASSES, voxels, bias=True), _map("loss", CLASSES * voxels, CLASSES * voxels))
    layers = [replace(block, ops=tuple(scaled(op, 1 / parts) for op in block.ops)) for block in layers]
    graph = Graph(
        blocks={block.name: block for block in layers}, layers=tuple(block.name for block in layers), embedding=(),
        head=tuple(scaled(op, 1 / parts) for op in head), hidden=first * voxels, vocab=0, tied_embeddings=False,
    )  # fmt: skip
    dims = {"layers": len(layers), "classes": CLASSES, "image": SIDE, "parts": parts}
    return Model(name=name, model_type="volumes", graph=graph, max_positions=None, source="released code", dims=dims)


def _block(name: str, ops: list[Op]) -> Block:
    return Block(name=name, ops=tuple(ops), boundaries=())


def _up(channels: int, filters: int, side: int) -> list[Op]:
    """A transposed convolution of 2 x 2 x 2 to twice the side, what went down beside it, and two steps."""
    wide = 2 * side
    elements = filters * wide**3
    grown = _product("grown", channels, 8 * filters, side**3, bias=False)
    return [
        replace(grown, params=8 * channels * filters + filters),
        _map("join", 2 * elements, 2 * elements),
        *_step("conv1", 2 * filters, filters, wide),
        *_step("conv2", filters, filters, wide),
    ]


def _step(name: str, channels: int, filters: int, side: int, *, stride: int = 1) -> list[Op]:
    """A convolution of 3 x 3 x 3 from `side` to side / stride, its norm and its leaky ReLU."""
    out, taps = side // stride, 27
    convolution = ConvolutionOp(
        name=name, region=Region.TENSOR, k=channels * taps, n=filters, rows=float(out**3), taps=taps,
        stride=stride, axes=3, params=channels * taps * filters, leaf=channels == 1,
        saved=(Saved(elements=channels * side**3, region=Region.TENSOR),),
    )  # fmt: skip
    elements = filters * out**3
    norm = ElementwiseOp(
        name=f"{name}_norm", region=Region.TENSOR, read=2 * elements, write=elements, backward_read=4 * elements,
        backward_write=elements, saved=(Saved(elements=elements, region=Region.TENSOR, role="norm"),), kernels=3,
        params=2 * filters,
    )  # fmt: skip
    return [convolution, norm]


def _product(name: str, k: int, n: int, voxels: int, *, bias: bool) -> ConvolutionOp:
    return ConvolutionOp(
        name=name, region=Region.TENSOR, k=k, n=n, rows=float(voxels), params=k * n + n * bias,
        saved=(Saved(elements=k * voxels, region=Region.TENSOR),),
    )  # fmt: skip


def _map(name: str, read: float, write: float) -> Op:
    return ElementwiseOp(
        name=name, region=Region.TENSOR, read=read, write=write, backward_read=write, backward_write=read
    )
