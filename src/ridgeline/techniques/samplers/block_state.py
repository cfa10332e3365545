"""Videos made block by block, each after a state of constant size that stands for all frames before it."""

from dataclasses import dataclass, replace
from typing import ClassVar

from ridgeline.errors import PlanError
from ridgeline.seams.sampler import Sampler, Stretch
from ridgeline.seams.technique import accuracy


@dataclass(frozen=True, kw_only=True)
class BlockLinearState(Sampler):
    """SANA-Video: a block of frames is denoised after a state of constant size, and one evaluation more renews it.

    What it adds: linear attention reads earlier frames as a sum of products of keys and values, of d x (d + 1) numbers
    a head, so a block costs the same wherever in a video it stands, and no cache grows with it; nor does the
    convolution in time, which reads the last frame before. `frames` are those of one block: a video of n blocks takes n
    times as long. When a block is clean the network reads it once more, for the state of the next.

    Checked: evaluations by hand, that a minute costs as many times a block as it has blocks, the authors' frames a
    second. Left out: reading the state, 20 MB in fp32 of all layers at 20 heads of 112; a first block of its own
    length.
    """

    key: ClassVar[str] = "block-linear-state"
    source: ClassVar[tuple[str, ...]] = ("sana-video",)
    owns: ClassVar[frozenset[str]] = frozenset({"evaluations", "guidance", "pipeline", "patches"})
    quality = accuracy("82.29 on VBench of 30 s, LongSANA of 2B", "sana-video", 82.29, "points")
    claims: ClassVar[tuple[str, ...]] = ("27.5 frames a second at 480p on an H100",)

    def stretches(self, plain: tuple[Stretch, ...]) -> tuple[Stretch, ...]:
        """Steps of a block with the share of the evaluation after them [1]; raises `PlanError` with guidance."""
        if any(one.evaluations != 1 for one in plain):
            raise PlanError("block-linear-state: needs a network distilled to one evaluation a step, as longsana")
        steps = sum(one.steps for one in plain)
        return tuple(replace(one, evaluations=1.0 + 1.0 / steps) for one in plain)
