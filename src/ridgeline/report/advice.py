"""The report of `advise`: what limits a scenario, what would help, by how much and at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.report.blocks import Block, Printed


@dataclass(frozen=True, kw_only=True)
class LimitPart:
    """A part of the time of a scenario: `kind` is what it keeps busy, `share` its part of the whole [1]."""

    part: str
    kind: str
    seconds: float
    share: float


@dataclass(frozen=True, kw_only=True)
class AdvisedValue:
    """A number with its 80 % interval; how many times better an objective becomes [1]."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Advised:
    """A technique or lever, tried alone on what the person wrote.

    `written` is how a person says it. `gain` [1] is how many times better the objective becomes, its interval that of
    the difference where both err alike; None where nothing can be compared, as the baseline does not run.
    `memory_bytes` is the peak of a device with it, `excess_bytes` what of it does not fit [byte]. `quality` says what
    it costs in accuracy and who measured it, `effort` which programs have it, `why` what it shortens here and `then`
    what limits after it.
    """

    written: str
    technique: str
    what: str
    gain: AdvisedValue | None
    memory_bytes: float
    excess_bytes: float
    quality: str
    effort: str
    why: str
    then: str

    @property
    def fits(self) -> bool:
        """Whether it runs in the memory there is."""
        return self.excess_bytes <= 0.0


@dataclass(frozen=True, kw_only=True)
class StackStep:
    """One step of the best stack: what is added to those before it, and what the objective then is."""

    written: str
    technique: str
    value: float | None  # of the objective; None while it does not fit
    gain: AdvisedValue | None  # over the step before
    memory_bytes: float
    excess_bytes: float
    why: str
    then: str


@dataclass(frozen=True, kw_only=True)
class RunnablePart:
    """What of a stack that no program has whole one program runs: how it is written, and the objective with it."""

    programs: str
    words: str
    value: float | None  # of the objective; None while it does not fit
    gain: AdvisedValue | None  # over the baseline


@dataclass(frozen=True, kw_only=True)
class Advice(Printed):
    """The answer to `advise`.

    `objective` is one of time, memory, goodput, dollars, joules, `unit` that of its values, of which less is better
    but for `goodput`. `baseline` tells what was written and completed, `load` what a replay used. `floor` is the least
    that the objective can be at the same prices whatever is chosen, by `floor_why`; None where nothing is known.
    """

    title: str
    objective: str
    unit: str
    baseline: str
    load: str
    value: float | None
    memory_bytes: float
    excess_bytes: float
    capacity_bytes: float
    limits: tuple[LimitPart, ...]
    limit: str
    floor: float | None
    floor_why: str
    helps: tuple[Advised, ...]  # the best first
    idle: Mapping[str, str] = field(default_factory=dict)  # tried, of no gain: why
    refused: Mapping[str, str] = field(default_factory=dict)  # techniques that do not apply: the reason in a phrase
    illegal: Mapping[str, str] = field(default_factory=dict)  # levers that the scenario cannot have: the reason
    stack: tuple[StackStep, ...] = ()
    stack_gain: AdvisedValue | None = None
    stack_effort: str = ""  # programs that run it
    stack_words: str = ""  # the best stack as a person writes it
    part: RunnablePart | None = None  # where no program has all of it
    best: float | None = None
    tried: int = 0
    simulated: int = 0
    assumed: tuple[str, ...] = ()

    @property
    def measure(self) -> str:
        """The objective by what its value counts: outputs a second are a throughput, tokens that fit a cache."""
        return {"output tokens/s": "throughput", "tokens of cache": "cache"}.get(self.unit, self.objective)

    @property
    def fits(self) -> bool:
        """Whether the baseline runs in the memory there is."""
        return self.excess_bytes <= 0.0

    def blocks(self) -> list[Block]:
        """What `ridgeline advise` prints."""
        from ridgeline.report.advice_text import advice_blocks

        return advice_blocks(self)
