"""What diffusion transformers are made of: sizes of each by name, and how a picture becomes tokens.

Letters: D hidden, F width of a feed-forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ridgeline.errors import ModelError


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


DENOISERS: dict[str, Denoiser] = {
    "flux.1-dev": Denoiser(
        joint=19, single=38, hidden=3072, heads=24, ffn=12288, words=512, word_width=4096, pooled=768, guided=False,
        guidance=True,
    ),
    "flux.1-schnell": Denoiser(
        joint=19, single=38, hidden=3072, heads=24, ffn=12288, words=256, word_width=4096, pooled=768, guided=False
    ),
    "sd3-medium": Denoiser(
        joint=24, hidden=1536, heads=24, ffn=6144, words=333, word_width=4096, pooled=2048, turned=False
    ),
    "pixart-alpha": Denoiser(
        cross=28, hidden=1152, heads=16, ffn=4608, words=120, word_width=4096, channels=4, spread=True,
        sized=384, turned=False,
    ),
    "hunyuan-dit": Denoiser(
        cross=40, hidden=1408, heads=16, ffn=6144, words=333, word_width=1024, channels=4, skips=19, spread=True,
        encoder="",
    ),
    "cogvideox-2b": Denoiser(
        together=30, hidden=1920, heads=30, ffn=7680, words=226, word_width=4096, shrink=(4, 8), conditioned=512,
        turned=False, film="cogvideox",
    ),
    "cogvideox-5b": Denoiser(
        together=42, hidden=3072, heads=48, ffn=12288, words=226, word_width=4096, shrink=(4, 8), conditioned=512,
        film="cogvideox",
    ),
    "consisid": Denoiser(
        together=42, hidden=3072, heads=48, ffn=12288, words=226, word_width=4096, shrink=(4, 8), conditioned=512,
        faced=21, beside=16, film="cogvideox",
    ),
    "cogvideox-1.5-5b": Denoiser(
        together=42, hidden=3072, heads=48, ffn=12288, words=226, word_width=4096, shrink=(4, 8), patch=(2, 2),
        conditioned=512, film="cogvideox",
    ),
    "hunyuan-video": Denoiser(
        joint=20, single=40, hidden=3072, heads=24, ffn=12288, words=256, word_width=4096, pooled=768, shrink=(4, 8),
        guided=False, guidance=True, encoder="", film="hunyuan-video",
    ),
    "sana-1.6b": Denoiser(
        linear=20, hidden=2240, heads=20, ffn=5600, words=300, word_width=2304, channels=32, shrink=(1, 32),
        patch=(1, 1), turned=False, encoder="",
    ),
    "latte": Denoiser(
        cross=28, moving=28, hidden=1152, heads=16, ffn=4608, words=120, word_width=4096, channels=4, spread=True,
        turned=False,
    ),
    "wan2.1-14b": Denoiser(
        cross=40, hidden=5120, heads=40, ffn=13824, words=512, word_width=4096, shrink=(4, 8), film="wan2.1"
    ),
    "wan2.1-1.3b": Denoiser(
        cross=30, hidden=1536, heads=12, ffn=8960, words=512, word_width=4096, shrink=(4, 8), film="wan2.1"
    ),
}  # fmt: skip
"""Source: config.json of each model's transformer on huggingface.co."""
