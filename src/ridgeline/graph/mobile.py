"""Networks of depthwise convolutions between 1 x 1 ones: MobileNet, MnasNet, EfficientNet, GhostNet.

Their stages, with sources, are rows of `data/networks.toml`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from ridgeline.errors import UnknownNameError
from ridgeline.facts.store import read_toml
from ridgeline.graph.model import Model
from ridgeline.graph.ops import Op, Split, elementwise
from ridgeline.graph.parts import linear
from ridgeline.graph.trunk import Trunk
from ridgeline.graph.vision import CLASSES, Layers, Turned, head_ops

SQUEEZED = 0.25  # width of a squeeze over that of the block's input, or of its widened channels


@dataclass(frozen=True, kw_only=True)
class MobileStage:
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
    stages: tuple[MobileStage, ...]
    last: int = 1280
    late: bool = False  # the last widening follows the mean: one pixel, with a bias
    width: float = 1.0
    depth: float = 1.0
    image: int = 224
    curved: bool = True  # activations are SiLU, hard swish or ReLU6, not ReLU
    unit: int = 8  # squeezes are rounded to multiples of it


def _stages(rows: Iterable[str], squeeze: str = "") -> tuple[MobileStage, ...]:
    """Stages of lines 'kind repeats size stride expansion channels [squeeze|noskip]'."""
    found = []
    for line in rows:
        kind, *numbers = line.split()
        words = numbers[5:]
        found.append(
            MobileStage(
                kind=kind, repeats=int(numbers[0]), size=int(numbers[1]), stride=int(numbers[2]),
                expansion=float(numbers[3]), channels=int(numbers[4]), skips="noskip" not in words,
                squeeze=next((word for word in words if word != "noskip"), squeeze),
            )
        )  # fmt: skip
    return tuple(found)


def _rows() -> dict[str, Mobile]:
    tables = read_toml("networks.toml")
    found = {name: Mobile(**{**row, "stages": _stages(row["stages"])}) for name, row in tables["mobile"].items()}
    shared, *sizes = tables["efficient"].items()
    for size, (width, depth, image) in sizes:
        for wide, squeeze in (("", "input"), ("widese-", "wide")):
            found[f"efficientnet-{wide}{size}"] = Mobile(
                stem=32, stages=_stages(shared[1], squeeze), width=width, depth=depth, image=image, unit=1
            )
    return found


MOBILE = _rows()


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


def _block(trunk: Trunk, stage: MobileStage, spec: Mobile, filters: int, stride: int) -> None:
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


def _squeeze(trunk: Trunk, stage: MobileStage, spec: Mobile, channels: int) -> None:
    if stage.squeeze:
        width = SQUEEZED * (channels if stage.squeeze == "input" else trunk.channels)
        trunk.squeeze(_rounded(width, spec.unit) if spec.unit > 1 else round(width))


def _ghost_block(trunk: Trunk, stage: MobileStage, spec: Mobile, wide: int, filters: int, stride: int) -> None:
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
    trunk.step("join", trunk.elements, trunk.elements)


def _late_head(trunk: Trunk, last: int) -> list[Op]:
    """Mean over pixels, a layer with bias and its activation, classes, loss."""
    mean, _, *rest = head_ops(trunk.channels, trunk.side)
    return [
        mean,
        linear("widen", trunk.channels, last, split=Split.NONE, bias=True),
        elementwise("widen_activation", last, last, 2 * last),
        linear("classes", last, CLASSES, split=Split.NONE, bias=True),
        *rest,
    ]


def _rounded(width: float, unit: int = 8) -> int:
    """The multiple of `unit` nearest to a width, at most a tenth below it [1]."""
    found = max(unit, int(width + unit / 2) // unit * unit)
    return found + unit if found < 0.9 * width else found
