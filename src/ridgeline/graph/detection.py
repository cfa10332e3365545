"""Networks that find objects in images, at once or by proposing regions and looking at each; an image is one token.

Sources: Lin et al. 2017 (arXiv:1708.02002, RetinaNet; arXiv:1612.03144, the pyramid), Liu et al. 2016
(arXiv:1512.02325, SSD), Ren et al. 2015 (arXiv:1506.01497), He et al. 2017 (arXiv:1703.06870); layers as torchvision
(maskrcnn_resnet50_fpn) and DeepLearningExamples (SSD) build them. Matching boxes, choosing regions (sorting,
suppressing overlaps) and whatever runs on the host is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from ridgeline.errors import UnknownNameError
from ridgeline.facts.store import toml_records
from ridgeline.graph.model import Block, Model, network_of
from ridgeline.graph.ops import ConvolutionOp, Op, elementwise
from ridgeline.graph.pixels import mapped, product, scaled
from ridgeline.graph.vision import Layers, Turned, VisionStage

PYRAMID = 256  # channels of every level
COCO_SIDE = 986
"""Pixels of a square image as large as 800 x 1216: torchvision scales COCO's images to 800 pixels across, and a batch
is padded to its widest, for the commonest wide one of 640 x 427 (assumed)."""
BOX = 4  # numbers that place a box


@dataclass(frozen=True, kw_only=True)
class Detector:
    """A backbone on images of `image` pixels a side, whose first `untrained` stages and stem run forward alone.

    `kind` is 'retina' or 'ssd'.
    """

    kind: str
    backbone: str
    image: int
    classes: int
    untrained: int = 0
    frozen: bool = True  # norms of the backbone are not trained


DETECTORS = toml_records("networks.toml", "detectors", Detector)
ANCHORS = 9  # boxes of RetinaNet at each pixel of a level
DEFAULTS = (4, 6, 6, 6, 4, 4)  # boxes of SSD300 at each pixel of its six maps
EXTRA = ((1024, 256, 512), (512, 256, 512), (512, 128, 256), (256, 128, 256), (256, 128, 256))
"""Channels in, narrowed and out of SSD300's maps after the first; the last two do not pad."""


def detector(name: str, *, turned: Turned = Turned.NONE, fused: bool = False, image: int | None = None) -> Model:
    """A detector by name, `turned` and `fused` as for residual networks; `image` pixels a side in place of its own.

    >>> detector("retinanet-resnet-50").graph.params
    34014999
    """
    if name not in DETECTORS:
        raise UnknownNameError("detector", name, DETECTORS)
    spec = replace(DETECTORS[name], image=image or DETECTORS[name].image)
    net = Layers(turned=turned, fused=fused, frozen=spec.frozen)
    strides = (1, 2, 1) if spec.kind == "ssd" else (1, 2, 2, 2)
    stages = net.stages(spec.backbone, spec.image, strides=strides, untrained=spec.untrained)
    after = {"retina": _retina, "ssd": _ssd}[spec.kind](spec, net, stages)
    stem = net.stem(spec.image)
    if spec.untrained:
        stem = [replace(op, frozen=True, saved=()) for op in stem]
    layers = [block for stage in stages for block in stage.blocks] + after
    return network_of(
        name, "detector", layers, hidden=stages[-1].channels * stages[-1].side ** 2, source="torchvision",
        embedding=stem, dims={"classes": spec.classes, "image": spec.image},
    )  # fmt: skip


def _block(name: str, ops: Sequence[Op]) -> Block:
    return Block(name=name, ops=tuple(ops))


