"""Several processes of one engine on one device, each with a copy of the model, at the batch of the knee."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ridgeline.plan.deployment import Deployment
from ridgeline.seams.serving import Instance, NanoBatches
from ridgeline.seams.setting import Setting
from ridgeline.seams.technique import param

_REFERENCE = 32  # sequences whose latency bounds that of the batch, and batches that are compared; section V
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True, kw_only=True)
class DeviceReplicas(NanoBatches):
    """Replicas of a small model on one device, side by side under MPS (Mind the Memory Gap).

    The device serves `count` processes, each with weights, graphs and a host process of its own and its part of the
    sequences: `max_seqs`, the token budget and the device's memory are of all together. While one process prepares its
    next iteration, or waits for memory, kernels of the others run. A step takes what the busiest of multiprocessors,
    memory and link needs for all, and no less than one process needs for its kernels and its host.

    With a `knee` the batch of each is the adviser's: the largest whose throughput a sequence is more than that share of
    a single sequence's, and whose step takes at most `slower` times that of 32 sequences, both at `context`.

    Left out: processes are in step with each other, so that prompts of one are not computed beside decode steps of
    another; caches on the chip that they take from each other.
    """

    key: ClassVar[str] = "device-replicas"
    source: ClassVar[tuple[str, ...]] = ("mind-the-memory-gap", "mind-the-memory-gap-code")
    in_words: ClassVar[bool] = False
    claims: ClassVar[tuple[str, ...]] = ("a third more throughput of OPT-1.3B, two replicas of 256 sequences",)
    tokens: int = param(
        1, "tokens", "iterations of so many tokens are shared out among the replicas", low=1, high=10_000_000
    )
    count: int = param(2, "replicas", "processes that share the device", low=2, high=64)
    knee: float | None = param(
        None, "1", "share of a single sequence's throughput that each sequence of a batch keeps; any when absent",
        low=0.001, high=1.0,
    )  # fmt: skip
    slower: float = param(5.0, "1", "longest step of that batch, over the step of 32 sequences", low=1.0, high=1000.0)
    context: int = param(512, "tokens", "context at which the adviser compares batches", low=1, high=10_000_000)

    @property
    def replicas(self) -> int:
        """Processes on one device [1]."""
        return self.count

    def refusal(self, deployment: Deployment) -> str:
        """Models that are divided over devices."""
        return f"shares one device, an instance has tp {deployment.tp}; say tp 1" if deployment.tp > 1 else ""

    def axes(self, setting: Setting) -> tuple[str, ...]:
        """Two and four replicas."""
        return tuple(replace(self, count=count).text for count in (2, 4))

    def sharing(self, instance: Instance) -> Mapping[str, float]:
        """Each process has 1 / count of the kernels, then its host's time, where that is not beside the device."""
        from ridgeline.serving.nano import shares

        memory_sms, link_sms = shares()
        policy = instance.policy
        found = {
            "nano_tokens": float(max(self.tokens, self.count)), "memory_sms": memory_sms, "link_sms": link_sms,
            "chain": 1.0 / self.count,
        }  # fmt: skip
        if policy.overlapped_host:
            return {**found, "seq_host_s": policy.seq_host_s / self.count}
        own = {"chain_step_s": policy.step_host_s, "chain_seq_s": policy.seq_host_s / self.count}
        return {**found, **own, "step_host_s": 0.0, "seq_host_s": 0.0, "overlapped": 1.0}

    def numbers(self, instance: Instance, stride: int) -> Mapping[str, float]:
        """How they share the device, and the batch of the knee."""
        if self.knee is None:
            return self.sharing(instance)
        most = self.count * advised(*self._curve(instance), knee=self.knee, slower=self.slower)
        return {**self.sharing(instance), "max_seqs": float(min(most, instance.policy.max_seqs))}

    def _curve(self, instance: Instance) -> tuple[list[int], list[float]]:
        """Batches of one process alone on the device, and their steps [s]."""
        import numpy as np

        batches = [each for each in _BATCHES if each <= max(instance.policy.max_seqs // self.count, 1)]
        tables = instance.steps.tables(
            most_tokens=batches[-1], most_sequences=batches[-1], most_context=self.context, captured=True
        )
        sized = np.array(batches, dtype=float)
        lane, group = (np.interp(sized, tables.tokens, each.mid) for each in (tables.lane, tables.group))
        decode = np.broadcast_to(tables.decode.mid, (len(tables.sequences), len(tables.contexts)))
        read = np.array([np.interp(float(self.context), tables.contexts, row) for row in decode])
        step = lane + group + np.interp(sized, tables.sequences, tables.head.mid + read)
        host = instance.policy.step_host_s + instance.policy.seq_host_s * sized
        step = np.maximum(step, host) if instance.policy.overlapped_host else step + host
        return batches, step.tolist()

    def told(self) -> str:
        """How many."""
        return f"{self.count} replicas on one device"


def advised(batches: Sequence[int], step_s: Sequence[float], *, knee: float, slower: float) -> int:
    """The largest batch B before the knee [1]: T(B) > knee B T(1) and t(B) <= slower t(32), T(B) = B / t(B).

    Of steps t [s] of ascending batches, the first of one sequence; the smallest where none keeps both. Source: the
    authors' benchmarks/definitive_results/advisor/bopt_plots/plots.py (plot_results).

    >>> advised([1, 32, 64, 128], [1.0, 2.0, 4.0, 9.0], knee=0.2, slower=5.0)  # 1/2, 1/4 and 1/9 of a sequence's
    64
    """
    reference = step_s[min(range(len(batches)), key=lambda place: abs(batches[place] - _REFERENCE))]
    kept = [
        batch
        for batch, taken in zip(batches, step_s, strict=True)
        if step_s[0] / taken > knee and taken <= slower * reference
    ]
    return max(kept, default=batches[0])
