"""Denoisers of images and videos: parameters of the published networks, tokens by hand, and their decoder."""

from __future__ import annotations

import pytest

from ridgeline.errors import ModelError, UnknownNameError
from ridgeline.graph.decoders import decoder
from ridgeline.graph.denoiser_specs import DENOISERS, Picture
from ridgeline.graph.denoisers import denoiser, guided
from ridgeline.graph.diffusion import unet
from ridgeline.graph.flop import model_flop_per_token
from ridgeline.graph.ops import AttentionOp

SQUARE = Picture(width=1024, height=1024)
VIDEO = Picture(width=720, height=480, frames=49)


@pytest.mark.parametrize(
    ("name", "picture", "params"),  # of diffusers' modules
    [
        ("flux.1-dev", SQUARE, 11_901_408_320),
        ("flux.1-schnell", SQUARE, 11_891_178_560),
        ("sd3-medium", SQUARE, 2_028_328_000),
        ("pixart-alpha", SQUARE, 611_349_152),
        ("cogvideox-2b", VIDEO, 1_693_783_872),
        ("cogvideox-5b", VIDEO, 5_570_283_072),
    ],
)
def test_parameters_are_those_of_the_published_networks(name: str, picture: Picture, params: int) -> None:
    assert denoiser(name, picture).graph.params == params


def test_parameters_of_a_joint_layer_by_hand() -> None:
    d, head = 3072, 128
    stream = (6 * d * d + 6 * d) + (3 * d * d + 3 * d) + 2 * head + (d * d + d) + (2 * 4 * d * d + 5 * d)
    assert denoiser("flux.1-dev", SQUARE).graph.blocks["joint"].params == 2 * stream


def test_the_large_unet_and_the_decoder_are_the_published_ones() -> None:
    assert unet("stable-diffusion-xl").graph.params == 2_567_463_684
    assert decoder(4, width=512, height=512).graph.params == 49_490_179
    assert decoder(4, width=1024, height=1024).graph.params == 49_490_179


def test_patches_of_images_and_videos_by_hand() -> None:
    assert DENOISERS["flux.1-dev"].tokens(SQUARE) == 64 * 64
    assert DENOISERS["cogvideox-5b"].tokens(VIDEO) == 13 * 45 * 30  # 1 + 48 / 4 latent frames
    assert DENOISERS["cogvideox-1.5-5b"].tokens(Picture(width=1360, height=768, frames=161)) == 21 * 85 * 48
    assert DENOISERS["hunyuan-video"].tokens(Picture(width=1280, height=720, frames=129)) == 33 * 80 * 45


def test_attention_of_patches_and_words_is_joint() -> None:
    block = denoiser("sd3-medium", SQUARE).graph.blocks["joint"]
    core = next(op for op in block.ops if isinstance(op, AttentionOp))
    assert (core.rows, core.positions, core.heads, core.qk_dim) == (4096 + 333, 4096 + 333, 24, 64)


def test_four_times_the_pixels_are_four_times_the_products_and_sixteen_of_the_scores() -> None:
    small, large = (denoiser("pixart-alpha", Picture(width=side, height=side)).graph for side in (512, 1024))

    def scores(graph: object) -> float:
        ops = [op for op in graph.blocks["cross"].ops if op.name == "attention"]  # type: ignore[attr-defined]
        return sum(op.rows * op.positions for op in ops)

    assert scores(large) == 16 * scores(small)
    assert model_flop_per_token(large, 1.0) > 4 * model_flop_per_token(small, 1.0) * 0.9


def test_a_unet_at_another_size_has_the_same_parameters_and_more_products() -> None:
    own, large = (unet("stable-diffusion-2", image=image) for image in (512, 768))
    assert own.graph.params == large.graph.params == 865_910_724
    ratio = model_flop_per_token(large.graph, 1.0) / model_flop_per_token(own.graph, 1.0)
    assert 1.5**2 < ratio < 1.5**4  # products grow with the pixels, scores with their square


