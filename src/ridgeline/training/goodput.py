"""What failures, checkpoints and waiting hosts leave of a training run's time.

Failures come at random at a constant rate: M = device MTBF / devices is the mean time between those of the job [s].
Work goes on for t between two saves, each stops it for C, and a failure costs a restart R and the work since the last
save. Time is from the expectations of this process alone; nothing is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, log, sqrt

_LARGEST = 600.0  # exponents beyond it are no run
_STEPS = 200


def young_interval_s(save_s: float, mtbf_s: float) -> float:
    """Work between two saves that loses the least time, to first order [s]: sqrt(2 C M).

    Domain: C much shorter than M. Source: young1974.

    >>> round(young_interval_s(60.0, 30_000.0), 3)
    1897.367
    """
    return sqrt(2.0 * save_s * mtbf_s)


def daly_interval_s(save_s: float, mtbf_s: float) -> float:
    """Work between two saves that loses the least time, to higher order [s].

    sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + C / (18 M)) - C where C < 2 M, else M. Source: daly2006, equation 37.
    """
    if save_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = save_s / (2.0 * mtbf_s)
    return young_interval_s(save_s, mtbf_s) * (1.0 + sqrt(ratio) / 3.0 + ratio / 9.0) - save_s


def segment_s(interval_s: float, save_s: float, restart_s: float, mtbf_s: float) -> float:
    """Expected time of one interval of work and its save [s]: M exp(R / M) (exp((t + C) / M) - 1).

    Failures may strike during work, save and restart. Infinite where it would never end. Source: daly2006, equation 13.
    """
    exponent = (interval_s + save_s) / mtbf_s
    if exponent + restart_s / mtbf_s > _LARGEST:
        return float("inf")
    return mtbf_s * exp(restart_s / mtbf_s) * expm1(exponent)


def work_share(interval_s: float, save_s: float, restart_s: float, mtbf_s: float) -> float:
    """Share of time that is work which is not lost again [1]: t over the expected time of an interval."""
    return interval_s / segment_s(interval_s, save_s, restart_s, mtbf_s)


def best_interval_s(save_s: float, restart_s: float, mtbf_s: float, *, least_s: float) -> float:
    """Interval of the greatest `work_share`, at least `least_s` [s]: the exact optimum, by golden section.

    It does not depend on R. Where saves take no time the least interval is best.
    """
    if save_s <= 0.0:
        return least_s
    low, high = log(young_interval_s(save_s, mtbf_s) / 100.0), log(max(daly_interval_s(save_s, mtbf_s), save_s) * 10.0)
    ratio = (sqrt(5.0) - 1.0) / 2.0
    for _ in range(_STEPS):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if work_share(exp(left), save_s, restart_s, mtbf_s) >= work_share(exp(right), save_s, restart_s, mtbf_s):
            high = right
        else:
            low = left
    return max(least_s, exp((low + high) / 2.0))


def hosts_share(hosts: int, spares: int, repair_s: float, host_mtbf_s: float) -> float:
    """Share of time in which no more hosts are in repair than there are spares [1].

    Hosts in repair are Poisson with mean a = hosts x repair / host MTBF: failures at random, each repaired by itself.
    Lower bound: hosts that wait fail as often as those that work.
    """
    mean = hosts * repair_s / host_mtbf_s
    term = total = exp(-mean) if mean < _LARGEST else 0.0
    for broken in range(1, spares + 1):
        term *= mean / broken
        total += term
    return min(1.0, total)


def straggler_factor(hosts: int, slow_share: float, slowdown: float) -> float:
    """How much longer a synchronous step takes where hosts are slow at times [1].

    1 + d (1 - (1 - p)^H): each of H hosts is slow in a share p of steps, and then takes 1 + d as long.
    """
    return 1.0 + slowdown * (1.0 - (1.0 - slow_share) ** hosts)


@dataclass(frozen=True, kw_only=True)
class SaveCost:
    """What one checkpoint and a return to it take.

    `stops_s` is the time that training stands still for a save, `lasts_s` until what was saved is safe; `load_s` reads
    it back.
    """

    stops_s: float
    lasts_s: float
    load_s: float


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """A run under failures: shares of its time [1], and what they follow from.

    `mtbf_s` between failures of the job, `interval_s` of work between saves, `restart_s` from a failure to work.
    `work_share` is left by saves, lost work and restarts, `hosts_share` by waiting for hosts, `straggler_share` by slow
    ones; `goodput` is their product.
    """

    technique: str
    mtbf_s: float
    mtbf_low_s: float
    mtbf_high_s: float
    failures: float
    checkpoint_bytes: float
    save: SaveCost
    interval_s: float
    restart_s: float
    work_share: float
    hosts_share: float
    straggler_share: float
    throughput_share: float
    run_time_s: float
    run_low_s: float
    run_high_s: float
    assumed: tuple[str, ...]

    @property
    def goodput(self) -> float:
        """Share of the time that a run without failures would take [1]."""
        return self.work_share * self.hosts_share * self.straggler_share * self.throughput_share
