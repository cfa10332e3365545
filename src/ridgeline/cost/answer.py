"""What is asked of an operator's price, and what is answered: sizes in, a cost with interval and evidence out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from ridgeline.facts.mechanisms import constant
from ridgeline.facts.records import Evidence
from ridgeline.lower.work import Number


class Rung(Enum):
    """Where a price comes from, best first."""

    TABLE = "table"  # interpolated between measured kernels of this device and library
    FITTED = "fitted"  # the mechanism, with values fitted to this device and library
    BORROWED = "borrowed"  # the mechanism, with values of related devices
    COMMON = "common"  # the mechanism on the datasheet's rates, with what the values of other devices have in common
    DATASHEET = "datasheet"  # borrowed or common, with no rate that anyone measured on the device itself
    FORMULA = "mechanism"  # a formula on sustained rates, with nothing fitted to kernels of the family's tables


ALL = (Rung.TABLE, Rung.FITTED, Rung.BORROWED, Rung.COMMON)
"""Every rung that answers, best first."""
FITS = (Rung.FITTED, Rung.BORROWED, Rung.COMMON)
"""Those of mechanisms alone, which price served layers."""


def worst(rungs: Sequence[Rung]) -> Rung:
    """The lowest of the rungs that answered; raises ValueError for none."""
    return max(rungs, key=ALL.index)


@dataclass(frozen=True, kw_only=True)
class Question:
    """An operator to price: sizes as its family's mechanism takes them, number format, and library if it matters."""

    family: str
    sizes: Mapping[str, Number]
    form: str = "bf16"
    engine: str = ""  # vllm, sglang, trtllm, nccl; '' any
    version: str = ""
    kernel: str = ""  # text that may name the kernel's source; '' whichever the engine takes
    issue_s: float = 0.0  # host time to issue it, where calls are not captured in a graph [s]
    alone: bool = False  # whether the host waits for each call before it issues the next
    hybrid: bool = False  # whether some of the model's layers keep a state in place of a cache


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a piece of work costs on one machine under one policy: time [s], FLOP, bytes, kernels, and how it is known.

    `compute_s` and `memory_s` are parts that overlap in the time [s]; `low_s` and `high_s` the ends of its 80 %
    interval, where a single price is asked. `timed` says that the host's part is in it already. `rate` is the key of
    the sustained rate that decides ('hbm', 'matrix.bf16', '' where kernels of the device itself were measured). Numbers
    may be arrays in the shape of the work's.
    """

    seconds: Number
    flop: Number = 0.0
    bytes: Number = 0.0
    compute_s: Number = 0.0
    memory_s: Number = 0.0
    kernels: Number = 1.0
    timed: bool = False
    low_s: Number = 0.0
    high_s: Number = 0.0
    evidence: Evidence = Evidence.DERIVED
    rung: Rung = Rung.FORMULA
    library: str = ""
    source: str = ""
    rate: str = ""


def together(costs: Iterable[Cost]) -> Cost:
    """Kernels one after another, as numbers: their sums [s]."""
    known = list(costs)

    def total(name: str) -> float:
        return sum(float(np.asarray(getattr(cost, name))) for cost in known)

    return Cost(
        seconds=total("seconds"), flop=total("flop"), bytes=total("bytes"), compute_s=total("compute_s"),
        memory_s=total("memory_s"), kernels=total("kernels"),
    )  # fmt: skip


def interval(seconds: float, rung: Evidence) -> tuple[float, float]:
    """Low and high end of the 80 % interval of a time [s].

    The factors are the 10 % and 90 % quantiles of measured / predicted over operator rows, per rung; rungs
    below the measured one have wider ones. What is assumed has both ends of the derived rung as much farther out as on
    the one measured device whose vendor lends nothing. Source: rows interval.* of the mechanism table.
    """
    if rung is Evidence.ASSUMED:
        far, (low, high) = constant("interval.foreign"), interval(seconds, Evidence.DERIVED)
        return low / far, high * far
    name = "measured" if rung >= Evidence.MEASURED else rung.name.lower()
    return seconds * constant(f"interval.{name}.low"), seconds * constant(f"interval.{name}.high")


def held_by_host(answer: Cost, issue_s: float, hosts_s: tuple[float, float], *, alone: bool = False) -> Cost:
    """The answer when the host takes `issue_s` to issue each call [s]: the longer of both, their sum where it waits.

    Calls in a row are issued while the one before runs; one that is timed `alone` starts when it has been issued. Each
    end of the interval has at least what the quickest and the slowest of known hosts take, `hosts_s`.
    """
    if issue_s <= 0:
        return answer
    least_s, most_s = min(issue_s, hosts_s[0]), max(issue_s, hosts_s[1])
    if alone:
        return replace(
            answer, seconds=answer.seconds + issue_s, low_s=answer.low_s + least_s, high_s=answer.high_s + most_s
        )
    return replace(
        answer,
        seconds=np.maximum(answer.seconds, issue_s),
        low_s=np.maximum(answer.low_s, least_s),
        high_s=np.maximum(answer.high_s, most_s),
    )
