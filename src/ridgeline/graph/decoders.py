"""What makes pixels of latents: the decoder of Stable Diffusion's autoencoder, and those of videos; each is one token.

Sources: Rombach et al. 2022 (arXiv:2112.10752), `model.py` of their released code; config.json of each video model's
vae on huggingface.co, layers as diffusers builds them (autoencoder_kl_cogvideox.py, autoencoder_kl_hunyuan_video.py,
autoencoder_kl_wan.py); Chen et al. 2025 (arXiv:2410.10733, autoencoder_dc.py) for Sana's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.errors import UnknownNameError
from ridgeline.facts.store import toml_records
from ridgeline.graph.model import Block, Graph, Model
from ridgeline.graph.ops import ConvolutionOp, Op, Region
from ridgeline.graph.pixels import LINEAR, attention, gated, group_norm, kept, mapped, product, riding

WIDTHS = (512, 512, 256, 128)  # channels of each level, coarsest first
RESIDUALS, COLOURS = 3, 3  # residual blocks of a level; channels of an image
SHRINK = 8  # pixels of an image's side to one of its latent's
DEEP = (1024, 1024, 512, 512, 256, 128)  # channels of each level of the deep one, coarsest first
DEEP_SHRINK, GATED_LEVELS = 32, 3  # pixels to one of its latent's; levels that attend and gate in place of convolving
WIDENED, ROOT = 4, 8  # a gated layer over its channels; kernels of a root-mean-square norm in eager PyTorch
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
    blocks = [Block(name="middle", ops=tuple(middle), boundaries=())]
    entering = wide
    for level, filters in enumerate(WIDTHS):
        for _ in range(RESIDUALS):
            ops = tuple(_residual("block", entering, filters, pixels))
            blocks.append(Block(name=f"block-{level}-{entering}", ops=ops, boundaries=()))
            entering = filters
        if level + 1 < len(WIDTHS):
            pixels *= 4
            grown = (
                mapped("double", filters * pixels // 4, outputs=4),
                _convolution("grown", filters, filters, pixels),
            )
            blocks.append(Block(name=f"up-{level}", ops=grown, boundaries=()))
    graph = Graph(
        blocks={block.name: block for block in blocks}, layers=tuple(block.name for block in blocks),
        embedding=(_convolution("entry", channels, wide, (width // SHRINK) * (height // SHRINK)),),
        head=(group_norm("exit_norm", entering, pixels), _convolution("exit", entering, COLOURS, pixels)),
        hidden=entering * pixels, vocab=0, tied_embeddings=False,
    )  # fmt: skip
    dims = {"layers": len(blocks), "width": width, "height": height}
    return Model(
        name="decoder", model_type="decoder", graph=graph, max_positions=None, source="released code", dims=dims
    )


def _residual(name: str, channels: int, filters: int, pixels: int) -> list[Op]:
    ops = [
        group_norm(f"{name}_norm1", channels, pixels),
        _convolution(f"{name}_conv1", channels, filters, pixels),
        group_norm(f"{name}_norm2", filters, pixels),
        _convolution(f"{name}_conv2", filters, filters, pixels),
    ]
    if channels != filters:
        ops.append(product(f"{name}_shortcut", channels, filters, pixels))
    return [*ops, riding(f"{name}_add", filters * pixels, inputs=2)]


def _attention(wide: int, pixels: int) -> list[Op]:
    """One head over all pixels."""
    return [
        group_norm("attention_norm", wide, pixels),
        *(product(f"attention_{part}", wide, wide, pixels) for part in "qkv"),
        attention("attention", 1, wide, pixels, pixels),
        product("attention_out", wide, wide, pixels),
        riding("attention_add", wide * pixels, inputs=2),
    ]


def _convolution(name: str, channels: int, filters: int, pixels: int) -> ConvolutionOp:
    """A 3 x 3 convolution with bias."""
    taps = 9
    return ConvolutionOp(
        name=name, region=Region.TENSOR, k=channels * taps, n=filters, rows=float(pixels), taps=taps,
        params=channels * taps * filters + filters, saved=(kept(channels * pixels),),
    )  # fmt: skip


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
    entry = _cube("entry", channels, wide, area * at)
    middle = [op for each in ("first", "last") for op in _solid(spec, each, channels, wide, wide, area * at)]
    blocks = [Block(name="middle", ops=tuple(middle), boundaries=())]
    layers, entering = ["middle"], wide
    for level, filters in enumerate(spec.widths):
        for _ in range(spec.residuals):
            title = f"block-{level}-{entering}"
            if title not in layers:
                ops = _solid(spec, "block", channels, entering, filters, area * at)
                blocks.append(Block(name=title, ops=tuple(ops), boundaries=()))
            layers.append(title)
            entering = filters
        if level + 1 < len(spec.widths):
            before, area = area * at, 4 * area
            at = 2 * at - 1 if level in spec.doubled else at
            grown = replace(mapped("grow", filters * before), write=float(filters * area * at))
            ops = [grown, _cube("grown", filters, filters, area * at)]
            blocks.append(Block(name=f"up-{level}", ops=tuple(ops), boundaries=()))
            layers.append(f"up-{level}")
    graph = Graph(
        blocks={block.name: block for block in blocks}, layers=tuple(layers), embedding=(entry,),
        head=(*_norm(spec, "exit_norm", channels, entering, area * at), _cube("exit", entering, COLOURS, area * at)),
        hidden=entering * area * at, vocab=0, tied_embeddings=False,
    )  # fmt: skip
    dims = {"layers": len(layers), "width": width, "height": height, "frames": frames}
    return Model(name=name, model_type="decoder", graph=graph, max_positions=None, source="config.json", dims=dims)


def _cube(name: str, channels: int, filters: int, voxels: int) -> Op:
    """A 3 x 3 x 3 convolution with bias."""
    return replace(
        _convolution(name, channels, filters, voxels), k=channels * 27, taps=27, axes=3,
        params=27 * channels * filters + filters,
    )  # fmt: skip


def _norm(spec: Film, name: str, latent: int, channels: int, voxels: int) -> list[Op]:
    """Groups normed, perhaps weighed by one map of the latent and shifted by another, and SiLU."""
    ops: list[Op] = [group_norm(name, channels, voxels)]
    if spec.shaped:
        maps = [product(f"{name}_{part}", latent, channels, voxels) for part in ("scale", "shift")]
        ops += [*maps, replace(mapped(f"{name}_shape", channels * voxels, inputs=3), kernels=SHAPED)]
    return ops


def _solid(spec: Film, name: str, latent: int, channels: int, filters: int, voxels: int) -> list[Op]:
    """A residual block of a video's decoder."""
    ops = [
        *_norm(spec, f"{name}_norm1", latent, channels, voxels),
        _cube(f"{name}_conv1", channels, filters, voxels),
        *_norm(spec, f"{name}_norm2", latent, filters, voxels),
        _cube(f"{name}_conv2", filters, filters, voxels),
    ]
    if channels != filters:
        ops.append(product(f"{name}_shortcut", channels, filters, voxels))
    return [*ops, riding(f"{name}_add", filters * voxels, inputs=2)]


