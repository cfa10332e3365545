"""Networks of depthwise convolutions between 1 x 1 ones: MobileNet, MnasNet, EfficientNet, GhostNet.

Sources: Sandler et al. 2018 (arXiv:1801.04381, table 2), Tan et al. 2019 (arXiv:1807.11626), Howard et al. 2019
(arXiv:1905.02244, table 1), Tan and Le 2019 and 2021 (arXiv:1905.11946, table 1; arXiv:2104.00298, table 4), Han et al.
2020 (arXiv:1911.11907, table 1). "widese" squeezes to a quarter of the widened channels (DeepLearningExamples).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ridgeline.errors import UnknownNameError
from ridgeline.graph.model import Model
from ridgeline.graph.ops import ElementwiseOp, Op, Region, Split
from ridgeline.graph.parts import linear
from ridgeline.graph.trunk import Trunk
from ridgeline.graph.vision import CLASSES, Layers, Turned, head_ops

SQUEEZED = 0.25  # width of a squeeze over that of the block's input, or of its widened channels


@dataclass(frozen=True, kw_only=True)
class Stage:
    """`repeats` blocks of one shape: filter side, stride of the first, widening, channels out, what a squeeze narrows.

    'separable' has no widening layer, 'inverted' widens with 1 x 1, 'fused' with the filter itself, 'plain' is one
    convolution, and 'ghost' makes half of its channels from the other half. A `squeeze` is '' (none), 'input' or
    'wide'.
    """

    kind: str
    repeats: int
    size: int
    stride: int
    expansion: float
    channels: int
    squeeze: str = ""
    skips: bool = True


@dataclass(frozen=True, kw_only=True)
class Mobile:
    """Channels of the stem, stages, channels after the last; `width` and `depth` multiply those of the stages."""

    stem: int
    stages: tuple[Stage, ...]
    last: int = 1280
    late: bool = False  # the last widening follows the mean: one pixel, with a bias
    width: float = 1.0
    depth: float = 1.0
    image: int = 224
    curved: bool = True  # activations are SiLU, hard swish or ReLU6, not ReLU
    unit: int = 8  # squeezes are rounded to multiples of it


def _stages(rows: str, squeeze: str = "") -> tuple[Stage, ...]:
    """Stages of lines 'kind repeats size stride expansion channels [squeeze|noskip]'."""
    found = []
    for line in rows.split(";"):
        kind, *numbers = line.split()
        words = numbers[5:]
        found.append(
            Stage(
                kind=kind, repeats=int(numbers[0]), size=int(numbers[1]), stride=int(numbers[2]),
                expansion=float(numbers[3]), channels=int(numbers[4]), skips="noskip" not in words,
                squeeze=next((word for word in words if word != "noskip"), squeeze),
            )
        )  # fmt: skip
    return tuple(found)


_EFFICIENT = (
    "separable 1 3 1 1 16; inverted 2 3 2 6 24; inverted 2 5 2 6 40; inverted 3 3 2 6 80; inverted 3 5 1 6 112;"
    "inverted 4 5 2 6 192; inverted 1 3 1 6 320"
)
_SCALES = {
    "b0": (1.0, 1.0, 224), "b1": (1.0, 1.1, 240), "b2": (1.1, 1.2, 260), "b3": (1.2, 1.4, 300), "b4": (1.4, 1.8, 380),
    "b5": (1.6, 2.2, 456), "b6": (1.8, 2.6, 528), "b7": (2.0, 3.1, 600),
}  # fmt: skip
"""Width, depth and pixels of a side of EfficientNets. Source: efficientnet_builder.py of tensorflow/tpu."""

MOBILE: dict[str, Mobile] = {
    "mobilenet-v2": Mobile(
        stem=32,
        stages=_stages(
            "separable 1 3 1 1 16; inverted 2 3 2 6 24; inverted 3 3 2 6 32; inverted 4 3 2 6 64; inverted 3 3 1 6 96;"
            "inverted 3 3 2 6 160; inverted 1 3 1 6 320"
        ),
    ),
    "mnasnet": Mobile(
        stem=32,
        stages=_stages(
            "separable 1 3 1 1 16 noskip; inverted 3 3 2 3 24; inverted 3 5 2 3 40; inverted 3 5 2 6 80;"
            "inverted 2 3 1 6 96; inverted 4 5 2 6 192; inverted 1 3 1 6 320 noskip"
        ),
        curved=False,
    ),
    "mobilenet-v3-large": Mobile(
        stem=16,
        stages=_stages(
            "separable 1 3 1 1 16; inverted 1 3 2 4 24; inverted 1 3 1 3 24; inverted 3 5 2 3 40 wide;"
            "inverted 1 3 2 6 80; inverted 1 3 1 2.5 80; inverted 2 3 1 2.3 80; inverted 2 3 1 6 112 wide;"
            "inverted 3 5 2 6 160 wide; plain 1 1 1 1 960 noskip"
        ),
        late=True,
    ),
    "ghostnet": Mobile(
        stem=16,
        stages=_stages(
            "ghost 1 3 1 1 16; ghost 1 3 2 3 24; ghost 1 3 1 3 24; ghost 1 5 2 3 40 wide; ghost 1 5 1 3 40 wide;"
            "ghost 1 3 2 6 80; ghost 1 3 1 2.5 80; ghost 2 3 1 2.3 80; ghost 1 3 1 6 112 wide; ghost 1 3 1 6 112 wide;"
            "ghost 1 5 2 6 160 wide; ghost 1 5 1 6 160; ghost 1 5 1 6 160 wide; ghost 1 5 1 6 160;"
            "ghost 1 5 1 6 160 wide; plain 1 1 1 1 960 noskip"
        ),
        curved=False,
        late=True,
        unit=4,
    ),
    "efficientnet-v2-s": Mobile(
        stem=24,
        stages=_stages(
            "plain 2 3 1 1 24; fused 4 3 2 4 48; fused 4 3 2 4 64; inverted 6 3 2 4 128 input;"
            "inverted 9 3 1 6 160 input; inverted 15 3 2 6 256 input"
        ),
        image=300,
        unit=1,
    ),
    "efficientnet-v2-m": Mobile(
        stem=24,
        stages=_stages(
            "plain 3 3 1 1 24; fused 5 3 2 4 48; fused 5 3 2 4 80; inverted 7 3 2 4 160 input;"
            "inverted 14 3 1 6 176 input; inverted 18 3 2 6 304 input; inverted 5 3 1 6 512 input"
        ),
        image=384,
        unit=1,
    ),
} | {
    f"efficientnet-{wide}{size}": Mobile(
        stem=32, stages=_stages(_EFFICIENT, squeeze), width=width, depth=depth, image=image, unit=1
    )
    for size, (width, depth, image) in _SCALES.items()
    for wide, squeeze in (("", "input"), ("widese-", "wide"))
}


def mobile(name: str, *, turned: Turned = Turned.NONE, fused: bool = False, image: int | None = None) -> Model:
    """A network of depthwise convolutions by name, on images of its own size or another.

    >>> mobile("efficientnet-b0").graph.params
    5288548
    """
    if name not in MOBILE:
        raise UnknownNameError("network of depthwise convolutions", name, MOBILE)
    spec = MOBILE[name]
    trunk = Trunk(Layers(turned=turned, fused=fused, curved=spec.curved), image or spec.image)
    trunk.unit(_rounded(spec.stem * spec.width), 3, stride=2)
    trunk.cut("stem")
    for stage in spec.stages:
        filters = _rounded(stage.channels * spec.width)
        for place in range(ceil(stage.repeats * spec.depth)):
            _block(trunk, stage, spec, filters, stage.stride if place == 0 else 1)
            trunk.cut(stage.kind)
    if spec.late:
        return trunk.model(name, "mobile", source="table of the paper", head=_late_head(trunk, spec.last))
    trunk.unit(_rounded(spec.last * max(1.0, spec.width)), 1)
    return trunk.model(name, "mobile", source="table of the paper")


def _block(trunk: Trunk, stage: Stage, spec: Mobile, filters: int, stride: int) -> None:
    channels = trunk.channels
    wide = _rounded(channels * stage.expansion)
    if stage.kind == "ghost":
        _ghost_block(trunk, stage, spec, wide, filters, stride)
        return
    if stage.kind == "plain":
        trunk.unit(filters, stage.size, stride=stride)
    elif stage.kind == "fused":
        trunk.unit(wide, stage.size, stride=stride)
        trunk.unit(filters, 1, active=False)
    else:
        if stage.kind == "inverted":
            trunk.unit(wide, 1)
        trunk.unit(trunk.channels, stage.size, stride=stride, groups=trunk.channels)
        _squeeze(trunk, stage, spec, channels)
        trunk.unit(filters, 1, active=False)
    if stage.skips and stride == 1 and channels == filters:
        trunk.add()


def _squeeze(trunk: Trunk, stage: Stage, spec: Mobile, channels: int) -> None:
    if stage.squeeze:
        width = SQUEEZED * (channels if stage.squeeze == "input" else trunk.channels)
        trunk.squeeze(_rounded(width, spec.unit) if spec.unit > 1 else round(width))


def _ghost_block(trunk: Trunk, stage: Stage, spec: Mobile, wide: int, filters: int, stride: int) -> None:
    """Two ghost layers, a depthwise convolution between them where pixels are halved, and a shortcut."""
    channels, side = trunk.channels, trunk.side
    if stride > 1 or channels != filters:
        trunk.unit(channels, stage.size, stride=stride, groups=channels, active=False)
        trunk.unit(filters, 1, active=False)
        trunk.channels, trunk.side = channels, side
    _ghost(trunk, wide, active=True)
    if stride > 1:
        trunk.unit(wide, stage.size, stride=stride, groups=wide, active=False)
    _squeeze(trunk, stage, spec, channels)
    _ghost(trunk, filters, active=False)
    trunk.add()


def _ghost(trunk: Trunk, filters: int, *, active: bool) -> None:
    """Half of the channels by 1 x 1, the other half from these by a depthwise 3 x 3, beside each other."""
    trunk.unit(filters // 2, 1, active=active)
    trunk.unit(filters // 2, 3, groups=filters // 2, active=active)
    trunk.channels = filters
    trunk.step("join", read=trunk.elements, write=trunk.elements)


def _late_head(trunk: Trunk, last: int) -> list[Op]:
    """Mean over pixels, a layer with bias and its activation, classes, loss."""
    mean, _, *rest = head_ops(trunk.channels, trunk.side)
    return [
        mean,
        linear("widen", trunk.channels, last, split=Split.NONE, bias=True),
        ElementwiseOp(
            name="widen_activation",
            region=Region.TENSOR,
            read=last,
            write=last,
            backward_read=2 * last,
            backward_write=last,
        ),
        linear("classes", last, CLASSES, split=Split.NONE, bias=True),
        *rest,
    ]


def _rounded(width: float, unit: int = 8) -> int:
    """The multiple of `unit` nearest to a width, at most a tenth below it [1]."""
    found = max(unit, int(width + unit / 2) // unit * unit)
    return found + unit if found < 0.9 * width else found
