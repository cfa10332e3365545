"""What an answer holds: numbers with intervals and evidence, what limits them, what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ridgeline.facts.records import Cluster, Evidence
from ridgeline.graph.model import SAMPLE, Model
from ridgeline.graph.workload import Workload
from ridgeline.lower.tasks import TaskGraph
from ridgeline.memory.stage import peak_interval, reserved_bytes
from ridgeline.plan.plan import Plan
from ridgeline.report.blocks import Block, Printed
from ridgeline.report.evidence import Known, Sensitivity
from ridgeline.timeline.simulate import Timeline
from ridgeline.units import bytes_text, time_text

if TYPE_CHECKING:
    from ridgeline.training.goodput import Goodput


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A predicted number in `unit`, its 80 % interval and the lowest rung of evidence behind it."""

    value: float
    low: float
    high: float
    unit: str
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class Share:
    """A part of the step time on the critical stage: `kind` is compute, hbm, link, bubble or host."""

    label: str
    kind: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class OpRow:
    """One operator of one block on one rank, for one micro-batch; times in seconds."""

    block: str
    op: str
    layers: int
    forward_s: float
    backward_s: float
    flop: float
    bytes: float
    bound: str  # 'compute', 'hbm', 'link' or 'host'
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Peak bytes of one device of one pipeline stage, by category, against its capacity."""

    stage: int
    categories: Mapping[str, float]  # weights, gradients, optimizer, activations, logits, buffers, context
    capacity_bytes: float
    measured: bool = False  # whether several sources measured such peaks of the framework
    reserved_share: float = 0.0  # of transient bytes, what the allocator keeps beside them while memory lasts [1]

    @property
    def reserved_bytes(self) -> float:
        """What tools of the driver show [byte]: the total, and what the allocator keeps unused up to the capacity."""
        more = reserved_bytes(self.categories, self.reserved_share)
        return max(self.total_bytes, min(self.capacity_bytes, self.total_bytes + more))

    @property
    def total_bytes(self) -> float:
        """Sum over the categories [byte]."""
        return sum(self.categories.values())

    @property
    def interval_bytes(self) -> tuple[float, float]:
        """Low and high end of the total's 80 % interval [byte]."""
        return peak_interval(self.categories, measured=self.measured)

    @property
    def headroom_bytes(self) -> float:
        """Capacity left; negative when it does not fit [byte]."""
        return self.capacity_bytes - self.total_bytes


@dataclass(frozen=True, kw_only=True)
class Report(Printed):
    """The answer to `predict`: one plan, explained."""

    model: Model
    cluster: Cluster
    workload: Workload
    plan: Plan
    step_time: Estimate  # s
    bound_s: float  # the same step in closed form: the least its simulation can be at the same prices
    tokens_per_s: float
    model_flop: float  # per step, whole job, without recompute
    hardware_flop: float  # per step, whole job, with recompute
    mfu: float
    hfu: float
    causal_mfu: float  # attention counted over the pairs that its mask leaves alone
    run_time_s: float | None  # whole run, when the workload names its tokens
    energy_j_per_step: float
    power_w: float  # mean, whole cluster at the wall
    power_range: tuple[float, float]  # its 80 % interval over its value [1]
    usd_per_step: float | None
    carbon_kg_per_step: float | None
    memory: tuple[StageMemory, ...]
    shares: tuple[Share, ...]  # add up to step_time.value
    limit: str  # one line: what limits this plan
    ops: tuple[OpRow, ...]
    assumptions: tuple[str, ...]
    sources: tuple[str, ...]
    evidence: Mapping[str, Evidence]  # by mechanism: 'matrix rate', 'memory rate', 'links', ...
    known: tuple[Known, ...] = ()  # each mechanism's rung, with the share of the step that hangs on it
    what_if: tuple[Sensitivity, ...] = ()  # of the step time
    goodput: Goodput | None = None  # of a run under failures, where a technique says how its states are saved
    idle_why: str = ""  # why whole nodes are left idle, where a search chose so
    tasks: TaskGraph | None = field(default=None, repr=False)
    timeline: Timeline | None = field(default=None, repr=False)

    def goodput_text(self) -> str:
        """A run under failures in words; '' where no technique says how its states are saved."""

        return "" if self.goodput is None else goodput_text(self.goodput, self)

    @property
    def sample_tokens(self) -> int | None:
        """Tokens that a sample of the network counts [token]; None of language models, which count tokens."""
        tokens = self.model.dims.get(SAMPLE)
        return tokens if isinstance(tokens, int) else None

    @property
    def counts(self) -> str:
        """What the throughput counts: tokens, or samples of a network of images, speech or categories."""
        return "tokens" if self.sample_tokens is None else "samples"

    @property
    def counts_per_s(self) -> float:
        """Throughput in these [1/s]."""
        return self.tokens_per_s / (self.sample_tokens or 1)

    @property
    def idle_devices(self) -> int:
        """Devices of the cluster that the plan leaves without work [1]."""
        return self.cluster.count - self.plan.devices

    @property
    def fits(self) -> bool:
        """Whether every stage fits in its device's memory."""
        return all(stage.headroom_bytes >= 0 for stage in self.memory)

    def blocks(self) -> list[Block]:
        """What `ridgeline predict` prints."""
        from ridgeline.report.text import report_blocks

        return report_blocks(self)


@dataclass(frozen=True, kw_only=True)
class Infeasible:
    """Plans refused for one reason, and the nearest change that would make one legal."""

    reason: str
    plans: int
    nearest: str


@dataclass(frozen=True, kw_only=True)
class FrameworkRun:
    """The quickest plan of a search that a training framework runs, and why it does not run the quickest of all.

    `slowdown` is its step over the quickest plan's at the same prices, less 1 [1]: an upper bound where `at_most`;
    None where it runs no plan that fits.
    """

    name: str
    plan: Plan | None
    slowdown: float | None
    at_most: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class SearchReport(Printed):
    """The answer to `plan`: the best plans, and how far they can be from the best possible."""

    best: tuple[Report, ...]
    covered: int  # plans of the grid
    legal: int  # that keep every rule
    feasible: int  # that also fit in memory
    simulated: int
    pruned_by_bound: int
    infeasible: tuple[Infeasible, ...]
    bound_gap: float  # (best - lowest bound not simulated) / best, 0 when none can have less at the same prices
    seconds: float
    frameworks: tuple[FrameworkRun, ...] = ()  # of each, where the search was for none
    aim: str = "time"  # what the plans are ranked by
    aimed: str = ""  # of another aim: what it takes less of, and what that costs in time

    def blocks(self) -> list[Block]:
        """What `ridgeline plan` prints."""
        from ridgeline.report.search_text import search_blocks

        return search_blocks(self)


def goodput_text(found: Goodput, report: Report) -> str:
    """A run under failures: what is left of its time, how often it fails and saves, what was assumed."""
    run = ""
    if report.run_time_s is not None:
        run = (
            f"; whole run {time_text(found.run_low_s)} to {time_text(found.run_high_s)},"
            f" without failures {time_text(report.run_time_s)}"
        )
    told = f"; assumed: {'; '.join(found.assumed)}" if found.assumed else ""
    return (
        f"goodput {found.goodput:.1%}: one in {time_text(found.mtbf_s)}, a save of {bytes_text(found.checkpoint_bytes)}"
        f" every {time_text(found.interval_s)} stops {time_text(found.save.stops_s)}, back after"
        f" {time_text(found.restart_s)}{run}{told}"
    )
