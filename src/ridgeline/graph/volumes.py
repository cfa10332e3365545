"""U-Nets that mark what the voxels of a volume are; a volume counts as one token.

Sources: Isensee et al. 2018 (arXiv:1809.10486); channels and layers as mlcommons/training,
image_segmentation/pytorch/model builds them: instance norms, leaky ReLU.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.errors import UnknownNameError
from ridgeline.graph.model import Block, Model, network_of
from ridgeline.graph.ops import Op, elementwise
from ridgeline.graph.pixels import group_norm, product, scaled

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
    head = (product("classes", first, CLASSES, voxels), elementwise("loss", CLASSES * voxels, CLASSES * voxels))
    layers = [replace(block, ops=tuple(scaled(op, 1 / parts) for op in block.ops)) for block in layers]
    return network_of(
        name, "volumes", layers, hidden=first * voxels, source="released code",
        head=[scaled(op, 1 / parts) for op in head], dims={"classes": CLASSES, "image": SIDE, "parts": parts},
    )  # fmt: skip


def _block(name: str, ops: list[Op]) -> Block:
    return Block(name=name, ops=tuple(ops))


def _up(channels: int, filters: int, side: int) -> list[Op]:
    """A transposed convolution of 2 x 2 x 2 to twice the side, what went down beside it, and two steps."""
    wide = 2 * side
    elements = filters * wide**3
    grown = product("grown", channels, 8 * filters, side**3, bias=False)
    return [
        replace(grown, params=8 * channels * filters + filters),
        elementwise("join", 2 * elements, 2 * elements),
        *_step("conv1", 2 * filters, filters, wide),
        *_step("conv2", filters, filters, wide),
    ]


def _step(name: str, channels: int, filters: int, side: int, *, stride: int = 1) -> list[Op]:
    """A convolution of 3 x 3 x 3 from `side` to side / stride, its norm and its leaky ReLU."""
    out = side // stride
    convolution = product(
        name, channels, filters, out**3, taps=27, entering=side**3, bias=False, stride=stride, axes=3,
        leaf=channels == 1,
    )  # fmt: skip
    return [convolution, replace(group_norm(f"{name}_norm", filters, out**3), kernels=3)]
