"""A policy of streamed weights: what lies where, in which batches, and what that holds of each memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.errors import InputError, NoPlanError
from ridgeline.serving.streamed_costs import WEIGHTS, Floats, HostMachine, Job, tier_bytes
from ridgeline.units import bytes_text

MOST_GPU_BATCH = 512
TIERS = ("GPU memory", "DRAM", "disk")


@dataclass(frozen=True, kw_only=True)
class StreamedPolicy:
    """A block, its batches, and shares (weights, cache, activations) x (GPU, DRAM, disk).

    `cpu_attention` says that processors attend to cache that lies beside the GPU.
    """

    gpu_batch: int
    gpu_batches: int
    shares: Floats
    cpu_attention: bool = True

    @property
    def block(self) -> int:
        """Sequences that go through a layer together [1]."""
        return self.gpu_batch * self.gpu_batches

    def held_bytes(self, job: Job) -> tuple[float, ...]:
        """Peaks on GPU, in DRAM and on disk, whether or not they fit [byte].

        Raises `InputError` for shares that are not 3 x 3, or whose rows do not add up to 1.
        """
        shares = np.asarray(self.shares, dtype=np.float64)
        if shares.shape != (3, 3) or (shares < -1e-9).any() or not np.allclose(shares.sum(axis=1), 1.0):
            raise InputError("shares are 3 x 3, at least 0, and each row adds up to 1", field="shares")
        vector = vector_of(shares, self.block)
        tiers = tier_bytes(job, self.gpu_batch, cpu_attention=self.cpu_attention)
        return tuple(self.block * float((rows @ vector).max()) for rows in tiers)

    def fits(self, job: Job, machine: HostMachine) -> bool:
        """Whether the peak of every tier is within what may be used of it."""
        return bool((np.array(self.held_bytes(job)) <= machine.usable_bytes * (1 + 1e-6)).all())

    def check(self, job: Job, machine: HostMachine) -> None:
        """Raises `NoPlanError` where a tier does not hold its peak."""
        if self.fits(job, machine):
            return
        held = self.held_bytes(job)
        over = [peak / max(room, 1.0) for peak, room in zip(held, machine.usable_bytes, strict=True)]
        tier = over.index(max(over))
        raise NoPlanError(
            f"a batch of {self.block:,} takes {bytes_text(held[tier])} of {TIERS[tier]} for weights,"
            f" cache and activations, which has {bytes_text(float(machine.usable_bytes[tier]))}; take a smaller --batch"
            " or --device-share, shorter requests, more memory (--dram), or a disk (--storage)"
        )

    def text(self, job: Job, machine: HostMachine) -> str:
        """The policy in words, with the peak of each tier."""
        shares = ", ".join(
            f"{kind} {'/'.join(f'{100.0 * share:.3g}' for share in row)} %"
            for kind, row in zip(("weights", "cache", "activations"), self.shares, strict=True)
        )
        peaks = ", ".join(
            f"{bytes_text(peak)} of {bytes_text(float(room))} {tier}"
            for peak, room, tier in zip(self.held_bytes(job), machine.usable_bytes, TIERS, strict=True)
            if room
        )
        where = "on processors over cache in DRAM" if self.cpu_attention else "on the device"
        return (
            f"{self.gpu_batches:,} x {self.gpu_batch:,} sequences share a fetch of the weights; on GPU/DRAM/disk"
            f" {shares}; attention of decoding sequences {where}; peak {peaks}"
        )


def vector_of(shares: Floats, block: int) -> Floats:
    """The vector v of `streamed_costs` for shares (3, 3) of a block [1]."""
    inverse, others = 1.0 / block, shares[1:].ravel()
    vector: Floats = np.concatenate([shares[WEIGHTS] * inverse, others, [inverse], others * inverse])
    return vector
