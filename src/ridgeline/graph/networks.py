"""Networks of images, speech, sentences and categories by name: what `load` gives for 'resnet50' and its kin."""

from __future__ import annotations

import re
from dataclasses import replace

from ridgeline.errors import UnknownNameError
from ridgeline.facts.readings import reading
from ridgeline.graph.convolutional import CONVOLUTIONAL, convolutional
from ridgeline.graph.detection import DETECTORS, REGION_NETWORKS, detector, region_network
from ridgeline.graph.lstm import RECURRENT, recurrent
from ridgeline.graph.mobile import MOBILE, mobile
from ridgeline.graph.model import SAMPLE, Block, Model, network_of
from ridgeline.graph.ops import Op, elementwise
from ridgeline.graph.patches import PATCHED, patched
from ridgeline.graph.pixels import product
from ridgeline.graph.recommendation import RECOMMENDERS, recommender
from ridgeline.graph.transformer_xl import SIZES as SEGMENTS
from ridgeline.graph.transformer_xl import transformer_xl
from ridgeline.graph.translation import TRANSLATORS, translator
from ridgeline.graph.vision import RESIDUAL, Turned, residual
from ridgeline.graph.vision_transformer import SIZES as TRANSFORMERS
from ridgeline.graph.vision_transformer import vision_tokens, vision_transformer
from ridgeline.graph.volumes import VOLUMES, volume_unet

# Residual blocks, channels and how many times the side.
UPSCALERS = {
    "edsr-baseline-x2": (16, 64, 2), "edsr-baseline-x4": (16, 64, 4), "edsr-x2": (32, 256, 2), "edsr-x4": (32, 256, 4),
}  # fmt: skip
SIDE, COLOURS, TAPS = 48, 3, 9  # pixels of a side of a training patch; of a pixel; of a filter


def upscaler(name: str, *, side: int = SIDE) -> Model:
    """A network that makes pictures larger, by name, on a patch of `side` pixels; it fits pictures of any size.

    Raises `UnknownNameError` for a name of none.

    >>> upscaler("edsr-baseline-x2").graph.params
    1369859
    """
    if name not in UPSCALERS:
        raise UnknownNameError("network that makes pictures larger", name, tuple(UPSCALERS))
    blocks, channels, times = UPSCALERS[name]
    pixels = side * side
    residual = Block(name="residual", ops=tuple(_residual(channels, pixels)))
    enter = Block(name="enter", ops=(_convolution("enter", COLOURS, channels, pixels),))
    joined = (
        _convolution("leave", channels, channels, pixels),
        elementwise("join", 2 * channels * pixels, channels * pixels),
    )
    leave = Block(name="leave", ops=joined)
    grown, size = [], pixels
    for step in range(times.bit_length() - 1):
        wide = 4 * channels * size
        grown += [_convolution(f"grow{step}", channels, 4 * channels, size), elementwise(f"shuffle{step}", wide, wide)]
        size *= 4
    layers = (enter, *[residual] * blocks, leave, Block(name="grow", ops=tuple(grown)))
    head = (_convolution("colours", channels, COLOURS, size), elementwise("loss", 2 * COLOURS * size, COLOURS * size))
    return network_of(
        name, "upscaling", layers, hidden=channels * pixels, source="released code", head=head,
        dims={"channels": channels, "image": side, "times": times},
    )  # fmt: skip


def _residual(channels: int, pixels: int) -> list[Op]:
    """Two convolutions with a ReLU between, added to what came in."""
    elements = channels * pixels
    return [
        _convolution("first", channels, channels, pixels),
        elementwise("relu", elements, elements),
        _convolution("second", channels, channels, pixels),
        elementwise("add", 2 * elements, elements),
    ]


def _convolution(name: str, channels: int, filters: int, pixels: int) -> Op:
    return product(name, channels, filters, pixels, taps=TAPS, leaf=channels == COLOURS)


