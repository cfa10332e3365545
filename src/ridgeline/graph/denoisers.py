"""Transformers that take noise out of latents of images and videos, and what decodes them; a picture is one token.

Letters: D hidden, T patches, W words. Sources: Peebles and Xie 2023 (arXiv:2212.09748), Chen et al. 2024
(arXiv:2310.00426, PixArt-alpha), Esser et al. 2024 (arXiv:2403.03206, SD3), Li et al. 2024 (arXiv:2405.08748,
Hunyuan-DiT), Yang et al. 2025 (arXiv:2408.06072, CogVideoX), Kong et al. 2024 (arXiv:2412.03603, HunyuanVideo), Wan
2025 (arXiv:2503.20314), Yuan et al. 2025 (arXiv:2411.17440, ConsisID), Xie et al. 2025 (arXiv:2410.10629, Sana),
Chen et al. 2025 (arXiv:2509.24695, SANA-Video);
layers as diffusers builds them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ridgeline.errors import ModelError, UnknownNameError
from ridgeline.graph.denoiser_specs import DENOISERS, Denoiser, Picture
from ridgeline.graph.diffusion import UNETS, unet
from ridgeline.graph.model import Block, Model, network_of
from ridgeline.graph.ops import Op, Split
from ridgeline.graph.parts import linear
from ridgeline.graph.pixels import LINEAR, activated, attention, gated, layer_norm, mapped, product, riding

SHAPED, MERGED = 3, 2  # kernels of eager PyTorch: a norm, a scale and a shift; a gate's product and the sum
TURNED = 15
"""Passes over queries, keys and values on average where eager PyTorch norms and turns two of the three: each norm moves
34 bytes an element (to fp32, squared, meaned, scaled, back, weighed), each turn 50 (halves swapped, both products and
their sum in fp32, back), in passes of 4 bytes; and one copy of all. Source: diffusers 0.30, normalization.py RMSNorm,
embeddings.py apply_rotary_emb."""
FACE_HEADS, FACE_DIM, FACE_TOKENS = 16, 128, 32
"""Heads that patches attend to a face by, their width, and the tokens that it is. Source: diffusers 0.33,
consisid_transformer_3d.py, PerceiverCrossAttention and LocalFacialExtractor."""
FACE_SCORES = 4  # kernels of their softmax: scaled, to fp32, the softmax itself, back
TIME = 256  # width of the sines that a step's time is read by


def denoiser(name: str, picture: Picture) -> Model:
    """One step's network by name, for a picture of a size; U-Nets are of `diffusion.unet`, on square images.

    >>> denoiser("flux.1-dev", Picture(width=1024, height=1024)).graph.params
    11901408320
    """
    if name in UNETS:
        if picture.width != picture.height or picture.frames > 1:
            raise ModelError(f"{name} makes square images, not {picture.width} x {picture.height} x {picture.frames}")
        return unet(name, image=picture.width)
    if name not in DENOISERS:
        raise UnknownNameError("diffusion model", name, (*DENOISERS, *UNETS))
    spec = DENOISERS[name]
    tokens = spec.tokens(picture)
    return network_of(
        name, "denoiser", _layers(spec, tokens, picture.frames), hidden=spec.hidden * (tokens + spec.words),
        source="config.json", embedding=_entry(spec, tokens), head=_exit(spec, tokens),
        dims={"hidden": spec.hidden, "tokens": tokens, "words": spec.words},
    )  # fmt: skip


def guided(name: str) -> bool:
    """Whether a step runs the network twice, with the words and without."""
    return name in UNETS or DENOISERS[name].guided


def _layers(spec: Denoiser, tokens: int, frames: int) -> list[Block]:
    made: dict[str, tuple[int, Callable[[], list[Op]]]] = {
        "joint-dual": (spec.dual, lambda: [*_joint(spec, tokens, dual=True), *_alone(spec, tokens)]),
        "joint": (spec.joint - spec.dual, partial(_joint, spec, tokens)),
        "single": (spec.single, partial(_single, spec, tokens)),
        "together": (spec.together - spec.faced, partial(_together, spec, tokens)),
        "faced": (spec.faced, lambda: [*_together(spec, tokens), *_faced(spec, tokens)]),
        "cross": (spec.cross - spec.skips, partial(_cross, spec, tokens, frames)),
        "moving": (spec.moving, partial(_moving, spec, tokens, frames)),
        "linear": (spec.linear, partial(_linear, spec, tokens)),
    }
    layers = list[Block]()
    for name, (count, build) in made.items():
        if count:
            last = name == "joint" and not spec.single  # nothing reads the words after the last layer
            layers += [Block(name=name, ops=tuple(build()))] * (count - last)
            if last:
                layers.append(Block(name="joint-last", ops=tuple(_joint(spec, tokens, last=True))))
    if spec.skips:
        ops = (*_skip(spec, tokens), *_cross(spec, tokens, frames))
        layers += [Block(name="cross-skip", ops=ops)] * spec.skips
    return layers


def _modulation(name: str, spec: Denoiser, parts: int) -> Op:
    """Scales and shifts of one picture, from its time and words."""
    return linear(name, spec.conditioned or spec.hidden, parts * spec.hidden, split=Split.NONE, bias=True)


def _shaped(name: str, spec: Denoiser, tokens: int, *, params: int = 0) -> Op:
    """A norm, scaled and shifted."""
    return replace(layer_norm(name, spec.hidden, tokens, params=params), kernels=SHAPED)


def _merged(name: str, spec: Denoiser, tokens: int) -> Op:
    """A part's output, weighed by a gate and added."""
    return replace(riding(name, spec.hidden * tokens, inputs=2), kernels=MERGED)