def _retina(spec: Detector, net: Layers, stages: Sequence[VisionStage]) -> list[Block]:
    """Levels 3 to 7 of a pyramid; four convolutions and a last one for classes and for boxes, on every level."""
    pyramid, sides = pyramid_ops(net, stages[1:])
    for level in (6, 7):
        pyramid += net.convolution(f"level{level}", PYRAMID, PYRAMID, 3, sides[-1], stride=2, bias=True)
        sides.append(ceil(sides[-1] / 2))
    pixels = sum(side**2 for side in sides)
    ops: list[Op] = []
    for part, outputs in (("class", spec.classes), ("box", BOX)):
        for number in range(4):
            ops += [
                _shared(f"{part}{number}", PYRAMID, PYRAMID, pixels, len(sides)),
                _relu(f"{part}{number}_relu", PYRAMID * pixels, len(sides)),
            ]
        ops.append(_shared(f"{part}_out", PYRAMID, ANCHORS * outputs, pixels, len(sides)))
    ops.append(_loss("focal_loss", ANCHORS * pixels * (spec.classes + BOX)))
    return [_block("pyramid", pyramid), _block("heads", ops)]


def pyramid_ops(net: Layers, stages: Sequence[VisionStage]) -> tuple[list[Op], list[int]]:
    """A 1 x 1 convolution of each stage, coarser levels doubled and added, and a 3 x 3 one; and the levels' sides."""
    ops: list[Op] = []
    for number, stage in enumerate(stages):
        ops += net.convolution(f"inner{number}", stage.channels, PYRAMID, 1, stage.side, bias=True)
        if number + 1 < len(stages):
            elements = PYRAMID * stage.side**2
            ops.append(elementwise(f"merge{number}", 1.25 * elements, elements, kernels=2))
        ops += net.convolution(f"outer{number}", PYRAMID, PYRAMID, 3, stage.side, bias=True)
    return ops, [stage.side for stage in stages]


def _ssd(spec: Detector, net: Layers, stages: Sequence[VisionStage]) -> list[Block]:
    """Six maps, each narrowed and halved from the one before; a convolution of each for classes and for boxes."""
    sides, channels, ops = [stages[-1].side], [stages[-1].channels], list[Op]()
    for number, (wide, narrow, out) in enumerate(EXTRA):
        side, padded = sides[-1], number < 3
        smaller = ceil(side / 2) if padded else side - 2
        ops += [
            *net.convolution(f"narrow{number}", wide, narrow, 1, side),
            net.norm(f"narrow{number}_norm", narrow, side, active=True),
        ]
        if padded:
            ops += net.convolution(f"map{number}", narrow, out, 3, side, stride=2)
        else:
            made = net.convolution(f"map{number}", narrow, out, 3, side)
            ops += [replace(op, rows=float(smaller**2)) if isinstance(op, ConvolutionOp) else op for op in made]
        ops.append(net.norm(f"map{number}_norm", out, smaller, active=True))
        sides.append(smaller)
        channels.append(out)
    heads: list[Op] = []
    for number, (side, wide, boxes) in enumerate(zip(sides, channels, DEFAULTS, strict=True)):
        for part, outputs in (("box", BOX), ("class", spec.classes)):
            heads += net.convolution(f"{part}{number}", wide, boxes * outputs, 3, side, bias=True)
    found = sum(boxes * side**2 for boxes, side in zip(DEFAULTS, sides, strict=True))
    heads.append(_loss("loss", found * (spec.classes + BOX)))
    return [_block("maps", ops), _block("heads", heads)]


def _shared(name: str, channels: int, filters: int, pixels: int, levels: int) -> Op:
    """A 3 x 3 convolution with bias on all levels of a pyramid."""
    return product(name, channels, filters, pixels, taps=9, kernels=levels)


def _relu(name: str, elements: int, levels: int) -> Op:
    """Rectified in place; backward masks the gradient."""
    return elementwise(name, elements, elements, 2 * elements, kernels=levels)


def _loss(name: str, elements: int) -> Op:
    """A fused loss of every output, which writes the gradient in forward."""
    return elementwise(name, elements, elements, kept=elements, role="logits")


PROPOSED, REGIONS, MASKED = 3, 512, 128  # boxes of a pixel; regions that are trained, and those with an object at most
POOLED, POOLED_MASK, SAMPLES = 7, 14, 4  # pixels of a side that a region becomes; points read for each
HEAD, MASKS = 1024, 4  # width of a region's layers; convolutions of its mask


@dataclass(frozen=True, kw_only=True)
class Regions:
    """A backbone, its classes, and whether each region gets a mask."""

    backbone: str
    classes: int
    masked: bool


REGION_NETWORKS = toml_records("networks.toml", "regions", Regions)


