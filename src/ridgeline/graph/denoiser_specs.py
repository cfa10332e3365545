"""What diffusion transformers are made of, how a picture becomes tokens, and the names that people give them.

Letters: D hidden, F width of a feed-forward.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil

from ridgeline.errors import ModelError, UnknownNameError
from ridgeline.facts.store import read_toml, toml_records
from ridgeline.graph.diffusion import UNETS


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What is made: pixels of its sides and frames [1]."""

    width: int
    height: int
    frames: int = 1


@dataclass(frozen=True, kw_only=True)
class Denoiser:
    """Layers of each kind, D, heads and F, and how a picture and its words become tokens.

    'joint' layers have weights of their own for patches and words, which attend to each other; 'single' ones one stream
    of both, attention beside the feed-forward; 'together' ones one stream after each other; 'cross' ones attend to
    themselves, then to words; 'linear' ones too, themselves without scores, and convolve in their feed-forward, whose
    halves gate each other. With `moving` layers, which attend along each patch's frames, the others attend within
    each frame. `guided` networks run twice a step: with the words and without. `conditioned` is the
    width that scales and shifts are made from (D where 0).
    """

    joint: int = 0
    dual: int = 0  # of the joint layers those whose patches also attend among themselves
    single: int = 0
    together: int = 0
    cross: int = 0
    moving: int = 0
    linear: int = 0
    hidden: int
    heads: int
    ffn: int
    words: int
    word_width: int
    pooled: int = 0
    channels: int = 16
    shrink: tuple[int, int] = (1, 8)  # frames and pixels of a side to one of the latent's
    patch: tuple[int, int] = (1, 2)  # frames and sides of the latent's to one token
    guided: bool = True
    guidance: bool = False  # the strength of guidance is an input
    conditioned: int = 0
    skips: int = 0  # layers that read an earlier one's output as well
    spread: bool = False  # predicts the noise's variance as well
    faced: int = 0  # of the layers those after which patches attend to a face
    beside: int = 0  # channels of a latent that is read beside the noise
    sized: int = 0  # width of each of two vectors that tell the picture's size and shape
    modulated: int = 12  # scales, shifts and gates of a layer of 'together'
    gated: bool = False  # halves of the feed-forward gate each other
    timed: int = 0  # points in time of a convolution that ends each of 'linear'
    turned: bool = True  # queries and keys are normed and turned by their place, one kernel after another where eager
    encoder: str = "t5-v1.1-xxl"
    film: str = ""  # decoder of its videos; frames are decoded one by one where it has none

    def tokens(self, picture: Picture) -> int:
        """Patches of one picture [1]: ceil(latent frames / patch) x (height x width of the latent / patch^2).

        Latent frames are 1 + (frames - 1) / shrink.
        """
        frames = 1 + (picture.frames - 1) // self.shrink[0]
        unit = self.shrink[1] * self.patch[1]
        if picture.width % unit or picture.height % unit:
            near = f"{round(picture.width / unit) * unit} x {round(picture.height / unit) * unit}"
            raise ModelError(
                f"{picture.width} x {picture.height} pixels are no multiple of {unit}; nearest: {near} pixels"
            )
        return ceil(frames / self.patch[0]) * (picture.width // unit) * (picture.height // unit)


DENOISERS = toml_records("networks.toml", "denoisers", Denoiser)
_USUAL = ("width", "height", "frames", "steps")


def find_diffusion(text: str) -> str | None:
    """The diffusion model that a name means, its organisation before '/' left out; None where none is meant.

    >>> find_diffusion("black-forest-labs/FLUX.1-dev"), find_diffusion("sdxl")
    ('flux.1-dev', 'stable-diffusion-xl')
    """
    name = text.strip().rsplit("/", 1)[-1]
    if name.casefold() in (*DENOISERS, *UNETS):
        return name.casefold()
    named = read_toml("networks.toml")["pictures_named"]
    matches = ((re.match(pattern, name, re.IGNORECASE), known) for pattern, known in named.items())
    return next((match.expand(known).casefold() for match, known in matches if match), None)


def diffusion_model(text: str) -> str:
    """The diffusion model that a name means; raises `UnknownNameError`, with the nearest names, where none is meant."""
    found = find_diffusion(text)
    if found is None:
        known = (*DENOISERS, *UNETS)
        raise UnknownNameError("diffusion model", text[:60], known, hint=f"known: {', '.join(known)}")
    return found


def usual_sampling(model: str) -> dict[str, int]:
    """What a diffusion model's own pipeline makes where nothing is said: pixels across and down, frames, steps [1].

    >>> usual_sampling("flux.1-schnell")
    {'width': 1024, 'height': 1024, 'frames': 1, 'steps': 4}
    """
    return dict(zip(_USUAL, read_toml("networks.toml")["usual_pictures"][model], strict=True))
