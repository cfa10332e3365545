"""Decoders of images and videos: sizes of every level by hand, parameters of the released ones."""

from __future__ import annotations

import pytest

from ridgeline.errors import UnknownNameError
from ridgeline.graph.decoders import FILMS, decoder, deep_decoder, film_decoder
from ridgeline.graph.ops import Op


def levels(name: str, frames: int) -> list[float]:
    """Voxels that the first convolution of each level reads, over those of one latent frame of 8 x 8."""
    graph = film_decoder(name, 16, width=64, height=64, frames=frames).graph
    firsts = dict.fromkeys(layer.split("-")[1] for layer in graph.layers if layer.startswith("block"))
    found = []
    for level in firsts:
        block = next(graph.blocks[layer] for layer in graph.layers if layer.startswith(f"block-{level}-"))
        found.append(next(op.rows for op in block.ops if op.name == "block_conv1") / 64)
    return found


def test_frames_double_where_each_decoder_says_and_pixels_after_each_level() -> None:
    """49 frames are 13 of the latent: 25 after the first level and 49 after the second, or one level later."""
    assert levels("cogvideox", 49) == [13, 4 * 25, 16 * 49, 64 * 49]
    assert levels("hunyuan-video", 49) == [13, 4 * 13, 16 * 25, 64 * 49]
    assert levels("hunyuan-video", 1) == [1, 4, 16, 64]


def test_a_voxels_convolution_has_27_points() -> None:
    graph = film_decoder("wan2.1", 16, width=64, height=64, frames=5).graph
    convolutions: list[Op] = [op for layer in graph.layers for op in graph.blocks[layer].ops if "conv" in op.name]
    assert {(op.taps, op.axes) for op in convolutions} == {(27, 3)}
    assert len(convolutions) == 2 * (2 + 4 * FILMS["wan2.1"].residuals)
    assert all(op.k % 27 == 0 for op in convolutions)


def test_norms_shaped_by_the_latent_make_two_maps_of_it() -> None:
    shaped, plain = (
        film_decoder(name, 16, width=64, height=64, frames=5).graph.blocks["middle"].ops
        for name in ("cogvideox", "hunyuan-video")
    )
    assert [op.name for op in shaped[:4]] == [
        "first_norm1", "first_norm1_scale", "first_norm1_shift", "first_norm1_shape"
    ]  # fmt: skip
    assert plain[1].name == "first_conv1"


def test_an_image_is_decoded_as_before_and_an_unknown_video_refused() -> None:
    assert decoder(4, width=512, height=512).graph.params == 49_490_179
    with pytest.raises(UnknownNameError, match="hunyuan-video"):
        film_decoder("hunyuan", 16, width=64, height=64, frames=5)


def test_a_deep_decoder_doubles_an_image_five_times() -> None:
    graph = deep_decoder(32, width=1024, height=1024).graph
    sides = [graph.blocks[layer].ops[0].rows ** 0.5 for layer in dict.fromkeys(graph.layers) if "up" not in layer]
    assert sides == [32, 32, 64, 128, 256, 512, 1024]
    assert sum(layer.startswith("gate") for layer in graph.layers) == 3 * 3
    assert graph.params == pytest.approx(159.1e6, rel=0.001)