def region_network(name: str, *, turned: Turned = Turned.NONE, fused: bool = False) -> Model:
    """A network of regions by name, `turned` and `fused` as for residual networks; stem and first stage are frozen.

    >>> region_network("mask-rcnn").graph.params
    44401393
    """
    if name not in REGION_NETWORKS:
        raise UnknownNameError("network of regions", name, REGION_NETWORKS)
    spec = REGION_NETWORKS[name]
    net = Layers(turned=turned, fused=fused, frozen=True)
    stages = net.stages(spec.backbone, COCO_SIDE, untrained=1)
    pyramid, sides = pyramid_ops(net, stages)
    sides.append((sides[-1] + 1) // 2)
    layers = [block for stage in stages for block in stage.blocks]
    layers += [
        Block(name="pyramid", ops=tuple(pyramid)),
        Block(name="proposals", ops=tuple(_proposals(net, sides))),
        Block(name="boxes", ops=tuple(_boxes(spec))),
    ]
    if spec.masked:
        layers.append(Block(name="masks", ops=tuple(_masks(net, spec))))
    return network_of(
        name, "regions", layers, hidden=stages[-1].channels * stages[-1].side ** 2, source="torchvision",
        embedding=[replace(op, frozen=True, saved=()) for op in net.stem(COCO_SIDE)],
        dims={"classes": spec.classes, "image": COCO_SIDE},
    )  # fmt: skip


def _proposals(net: Layers, sides: list[int]) -> list[Op]:
    """One convolution on every level, and what is an object and where for each box of a pixel."""
    ops: list[Op] = []
    for level, side in enumerate(sides):
        own = net.convolution(f"proposal{level}", PYRAMID, PYRAMID, 3, side, bias=True)
        ops += [replace(op, params=op.params if not level else 0) for op in own]
    pixels = sum(side**2 for side in sides)
    ops += [
        mapped("proposal_relu", PYRAMID * pixels),
        product("objectness", PYRAMID, PROPOSED, pixels),
        product("box_deltas", PYRAMID, BOX * PROPOSED, pixels),
        mapped("proposal_loss", (BOX + 1) * PROPOSED * pixels),
    ]
    return ops


def _pooled(name: str, regions: int, side: int) -> Op:
    """Points of each region's pixels read and averaged; backward adds to each of them."""
    elements = regions * PYRAMID * side**2
    return replace(
        mapped(name, elements, inputs=SAMPLES),
        backward_read=(1 + SAMPLES) * elements,
        backward_write=SAMPLES * elements,
    )


def _boxes(spec: Regions) -> list[Op]:
    return [
        _pooled("box_pool", REGIONS, POOLED),
        product("box1", PYRAMID * POOLED**2, HEAD, REGIONS),
        mapped("box1_relu", HEAD * REGIONS),
        product("box2", HEAD, HEAD, REGIONS),
        mapped("box2_relu", HEAD * REGIONS),
        product("class", HEAD, spec.classes, REGIONS),
        product("box", HEAD, BOX * spec.classes, REGIONS),
        mapped("box_loss", (1 + BOX) * spec.classes * REGIONS),
    ]


def _masks(net: Layers, spec: Regions) -> list[Op]:
    """Convolutions on regions with an object, doubled by a transposed one, and a mask of each class."""
    ops = [_pooled("mask_pool", MASKED, POOLED_MASK)]
    pixels = MASKED * POOLED_MASK**2
    for number in range(MASKS):
        own = net.convolution(f"mask{number}", PYRAMID, PYRAMID, 3, POOLED_MASK, bias=True)
        ops += [scaled(op, MASKED) for op in own]
        ops.append(mapped(f"mask{number}_relu", PYRAMID * pixels))
    grown = product("mask_grown", PYRAMID, 4 * PYRAMID, pixels, params=4 * PYRAMID**2 + PYRAMID)
    return [
        *ops,
        grown,
        mapped("mask_grown_relu", 4 * PYRAMID * pixels),
        product("mask", PYRAMID, spec.classes, 4 * pixels),
        mapped("mask_loss", 4 * spec.classes * pixels),
    ]
