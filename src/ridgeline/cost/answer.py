"""What is asked of an operator's price, and what is answered: sizes in, seconds with interval and rung out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from ridgeline.facts.records import Evidence
from ridgeline.lower.work import Number


class Rung(Enum):
    """Where a price comes from, best first."""

    TABLE = "table"  # interpolated between measured kernels of this device and library
    FITTED = "fitted"  # the mechanism, with values fitted to this device and library
    BORROWED = "borrowed"  # the mechanism, with values of related devices
    COMMON = "common"  # the mechanism on the datasheet's rates, with what the values of other devices have in common
    DATASHEET = "datasheet"  # borrowed or common, with no rate that anyone measured on the device itself


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
class Answer:
    """Time [s] with its 80 % interval and the parts that overlap in it; arrays in the shape of the sizes."""

    seconds: Number
    low_s: Number
    high_s: Number
    compute_s: Number
    memory_s: Number
    rung: Rung
    library: str
    source: str
    evidence: Evidence


def held_by_host(answer: Answer, issue_s: float, hosts_s: tuple[float, float], *, alone: bool = False) -> Answer:
    """The answer when the host takes `issue_s` to issue each call [s]: the longer of both, their sum where it waits.

    Calls in a row are issued while the one before runs; one that is timed `alone` starts when it has been issued. Each
    end of the interval has at least what the quickest and the slowest of known hosts take, `hosts_s`.
    """
    if issue_s <= 0:
        return answer
    least_s, most_s = min(issue_s, hosts_s[0]), max(issue_s, hosts_s[1])
    if alone:
        return replace(
            answer,
            seconds=answer.seconds + issue_s,
            low_s=answer.low_s + least_s,
            high_s=answer.high_s + most_s,
        )
    return replace(
        answer,
        seconds=np.maximum(answer.seconds, issue_s),
        low_s=np.maximum(answer.low_s, least_s),
        high_s=np.maximum(answer.high_s, most_s),
    )
