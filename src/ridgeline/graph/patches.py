"""Networks of patches: windows that shift, class tokens with relative positions, and mixers without attention.

Letters: C channels, T patches. Sources: Liu et al. 2021 (arXiv:2103.14030), Liu et al. 2022 (arXiv:2201.03545),
Bao et al. 2022 (arXiv:2106.08254), Tolstikhin et al. 2021 (arXiv:2105.01601, table 1), Liu et al. 2021
(arXiv:2105.08050, table 1), Touvron et al. 2021 (arXiv:2103.17239, table 1); layers as timm builds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ridgeline.errors import UnknownNameError
from ridgeline.facts.store import read_toml
from ridgeline.graph.model import Model
from ridgeline.graph.ops import Op, elementwise
from ridgeline.graph.pixels import activated, attention, layer_norm, mapped, narrowed, product, scaled
from ridgeline.graph.trunk import Trunk
from ridgeline.graph.vision import IMAGE, Layers, Turned, head_ops

WINDOW, RATIO = 7, 4  # patches of a window's side; width of a feed-forward over that of its layer


def patched(name: str, *, turned: Turned = Turned.NONE, autocast: bool = False) -> Model:
    """A network of patches by name, on images of 224 x 224 pixels; `autocast` as for `vision.Layers`.

    >>> patched("swin-tiny").graph.params
    28288354
    """
    if name not in PATCHED:
        raise UnknownNameError("network of patches", name, PATCHED)
    trunk = Trunk(Layers(turned=turned, fused=False, autocast=autocast), IMAGE)
    wide, tokens = PATCHED[name](trunk)
    _, classes, loss = head_ops(wide, 1)
    head = [mapped("mean", wide * tokens), classes, loss]
    return trunk.model(name, "patches", source="table of the paper", head=head)


def _embedded(trunk: Trunk, wide: int, size: int) -> int:
    """A convolution that makes patches; their number [1]."""
    trunk.convolution(wide, size, stride=size, bias=True)
    return trunk.side**2


def _normed(trunk: Trunk, name: str, wide: int, tokens: int) -> list[Op]:
    """A norm; under autocast its sides have four bytes an element, and the next product's are made of its output."""
    op = layer_norm(name, wide, tokens)
    if not trunk.net.autocast:
        return [op]
    return [scaled(op, 2), narrowed(f"{name}_cast", wide * tokens)]


def _feed(trunk: Trunk, wide: int, tokens: int, inner: int, *, scaled: bool = False) -> list[Op]:
    """Norm, two layers with their activation, sum; `scaled` by a number for each channel."""
    ops = [
        *_normed(trunk, "feed_norm", wide, tokens),
        product("feed_up", wide, inner, tokens),
        activated("feed_activation", inner * tokens),
        product("feed_down", inner, wide, tokens),
    ]
    return [*ops, *_added(trunk, "feed_add", wide, tokens, scaled=scaled)]


def _added(trunk: Trunk, name: str, wide: int, tokens: int, *, scaled: bool = False) -> list[Op]:
    """A branch, perhaps scaled, added to the stream; under autocast the stream is in fp32, and a scaled branch too.

    Its gradient is cast for the branch, and added to that of the norm.
    """
    size, autocast = wide * tokens, trunk.net.autocast
    scale = [mapped(f"{name}_scale", size, outputs=1 + autocast, params=wide, saved=size)] if scaled else []
    if not autocast:
        return [*scale, mapped(name, size, inputs=2)]
    read = (4 if scaled else 3) * size
    return [*scale, elementwise(name, read, 2 * size, 6 * size, 3 * size)]


