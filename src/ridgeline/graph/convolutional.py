"""Convolutional networks that are no plain residual stacks: VGG, DenseNet, Inception, Xception, RegNet, dual paths.

Sources: Simonyan and Zisserman 2015 (arXiv:1409.1556, table 1), Huang et al. 2017 (arXiv:1608.06993, table 1), Szegedy
et al. 2016 and 2017 (arXiv:1512.00567, arXiv:1602.07261), Chollet 2017 (arXiv:1610.02357, figure 5), Radosavovic et al.
2020 (arXiv:2003.13678), Chen et al. 2017 (arXiv:1707.01629, table 1), Brock et al. 2021 (arXiv:2102.06171),
Kolesnikov et al. 2020 (arXiv:1912.11370). Auxiliary classifiers are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ridgeline.errors import UnknownNameError
from ridgeline.facts.store import read_toml
from ridgeline.graph.model import Model
from ridgeline.graph.ops import Op, Split, elementwise
from ridgeline.graph.parts import linear
from ridgeline.graph.trunk import Trunk
from ridgeline.graph.vision import CLASSES, IMAGE, Layers, Turned, head_ops

LARGE = 299  # pixels of a side that Inception and Xception are trained on

_TABLES = read_toml("networks.toml")
GROWTH, NARROWED = 32, 4  # channels that a dense layer adds; its narrow layer over them


def convolutional(name: str, *, turned: Turned = Turned.NONE, fused: bool = False) -> Model:
    """A convolutional network by name, at the size of image it was trained on.

    >>> convolutional("vgg-16").graph.params
    138357544
    """
    if name not in CONVOLUTIONAL:
        raise UnknownNameError("convolutional network", name, CONVOLUTIONAL)
    image, build = CONVOLUTIONAL[name]
    trunk = Trunk(Layers(turned=turned, fused=fused), image)
    head = build(trunk)
    return trunk.model(name, "convolutional", source="table of the paper", head=head)


def _vgg(trunk: Trunk, depths: tuple[int, ...]) -> list[Op]:
    """Convolutions of 3 x 3 with biases, halved after each stage; two wide layers before the classes."""
    for filters, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
        for _ in range(depth):
            trunk.convolution(filters, 3, bias=True)
            trunk.activation()
            trunk.cut("layer")
        trunk.pool(2, 2)
        trunk.cut("pool")
    wide, (*_, loss) = 4096, head_ops(trunk.channels, trunk.side)
    ops = [linear("wide1", trunk.elements, wide, split=Split.NONE, bias=True), _rectified("wide1_relu", wide)]
    ops += [linear("wide2", wide, wide, split=Split.NONE, bias=True), _rectified("wide2_relu", wide)]
    return [*ops, linear("classes", wide, CLASSES, split=Split.NONE, bias=True), loss]


def _rectified(name: str, width: int) -> Op:
    return elementwise(name, width, width, 2 * width)


def _dense(trunk: Trunk, depths: tuple[int, ...]) -> None:
    """Each layer reads all before it, copied beside each other, and adds a few channels."""
    trunk.unit(64, 7, stride=2)
    trunk.pool()
    trunk.cut("stem")
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            channels = trunk.channels
            trunk.norm()
            trunk.unit(NARROWED * GROWTH, 1)
            trunk.convolution(GROWTH, 3)
            trunk.channels = channels + GROWTH
            trunk.step("join", trunk.elements, trunk.elements)
            trunk.cut("dense")
        trunk.norm()
        if stage + 1 < len(depths):
            trunk.convolution(trunk.channels // 2, 1)
            trunk.pool(2, 2)
        trunk.cut("transition")


def _regular(trunk: Trunk, depths: tuple[int, ...], widths: tuple[int, ...], group: int) -> None:
    """Grouped bottlenecks that widen nothing, squeezed to a quarter of what enters."""
    trunk.unit(32, 3, stride=2)
    trunk.cut("stem")
    for depth, filters in zip(depths, widths, strict=True):
        for place in range(depth):
            stride, entering = 1 if place else 2, trunk.channels
            if stride > 1 or entering != filters:
                trunk.shortcut(filters, stride=stride)
            trunk.unit(filters, 1)
            trunk.unit(filters, 3, stride=stride, groups=filters // group)
            trunk.squeeze(round(entering / 4))
            trunk.unit(filters, 1, active=False)
            trunk.add(active=True)
            trunk.cut("block")


def _separable(trunk: Trunk, filters: int) -> None:
    """A depthwise 3 x 3, a 1 x 1 and a norm."""
    trunk.convolution(trunk.channels, 3, groups=trunk.channels)
    trunk.unit(filters, 1, active=False)


def _xception(trunk: Trunk) -> None:
    trunk.unit(32, 3, stride=2, padded=False)
    trunk.unit(64, 3, padded=False)
    trunk.cut("stem")
    plan = [((128, 128), 2), ((256, 256), 2), ((728, 728), 2), *[((728,) * 3, 1)] * 8, ((728, 1024), 2)]
    for widths, stride in plan:
        if stride > 1:
            trunk.shortcut(widths[-1], stride=stride)
        for width in widths:
            trunk.activation()
            _separable(trunk, width)
        if stride > 1:
            trunk.pool(3, stride)
        trunk.add()
        trunk.cut("block")
    for width in (1536, 2048):
        _separable(trunk, width)
        trunk.activation()
        trunk.cut("exit")


def _dual(trunk: Trunk) -> list[Op]:
    """DPN-92: a residual path and a dense path through the same layers."""
    trunk.unit(64, 7, stride=2)
    trunk.pool()
    trunk.cut("stem")
    for stage, (depth, growth) in enumerate(((3, 16), (4, 32), (20, 24), (3, 128))):
        wide, narrow = 256 * 2**stage, 96 * 2**stage
        for place in range(depth):
            entering, side = trunk.channels, trunk.side
            stride = 2 if stage and not place else 1
            if not place:
                trunk.norm()
                trunk.convolution(wide + 2 * growth, 1, stride=stride)
                trunk.channels, trunk.side = entering, side
                entering = wide + 2 * growth
            for filters, size, step, groups in ((narrow, 1, 1, 1), (narrow, 3, stride, 32), (wide + growth, 1, 1, 1)):
                trunk.norm()
                trunk.convolution(filters, size, stride=step, groups=groups)
            trunk.channels = wide
            trunk.add()
            trunk.channels = entering + growth
            trunk.step("join", trunk.elements, trunk.elements)
            trunk.cut("block")
    trunk.norm()
    return head_ops(trunk.channels, trunk.side)


def _standard(trunk: Trunk, filters: int, size: int, *, stride: int = 1, groups: int = 1) -> None:
    """A convolution whose filters are standardised and scaled: as many more parameters as filters."""
    trunk.convolution(filters, size, stride=stride, groups=groups, bias=True)
    trunk.step("standardise", 0, 0, params=filters)


def _free(trunk: Trunk) -> None:
    """NFNet-L0: blocks without norms, their activations scaled; four convolutions come first."""
    for number, (filters, stride) in enumerate(((16, 2), (32, 1), (64, 1), (128, 2))):
        _standard(trunk, filters, 3, stride=stride)
        if number < 3:
            trunk.activation()
    trunk.cut("stem")
    for stage, (depth, filters) in enumerate(zip((1, 2, 6, 3), (256, 512, 1536, 1536), strict=True)):
        narrow = filters // 4
        for place in range(depth):
            stride, elements = (2 if stage and not place else 1), trunk.elements
            trunk.step("activation", elements, elements, 2 * elements, kernels=2, kept=elements)
            if stride > 1 or trunk.channels != filters:
                channels, side = trunk.channels, trunk.side
                if stride > 1:
                    trunk.pool(2, 2)
                _standard(trunk, filters, 1)
                trunk.channels, trunk.side = channels, side
            _standard(trunk, narrow, 1)
            for step in (stride, 1):
                trunk.activation()
                _standard(trunk, narrow, 3, stride=step, groups=narrow // 64)
            trunk.activation()
            _standard(trunk, filters, 1)
            trunk.squeeze(filters // 4)
            trunk.add()
            trunk.cut("block")
    _standard(trunk, 2304, 1)
    trunk.activation()


def _grouped_norm(trunk: Trunk) -> None:
    """Statistics of groups of channels, the norm, and its ReLU."""
    size = trunk.elements
    trunk.step("norm", 2 * size, size, 4 * size, size, kernels=3, params=2 * trunk.channels, kept=size)


def _transfer(trunk: Trunk, depths: tuple[int, ...], width: int) -> None:
    """Big Transfer: pre-activated bottlenecks `width` times as wide, group norms, standardised filters."""
    trunk.convolution(64 * width, 7, stride=2)
    trunk.pool()
    trunk.cut("stem")
    for stage, depth in enumerate(depths):
        filters, narrow = 256 * width * 2**stage, 64 * width * 2**stage
        for place in range(depth):
            stride = 2 if stage and not place else 1
            _grouped_norm(trunk)
            if not place:
                channels, side = trunk.channels, trunk.side
                trunk.convolution(filters, 1, stride=stride)
                trunk.channels, trunk.side = channels, side
            trunk.convolution(narrow, 1)
            _grouped_norm(trunk)
            trunk.convolution(narrow, 3, stride=stride)
            _grouped_norm(trunk)
            trunk.convolution(filters, 1)
            trunk.add()
            trunk.cut("block")
    _grouped_norm(trunk)


def _chain(trunk: Trunk, *steps: tuple[int, ...], reduced: bool = False) -> None:
    """Units of (filters, size) or (filters, size, across) after each other; the last halves without padding."""
    for number, (filters, size, *across) in enumerate(steps, start=1):
        last = reduced and number == len(steps)
        trunk.unit(filters, size, across=across[0] if across else None, stride=2 if last else 1, padded=not last)


def _valid(trunk: Trunk, *steps: tuple[int, ...]) -> None:
    """A chain, then 96 filters of 3 x 3 without padding."""
    _chain(trunk, *steps)
    trunk.unit(96, 3, padded=False)


def _pooled(trunk: Trunk, filters: int) -> None:
    trunk.pool(3, 1)
    trunk.unit(filters, 1)


def _forked(trunk: Trunk, *first: tuple[int, ...], filters: int) -> None:
    """A chain, then 1 x 3 and 3 x 1 beside each other."""
    _chain(trunk, *first)
    trunk.branches(partial(_chain, trunk, (filters, 1, 3)), partial(_chain, trunk, (filters, 3, 1)))


def _mixed(trunk: Trunk, *chains: tuple[tuple[int, ...], ...], pooled: int = 0, reduced: bool = False) -> None:
    """Chains beside each other, and a pooled way: through a unit, or as it is where the side is halved."""
    ways: list[Callable[[], object]] = [partial(_chain, trunk, *chain, reduced=reduced) for chain in chains]
    if pooled:
        ways.append(partial(_pooled, trunk, pooled))
    if reduced:
        ways.append(partial(trunk.pool, 3, 2, padded=False))
    trunk.branches(*ways)
    trunk.cut("mixed")


def _inception3(trunk: Trunk) -> None:
    trunk.unit(32, 3, stride=2, padded=False)
    trunk.unit(32, 3, padded=False)
    trunk.unit(64, 3)
    trunk.pool(padded=False)
    trunk.unit(80, 1)
    trunk.unit(192, 3, padded=False)
    trunk.pool(padded=False)
    trunk.cut("stem")
    for pooled in (32, 64, 64):
        _mixed(trunk, ((64, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3)), pooled=pooled)
    _mixed(trunk, ((384, 3),), ((64, 1), (96, 3), (96, 3)), reduced=True)
    for c in (128, 160, 160, 192):
        _mixed(
            trunk, ((192, 1),), ((c, 1), (c, 1, 7), (192, 7, 1)),
            ((c, 1), (c, 7, 1), (c, 1, 7), (c, 7, 1), (192, 1, 7)), pooled=192,
        )  # fmt: skip
    _mixed(trunk, ((192, 1), (320, 3)), ((192, 1), (192, 1, 7), (192, 7, 1), (192, 3)), reduced=True)
    for _ in range(2):
        trunk.branches(
            partial(_chain, trunk, (320, 1)), partial(_forked, trunk, (384, 1), filters=384),
            partial(_forked, trunk, (448, 1), (384, 3), filters=384), partial(_pooled, trunk, 192),
        )  # fmt: skip
        trunk.cut("mixed")


def _inception4(trunk: Trunk) -> None:
    trunk.unit(32, 3, stride=2, padded=False)
    trunk.unit(32, 3, padded=False)
    trunk.unit(64, 3)
    trunk.cut("stem")
    _mixed(trunk, ((96, 3),), reduced=True)
    trunk.branches(partial(_valid, trunk, (64, 1)), partial(_valid, trunk, (64, 1), (64, 1, 7), (64, 7, 1)))
    trunk.cut("mixed")
    _mixed(trunk, ((192, 3),), reduced=True)
    for _ in range(4):
        _mixed(trunk, ((96, 1),), ((64, 1), (96, 3)), ((64, 1), (96, 3), (96, 3)), pooled=96)
    _mixed(trunk, ((384, 3),), ((192, 1), (224, 3), (256, 3)), reduced=True)
    for _ in range(7):
        _mixed(
            trunk, ((384, 1),), ((192, 1), (224, 1, 7), (256, 7, 1)),
            ((192, 1), (192, 7, 1), (224, 1, 7), (224, 7, 1), (256, 1, 7)), pooled=128,
        )  # fmt: skip
    _mixed(trunk, ((192, 1), (192, 3)), ((256, 1), (256, 1, 7), (320, 7, 1), (320, 3)), reduced=True)
    for _ in range(3):
        trunk.branches(
            partial(_chain, trunk, (256, 1)), partial(_forked, trunk, (384, 1), filters=256),
            partial(_forked, trunk, (384, 1), (448, 3, 1), (512, 1, 3), filters=256), partial(_pooled, trunk, 256),
        )  # fmt: skip
        trunk.cut("mixed")


CONVOLUTIONAL: dict[str, tuple[int, Callable[[Trunk], list[Op] | None]]] = {
    **{name: (IMAGE, partial(_vgg, **row)) for name, row in _TABLES["plain"].items()},
    **{name: (IMAGE, partial(_dense, **row)) for name, row in _TABLES["dense"].items()},
    **{name: (IMAGE, partial(_regular, **row)) for name, row in _TABLES["regular"].items()},
    "inception-v3": (LARGE, _inception3),
    "inception-v4": (LARGE, _inception4),
    "xception": (LARGE, _xception),
    "dpn-92": (IMAGE, _dual),
    "nfnet-l0": (IMAGE, _free),
    "bit-r152x2": (480, partial(_transfer, depths=(3, 8, 36, 3), width=2)),
}
"""Pixels of a side, and what builds the network and perhaps its head."""
