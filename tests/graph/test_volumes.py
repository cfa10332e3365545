"""The U-Net of volumes: parameters and products by hand."""

from __future__ import annotations

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.graph.flop import model_flop_per_token
from ridgeline.graph.ops import GemmOp
from ridgeline.graph.volumes import volume_unet
from ridgeline.graph.workload import Workload
from ridgeline.lower.shard import Sharder
from ridgeline.lower.work import Gemm, Layout, Phase

DOWN = ((1, 32, 128), (32, 64, 64), (64, 128, 32), (128, 256, 16), (256, 320, 8), (320, 320, 4))
UP = ((320, 320, 8), (320, 256, 16), (256, 128, 32), (128, 64, 64), (64, 32, 128))  # in, out, side that it reaches


def test_parameters_and_products_by_hand() -> None:
    """Two convolutions of 27 points and two norms at every level; eight products up, and two tensors joined."""
    params = sum(27 * (c * k + k * k) + 4 * k for c, k, _ in DOWN)
    params += sum(8 * c * k + k + 27 * (2 * k * k + k * k) + 4 * k for c, k, _ in UP) + 32 * 3 + 3
    products = sum(27 * (c * k + k * k) * side**3 for c, k, side in DOWN)
    products += sum((c * k + 27 * 3 * k * k) * side**3 for c, k, side in UP) + 32 * 3 * 128**3
    graph = volume_unet("unet-3d").graph
    assert graph.params == params
    assert model_flop_per_token(graph, 1.0) == 2.0 * products


def test_a_stride_of_two_leaves_an_eighth_of_the_voxels() -> None:
    block = volume_unet("unet-3d").graph.blocks["down-64"]
    work = Sharder(Workload(seq_len=1, global_batch=2), Layout(micro_batch=2)).block(block)
    first = {piece.phase: piece for piece in work if isinstance(piece, Gemm) and piece.name == "conv1"}
    assert (float(first[Phase.FORWARD].m), first[Phase.FORWARD].taps) == (2 * 64**3, 27 / 8)
    gradient = first[Phase.BACKWARD_INPUT]
    assert (float(gradient.m), float(gradient.k) * 8, gradient.n) == (2 * 128**3, 64 * 27, 32)


def test_voxels_get_no_gradient() -> None:
    graph = volume_unet("unet-3d").graph
    first = graph.blocks["entry"].ops[0]
    assert isinstance(first, GemmOp)
    assert first.leaf


def test_a_quarter_of_a_volume_has_a_quarter_of_the_work_and_all_parameters() -> None:
    whole, part = volume_unet("unet-3d").graph, volume_unet("unet-3d", parts=4).graph
    assert part.params == whole.params
    assert model_flop_per_token(part, 1.0) == model_flop_per_token(whole, 1.0) / 4
    norms = [next(op for op in graph.blocks["down-64"].ops if op.name == "conv1_norm") for graph in (whole, part)]
    assert (norms[1].read, norms[1].saved[0].elements) == (norms[0].read / 4, norms[0].saved[0].elements / 4)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unet-3d"):
        volume_unet("unet")
