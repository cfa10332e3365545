"""A policy of streamed weights: what lies where, in which batches; the time of its closed form and its peaks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.errors import InputError, NoPlanError
from ridgeline.serving.streamed_costs import WEIGHTS, Floats, HostMachine, Job, Method, terms
from ridgeline.units import bytes_text

MOST_GPU_BATCH = 512
TIERS = ("GPU memory", "DRAM", "disk")
PLAIN = (Method(cpu_attention=True), Method(cpu_attention=False))


@dataclass(frozen=True, kw_only=True)
class StreamedPolicy:
    """A block, its batches, a method and shares (weights, cache, activations) x (GPU, DRAM, disk)."""

    gpu_batch: int
    gpu_batches: int
    shares: Floats
    method: Method = PLAIN[0]

    @property
    def block(self) -> int:
        """Sequences that go through a layer together [1]."""
        return self.gpu_batch * self.gpu_batches


@dataclass(frozen=True, kw_only=True)
class StreamedPlan:
    """A policy, what it takes, and how far it can be from the best.

    `tier_bytes` is the peak on GPU, in DRAM and on disk by the cost model; `programs` counts linear programs solved.
    """

    policy: StreamedPolicy
    prefill_s: float
    decode_s: float
    token_s: float
    bound_s: float
    tier_bytes: tuple[float, float, float]
    programs: int = 0
    elapsed_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Output tokens over the time of prefill and decode [1/s]."""
        return 1.0 / self.token_s

    @property
    def gap(self) -> float:
        """How far the time per token can be from the least one, as a share of it [1]."""
        return max(0.0, round(1.0 - self.bound_s / self.token_s, 9))

    def fits(self, machine: HostMachine) -> bool:
        """Whether the peak of every tier is within what may be used of it."""
        return bool((np.array(self.tier_bytes) <= machine.usable_bytes * (1 + 1e-6)).all())

    def check(self, machine: HostMachine) -> None:
        """Raises `NoPlanError` where a tier does not hold its peak."""
        if self.fits(machine):
            return
        over = [peak / max(room, 1.0) for peak, room in zip(self.tier_bytes, machine.usable_bytes, strict=True)]
        tier = over.index(max(over))
        raise NoPlanError(
            f"a batch of {self.policy.block:,} takes {bytes_text(self.tier_bytes[tier])} of {TIERS[tier]} for weights,"
            f" cache and activations, which has {bytes_text(float(machine.usable_bytes[tier]))}; take a smaller --batch"
            " or --device-share, shorter requests, more memory (--dram), or a disk (--storage)"
        )

    def text(self, machine: HostMachine) -> str:
        """The policy in words, with the peak of each tier."""
        policy = self.policy
        shares = ", ".join(
            f"{kind} {'/'.join(f'{100.0 * share:.3g}' for share in row)} %"
            for kind, row in zip(("weights", "cache", "activations"), policy.shares, strict=True)
        )
        peaks = ", ".join(
            f"{bytes_text(peak)} of {bytes_text(float(room))} {tier}"
            for peak, room, tier in zip(self.tier_bytes, machine.usable_bytes, TIERS, strict=True)
            if room
        )
        where = "on processors over cache in DRAM" if policy.method.cpu_attention else "on the device"
        return (
            f"{policy.gpu_batches:,} x {policy.gpu_batch:,} sequences share a fetch of the weights; on GPU/DRAM/disk"
            f" {shares}; attention of decoding sequences {where}; peak {peaks}"
        )


def vector_of(shares: Floats, block: int) -> Floats:
    """The vector v of `streamed_costs` for shares (3, 3) of a block [1]."""
    inverse, others = 1.0 / block, shares[1:].ravel()
    vector: Floats = np.concatenate([shares[WEIGHTS] * inverse, others, [inverse], others * inverse])
    return vector


def evaluate(job: Job, machine: HostMachine, policy: StreamedPolicy) -> StreamedPlan:
    """Time and peak memory of a given policy, whether or not it fits; its bound is 0, as none is sought.

    The closed form that the program of `place` must meet. Raises `InputError` for shares that are not 3 x 3, or whose
    rows do not add up to 1.
    """
    shares = np.asarray(policy.shares, dtype=np.float64)
    if shares.shape != (3, 3) or (shares < -1e-9).any() or not np.allclose(shares.sum(axis=1), 1.0):
        raise InputError("shares are 3 x 3, at least 0, and each row adds up to 1", field="shares")
    found = terms(job, machine, policy.gpu_batch, policy.method)
    vector = vector_of(shares, policy.block)
    passes = job.layers * policy.block
    prefill_s = passes * float((found.prefill_s @ vector).max())
    decode_s = passes * (job.output_tokens - 1) * float((found.decode_s @ vector).max())
    token_s = (prefill_s + decode_s) / (policy.block * job.output_tokens)
    gpu, cpu, disk = (policy.block * float((rows @ vector).max()) for rows in found.tier_bytes)
    return StreamedPlan(
        policy=policy,
        prefill_s=prefill_s,
        decode_s=decode_s,
        token_s=token_s,
        bound_s=0.0,
        tier_bytes=(gpu, cpu, disk),
    )
