"""Words of a scenario of pictures: what is asked of a diffusion model, and how it is divided over devices."""

from __future__ import annotations

from ridgeline.graph.workload import PRECISIONS
from ridgeline.plan.sampling import DEGREES, OFFLOADS
from ridgeline.scenario.fields import TECHNIQUES, fields_of, one_of

TASK = "diffusion"
SAMPLING_FIELDS = fields_of("pictures", {"precision": one_of(PRECISIONS), "offload": one_of(OFFLOADS)})
DIVISION_FIELDS = (*fields_of("division"), TECHNIQUES)
PICTURE_FIELDS = tuple(
    entry
    for entry in (*SAMPLING_FIELDS, *DIVISION_FIELDS)
    if entry.name in ("width", "height", "frames", "steps", "decoded", "pictures_per_minute", "warm", *DEGREES)
)
"""Those words that no other workload has."""
