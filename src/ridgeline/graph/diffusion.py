"""U-Nets that take noise out of images' latents; an image counts as one token.

Sources: Ho et al. 2020 (arXiv:2006.11239), Rombach et al. 2022 (arXiv:2112.10752), and `openaimodel.py` of their
released code, whose layers these are.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import ModelError, UnknownNameError
from ridgeline.facts.store import toml_records
from ridgeline.graph.model import Block, Model, network_of
from ridgeline.graph.ops import Op, Split
from ridgeline.graph.parts import linear
from ridgeline.graph.pixels import attention, gated, group_norm, kept, layer_norm, mapped, product, riding

LATENT, SHRINK = 4, 8  # channels of a latent; pixels of an image's side to one of its latent's
EMBED = 4  # width of the time embedding over the channels of the first level
GATE = 4  # width of the gated feed-forward over that of the block


@dataclass(frozen=True, kw_only=True)
class Unet:
    """Channels of each level, residual blocks of a level going down (one more going up), and what attends to text.

    `depths` are transformer layers of a level's blocks, the last one those of the middle. Heads are `head_dim` wide, or
    `heads` of them share the channels. `context` is the width of the text encoder's `text_tokens`.
    """

    channels: tuple[int, ...]
    depths: tuple[int, ...]
    context: int
    image: int
    head_dim: int | None = None
    heads: int | None = None
    blocks: int = 2
    text_tokens: int = 77
    labels: int = 0  # width of what else conditions it: pooled words, sizes and crops
    upcast: bool = False  # pixels are decoded in fp32 where the rest is in fp16


UNETS = toml_records("networks.toml", "unets", Unet)


def unet(name: str, *, image: int | None = None) -> Model:
    """The U-Net of a diffusion model by name, at the size of image it was trained on or another [pixel].

    >>> unet("stable-diffusion-2").graph.params
    865910724
    """
    if name not in UNETS:
        raise UnknownNameError("diffusion model", name, UNETS)
    spec = UNETS[name]
    image = image or spec.image
    unit = SHRINK * 2 ** (len(spec.channels) - 1)
    if image % unit:
        raise ModelError(f"{name}: {image} pixels are no multiple of {unit}; nearest: {round(image / unit) * unit}")
    side = image // SHRINK
    net, first = _Layers(spec), spec.channels[0]
    layers: list[Block] = [*net.down(side), *net.middle(side), *net.up(side)]
    wide = EMBED * first
    embedding = (
        linear("time", first, wide, split=Split.NONE, bias=True),
        linear("time_out", wide, wide, split=Split.NONE, bias=True, kept=(kept(wide),)),
        *(
            linear(name, given, wide, split=Split.NONE, bias=True)
            for name, given in ((("labels", spec.labels), ("labels_out", wide)) if spec.labels else ())
        ),
        net.convolution("conv_in", LATENT, first, side),
    )
    head = (
        group_norm("norm_out", first, side**2),
        net.convolution("conv_out", first, LATENT, side),
        mapped("loss", LATENT * side**2, inputs=2),
    )
    return network_of(
        name, "unet", layers, hidden=first * side**2, source="released code", embedding=embedding, head=head,
        dims={"image": image, "text_tokens": spec.text_tokens},
    )  # fmt: skip


class _Layers:
    """Makes the blocks of one U-Net; a block is named by what it holds, so equal ones are stored once."""

    def __init__(self, spec: Unet) -> None:
        self.spec, self.skips = spec, [spec.channels[0]]

    def down(self, side: int) -> list[Block]:
        """Blocks of each level, each level but the last halved at its end; channels of all outputs wait as skips."""
        made: list[Block] = []
        channels = self.spec.channels[0]
        for level, wide in enumerate(self.spec.channels):
            at = side // 2**level
            for _ in range(self.spec.blocks):
                made.append(self._block(channels, wide, at, self.spec.depths[level]))
                self.skips.append(wide)
                channels = wide
            if level + 1 < len(self.spec.channels):
                halved = self.convolution("halve", wide, wide, at, stride=2)
                made.append(Block(name=f"down-{wide}-{at}", ops=(halved,)))
                self.skips.append(wide)
        return made

    def middle(self, side: int) -> list[Block]:
        """A block that attends, and one that does not, at the last level."""
        wide, at = self.spec.channels[-1], side // 2 ** (len(self.spec.channels) - 1)
        return [self._block(wide, wide, at, self.spec.depths[-1]), self._block(wide, wide, at, 0)]

    def up(self, side: int) -> list[Block]:
        """Blocks that read the skips as well, each level but the first doubled at its end."""
        made: list[Block] = []
        channels = self.spec.channels[-1]
        for level in reversed(range(len(self.spec.channels))):
            at, wide = side // 2**level, self.spec.channels[level]
            for _ in range(self.spec.blocks + 1):
                skip = self.skips.pop()
                made.append(self._block(channels + skip, wide, at, self.spec.depths[level], joined=True))
                channels = wide
            if level:
                grown = mapped("double", wide * at**2, outputs=4)
                ops = (grown, self.convolution("grown", wide, wide, 2 * at))
                made.append(Block(name=f"up-{wide}-{at}", ops=ops))
        return made

    def _block(self, channels: int, wide: int, side: int, depth: int, *, joined: bool = False) -> Block:
        """A residual block with the time embedding, and `depth` layers that attend to the image and to its text."""
        elements = wide * side**2
        ops: list[Op] = [riding("join", channels * side**2)] if joined else []
        ops += [
            group_norm("norm1", channels, side**2),
            self.convolution("conv1", channels, wide, side),
            linear("time_in", EMBED * self.spec.channels[0], wide, split=Split.NONE, bias=True),
            riding("time_add", elements),
            group_norm("norm2", wide, side**2),
            self.convolution("conv2", wide, wide, side),
        ]
        if channels != wide:
            ops.append(self.convolution("shortcut", channels, wide, side, size=1))
        ops.append(riding("residual", elements, inputs=2))
        if depth:
            ops += self._transformer(wide, side, depth)
        name = f"{'up-' if joined else ''}block-{channels}-{wide}-{side}-{depth}"
        return Block(name=name, ops=tuple(ops))

    def _transformer(self, wide: int, side: int, depth: int) -> list[Op]:
        """Norm, a layer in, `depth` of self-attention, attention to the text and a gated feed-forward, a layer out."""
        pixels = side**2
        ops = [group_norm("entry_norm", wide, side**2), product("entry", wide, wide, pixels)]
        for number in range(depth):
            ops += [
                *self._attention(f"self{number}", wide, wide, pixels, pixels),
                *self._attention(f"text{number}", wide, self.spec.context, pixels, self.spec.text_tokens),
                layer_norm(f"feed{number}_norm", wide, pixels),
                product(f"feed{number}_up", wide, 2 * GATE * wide, pixels),
                gated(f"feed{number}_gate", GATE * wide * pixels),
                product(f"feed{number}_down", GATE * wide, wide, pixels),
                riding(f"feed{number}_add", wide * pixels, inputs=2),
            ]
        return [*ops, product("exit", wide, wide, pixels), riding("exit_add", wide * pixels, inputs=2)]

    def _attention(self, name: str, wide: int, source: int, pixels: int, positions: int) -> list[Op]:
        """Norm, queries of the image, keys and values of `positions` of width `source`, the core, a layer out.

        Heads are packed beside each other for a fused core.
        """
        heads = self.spec.heads or wide // (self.spec.head_dim or wide)
        own = source == wide and positions == pixels
        queries, keys = wide * pixels, wide * positions
        return [
            layer_norm(f"{name}_norm", wide, pixels),
            product(f"{name}_q", wide, wide, pixels, bias=False),
            *(
                product(f"{name}_{part}", source, wide, positions, bias=False, kept_input=part == "k", leaf=not own)
                for part in "kv"
            ),
            riding(f"{name}_pack", queries + 2 * keys),
            attention(f"{name}_core", heads, wide // heads, pixels, positions),
            product(f"{name}_out", wide, wide, pixels),
            riding(f"{name}_add", queries, inputs=2),
        ]

    @staticmethod
    def convolution(name: str, channels: int, filters: int, side: int, *, size: int = 3, stride: int = 1) -> Op:
        """A convolution with bias from `side` pixels to side / stride."""
        return product(
            name, channels, filters, (side // stride) ** 2, taps=size * size, entering=side**2, stride=stride,
            leaf=channels == LATENT,
        )  # fmt: skip
