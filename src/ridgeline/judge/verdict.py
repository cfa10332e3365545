"""What the judge of kernels says: findings, timings, and `fast_p` over a set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WRONG = frozenset({"unsolved", "wrong", "precision", "shape", "dtype", "raises", "crash", "stale", "mutates"})
"""Findings that are mistakes; all others are ways to cheat. Each is explained in docs/measure.md."""
FAST_P = (0.0, 1.0, 1.5, 2.0)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong with a candidate: its name, and where it showed."""

    name: str
    detail: str

    @property
    def kind(self) -> str:
        """Whether it is a mistake ('wrong') or a way to cheat ('cheat')."""
        return "wrong" if self.name in WRONG else "cheat"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of one call: median, and the 10th and 90th percentile over `repeats` calls."""

    median_s: float
    low_s: float
    high_s: float
    repeats: int


@dataclass(frozen=True, kw_only=True)
class KernelRoof:
    """The least time that a device's rates allow [s]: `flop` over its FLOP rate or `bytes` over its byte rate."""

    seconds: float
    flop: float
    bytes: float
    flop_per_s: float
    bytes_per_s: float
    source: str

    @property
    def bound(self) -> str:
        """Which of the two takes longer."""
        return "compute" if self.flop / self.flop_per_s >= self.bytes / self.bytes_per_s else "memory"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judge's answer for one candidate of one kernel file; timings are None where it was not timed."""

    file: str
    candidate: str
    findings: tuple[Finding, ...]
    cases: int
    candidate_time: Timing | None = None
    eager_time: Timing | None = None
    compiled_time: Timing | None = None
    roof: KernelRoof | None = None
    timed_size: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def correct(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def speedup(self) -> float | None:
        """Median of the reference over median of the candidate [1]; None where it was not timed."""
        if self.candidate_time is None or self.eager_time is None:
            return None
        return self.eager_time.median_s / self.candidate_time.median_s

    @property
    def roof_share(self) -> float | None:
        """Share of the roofline that the candidate reaches [1]."""
        if self.candidate_time is None or self.roof is None:
            return None
        return self.roof.seconds / self.candidate_time.median_s


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """How to judge: timed calls, device ('cpu' or 'cuda'), seconds before a candidate is stopped, rates or None."""

    repeats: int = 20
    device: str = "cpu"
    limit_s: float = 300.0
    compiled: bool = False
    flop_per_s: Mapping[str, float] = field(default_factory=dict)  # by number format
    bytes_per_s: float | None = None
    rates_source: str = ""


def fast_p(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Share of tasks that are correct and more than p times as fast as the reference, by p [1].

    Source: KernelBench (arXiv:2502.10517), section 3. Evidence: derived.

    >>> fast_p([])
    {}
    """
    from ridgeline.metrics.fast_p import FastP
    from ridgeline.metrics.results import Results

    if not verdicts:
        return {}
    rows = tuple({"speedup": one.speedup, "correct": one.correct} for one in verdicts)
    found = FastP(p=FAST_P).score(Results(name="verdicts", rows=rows)).values
    return {name: float(found[name] or 0.0) for name in (f"fast_{p:g}" for p in FAST_P)}


def as_dict(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON values with stable keys."""
    return {
        "file": verdict.file,
        "candidate": verdict.candidate,
        "correct": verdict.correct,
        "findings": [vars(one) | {"kind": one.kind} for one in verdict.findings],
        "cases": verdict.cases,
        "timed_size": verdict.timed_size,
        **{
            name: None if value is None else dict(vars(value))
            for name, value in (
                ("candidate_time", verdict.candidate_time),
                ("eager_time", verdict.eager_time),
                ("compiled_time", verdict.compiled_time),
                ("roof", verdict.roof),
            )
        },
        "speedup": verdict.speedup,
        "roof_share": verdict.roof_share,
        "remarks": list(verdict.remarks),
    }


def from_dict(answer: Mapping[str, Any]) -> Verdict:
    """The verdict that `as_dict` wrote."""

    def timing(name: str) -> Timing | None:
        return None if answer[name] is None else Timing(**answer[name])

    return Verdict(
        file=answer["file"],
        candidate=answer["candidate"],
        findings=tuple(Finding(name=one["name"], detail=one["detail"]) for one in answer["findings"]),
        cases=answer["cases"],
        candidate_time=timing("candidate_time"),
        eager_time=timing("eager_time"),
        compiled_time=timing("compiled_time"),
        roof=None if answer["roof"] is None else KernelRoof(**answer["roof"]),
        timed_size=answer["timed_size"],
        remarks=tuple(answer["remarks"]),
    )
