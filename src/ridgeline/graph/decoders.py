"""What makes pixels of latents: the decoder of Stable Diffusion's autoencoder, and those of videos; each is one token.

Sources: Rombach et al. 2022 (arXiv:2112.10752), `model.py` of their released code; config.json of each video model's
vae on huggingface.co, layers as diffusers builds them (autoencoder_kl_cogvideox.py, autoencoder_kl_hunyuan_video.py,
autoencoder_kl_wan.py); Chen et al. 2025 (arXiv:2410.10733, autoencoder_dc.py) for Sana's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.errors import UnknownNameError
from ridgeline.facts.store import toml_records
from ridgeline.graph.model import Block, Model, network_of
from ridgeline.graph.ops import Op
from ridgeline.graph.pixels import LINEAR, attention, gated, group_norm, mapped, product, riding

WIDTHS = (512, 512, 256, 128)  # channels of each level, coarsest first
RESIDUALS, COLOURS = 3, 3  # residual blocks of a level; channels of an image
SHRINK = 8  # pixels of an image's side to one of its latent's
DEEP = (1024, 1024, 512, 512, 256, 128)  # channels of each level of the deep one, coarsest first
DEEP_SHRINK, GATED_LEVELS = 32, 3  # pixels to one of its latent's; levels that attend and gate in place of convolving
WIDENED, ROOT = 4, 8  # a gated layer over its channels; kernels of a root-mean-square norm in eager PyTorch
IMAGE: Mapping[str, Any] = {"taps": 9}  # points of a filter of 3 x 3
FILM: Mapping[str, Any] = {"taps": 27, "axes": 3}  # and of 3 x 3 x 3, over frames as well
SHAPED = 2  # kernels of a norm that is shaped by the latent: its product with one map, and another's sum


@dataclass(frozen=True, kw_only=True)
class Film:
    """Channels of each level of a video's decoder, coarsest first, residual blocks of a level, and where frames double.

    Pixels double after each level but the last, frames after those of `doubled`. Norms may be `shaped` by the latent.
    """

    widths: tuple[int, ...]
    residuals: int
    doubled: tuple[int, ...]
    shaped: bool = False


FILMS = toml_records("networks.toml", "films", Film)


def decoder(channels: int, *, width: int, height: int) -> Model:
    """The decoder of latents of so many channels for an image of a size.

    >>> decoder(4, width=512, height=512).graph.params
    49490179
    """
    pixels, wide = (width // SHRINK) * (height // SHRINK), WIDTHS[0]
    middle = [
        *_residual("first", wide, wide, pixels),
        *_attention(wide, pixels),
        *_residual("last", wide, wide, pixels),
    ]
    blocks = [Block(name="middle", ops=tuple(middle))]
    entering = wide
    for level, filters in enumerate(WIDTHS):
        for _ in range(RESIDUALS):
            ops = tuple(_residual("block", entering, filters, pixels))
            blocks.append(Block(name=f"block-{level}-{entering}", ops=ops))
            entering = filters
        if level + 1 < len(WIDTHS):
            pixels *= 4
            grown = (
                mapped("double", filters * pixels // 4, outputs=4),
                product("grown", filters, filters, pixels, **IMAGE),
            )
            blocks.append(Block(name=f"up-{level}", ops=grown))
    return network_of(
        "decoder", "decoder", blocks, hidden=entering * pixels, source="released code",
        dims={"width": width, "height": height},
        embedding=(product("entry", channels, wide, (width // SHRINK) * (height // SHRINK), **IMAGE),),
        head=(group_norm("exit_norm", entering, pixels), product("exit", entering, COLOURS, pixels, **IMAGE)),
    )  # fmt: skip


def _residual(
    name: str, channels: int, filters: int, voxels: int, spec: Film | None = None, latent: int = 0
) -> list[Op]:
    """A residual block of an image's decoder, or of a video's by its `spec`."""
    taps = IMAGE if spec is None else FILM
    ops = [
        *_norm(spec, f"{name}_norm1", latent, channels, voxels),
        product(f"{name}_conv1", channels, filters, voxels, **taps),
        *_norm(spec, f"{name}_norm2", latent, filters, voxels),
        product(f"{name}_conv2", filters, filters, voxels, **taps),
    ]
    if channels != filters:
        ops.append(product(f"{name}_shortcut", channels, filters, voxels))
    return [*ops, riding(f"{name}_add", filters * voxels, inputs=2)]


def _attention(wide: int, pixels: int) -> list[Op]:
    """One head over all pixels."""
    return [
        group_norm("attention_norm", wide, pixels),
        *(product(f"attention_{part}", wide, wide, pixels) for part in "qkv"),
        attention("attention", 1, wide, pixels, pixels),
        product("attention_out", wide, wide, pixels),
        riding("attention_add", wide * pixels, inputs=2),
    ]


def film_decoder(name: str, channels: int, *, width: int, height: int, frames: int) -> Model:
    """The decoder of a video's latents by name; 3 x 3 x 3 convolutions over all frames at once.

    >>> round(film_decoder("hunyuan-video", 16, width=64, height=64, frames=5).graph.params / 1e6)
    145
    """
    if name not in FILMS:
        raise UnknownNameError("decoder of videos", name, FILMS)
    spec, area = FILMS[name], (width // SHRINK) * (height // SHRINK)
    at = 1 + (frames - 1) // 2 ** len(spec.doubled)
    wide = spec.widths[0]
    entry = product("entry", channels, wide, area * at, **FILM)
    middle = [op for each in ("first", "last") for op in _residual(each, wide, wide, area * at, spec, channels)]
    blocks, entering = [Block(name="middle", ops=tuple(middle))], wide
    for level, filters in enumerate(spec.widths):
        for _ in range(spec.residuals):
            ops = _residual("block", entering, filters, area * at, spec, channels)
            blocks.append(Block(name=f"block-{level}-{entering}", ops=tuple(ops)))
            entering = filters
        if level + 1 < len(spec.widths):
            before, area = area * at, 4 * area
            at = 2 * at - 1 if level in spec.doubled else at
            grown = replace(mapped("grow", filters * before), write=float(filters * area * at))
            ops = [grown, product("grown", filters, filters, area * at, **FILM)]
            blocks.append(Block(name=f"up-{level}", ops=tuple(ops)))
    voxels = area * at
    head = (*_norm(spec, "exit_norm", channels, entering, voxels), product("exit", entering, COLOURS, voxels, **FILM))
    return network_of(
        name, "decoder", blocks, hidden=entering * voxels, source="config.json", embedding=(entry,), head=head,
        dims={"width": width, "height": height, "frames": frames},
    )  # fmt: skip


def _norm(spec: Film | None, name: str, latent: int, channels: int, voxels: int) -> list[Op]:
    """Groups normed, perhaps weighed by one map of the latent and shifted by another, and SiLU."""
    ops: list[Op] = [group_norm(name, channels, voxels)]
    if spec is not None and spec.shaped:
        maps = [product(f"{name}_{part}", latent, channels, voxels) for part in ("scale", "shift")]
        ops += [*maps, replace(mapped(f"{name}_shape", channels * voxels, inputs=3), kernels=SHAPED)]
    return ops


def deep_decoder(channels: int, *, width: int, height: int) -> Model:
    """The decoder of latents with a 32nd of an image's side.

    >>> deep_decoder(32, width=1024, height=1024).graph.layers[:2]
    ('entry', 'gate-1024')
    """
    pixels, entering = (width // DEEP_SHRINK) * (height // DEEP_SHRINK), DEEP[0]
    blocks = [Block(name="entry", ops=(product("entry", channels, entering, pixels, **IMAGE),))]
    for level, filters in enumerate(DEEP):
        if level:
            pixels *= 4
            grown = (
                mapped("double", entering * pixels // 4, outputs=4),
                product("grow", entering, filters, pixels, **IMAGE), riding("grow_add", filters * pixels, inputs=2),
            )  # fmt: skip
            blocks.append(Block(name=f"up-{level}", ops=grown))
        gate = level < GATED_LEVELS
        ops = _gate(filters, pixels) if gate else _plain(filters, pixels)
        name = f"{'gate' if gate else 'block'}-{filters}" + (f"-{level}" if level else "")
        blocks += [Block(name=name, ops=tuple(ops))] * RESIDUALS
        entering = filters
    size = entering * pixels
    return network_of(
        "deep", "decoder", blocks, hidden=size, source="config.json", dims={"width": width, "height": height},
        head=(_root("exit_norm", size), mapped("exit_relu", size),
              product("exit", entering, COLOURS, pixels, **IMAGE)),
    )  # fmt: skip


def _root(name: str, elements: int) -> Op:
    return replace(mapped(name, elements), kernels=ROOT)


def _plain(filters: int, pixels: int) -> list[Op]:
    """Two convolutions with SiLU between them, a norm and the sum."""
    size = filters * pixels
    return [
        product("conv1", filters, filters, pixels, **IMAGE), mapped("activation", size),
        product("conv2", filters, filters, pixels, **IMAGE), _root("norm", size), riding("add", size, inputs=2),
    ]  # fmt: skip


def _gate(filters: int, pixels: int) -> list[Op]:
    """Linear attention of two scales, then a gated feed-forward with a depthwise convolution; norm and sum of each."""
    size, inner, both = filters * pixels, WIDENED * filters, 3 * filters
    return [
        product("qkv", filters, both, pixels, bias=False), _depthwise("scale", both, 25, pixels),
        product("scale_groups", 32, both, pixels, bias=False), mapped("join", 2 * 3 * size),
        replace(mapped("linear_attention", 2 * size), kernels=LINEAR),
        product("out", 2 * filters, filters, pixels, bias=False), _root("attention_norm", size),
        riding("attention_add", size, inputs=2), product("up", filters, 2 * inner, pixels),
        mapped("activation", 2 * inner * pixels), _depthwise("spread", 2 * inner, 9, pixels),
        gated("gate", inner * pixels), product("down", inner, filters, pixels, bias=False), _root("norm", size),
        riding("add", size, inputs=2),
    ]  # fmt: skip


def _depthwise(name: str, channels: int, taps: int, pixels: int) -> Op:
    """A filter of so many points for each channel."""
    return replace(product(name, taps, 1, pixels), taps=taps, groups=channels, params=channels * taps)
