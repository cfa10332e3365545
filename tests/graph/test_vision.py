"""Residual networks: parameters and products of the published networks, and traffic by hand."""

from __future__ import annotations

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.graph.flop import model_flop_per_token
from ridgeline.graph.model import Block
from ridgeline.graph.networks import classifier
from ridgeline.graph.ops import ConvolutionOp, GemmOp, Op
from ridgeline.graph.vision import RESIDUAL, Turned, residual

TURNS = (Turned.NONE, Turned.INPUTS, Turned.BOTH)


def named(block: Block, name: str) -> Op:
    return next(op for op in block.ops if op.name == name)


@pytest.mark.parametrize(
    ("name", "params"),  # of torchvision's and timm's models
    [
        ("resnet-18", 11_689_512),
        ("resnet-34", 21_797_672),
        ("resnet-50", 25_557_032),
        ("resnet-101", 44_549_160),
        ("resnet-152", 60_192_808),
        ("wide-resnet-50-2", 68_883_240),
        ("resnext-50-32x4d", 25_028_904),
        ("resnext-101-32x4d", 44_177_704),
        ("se-resnet-50", 28_088_024),
        ("se-resnext-101-32x4d", 48_955_416),
    ],
)
def test_parameters_are_those_of_the_published_networks(name: str, params: int) -> None:
    assert residual(name).graph.params == params


@pytest.mark.parametrize(
    ("name", "products"), [("resnet-18", 1.814e9), ("resnet-50", 4.089e9), ("resnet-152", 11.514e9)]
)
def test_products_of_an_image_are_those_that_torchvision_prints(name: str, products: float) -> None:
    assert model_flop_per_token(residual(name).graph, 1.0) / 2 == pytest.approx(products, rel=2e-4)


def test_every_network_keeps_its_parameters_whatever_its_layout() -> None:
    for name in RESIDUAL:
        counts = {residual(name, turned=turned, fused=fused).graph.params for turned in Turned for fused in (0, 1)}
        assert len(counts) == 1


def test_a_group_has_products_of_its_own() -> None:
    grouped = named(residual("resnext-50-32x4d").graph.blocks["stage-1"], "conv2")
    assert (grouped.k, grouped.n, grouped.groups, grouped.rows) == (4 * 9, 4, 32, 56 * 56)


def test_layouts_are_turned_around_convolutions() -> None:
    entering, leaving = 64 * 56**2, 256 * 56**2  # the last convolution of a block of the first stage
    none, inputs, both = (residual("resnet-50", turned=turned).graph.blocks["stage-1"] for turned in TURNS)
    assert all(not op.name.endswith(".layout") for op in none.ops)
    one, two = named(inputs, "conv3.layout"), named(both, "conv3.layout")
    assert (one.read, one.backward_read) == (entering, entering + leaving)
    assert (two.read, two.backward_read) == (entering + leaving, 2 * entering + leaving)


def test_a_fused_norm_adds_the_shortcut() -> None:
    apart, fused = (residual("resnet-50", fused=fused).graph.blocks["stage-1"] for fused in (False, True))
    elements = 256 * 56**2

    def moved(block: Block, *names: str) -> float:
        chosen = [op for op in block.ops if op.name in names]
        return sum(op.read + op.write + op.backward_read + op.backward_write for op in chosen)

    assert moved(fused, "norm3", "residual") == 10 * elements
    assert moved(apart, "norm3", "residual") == 14 * elements


def test_the_image_gets_no_gradient() -> None:
    leaves = [op for op in residual("resnet-50").graph.embedding if isinstance(op, GemmOp) and op.leaf]
    assert [op.name for op in leaves] == ["stem"]


def test_an_unknown_network_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="resnet-50"):
        residual("resnet-5")


def test_groups_whose_width_has_no_matrix_kernel_are_multiplied_one_by_one() -> None:
    """RegNetY-040's groups hold 64 channels, ResNeXt's 4 to 32; a layout of channels first is no matter of this."""

    def direct(name: str, turned: Turned) -> set[int]:
        blocks = classifier(name, turned=turned).graph.blocks.values()
        return {op.n for block in blocks for op in block.ops if isinstance(op, ConvolutionOp) and op.direct}

    assert direct("regnety-040", Turned.NONE) == {64}
    assert direct("dpn-92", Turned.NONE) == {3, 6, 12, 24}
    assert direct("resnext-50-32x4d", Turned.NONE) == direct("mobilenet-v2", Turned.NONE) == set()
    assert direct("regnety-040", Turned.BOTH) == direct("regnety-040", Turned.FIRST) == set()
    assert classifier("regnety-040").graph.params == classifier("regnety-040", turned=Turned.FIRST).graph.params


def test_what_a_batch_norm_and_its_activation_keep() -> None:
    """The norm its input; ReLU's output is the next convolution's input, gradients of SiLU and ReLU6 need their own."""

    def kept(name: str, *, fused: bool = False) -> float:
        model = classifier(name, fused=fused)
        blocks = model.graph.blocks
        norms = [op for layer in model.graph.layers for op in blocks[layer].ops if op.name.startswith("norm")]
        return sum(saved.elements for op in norms for saved in op.saved) / sum(op.write for op in norms)

    assert kept("mnasnet") == 1.0
    assert 1.5 < kept("mobilenet-v2") < 2.0  # the last norm of a block has no activation
    assert kept("mobilenet-v2", fused=True) == 1.0
    assert all(saved.role == "" for op in residual("resnet-50").graph.embedding for saved in op.saved)


def test_statistics_that_a_convolution_counts_take_no_pass_of_the_norm() -> None:
    """The first norm of a block of the first stage, 64 x 56 x 56: read and written; the joined one reads both ways."""
    norms = [
        {op.name: op for op in residual("resnet-50", fused=True, counted=counted).graph.blocks["stage-1"].ops}
        for counted in (False, True)
    ]
    first = [each["norm1"].read / (64 * 56**2) for each in norms]
    joined = [each["norm3"].read / (256 * 56**2) for each in norms]
    assert (first, joined) == ([2, 1], [3, 2])
    assert norms[0]["norm1"].backward_read == norms[1]["norm1"].backward_read


def test_filters_of_one_channel_are_loaded_each_time_where_channels_come_first() -> None:
    """PyTorch's own kernels; cuDNN's, channels last, keep a filter in registers."""

    def loads(turned: Turned) -> set[float]:
        blocks = classifier("mobilenet-v2", turned=turned).graph.blocks.values()
        return {op.loads for block in blocks for op in block.ops if isinstance(op, ConvolutionOp) and op.groups > 1}

    assert loads(Turned.NONE) == {1.0}
    assert loads(Turned.BOTH) == loads(Turned.FIRST) == {2.0}
