"""Networks that classify images and count an image as one token, by name."""

from __future__ import annotations

from ridgeline.errors import UnknownNameError
from ridgeline.graph.convolutional import CONVOLUTIONAL, convolutional
from ridgeline.graph.mobile import MOBILE, mobile
from ridgeline.graph.model import Model
from ridgeline.graph.patches import PATCHED, patched
from ridgeline.graph.vision import RESIDUAL, Turned, residual

CLASSIFIERS = (*RESIDUAL, *MOBILE, *CONVOLUTIONAL, *PATCHED)


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