def _attended(
    trunk: Trunk, wide: int, heads: int, tokens: int, *, windows: int, table: int, bias: int, scaled: bool
) -> list[Op]:
    """Norm, attention within each of `windows` with a learned bias for each of `table` distances and head, sum.

    `bias` of the 3 C biases of queries, keys and values are trained. Under autocast biases and softmax are in fp32 and
    what weighs the values is cast: four passes of two bytes each way in place of one.
    """
    keys, scores = tokens // windows, heads * tokens * tokens // windows
    passes = 4 if trunk.net.autocast else 1
    return [
        *_normed(trunk, "attention_norm", wide, tokens),
        product("qkv", wide, 3 * wide, tokens, params=3 * wide**2 + bias),
        mapped("pack", 3 * wide * tokens),
        attention("attention", heads * windows, wide // heads, keys, keys, wide=trunk.net.autocast),
        replace(mapped("distance_bias", scores * passes), params=heads * table),
        product("attention_out", wide, wide, tokens),
        *_added(trunk, "attention_add", wide, tokens, scaled=scaled),
    ]


def _shifted(trunk: Trunk, channels: int, depths: tuple[int, ...], heads: int) -> tuple[int, int]:
    """Stages of windows, every second layer shifted by half of one; four patches merge between stages."""
    tokens, wide = _embedded(trunk, channels, 4), channels
    trunk.take(layer_norm("embed_norm", wide, tokens))
    trunk.cut("embed")
    for stage, depth in enumerate(depths):
        if stage:
            tokens //= 4
            trunk.take(
                mapped("merge", 4 * wide * tokens), layer_norm("merge_norm", 4 * wide, tokens),
                product("merge_out", 4 * wide, 2 * wide, tokens, bias=False),
            )  # fmt: skip
            trunk.cut("merge")
            wide, heads = 2 * wide, 2 * heads
        for place in range(depth):
            moved = [f"{what}_windows" for what in ("into", "out_of")]
            moved += [f"{what}_roll" for what in ("forth", "back")] if place % 2 else []
            trunk.take(*(mapped(step, wide * tokens) for step in moved))
            table = (2 * WINDOW - 1) ** 2
            count = tokens // WINDOW**2
            trunk.take(
                *_attended(trunk, wide, heads, tokens, windows=count, table=table, bias=3 * wide, scaled=False),
                *_feed(trunk, wide, tokens, RATIO * wide),
            )
            trunk.cut("window")
    trunk.take(layer_norm("final_norm", wide, tokens))
    return wide, tokens


def _next(trunk: Trunk, channels: int, depths: tuple[int, ...]) -> tuple[int, int]:
    """Depthwise 7 x 7, norm over channels, a feed-forward; tensors turn their layout before and after it."""
    for stage, depth in enumerate(depths):
        wide = channels * 2**stage
        if stage:
            trunk.take(layer_norm("halve_norm", trunk.channels, trunk.side**2))
        tokens = _embedded(trunk, wide, 2 if stage else 4)
        if not stage:
            trunk.take(layer_norm("embed_norm", wide, tokens))
        trunk.cut("halve")
        for _ in range(depth):
            trunk.convolution(wide, WINDOW, groups=wide, bias=True)
            if trunk.net.turned is not Turned.NONE:
                trunk.take(mapped("turn", wide * tokens), mapped("turn_back", wide * tokens))
            trunk.take(*_feed(trunk, wide, tokens, RATIO * wide, scaled=True))
            trunk.cut("block")
    trunk.take(layer_norm("final_norm", wide, 1))
    return wide, tokens


def _classed(trunk: Trunk, layers: int, width: int, heads: int) -> tuple[int, int]:
    """Patches and a class token, a bias for each pair of distances, scaled branches."""
    wide, tokens = width, _embedded(trunk, width, 16) + 1
    table = (2 * trunk.side - 1) ** 2 + 3
    trunk.take(mapped("class_token", wide * tokens, params=wide))
    trunk.cut("embed")
    for _ in range(layers):
        trunk.take(
            *_attended(trunk, wide, heads, tokens, windows=1, table=table, bias=2 * wide, scaled=True),
            *_feed(trunk, wide, tokens, RATIO * wide, scaled=True),
        )
        trunk.cut("layer")
    trunk.take(layer_norm("final_norm", wide, 1))
    return wide, tokens


def _mixed(trunk: Trunk) -> tuple[int, int]:
    """Mixer B/16: two layers over the patches of each channel, two over the channels of each patch."""
    layers, wide, inner = 12, 768, 384
    tokens = _embedded(trunk, wide, 16)
    trunk.cut("embed")
    for _ in range(layers):
        trunk.take(
            *_normed(trunk, "token_norm", wide, tokens), mapped("turn", wide * tokens),
            product("token_up", tokens, inner, wide), activated("token_activation", inner * wide),
            product("token_down", inner, tokens, wide), mapped("turn_back", wide * tokens),
            *_added(trunk, "token_add", wide, tokens), *_feed(trunk, wide, tokens, RATIO * wide),
        )  # fmt: skip
        trunk.cut("layer")
    trunk.take(layer_norm("final_norm", wide, tokens))
    return wide, tokens


def _gates(trunk: Trunk) -> tuple[int, int]:
    """gMLP S/16: one feed-forward whose one half, mixed over the patches, gates the other."""
    layers, wide, inner = 30, 256, 1536
    tokens, half = _embedded(trunk, wide, 16), inner // 2
    trunk.cut("embed")
    for _ in range(layers):
        trunk.take(
            *_normed(trunk, "norm", wide, tokens), product("up", wide, inner, tokens),
            activated("activation", inner * tokens), *_normed(trunk, "gate_norm", half, tokens),
            mapped("turn", half * tokens), product("gate", tokens, tokens, half), mapped("turn_back", half * tokens),
            mapped("gated", half * tokens, inputs=2, saved=2 * half * tokens), product("down", half, wide, tokens),
            *_added(trunk, "add", wide, tokens),
        )  # fmt: skip
        trunk.cut("layer")
    trunk.take(layer_norm("final_norm", wide, tokens))
    return wide, tokens


def _talking(trunk: Trunk) -> tuple[int, int]:
    """CaiT S24: heads are mixed before and after softmax; two last layers have a class ask the patches."""
    layers, wide, heads = 24, 384, 8
    tokens = _embedded(trunk, wide, 16)
    trunk.take(mapped("positions", wide * tokens, params=wide * tokens))
    trunk.cut("embed")
    mixed = [
        op
        for when in ("before", "after")
        for op in (
            mapped(f"mix_{when}_turn", heads * tokens**2),
            product(f"mix_{when}", heads, heads, tokens**2),
            mapped(f"mix_{when}_turn_back", heads * tokens**2),
        )
    ]
    for _ in range(layers):
        trunk.take(
            *_attended(trunk, wide, heads, tokens, windows=1, table=0, bias=3 * wide, scaled=True), *mixed,
            *_feed(trunk, wide, tokens, RATIO * wide, scaled=True),
        )  # fmt: skip
        trunk.cut("layer")
    trunk.take(mapped("class_token", wide * (tokens + 1), params=wide))
    for _ in range(2):
        trunk.take(
            *_normed(trunk, "attention_norm", wide, tokens + 1), product("q", wide, wide, 1),
            product("kv", wide, 2 * wide, tokens + 1), attention("attention", heads, wide // heads, 1, tokens + 1),
            product("attention_out", wide, wide, 1), *_added(trunk, "attention_add", wide, 1, scaled=True),
            *_feed(trunk, wide, 1, RATIO * wide, scaled=True),
        )  # fmt: skip
        trunk.cut("class")
    trunk.take(layer_norm("final_norm", wide, tokens + 1))
    return wide, 1


PATCHED: dict[str, Callable[[Trunk], tuple[int, int]]] = {
    **{
        name: partial(build, **row)
        for kind, build in (("shifted", _shifted), ("next", _next), ("classed", _classed))
        for name, row in read_toml("networks.toml")[kind].items()
    },
    "mixer-base": _mixed,
    "gmlp-small": _gates,
    "cait-small-24": _talking,
}
"""What builds each network; width and number of the patches that its head takes the mean of."""