def _core(name: str, spec: Denoiser, queries: int, keys: int) -> Op:
    return attention(name, spec.heads, spec.hidden // spec.heads, queries, keys)


def _packed(name: str, spec: Denoiser, tokens: int, *, params: int = 0) -> Op:
    """Queries and keys normed and turned by their place, and laid out for the core with values."""
    made = mapped(name, 3 * spec.hidden * tokens, params=params)
    return replace(made, kernels=TURNED if spec.turned else 2, rides=not spec.turned)


def _feed(name: str, spec: Denoiser, tokens: int) -> list[Op]:
    return [
        product(f"{name}_up", spec.hidden, (1 + spec.gated) * spec.ffn, tokens),
        (gated if spec.gated else activated)(f"{name}_activation", spec.ffn * tokens),
        product(f"{name}_down", spec.ffn, spec.hidden, tokens),
        _merged(f"{name}_add", spec, tokens),
    ]


def _alone(spec: Denoiser, tokens: int) -> list[Op]:
    """Patches attend among themselves as well; their scales and shifts are made with those of the joint part."""
    return [
        product("alone_qkv", spec.hidden, 3 * spec.hidden, tokens),
        _packed("alone_pack", spec, tokens, params=2 * (spec.hidden // spec.heads)),
        _core("alone_attention", spec, tokens, tokens),
        product("alone_out", spec.hidden, spec.hidden, tokens),
        _merged("alone_add", spec, tokens),
    ]


def _joint(spec: Denoiser, tokens: int, *, last: bool = False, dual: bool = False) -> list[Op]:
    ops: list[Op] = []
    normed = spec.single or spec.dual  # FLUX and SD3.5 norm queries and keys by head
    norms = 2 * (spec.hidden // spec.heads) if normed else 0
    streams = (("image", tokens, False), ("words", spec.words, last))
    for name, count, ends in streams:
        ops += [
            _modulation(f"{name}_modulation", spec, 2 if ends else 6 + 3 * (dual and name == "image")),
            _shaped(f"{name}_norm1", spec, count),
            product(f"{name}_qkv", spec.hidden, 3 * spec.hidden, count),
            _packed(f"{name}_pack", spec, count, params=norms),
        ]
    ops.append(_core("attention", spec, tokens + spec.words, tokens + spec.words))
    for name, count, ends in streams:
        if ends:
            continue
        ops += [
            product(f"{name}_out", spec.hidden, spec.hidden, count),
            _merged(f"{name}_add", spec, count),
            _shaped(f"{name}_norm2", spec, count),
            *_feed(f"{name}_feed", spec, count),
        ]
    return ops


def _single(spec: Denoiser, tokens: int) -> list[Op]:
    both = tokens + spec.words
    return [
        _modulation("modulation", spec, 3),
        _shaped("norm", spec, both),
        product("entry", spec.hidden, 3 * spec.hidden + spec.ffn, both),
        _packed("pack", spec, both, params=2 * (spec.hidden // spec.heads)),
        _core("attention", spec, both, both),
        activated("activation", spec.ffn * both),
        mapped("join", (spec.hidden + spec.ffn) * both),
        product("exit", spec.hidden + spec.ffn, spec.hidden, both),
        _merged("add", spec, both),
    ]


def _together(spec: Denoiser, tokens: int) -> list[Op]:
    both, head = tokens + spec.words, spec.hidden // spec.heads
    return [
        _modulation("modulation1", spec, spec.modulated // 2),
        _shaped("norm1", spec, both, params=2 * spec.hidden),
        product("qkv", spec.hidden, 3 * spec.hidden, both),
        _packed("pack", spec, both, params=4 * head),
        _core("attention", spec, both, both),
        product("out", spec.hidden, spec.hidden, both),
        _merged("attention_add", spec, both),
        _modulation("modulation2", spec, spec.modulated // 2),
        _shaped("norm2", spec, both, params=2 * spec.hidden),
        *_feed("feed", spec, both),
    ]


def _faced(spec: Denoiser, tokens: int) -> list[Op]:
    """Patches that attend to the tokens of a face, scores in memory, and the sum."""
    wide, inner = spec.hidden, FACE_HEADS * FACE_DIM
    return [
        layer_norm("face_norm", wide, tokens),
        product("face_q", wide, inner, tokens, bias=False),
        linear("face_kv", inner, 2 * inner, split=Split.NONE),
        attention("face_attention", FACE_HEADS, FACE_DIM, tokens, FACE_TOKENS),
        replace(mapped("face_scores", FACE_HEADS * FACE_TOKENS * tokens), kernels=FACE_SCORES),
        product("face_out", inner, wide, tokens, bias=False),
        _merged("face_add", spec, tokens),
    ]


def _cross(spec: Denoiser, tokens: int, frames: int) -> list[Op]:
    wide = spec.hidden
    apart = frames if spec.moving else 1
    source = spec.word_width if spec.word_width < wide else wide  # words that are not projected to D first
    return [
        *_among(spec, tokens, _packed("pack", spec, tokens), _apart(spec, tokens, apart)),
        *_to_words(spec, tokens, source),
        _shaped("norm2", spec, tokens),
        *_feed("feed", spec, tokens),
    ]


def _among(spec: Denoiser, tokens: int, *core: Op, bias: bool = True) -> list[Op]:
    """Norm, queries, keys and values of the patches, what they see of each other by a `core`, a layer out and sum."""
    wide = spec.hidden
    return [
        _shaped("norm1", spec, tokens, params=6 * wide),
        product("qkv", wide, 3 * wide, tokens, bias=bias),
        *core,
        product("out", wide, wide, tokens),
        _merged("attention_add", spec, tokens),
    ]


def _to_words(spec: Denoiser, tokens: int, source: int) -> list[Op]:
    """Patches that attend to words of width `source`, and sum."""
    wide = spec.hidden
    return [
        product("words_q", wide, wide, tokens),
        product("words_kv", source, 2 * wide, spec.words),
        _core("words_attention", spec, tokens, spec.words),
        product("words_out", wide, wide, tokens),
        _merged("words_add", spec, tokens),
    ]


def _apart(spec: Denoiser, tokens: int, parts: int) -> Op:
    """Attention within each of `parts` of the patches."""
    each = tokens // parts
    return attention("attention", spec.heads * parts, spec.hidden // spec.heads, each, each)


def _moving(spec: Denoiser, tokens: int, frames: int) -> list[Op]:
    """A layer whose patches attend to themselves in the other frames."""
    core = (_packed("pack", spec, tokens), _apart(spec, tokens, tokens // frames))
    return [*_among(spec, tokens, *core), _shaped("norm2", spec, tokens), *_feed("feed", spec, tokens)]


def _linear(spec: Denoiser, tokens: int) -> list[Op]:
    """A layer of linear attention, attention to words, and a feed-forward with a depthwise convolution.

    Videos' layers turn queries and keys by their place, and end with a convolution along `timed` points in time.
    """
    wide, inner, points = spec.hidden, spec.ffn, spec.timed
    turned = [_packed("pack", spec, tokens)] if spec.turned else []
    timed = replace(product("feed_time", points * wide, wide, tokens, bias=False, kept_input=False), taps=points)
    after = [timed, mapped("feed_time_add", wide * tokens, inputs=2)] if points else []
    spread = replace(product("feed_spread", 9, 1, tokens), taps=9, groups=2 * inner, params=2 * inner * (9 + 1))
    return [
        *_among(spec, tokens, *turned, replace(mapped("linear_attention", wide * tokens), kernels=LINEAR), bias=False),
        *_to_words(spec, tokens, wide),
        _shaped("norm2", spec, tokens),
        product("feed_up", wide, 2 * inner, tokens),
        mapped("feed_activation", 2 * inner * tokens),
        spread,
        gated("feed_gate", inner * tokens),
        product("feed_down", inner, wide, tokens, bias=False),
        *after,
        _merged("feed_add", spec, tokens),
    ]


def _skip(spec: Denoiser, tokens: int) -> list[Op]:
    """An earlier layer's output beside the last one's, normed and narrowed."""
    wide = 2 * spec.hidden
    return [
        mapped("skip_join", wide * tokens),
        layer_norm("skip_norm", wide, tokens),
        product("skip", wide, spec.hidden, tokens),
    ]


def _entry(spec: Denoiser, tokens: int) -> list[Op]:
    """Patches and words made as wide as the layers, and the vectors that steps are conditioned by."""
    size = (spec.channels + spec.beside) * spec.patch[0] * spec.patch[1] ** 2
    ops: list[Op] = [product("patches", size, spec.hidden, tokens)]
    if spec.word_width >= spec.hidden:
        ops.append(product("words", spec.word_width, spec.hidden, spec.words))
    if spec.cross or spec.linear:
        ops.append(product("words_again", spec.hidden, spec.hidden, spec.words))
        ops.append(linear("modulation", spec.hidden, 6 * spec.hidden, split=Split.NONE, bias=True))
    first = spec.hidden if spec.conditioned else TIME
    vectors = [("time", first)] + [("guidance", TIME)] * spec.guidance + [("pooled", spec.pooled)] * bool(spec.pooled)
    wide = spec.conditioned or spec.hidden
    sized = [(name, TIME, spec.sized) for name in ("height", "shape") if spec.sized]
    for name, entering, out in [*((name, entering, wide) for name, entering in vectors), *sized]:
        ops += [
            linear(name, entering, out, split=Split.NONE, bias=True),
            linear(f"{name}_out", out, out, split=Split.NONE, bias=True),
        ]
    return ops


def _exit(spec: Denoiser, tokens: int) -> list[Op]:
    wide, size = spec.hidden, spec.channels * spec.patch[0] * spec.patch[1] ** 2 * (2 if spec.spread else 1)
    single = spec.cross or spec.linear
    ops = [] if single else [_modulation("exit_modulation", spec, 2)]
    norms = 4 * wide if spec.together else 2 * wide if single else 0
    return [*ops, _shaped("exit_norm", spec, tokens, params=norms), product("exit", wide, size, tokens)]
