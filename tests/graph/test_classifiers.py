"""Networks that classify images: parameters and products of the published networks, and traffic by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.graph.flop import model_flop_per_token
from ridgeline.graph.networks import CLASSIFIERS, classifier
from ridgeline.graph.ops import AttentionOp, ConvolutionOp, ElementwiseOp, Op
from ridgeline.graph.pixels import product
from ridgeline.graph.vision import Turned, squeeze_ops


@pytest.mark.parametrize(
    ("name", "params"),  # of timm's and torchvision's models
    [
        ("mobilenet-v2", 3_504_872),
        ("mobilenet-v3-large", 5_483_032),
        ("mnasnet", 4_383_312),
        ("ghostnet", 5_182_508),
        ("efficientnet-b0", 5_288_548),
        ("efficientnet-b1", 7_794_184),
        ("efficientnet-b4", 19_341_616),
        ("efficientnet-b7", 66_347_960),
        ("efficientnet-v2-s", 21_458_488),
        ("efficientnet-v2-m", 54_139_356),
        ("vgg-16", 138_357_544),
        ("vgg-19", 143_667_240),
        ("densenet-121", 7_978_856),
        ("densenet-201", 20_013_928),
        ("regnety-016", 11_202_430),
        ("regnety-080", 39_180_068),
        ("inception-v3", 23_834_568),
        ("inception-v4", 42_679_816),
        ("xception", 22_855_952),
        ("dpn-92", 37_668_392),
        ("swin-tiny", 28_288_354),
        ("swin-large", 196_532_476),
        ("convnext-tiny", 28_589_128),
        ("convnext-large", 197_767_336),
        ("beit-base", 86_530_984),
        ("beit-large", 304_430_568),
        ("mixer-base", 59_880_472),
        ("gmlp-small", 19_422_656),
        ("nfnet-l0", 35_074_488),
        ("bit-r152x2", 236_335_208),
        ("cait-small-24", 46_916_200),
    ],
)
def test_parameters_are_those_of_the_published_networks(name: str, params: int) -> None:
    assert classifier(name).graph.params == params


@pytest.mark.parametrize(
    ("name", "products"),  # GMAC that torchvision's model cards print
    [
        ("mobilenet-v2", 0.301e9),
        ("mobilenet-v3-large", 0.217e9),
        ("efficientnet-b0", 0.386e9),
        ("vgg-16", 15.47e9),
        ("densenet-121", 2.834e9),
        ("inception-v3", 5.713e9),
        ("convnext-tiny", 4.456e9),
        ("swin-tiny", 4.491e9),
    ],
)
def test_products_of_an_image_are_those_that_torchvision_prints(name: str, products: float) -> None:
    assert model_flop_per_token(classifier(name).graph, 1.0) / 2 == pytest.approx(products, rel=0.01)


def test_parameters_do_not_depend_on_layout_fusion_or_image() -> None:
    for name in ("efficientnet-b1", "densenet-121", "convnext-tiny", "dpn-92"):
        counts = {classifier(name, turned=turned, fused=fused).graph.params for turned in Turned for fused in (0, 1)}
        assert len(counts) == 1
    small, own = classifier("efficientnet-b4", image=190), classifier("efficientnet-b4")
    assert small.graph.params == own.graph.params
    # 190 is half of 380, so that every map has a quarter of the pixels but for what rounding adds
    ratio = model_flop_per_token(own.graph, 1.0) / model_flop_per_token(small.graph, 1.0)
    assert ratio == pytest.approx(4.0, rel=0.05)


def test_a_depthwise_convolution_has_one_filter_a_channel_and_no_layout_to_turn() -> None:
    graph = classifier("mobilenet-v2", turned=Turned.BOTH).graph
    ops = [op for block in graph.blocks.values() for op in block.ops]
    alone = [op for op in ops if isinstance(op, ConvolutionOp) and op.groups > 1]
    assert alone
    assert all((op.k, op.n, op.params) == (9, 1, 9 * op.groups) for op in alone)
    block = graph.blocks[graph.layers[1]]  # a separable block: depthwise, then 1 x 1
    assert [op.name.endswith(".layout") for op in block.ops if isinstance(op, ElementwiseOp)].count(True) == 1


def test_a_dense_layer_copies_all_that_came_before() -> None:
    graph = classifier("densenet-121").graph
    join = next(op for op in graph.blocks[graph.layers[1]].ops if op.name.startswith("join"))
    assert join.write == (64 + 32) * 56**2


def test_a_squeeze_that_is_not_fused_makes_its_gradients_one_by_one() -> None:
    size = 8 * 4**2

    def backward(ops: list[Op]) -> float:
        return sum(op.backward_read + op.backward_write for op in ops if isinstance(op, ElementwiseOp))

    # not fused: two gradients of the product (4 reads, 2 writes), the mean's spread, their sum (2 reads, 1 write)
    assert backward(squeeze_ops(8, 4, 2)) == 10 * size + 8
    assert backward(squeeze_ops(8, 4, 2, fused=True)) == 4 * size + 8


def test_windows_attend_to_their_own_patches() -> None:
    graph = classifier("swin-tiny").graph
    core = next(op for op in graph.blocks[graph.layers[1]].ops if isinstance(op, AttentionOp))
    assert (core.rows, core.positions, core.heads, core.qk_dim) == (49, 49, 3 * 64, 32)  # 64 windows of 3 heads


def test_a_product_on_pixels_keeps_its_input() -> None:
    op = product("layer", 3, 5, 7)
    assert (op.params, op.rows, op.saved[0].elements) == (20, 7.0, 21)


def test_an_unknown_network_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="efficientnet-b0"):
        classifier("eficientnet-b0")
    assert len(set(CLASSIFIERS)) == len(CLASSIFIERS)


def test_autocast_keeps_the_stream_in_four_bytes() -> None:
    """Source: PyTorch's list of operators that autocast to float32: layer_norm, softmax; sums promote to the wider."""
    plain, wide = (classifier("swin-tiny", autocast=autocast).graph for autocast in (False, True))
    assert plain.params == wide.params
    blocks = [graph.blocks[graph.layers[1]] for graph in (plain, wide)]
    narrow, broad = ({op.name: op for op in block.ops} for block in blocks)
    size = 96 * 56**2
    assert (narrow["feed_norm"].read, broad["feed_norm"].read) == (size, 2 * size)
    assert (broad["feed_norm_cast"].read, broad["feed_norm_cast"].write) == (2 * size, size)
    assert (narrow["feed_add"].read, narrow["feed_add"].write) == (2 * size, size)
    assert (broad["feed_add"].read, broad["feed_add"].write) == (3 * size, 2 * size)  # fp32 and fp16 in, fp32 out
    scores = 3 * 64 * 49 * 49
    assert (narrow["distance_bias"].read, broad["distance_bias"].read) == (scores, 4 * scores)
    assert replace(narrow["attention"], saved=()) == replace(broad["attention"], saved=())


def test_unfused_attention_keeps_its_weights_and_under_autocast_softmax_as_well() -> None:
    """Swin's windows of 49 patches: 3 heads x 3136 x 49 scores of an image in the first stage."""
    for autocast, sizes in ((False, [None]), (True, [None, 4.0])):
        block = classifier("swin-tiny", autocast=autocast).graph.blocks
        core = next(op for each in block.values() for op in each.ops if op.name == "attention")
        weights = [saved for saved in core.saved if saved.kernel == "unfused"]
        assert [saved.element_bytes for saved in weights] == sizes
        assert {saved.elements for saved in weights} == {3 * 3136 * 49}
        assert {saved.role for saved in weights} == {"core"}
