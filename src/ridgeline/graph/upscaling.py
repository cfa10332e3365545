"""Networks that make a picture larger: residual blocks at the size of the small one; a patch counts as one token.

Letters: C channels, S pixels of a side of the small patch, r times the side. Sources: Lim et al. 2017
(arXiv:1707.02921, section 3 and table 1), without batch norms; layers as sanghyun-son/EDSR-PyTorch builds them.
"""

from __future__ import annotations

from ridgeline.errors import UnknownNameError
from ridgeline.graph.model import Block, Model, network_of
from ridgeline.graph.ops import Op, elementwise
from ridgeline.graph.pixels import product

# Residual blocks, channels and how many times the side.
UPSCALERS = {
    "edsr-baseline-x2": (16, 64, 2), "edsr-baseline-x4": (16, 64, 4), "edsr-x2": (32, 256, 2), "edsr-x4": (32, 256, 4),
}  # fmt: skip
SIDE, COLOURS, TAPS = 48, 3, 9  # pixels of a side of a training patch; of a pixel; of a filter


def upscaler(name: str, *, side: int = SIDE) -> Model:
    """A network that makes pictures larger, by name, on a patch of `side` pixels; it fits pictures of any size.

    Raises `UnknownNameError` for a name of none.

    >>> upscaler("edsr-baseline-x2").graph.params
    1369859
    """
    if name not in UPSCALERS:
        raise UnknownNameError("network that makes pictures larger", name, tuple(UPSCALERS))
    blocks, channels, times = UPSCALERS[name]
    pixels = side * side
    residual = Block(name="residual", ops=tuple(_residual(channels, pixels)))
    enter = Block(name="enter", ops=(_convolution("enter", COLOURS, channels, pixels),))
    joined = (
        _convolution("leave", channels, channels, pixels),
        elementwise("join", 2 * channels * pixels, channels * pixels),
    )
    leave = Block(name="leave", ops=joined)
    grown, size = [], pixels
    for step in range(times.bit_length() - 1):
        wide = 4 * channels * size
        grown += [_convolution(f"grow{step}", channels, 4 * channels, size), elementwise(f"shuffle{step}", wide, wide)]
        size *= 4
    layers = (enter, *[residual] * blocks, leave, Block(name="grow", ops=tuple(grown)))
    head = (_convolution("colours", channels, COLOURS, size), elementwise("loss", 2 * COLOURS * size, COLOURS * size))
    return network_of(
        name, "upscaling", layers, hidden=channels * pixels, source="released code", head=head,
        dims={"channels": channels, "image": side, "times": times},
    )  # fmt: skip


def _residual(channels: int, pixels: int) -> list[Op]:
    """Two convolutions with a ReLU between, added to what came in."""
    elements = channels * pixels
    return [
        _convolution("first", channels, channels, pixels),
        elementwise("relu", elements, elements),
        _convolution("second", channels, channels, pixels),
        elementwise("add", 2 * elements, elements),
    ]


def _convolution(name: str, channels: int, filters: int, pixels: int) -> Op:
    return product(name, channels, filters, pixels, taps=TAPS, leaf=channels == COLOURS)
