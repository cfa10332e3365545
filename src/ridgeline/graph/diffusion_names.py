"""Diffusion models by the names that people and tables give them."""

from __future__ import annotations

import re

from ridgeline.errors import UnknownNameError
from ridgeline.graph.denoiser_specs import DENOISERS
from ridgeline.graph.diffusion import UNETS

NAMES: tuple[tuple[str, str], ...] = (
    (r"^sd[- ]?v?1[.]?[45]$|^stable.diffusion[- ]?v?1[.-][45]$", "stable-diffusion-1"),
    (r"^sd[- ]?v?2(?:\.[01])?$|^stable.diffusion[- ]?v?2(?:[.-][01])?(?:-base)?$", "stable-diffusion-2"),
    (r"^sdxl(?:[- ](?:base[- ]?)?1\.0)?$|^stable.diffusion[- ]?xl(?:-base)?(?:[- ]1\.0)?$", "stable-diffusion-xl"),
    (r"^playground[- ]?v?2(?:\.5)?$", "stable-diffusion-xl"),
    (r"^flux\.?1?[- .]\[?(dev|schnell)\]?$", r"flux.1-\1"),
    (r"^flux\.?1?[- ]krea(?:[- ]dev)?$", "flux.1-dev"),
    (r"^(?:sd|stable.diffusion)[- ]?3[- ]medium$", "sd3-medium"),
    (r"^pixart[- ](?:alpha|α)$", "pixart-alpha"),
    (r"^hunyuan-?dit$", "hunyuan-dit"),
    (r"^cogvideox-(2b|5b)$", r"cogvideox-\1"),
    (r"^cogvideox-?1\.5-5b$", "cogvideox-1.5-5b"),
    (r"^consisid\b", "consisid"),
    (r"^sana[- ]?1\.6b$", "sana-1.6b"),
    (r"^hunyuan-?video$", "hunyuan-video"),
    (r"^latte(?:-1)?$", "latte"),
    (r"^wan-?2\.1[- ](?:t2v[- ])?(1\.3b|14b)$", r"wan2.1-\1"),
)
"""Models by their names in tables: (name, model). Some are another's denoiser with weights of their own.
Source: unet/config.json of playgroundai/playground-v2.5-1024px-aesthetic and transformer/config.json of
black-forest-labs/FLUX.1-Krea-dev."""


def find_diffusion(text: str) -> str | None:
    """The diffusion model that a name means, its organisation before '/' left out; None where none is meant.

    >>> find_diffusion("black-forest-labs/FLUX.1-dev"), find_diffusion("sdxl")
    ('flux.1-dev', 'stable-diffusion-xl')
    """
    name = text.strip().rsplit("/", 1)[-1]
    if name.casefold() in (*DENOISERS, *UNETS):
        return name.casefold()
    matches = ((re.match(pattern, name, re.IGNORECASE), known) for pattern, known in NAMES)
    return next((match.expand(known).casefold() for match, known in matches if match), None)


def diffusion_model(text: str) -> str:
    """The diffusion model that a name means; raises `UnknownNameError`, with the nearest names, where none is meant."""
    found = find_diffusion(text)
    if found is None:
        known = (*DENOISERS, *UNETS)
        raise UnknownNameError("diffusion model", text[:60], known, hint=f"known: {', '.join(known)}")
    return found
