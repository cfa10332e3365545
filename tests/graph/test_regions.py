"""Networks of regions: parameters that torchvision publishes, rows of each head by hand."""

from __future__ import annotations

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.graph.detection import COCO_SIDE, region_network
from ridgeline.graph.model import Block
from ridgeline.graph.ops import Op
from ridgeline.graph.vision import Turned


def named(block: Block) -> dict[str, Op]:
    return {op.name: op for op in block.ops}


def test_parameters_are_those_that_torchvision_publishes() -> None:
    """Its documentation of fasterrcnn_resnet50_fpn and maskrcnn_resnet50_fpn."""
    assert region_network("faster-rcnn").graph.params == 41_755_286
    assert region_network("mask-rcnn").graph.params == 44_401_393
    assert region_network("mask-rcnn", turned=Turned.BOTH, fused=True).graph.params == 44_401_393


def test_one_convolution_proposes_on_five_levels() -> None:
    ops = named(region_network("faster-rcnn").graph.blocks["proposals"])
    sides = [247, 124, 62, 31, 16]
    assert COCO_SIDE == 986
    assert [ops[f"proposal{level}"].rows for level in range(5)] == [side**2 for side in sides]
    assert [ops[f"proposal{level}"].params for level in range(5)] == [256 * 256 * 9 + 256, 0, 0, 0, 0]
    assert (ops["objectness"].n, ops["box_deltas"].n) == (3, 12)
    assert ops["objectness"].rows == sum(side**2 for side in sides)


def test_regions_are_512_and_those_with_an_object_a_quarter() -> None:
    graph = region_network("mask-rcnn").graph
    boxes, masks = named(graph.blocks["boxes"]), named(graph.blocks["masks"])
    assert (boxes["box1"].rows, boxes["box1"].k) == (512, 256 * 7 * 7)
    assert (masks["mask0"].rows, masks["mask0"].k) == (128 * 14 * 14, 256 * 9)
    assert (masks["mask"].rows, masks["mask"].n) == (128 * 28 * 28, 91)
    pool = boxes["box_pool"]
    assert (pool.read, pool.write) == (4 * 512 * 256 * 49, 512 * 256 * 49)


def test_stem_and_first_stage_are_frozen() -> None:
    graph = region_network("faster-rcnn").graph
    assert all(op.frozen for op in graph.embedding)
    assert all(op.frozen for op in graph.blocks["stage-1"].ops)
    assert not any(op.frozen for op in graph.blocks["stage-2"].ops)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="mask-rcnn"):
        region_network("mask-rcn")
