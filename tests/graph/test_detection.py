"""Detectors: parameters and products that torchvision publishes, shapes by hand."""

from __future__ import annotations

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.graph.detection import DEFAULTS, detector
from ridgeline.graph.flop import model_flop_per_token
from ridgeline.graph.ops import Op
from ridgeline.graph.vision import residual
from ridgeline.graph.workload import Workload
from ridgeline.lower.shard import Sharder
from ridgeline.lower.work import Layout, Phase


def ops(name: str) -> dict[str, Op]:
    graph = detector(name).graph
    return {op.name: op for block in graph.blocks.values() for op in block.ops}


def test_retinanet_has_the_parameters_and_products_of_torchvision() -> None:
    """Its documentation of retinanet_resnet50_fpn: 34014999 parameters, 151.54e9 multiplications at 800 x 800."""
    graph = detector("retinanet-resnet-50", image=800).graph
    assert graph.params == 34_014_999
    assert model_flop_per_token(graph, 1.0) / 2e9 == pytest.approx(151.54, abs=0.005)


def test_264_classes_widen_one_convolution() -> None:
    """9 boxes x (264 - 91) classes more for each of 5 levels, from 256 channels at 9 points, with bias."""
    sides = (100, 50, 25, 13, 7)
    last = ops("retinanet-resnext-50")["class_out"]
    assert (last.n, last.k, last.rows) == (9 * 264, 9 * 256, sum(side**2 for side in sides))
    plain, wide = (detector(f"retinanet-{name}").graph.params for name in ("resnet-50", "resnext-50"))
    frozen = (residual("resnext-50-32x4d"), residual("resnet-50"))
    norms = [sum(op.params for block in model.graph.layers for op in model.graph.blocks[block].ops if "norm" in op.name)
             for model in frozen]  # fmt: skip
    bodies = (frozen[0].graph.params - norms[0]) - (frozen[1].graph.params - norms[1])
    assert wide - plain == bodies + 9 * 173 * (9 * 256 + 1)


def test_ssd_finds_8732_boxes_on_six_maps() -> None:
    found = ops("ssd-resnet-50")
    sides = [round(found[f"box{number}"].rows ** 0.5) for number in range(6)]
    assert sides == [38, 19, 10, 5, 3, 1]
    assert sum(boxes * side**2 for boxes, side in zip(DEFAULTS, sides, strict=True)) == 8732
    assert [found[f"class{number}"].n for number in range(6)] == [81 * boxes for boxes in DEFAULTS]


def test_stem_and_first_stage_run_forward_alone() -> None:
    graph = detector("retinanet-resnet-50", fused=True).graph
    sharder = Sharder(Workload(seq_len=1, global_batch=2), Layout(micro_batch=2))
    for name, trained in (("stage-1-first", False), ("stage-1", False), ("stage-2-first", True)):
        phases = {piece.phase for piece in sharder.block(graph.blocks[name])}
        assert (Phase.BACKWARD_WEIGHT in phases) is trained
        assert (Phase.BACKWARD_INPUT in phases) is trained
    assert {piece.phase for piece in sharder.end(graph.embedding)} == {Phase.FORWARD}
    assert not any(op.saved for op in graph.embedding)


def test_frozen_norms_have_no_parameters_and_ride_in_convolutions_when_fused() -> None:
    made = (detector("retinanet-resnet-50", fused=each, image=800).graph.blocks["stage-2"] for each in (False, True))
    eager, fused = made
    elements = 128 * 100**2
    first = [next(op for op in block.ops if op.name == "norm1") for block in (eager, fused)]
    assert [op.params for op in first] == [0, 0]
    assert [op.read for op in first] == [elements, 0]
    assert first[1].backward_read == 2 * elements  # the gradient and the mask of its ReLU


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="retinanet-resnet-50"):
        detector("retinanet")
