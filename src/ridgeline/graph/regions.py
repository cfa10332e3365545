"""Networks that propose regions of an image and look at each: Faster and Mask R-CNN; an image is one token.

Sources: Ren et al. 2015 (arXiv:1506.01497), He et al. 2017 (arXiv:1703.06870); layers as torchvision's
maskrcnn_resnet50_fpn builds them. Choosing regions (sorting, suppressing overlaps, matching) is counted in no time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.errors import UnknownNameError
from ridgeline.facts.store import toml_records
from ridgeline.graph.detection import BOX, COCO_SIDE, PYRAMID, pyramid_ops
from ridgeline.graph.model import Block, Model, network_of
from ridgeline.graph.ops import Op
from ridgeline.graph.pixels import mapped, product, scaled
from ridgeline.graph.vision import Layers, Turned

ANCHORS, REGIONS, MASKED = 3, 512, 128  # boxes of a pixel; regions that are trained, and those with an object at most
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
        product("objectness", PYRAMID, ANCHORS, pixels),
        product("box_deltas", PYRAMID, BOX * ANCHORS, pixels),
        mapped("proposal_loss", (BOX + 1) * ANCHORS * pixels),
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
