"""Words of a scenario of pictures: what is asked of a diffusion model, and how it is divided over devices."""

from __future__ import annotations

from ridgeline.graph.workload import PRECISIONS
from ridgeline.plan.sampling import DEGREES, LONGEST_SIDE, MOST, OFFLOADS
from ridgeline.scenario.fields import TECHNIQUES, Field, pick, whole, yes

TASK = "diffusion"

SAMPLING_FIELDS: tuple[Field, ...] = (
    pick("task", (TASK,), "pictures are sampled"),
    whole("width", "pixels across", most=LONGEST_SIDE),
    whole("height", "pixels down", most=LONGEST_SIDE),
    whole("frames", "frames of a video", most=MOST),
    whole("steps", "denoising steps", most=MOST),
    whole("batch", "pictures made at a time", most=MOST),
    pick("precision", PRECISIONS, "format of the denoiser's products"),
    pick("execution", ("eager", "compiled", "graph"), "how kernels are launched"),
    pick("attention_kernel", ("flash", "flash1", "flash2", "unfused"), "attention kernel"),
    pick("offload", OFFLOADS, "what waits in host memory: nothing, models not in use, or layers not in use"),
    yes("decoded", "words are read and pixels made as well"),
    whole("pictures_per_minute", "pictures a minute that are wanted of the whole cluster"),
)

DIVISION_FIELDS: tuple[Field, ...] = (
    whole("guidance", "devices for the two sides of classifier-free guidance", most=2),
    whole("ulysses", "devices that trade patches for heads"),
    whole("ring", "devices among which keys and values pass round"),
    whole("tensor", "devices that share a layer's width"),
    whole("pipeline", "devices that share the layers (PipeFusion)"),
    whole("patches", "devices that hold a part of the picture each, with keys and values of the whole"),
    whole("warm", "first steps in which the pipeline waits", least=0),
    TECHNIQUES,
)

PICTURE_FIELDS = tuple(
    entry
    for entry in (*SAMPLING_FIELDS, *DIVISION_FIELDS)
    if entry.name in ("width", "height", "frames", "steps", "decoded", "pictures_per_minute", "warm", *DEGREES)
)
"""Those words that no other workload has."""