def test_frames_that_move_attend_apart() -> None:
    graph = denoiser("latte", Picture(width=512, height=512, frames=16)).graph
    within, along = (
        next(op for op in graph.blocks[name].ops if op.name == "attention") for name in ("cross", "moving")
    )
    assert (within.rows, within.positions, within.heads) == (1024, 1024, 16 * 16)
    assert (along.rows, along.positions, along.heads) == (16, 16, 16 * 1024)
    assert (graph.layers.count("cross"), graph.layers.count("moving")) == (28, 28)


def test_guidance_is_where_the_network_does_not_hold_it() -> None:
    assert [guided(name) for name in ("flux.1-dev", "sd3-medium", "stable-diffusion-xl")] == [False, True, True]


def test_sizes_and_names_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match="nearest: 1008 x 1024"):
        denoiser("flux.1-dev", Picture(width=1010, height=1024))
    with pytest.raises(ModelError, match="makes square images"):
        denoiser("stable-diffusion-2", VIDEO)
    with pytest.raises(ModelError, match="nearest: 768"):
        denoiser("stable-diffusion-2", Picture(width=776, height=776))
    with pytest.raises(UnknownNameError, match=r"flux\.1-dev"):
        denoiser("flux.1-def", SQUARE)


def test_a_face_is_attended_to_after_half_of_the_layers() -> None:
    """ConsisID: CogVideoX-5B, 21 times 3072 -> 2048 queries, 2048 -> 4096 keys and values and a way back."""
    size = Picture(width=720, height=480, frames=49)
    plain, faced = (denoiser(name, size).graph for name in ("cogvideox-5b", "consisid"))
    each = 3072 * 2048 + 2048 * 4096 + 2048 * 3072 + 2 * 3072
    assert faced.params - plain.params == 21 * each + 16 * 4 * 3072  # and twice the channels of a patch
    assert len(faced.layers) == len(plain.layers) == 42
    core = next(op for op in faced.blocks["faced"].ops if op.name == "face_attention")
    assert (core.heads, core.qk_dim, core.positions, core.rows) == (16, 128, 32, 13 * 30 * 45)


def test_sana_has_its_parameters_and_no_scores_of_its_patches() -> None:
    """1604.46 M parameters; 4096 x 4096 pixels are 128 x 128 patches, which attend to 300 words alone by scores."""
    graph = denoiser("sana-1.6b", Picture(width=4096, height=4096)).graph
    assert graph.params == 1_604_460_512
    layer = {op.name: op for op in graph.blocks["linear"].ops}
    assert [(op.name, op.rows, op.positions) for op in layer.values() if isinstance(op, AttentionOp)] == [
        ("words_attention", 16384, 300)
    ]
    assert layer["linear_attention"].kernels * 4 == 64  # bytes of an element, read and written in two
    spread = layer["feed_spread"]
    assert (spread.groups, spread.k, spread.n, spread.taps) == (11200, 9, 1, 9)


def test_sana_video_has_its_parameters_and_costs_a_block_the_same_wherever_it_stands() -> None:
    """A layer: 20 convolve 3 points in time; 480p of 81 frames are 21 x 30 x 52 patches, 720p 21 x 22 x 40."""
    small = denoiser("sana-video-480p", Picture(width=832, height=480, frames=81))
    deep = denoiser("sana-video-720p", Picture(width=1280, height=704, frames=81))
    assert (small.dims["tokens"], deep.dims["tokens"]) == (32760, 18480)
    assert small.graph.params == pytest.approx(2e9, rel=0.03)
    layer = {op.name: op for op in small.graph.blocks["linear"].ops}
    time = layer["feed_time"]
    assert (time.k, time.n, time.taps, time.params) == (3 * 2240, 2240, 3, 3 * 2240**2)
    twice = denoiser("sana-video-480p", Picture(width=832, height=480, frames=165))  # 42 latent frames: no scores
    rows = {op.name: getattr(op, "rows", 0.0) for op in twice.graph.blocks["linear"].ops}
    assert rows["feed_time"] == 2 * time.rows
    assert rows["words_attention"] == 2 * layer["words_attention"].rows