def deep_decoder(channels: int, *, width: int, height: int) -> Model:
    """The decoder of latents with a 32nd of an image's side.

    >>> deep_decoder(32, width=1024, height=1024).graph.layers[:2]
    ('entry', 'gate-1024')
    """
    pixels, entering = (width // DEEP_SHRINK) * (height // DEEP_SHRINK), DEEP[0]
    blocks = {"entry": Block(name="entry", ops=(_convolution("entry", channels, entering, pixels),), boundaries=())}
    layers = ["entry"]
    for level, filters in enumerate(DEEP):
        if level:
            pixels *= 4
            grown = (
                mapped("double", entering * pixels // 4, outputs=4), _convolution("grow", entering, filters, pixels),
                riding("grow_add", filters * pixels, inputs=2),
            )  # fmt: skip
            blocks[f"up-{level}"] = Block(name=f"up-{level}", ops=grown, boundaries=())
            layers.append(f"up-{level}")
        gate = level < GATED_LEVELS
        ops = _gate(filters, pixels) if gate else _plain(filters, pixels)
        name = f"{'gate' if gate else 'block'}-{filters}" + (f"-{level}" if level else "")
        blocks[name] = Block(name=name, ops=tuple(ops), boundaries=())
        layers += [name] * RESIDUALS
        entering = filters
    head = (_root("exit_norm", entering * pixels), mapped("exit_relu", entering * pixels),
            _convolution("exit", entering, COLOURS, pixels))  # fmt: skip
    graph = Graph(
        blocks=blocks, layers=tuple(layers), embedding=(), head=head, hidden=entering * pixels, vocab=0,
        tied_embeddings=False,
    )  # fmt: skip
    dims = {"layers": len(layers), "width": width, "height": height}
    return Model(name="deep", model_type="decoder", graph=graph, max_positions=None, source="config.json", dims=dims)


def _root(name: str, elements: int) -> Op:
    return replace(mapped(name, elements), kernels=ROOT)


def _plain(filters: int, pixels: int) -> list[Op]:
    """Two convolutions with SiLU between them, a norm and the sum."""
    size = filters * pixels
    return [
        _convolution("conv1", filters, filters, pixels), mapped("activation", size),
        _convolution("conv2", filters, filters, pixels), _root("norm", size), riding("add", size, inputs=2),
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
