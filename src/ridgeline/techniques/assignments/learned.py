"""A choice of devices by scores that were learned in the simulation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ridgeline.facts.job_pools import learned_scores
from ridgeline.seams.assignment import Chosen, Floats, JobAssignment, PoolJob, PoolView

_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class LearnedAssignment(JobAssignment):
    """Devices and sets of devices of the greatest learned score take a job; the order of jobs is learned as well.

    REACH's scheduler with linear scores where the paper has a Transformer: a score of each free device picks the best
    of every region and of all, a score of each such set picks one, and a job waits if none is above 0. Sets past the
    deadline are masked. An evolution strategy learned the weights from random pools that are not reported on
    (benchmarks/train_assignment.py); data/learned_assignment.toml has them. Checked: choices by hand, and pools that
    it never saw beside every other rule.

    Left out: attention between devices, observed congestion of links, prices, and jobs that are moved once they run.
    """

    key: ClassVar[str] = "learned-assignment"
    source: ClassVar[tuple[str, ...]] = ("reach2025",)
    claims: ClassVar[tuple[str, ...]] = ("task completion up to 17 % higher, bandwidth penalties down by over 80 %",)

    def weights(self, of: str) -> Floats:
        """Weights of the scores of jobs, devices or sets [1]."""
        return learned_scores(of)

    def order(self, waiting: Sequence[PoolJob]) -> Sequence[PoolJob]:
        """Those of the greatest score first."""
        if not waiting:
            return waiting
        seen = np.array([
            (job.high, -job.deadline_s / _HOUR_S, -job.work_s / _HOUR_S, -job.devices, -job.arrival_s / _HOUR_S)
            for job in waiting
        ], dtype=float)  # fmt: skip
        score = seen @ self.weights("jobs")
        return [waiting[one] for one in np.argsort(-score, kind="stable")]

    def sets(self, job: PoolJob, view: PoolView) -> Iterator[Chosen]:
        """The best-scored devices of each region that has enough of them, and of all [index]."""
        usable, devices = view.usable(job), view.devices
        seen = np.stack([
            np.log2(devices.speed[usable]), np.log2(devices.mtbf_s[usable] / _HOUR_S),
            -np.log2(devices.memory_bytes[usable] / job.memory_bytes), devices.region[usable] == job.region,
        ], axis=1)  # fmt: skip
        ranked = usable[np.argsort(-(seen @ self.weights("devices")), kind="stable")]
        regions = devices.region[ranked]
        for group in (ranked, *(ranked[regions == one] for one in np.unique(regions))):
            if len(group) >= job.devices:
                yield tuple(sorted(group[: job.devices].tolist()))

    def score(self, job: PoolJob, chosen: Chosen, view: PoolView) -> float:
        """Score of a set for a job [1]; that of waiting is 0."""
        devices, these = view.devices, list(chosen)
        seconds, left_s = devices.seconds(job, chosen), job.deadline_s - view.now_s
        if seconds > left_s:
            return -np.inf
        leaves = seconds * float((1.0 / devices.mtbf_s[these]).sum())
        speed = np.log2(devices.speed[these])
        seen = (
            1.0, leaves, job.high * leaves, seconds / left_s, devices.moves_s(job, chosen) / seconds,
            float(np.log2(devices.memory_bytes[these] / job.memory_bytes).mean()), float(speed.mean()),
            float(speed.mean() - speed.min()), float(view.free.mean()), float(job.high),
        )  # fmt: skip
        return float(np.dot(seen, self.weights("sets")))

    def choose(self, job: PoolJob, view: PoolView) -> Chosen:
        """The set of the greatest score [index], none where waiting has a greater one."""
        if len(view.usable(job)) < job.devices:
            return ()
        score, chosen = max(((self.score(job, one, view), one) for one in set(self.sets(job, view))), default=(0.0, ()))
        return chosen if score > 0.0 else ()