CLASSIFIERS = (*RESIDUAL, *MOBILE, *CONVOLUTIONAL, *PATCHED)
SENTENCE = {"gnmt": 25, "transformer-translation-big": 30, "transformer-translation-base": 30}
"""Tokens of a sentence, the same each way [token] (assumed): WMT14's 4.5e6 pairs have 116e6 English and 110e6 German
words (arXiv:1508.04025, section 4.1), each of some 1.2 pieces; GNMT leaves out those above 50 tokens."""

PADDED = {"gnmt": 32}
"""Positions of a sentence that are computed [token] (assumed): GNMT's batches hold sentences whose longer side lies in
one range of ten (sampler.py, BucketingSampler), and are padded to its end: five beyond its mean, 27 of either side."""


def networks() -> tuple[str, ...]:
    """Names of the networks that are built by name, sorted."""
    transformers = (f"vit-{size}-patch16-224" for size in TRANSFORMERS)
    texts = (*SEGMENTS, *RECURRENT, *TRANSLATORS, *RECOMMENDERS, "ncf")
    return tuple(sorted((*CLASSIFIERS, *DETECTORS, *REGION_NETWORKS, *VOLUMES, *UPSCALERS, *transformers, *texts)))


def find_network(text: str) -> str | None:
    """The network that a name means, None when it means none.

    >>> find_network("ResNet50"), find_network("gpt-2")
    ('resnet-50', None)
    """
    plain = text.strip().casefold()
    found = reading("network", model=plain)
    name = re.sub(r"[ _]", "-", plain) if found is None else found.text.casefold()
    return name if name in networks() or re.fullmatch(r"vit-\w+-patch\d+-\d+", name) else None


def sample_tokens(name: str) -> int:
    """Tokens that one sample of a network counts [token]: an image, an utterance and a row of categories are one.

    A vision transformer counts patches and a class, a text its segment or the positions of its sentence.
    """
    if name in SEGMENTS:
        return SEGMENTS[name].segment
    return vision_tokens(name) if name.startswith("vit-") else PADDED.get(name, SENTENCE.get(name, 1))


def network(name: str) -> Model:
    """A network by its exact name, tensors with channels last, one sample of a Transformer-XL in a micro-batch.

    Tables of a recommender lie on one device. Raises `UnknownNameError` for a name of none.

    >>> network("resnet-50").dims["tokens_per_sample"]
    1
    """
    tokens, made = sample_tokens(name), _built(name)
    return replace(made, max_positions=tokens, dims={**made.dims, SAMPLE: tokens})


def _built(name: str) -> Model:
    if name.startswith("vit-"):
        return vision_transformer(name)
    if name in SEGMENTS:
        return transformer_xl(name, sequences=1)
    if name in RECURRENT:
        return recurrent(name, words=PADDED[name]) if name in PADDED else recurrent(name)
    if name in (*RECOMMENDERS, "ncf"):
        return recommender(name)
    by_names = (
        (CLASSIFIERS, classifier), (DETECTORS, detector), (REGION_NETWORKS, region_network), (VOLUMES, volume_unet),
        (TRANSLATORS, translator), (tuple(UPSCALERS), upscaler),
    )  # fmt: skip
    for names, build in by_names:
        if name in names:
            made: Model = build(name)
            return made
    raise UnknownNameError("network", name, networks())


def classifier(
    name: str,
    *,
    turned: Turned = Turned.NONE,
    fused: bool = False,
    autocast: bool = False,
    counted: bool = False,
    image: int | None = None,
) -> Model:
    """A network by name; `image` pixels a side in place of its own where its layers allow any size.

    `counted` as for `vision.residual`, whose networks alone have such kernels.

    >>> classifier("mobilenet-v2").graph.params
    3504872
    """
    if name in MOBILE:
        return mobile(name, turned=turned, fused=fused, image=image)
    if name in CONVOLUTIONAL:
        return convolutional(name, turned=turned, fused=fused)
    if name in PATCHED:
        return patched(name, turned=turned, autocast=autocast)
    if name in RESIDUAL:
        return residual(name, turned=turned, fused=fused, counted=counted)
    raise UnknownNameError("network", name, CLASSIFIERS)
